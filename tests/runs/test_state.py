"""A cell's state is what its run directory says, and looking never changes it."""

from pathlib import Path

import pytest

from orchestrator.rundir import RunFolder
from orchestrator.runs.state import read_state
from tests.launch.kit import ended, leave, make_cell


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "test")


def contents(path: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("exits", [(), ("killed",), ("killed", "ended"), ("ended", "killed")])
def test_the_last_attempt_counts_and_looking_changes_nothing(
    exits: tuple[str, ...], folder: RunFolder
) -> None:
    records = [ended("failed") if e == "ended" else None for e in exits]
    cell_dir = leave(folder, make_cell(), *records)
    before = contents(folder.path)
    seen = read_state(cell_dir)
    expected = {(): "planned", "killed": "preempted", "ended": "failed"}
    assert seen.state == expected[exits[-1] if exits else ()]
    assert seen.attempts == len(exits)
    assert seen.exit == (records[-1] if records else None)
    assert contents(folder.path) == before


def test_a_claim_makes_a_started_cell_running_for_others_and_not_for_its_holder(
    folder: RunFolder,
) -> None:
    cell_dir = leave(folder, make_cell(), None)
    claim = cell_dir.take_claim()
    assert claim is not None
    assert read_state(cell_dir).state == "running"
    assert read_state(cell_dir, claimed=True).state == "preempted"
    claim.close()
    assert read_state(cell_dir).state == "preempted"


def test_an_attempt_that_was_made_and_never_started_waits_to_run(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell(), ended("failed"))
    fresh = cell_dir.new_attempt()
    assert read_state(cell_dir).state == "planned"
    assert cell_dir.open_attempt() == fresh, "and the next start takes it"


def test_what_cannot_be_read_is_unknown_with_a_reason(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell(), ended())
    (attempt,) = cell_dir.attempts()
    attempt.exit.write_text('{"state": "succeeded", "sta')
    seen = read_state(cell_dir)
    assert seen.state == "unknown"
    assert "exit.json is not a JSON object" in seen.fault
    attempt.exit.write_text('{"state": "levitating", "started": 1.0, "ended": 2.0}')
    assert "@ $.state. It was changed by hand" in read_state(cell_dir).fault
