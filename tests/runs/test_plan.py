"""Every reason a cell can have, and that planning changes nothing."""

import pytest

from orchestrator.errors import RunFolderError
from orchestrator.rundir import RunFolder
from orchestrator.runs.plan import plan
from tests.launch.kit import ended, leave, make_cell, move_in


def only(cells: list, folder: RunFolder):
    (row,) = plan(cells, folder).rows
    return row


def test_a_cell_that_is_nowhere_is_new(folder: RunFolder) -> None:
    made = plan([make_cell(0), make_cell(1)], folder)
    assert [(r.reason, r.state, r.pending) for r in made.rows] == [("new", "planned", True)] * 2
    assert made.counts() == {"new": 2}
    assert not folder.path.exists(), "planning writes nothing"


@pytest.mark.parametrize(
    ("state", "reason", "detail", "pending"),
    [
        ("succeeded", "unchanged", "stable", False),
        ("failed", "failed", "error: ValueError: boom", False),
        ("cancelled", "cancelled", "waits for `orch retry`", False),
        ("timed_out", "interrupted", "starts again: it has no checkpoint yet", True),
    ],
)
def test_how_the_last_attempt_ended_is_the_reason(
    state: str,
    reason: str,
    detail: str,
    pending: bool,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    move_in(monkeypatch)
    cell = make_cell()
    leave(
        folder, cell, ended("failed"), ended(state, failure="error", message="ValueError: boom\n")
    )
    row = only([cell], folder)
    assert (row.state, row.reason, row.detail, row.pending) == (state, reason, detail, pending)
    assert row.attempts == 2
    assert bool(plan([cell], folder).pending) is pending


def test_a_killed_cell_goes_on_from_its_last_checkpoint(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_in(monkeypatch)
    cell = make_cell(steps=9)
    cell_dir = leave(folder, cell, None)
    cell_dir.checkpoints.mkdir()
    (cell_dir.checkpoints / "units").write_text("1\n2\n3\n4\n")
    row = only([cell], folder)
    assert (row.state, row.reason) == ("preempted", "interrupted")
    assert row.detail == "goes on from step 4 of 9"


def test_an_attempt_that_was_made_and_never_started_waits_to_run(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell(), ended("failed"))
    fresh = cell_dir.new_attempt()
    assert only([make_cell()], folder).state == "planned"
    assert cell_dir.open_attempt() == fresh, "and the next start takes it"


def test_a_claimed_cell_is_running_and_not_pending(folder: RunFolder) -> None:
    cell = make_cell()
    with leave(folder, cell, None).take_claim() as claim:
        assert claim is not None
        row = only([cell], folder)
        assert (row.state, row.reason, row.pending) == ("running", "running", False)


def test_changed_fields_are_named_old_and_new(folder: RunFolder) -> None:
    old = make_cell(learning_rate=1e-3)
    new = make_cell(learning_rate=2e-3, steps=6)
    leave(folder, old, ended())
    changed, orphan = plan([new], folder).rows
    assert changed.reason == "changed"
    assert changed.pending
    assert changed.detail == "num_train_steps: 3 -> 6; optimizer.learning_rate: 0.001 -> 0.002"
    assert (orphan.reason, orphan.detail) == ("orphan", f"replaced by {new.id}")
    assert (orphan.cell, orphan.state, orphan.directory.id) == (None, "succeeded", old.id)


def test_the_same_slug_in_another_study_is_another_cell(folder: RunFolder) -> None:
    leave(folder, make_cell(), ended())
    new, orphan = plan([make_cell(learning_rate=2e-3, studies=("other",))], folder).rows
    assert (new.reason, new.detail) == ("new", "")
    assert orphan.detail == "no longer in the spec"


def test_orphans_follow_the_cells_and_do_not_make_the_plan_pending(folder: RunFolder) -> None:
    kept, gone = make_cell(0), make_cell(1)
    for cell in (kept, gone):
        leave(folder, cell, ended())
    made = plan([kept], folder)
    assert [row.reason for row in made.rows] == ["unchanged", "orphan"]
    assert [row.directory.id for row in made.orphans] == [gone.id]
    assert not made.pending


def test_an_earlier_version_whose_cell_is_cut_is_an_orphan_and_nothing_more(
    folder: RunFolder,
) -> None:
    cell_dir = leave(folder, make_cell(), ended())
    cell_dir.cell.write_text(cell_dir.cell.read_text()[:100])
    made = plan([make_cell(learning_rate=2e-3)], folder)
    assert [row.reason for row in made.rows] == ["new", "orphan"]


def test_an_exit_record_that_cannot_be_read_is_told_and_the_rest_planned(
    folder: RunFolder,
) -> None:
    bad, good = make_cell(0), make_cell(1)
    (attempt,) = leave(folder, bad, ended()).attempts()
    attempt.exit.write_bytes(b"\x00\xff{")
    made = plan([bad, good], folder)
    assert [row.reason for row in made.rows] == ["unreadable", "new"]
    assert made.faults == (
        f"{attempt.exit} is not a JSON object (cut or overwritten?); restore or remove it",
    )
    assert len(made.pending) == 1


def test_a_foreign_folder_is_refused(folder: RunFolder) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match=r"is not orch's: it has no format.json, but 'thesis"):
        plan([make_cell()], folder)
