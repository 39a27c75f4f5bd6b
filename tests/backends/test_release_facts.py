"""The facts kept of each release (`options.json`) are what the library itself says."""

from collections.abc import Mapping

import pytest

from backends.openrlhf.lab import adoption as openrlhf
from backends.skyrl.lab import adoption as skyrl
from backends.trl.lab import adoption as trl
from backends.verl.lab import adoption as verl
from orchestrator import plugins
from orchestrator.lab.adopt import keys
from orchestrator.lab.adopt.adoption import DESCRIBE, Adoption, adoption_of
from orchestrator.lab.probes.defaults import PROBE, DefaultLaunches
from orchestrator.library.key_tables import load_options
from tests.backends.environments import contract_python, cpu_python

ADOPTIONS: Mapping[str, Adoption] = {
    "openrlhf": openrlhf,
    "skyrl": skyrl,
    "trl": trl,
    "verl": verl,
}
"""The libraries whose releases are adopted. mypy holds each module to the protocol here."""
WITH_DEFAULTS: Mapping[str, DefaultLaunches] = {"trl": trl}
"""Those of them whose default launches are measured, held to their protocol likewise."""
LIBRARIES = [name for name in plugins.names() if plugins.part(name, "lab.adoption")]
RELEASES = [(name, version) for name in LIBRARIES for version in plugins.load(name).versions]


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_what_is_kept_of_a_release_is_what_it_says(library: str, version: str) -> None:
    python = cpu_python if adoption_of(library).PARSER_IN == "cpu" else contract_python
    folder = plugins.folder(library)
    told = keys.options_of(python(library, version), folder / DESCRIBE)
    assert load_options(folder / "options.json")[version] == told, f"orch adopt {library}@{version}"


def test_mypy_compares_every_adoption_with_its_protocol() -> None:
    assert sorted(ADOPTIONS) == sorted(LIBRARIES)
    probed = [name for name in LIBRARIES if (plugins.folder(name) / PROBE).is_file()]
    assert sorted(WITH_DEFAULTS) == sorted(probed)
