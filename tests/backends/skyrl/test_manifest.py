"""The table of fields: nothing outside of it is launched, and each release has what it sends."""

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.manifest import CUTS, FIXED, VERSIONS, tables
from orchestrator.evidence import stored
from tests.backends.skyrl.cells import PLACE, asynchronous, onpolicy


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_accepted_was_measured_to_be_the_fields_weight(version: str) -> None:
    """Every correction with an upper bound: the library's own loss has the cell's weight."""
    measured = stored.read("skyrl", version)
    assert measured is not None
    cells = measured["corrections"]["cells"]
    assert {each["kind"] for each in cells if each.get("agrees")} == set(CUTS)
    for each in cells:
        assert each.get("agrees") or each["refused"] == "loss.correction.least", each


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_launch_says_is_of_the_release(version: str) -> None:
    table = tables()[version]
    assert not [why for key, value in FIXED.items() if (why := table.objection(key, value))]


def test_values_of_orch_s_own_are_never_called_exact() -> None:
    for cell in (onpolicy(), asynchronous()):
        for entry in BACKEND.translate(cell, PLACE).ledger:
            assert "orch." not in entry.key or entry.status != "exact", entry
