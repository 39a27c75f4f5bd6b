"""The table of fields: nothing outside of it is launched, and each release has what it sends."""

from pathlib import Path

import pytest

import backends.openrlhf
from backends.openrlhf.flags import FLAT_NAMES, VERSIONS
from orchestrator.evidence import stored
from orchestrator.library.key_tables import load_options, load_tables

FOLDER = Path(backends.openrlhf.__file__).parent


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_accepted_was_measured_to_be_the_fields_weight(version: str) -> None:
    """Ratios of tokens, truncated and masked: the library's own loss has the cell's weight."""
    measured = stored.read("openrlhf", version)
    assert measured is not None
    for each in measured["corrections"]["cells"]:
        has = each["kind"] in ("tis_token", "mis_token")
        assert each.get("agrees") if has else each["refused"] == "loss.correction.kind", each


def test_the_names_of_all_releases_agree_with_those_of_the_two_that_are_driven() -> None:
    """keys.json has the flags of every release, for audits; options.json all facts of two."""
    named = load_tables(FOLDER / "audit" / "keys.json")
    for version, options in load_options(FOLDER / "options.json").items():
        if version in named.versions:
            assert named.facts_of(version).keys() == options.keys(), version
    assert len(set(FLAT_NAMES.values())) == len([x for x in FLAT_NAMES.values() if x]) + 1
