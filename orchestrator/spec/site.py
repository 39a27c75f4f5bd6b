"""A site file by itself: an entry of the group site/, read without a spec."""

from pathlib import Path

from pydantic import ValidationError

from orchestrator.errors import Fault, SpecError
from orchestrator.records import Site
from orchestrator.spec.sentences import sentence
from orchestrator.spec.yaml_file import read


def read_site(path: Path) -> Site:
    """Return the site that a file describes. Raise SpecError with every fault."""
    faults: list[Fault] = []
    document = read(path, faults)
    site = None
    if document is not None:
        try:
            site = Site.model_validate(document.data)
        except ValidationError as error:
            for each in error.errors():
                message = sentence(each, ".".join(map(str, each["loc"])), tuple(Site.model_fields))
                faults.append(document.fault(message, each["loc"]))
    if faults or site is None:
        raise SpecError(str(path), faults)
    return site
