"""The facts kept of each release (`options.json`) are what the library itself says."""

import pytest

from lab.adopt import keys
from lab.adopt.adoption import DESCRIBE
from lab.libraries import folder, part
from orchestrator import plugins
from orchestrator.library.key_tables import load_options
from tests.backends.asked import python_of

LIBRARIES = [name for name in plugins.names() if part(name, "adoption")]
RELEASES = [(name, version) for name in LIBRARIES for version in plugins.load(name).versions]


@pytest.mark.thorough  # in a library's environment
@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_what_is_kept_of_a_release_is_what_it_says(library: str, version: str) -> None:
    told = keys.options_of(python_of(library, version), folder(library) / DESCRIBE)
    kept = load_options(plugins.folder(library) / "options.json")
    assert kept[version] == told, f"python -m lab adopt {library}@{version}"
