"""The facts kept of each release (`options.json`) are what the library itself says."""

import pytest

from orchestrator import plugins
from orchestrator.library.key_tables import load_options
from tests.backends.release_facts import SCRIPTS, options_of, written

RELEASES = [(name, version) for name in SCRIPTS for version in plugins.load(name).versions]


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_what_is_kept_of_a_release_is_what_it_says(library: str, version: str) -> None:
    assert load_options(written(library))[version] == options_of(library, version), (
        f"python -m tests.backends.release_facts {library} writes it anew"
    )
