"""Read a launch of verl back as settings: its overrides over the release's defaults."""

import json
from collections.abc import Mapping, Sequence

from backends.verl.manifest import ASKED, DATA, MANIFEST, PROJECT
from backends.verl.overrides import read
from backends.verl.translate import MAIN
from orchestrator.errors import Fault, SpecError
from orchestrator.library.needs import read_back
from orchestrator.settings import Settings


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. Raise SpecError for one that makes no cell.

    Overrides come after `-m verl.trainer.main_ppo`, and the last one of a key counts. data.json
    holds the content of the training file.
    """
    try:
        given = dict(map(read, argv[list(argv).index(MAIN) + 1 :]))
    except ValueError as error:
        raise SpecError("launch of verl", [Fault(str(error))]) from None
    _, _, version = str(given.get(PROJECT, "")).partition("@")
    in_files = {name: json.loads(files[name]) for name in (DATA, ASKED) if name in files}
    return read_back(MANIFEST, {**given, **in_files}, version, files)
