"""The index of ended cells says what the folders say, whatever happens to either."""

import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.pipeline import training
from orchestrator.records import Cell
from orchestrator.rundir import CellDir, CellState, RunFolder
from orchestrator.runs import state
from orchestrator.runs.collect import collect
from orchestrator.runs.plan import plan
from orchestrator.runs.state import read_state, survey
from orchestrator.settings import BackendRef
from tests.launch.kit import ended as exit_record
from tests.launch.kit import leave, make_cell

STATES = ("succeeded", "failed", "cancelled", "preempted", "timed_out")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    # Below 0: some machines' files are a moment younger than their clock.
    monkeypatch.setattr(state, "_SETTLED_NS", -1_000_000_000)
    return RunFolder(tmp_path / "a 'b\" $c\nβ" / "runs" / "test")


def filled(folder: RunFolder, count: int) -> list[Cell]:
    cells = [make_cell(seed) for seed in range(count)]
    for seed, cell in enumerate(cells):
        leave(folder, cell, exit_record(STATES[seed % 5], message="a\ttab\nand β"))
    return cells


def plainly(folder: RunFolder) -> list[tuple[CellDir, CellState]]:
    """What the folders alone say."""
    return [(cell_dir, cell_dir.state()) for cell_dir in folder.cells()]


def anew() -> None:
    """As another process."""
    state.index_of.cache_clear()


def test_an_ended_cell_is_opened_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(folder, 10)
    assert survey(folder) == plainly(folder)
    anew()
    opened: list[str] = []
    real = CellDir.state

    def counted(self: CellDir, **more: Any) -> CellState:
        opened.append(self.path.name)
        return real(self, **more)

    monkeypatch.setattr(CellDir, "state", counted)
    states = survey(folder)
    assert len(opened) == 4, "those that were stopped may have gone on"
    monkeypatch.undo()
    assert states == plainly(folder)


def test_collecting_writes_and_uses_the_index(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro = BackendRef(name="micro")
    cells = [c.but(settings=c.settings.but(backend=micro)) for c in filled(folder, 10)]
    folder.open()
    before = [record.state for record in collect(cells, folder)]
    anew()
    opened: list[str] = []
    real = CellDir.state

    def counted(self: CellDir, **more: Any) -> CellState:
        opened.append(self.path.name)
        return real(self, **more)

    monkeypatch.setattr(CellDir, "state", counted)
    assert [record.state for record in collect(cells, folder)] == before
    assert len(opened) == 4, "those that were stopped may have gone on"


def test_running_again_opens_no_ended_cell(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [make_cell(seed) for seed in range(6)]
    for seed, cell in enumerate(cells):
        leave(folder, cell, exit_record(("succeeded", "failed", "cancelled")[seed % 3]))
    planned = plan(cells, folder)  # writes the index
    monkeypatch.setattr(training, "keep_spec", lambda _: None)
    spec = SimpleNamespace(
        site=SimpleNamespace(workers=1, options={}), source="spec.yaml", name="test"
    )
    experiment: Any = SimpleNamespace(folder=folder, spec=spec, cells=cells)
    opened: list[str] = []
    monkeypatch.setattr(CellDir, "state", lambda self, **_: opened.append(self.path.name))
    assert training.on_this_machine(experiment, planned) == 1
    assert opened == []
    printed = capsys.readouterr().err
    assert "2 cells failed" in printed
    assert "2 cells" in printed.partition("cancelled")[2]


def test_whatever_happens_the_index_says_what_the_folders_say(folder: RunFolder) -> None:
    cells = filled(folder, 12)
    chance = random.Random(1)  # noqa: S311  (no secret)

    def retry(cell_dir: CellDir) -> None:
        cell_dir.new_attempt().job.write_text('{"pid": 1, "birth": "long ago", "host": "x"}')

    def end(cell_dir: CellDir) -> None:
        attempt = cell_dir.attempts()[-1]
        if not attempt.exit.exists():
            attempt.write_exit(exit_record(chance.choice(STATES)))

    def forget_exit(cell_dir: CellDir) -> None:
        cell_dir.attempts()[-1].exit.unlink(missing_ok=True)

    def prune(cell_dir: CellDir) -> None:
        shutil.rmtree(cell_dir.path)
        leave(folder, next(c for c in cells if c.id == cell_dir.id), exit_record("failed"))

    def lose_index(_cell_dir: CellDir) -> None:
        shutil.rmtree(folder.path / "index", ignore_errors=True)

    def tear(_cell_dir: CellDir) -> None:
        for path in (folder.path / "index").glob("*.tsv"):
            os.truncate(path, chance.randrange(path.stat().st_size + 1))

    for _ in range(120):
        happens = chance.choice((retry, end, forget_exit, prune, lose_index, tear))
        happens(folder.cell(chance.choice(cells)))
        if chance.random() < 0.5:
            anew()
        assert survey(folder) == plainly(folder), happens.__name__


def test_an_end_of_this_moment_is_not_kept_yet(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may give two changes within its clock's tick one time."""
    monkeypatch.setattr(state, "_SETTLED_NS", 10**12)
    filled(folder, 1)
    survey(folder)
    assert not (folder.path / "index").exists()


def test_many_files_become_one(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_FILES", 3)
    cells = filled(folder, 10)
    for number, cell in enumerate(cells[:3] + cells[5:8]):
        monkeypatch.setattr(os, "getpid", lambda number=number: 10_000 + number)
        anew()
        read_state(folder.cell(cell))
        state.index_of(folder.path).flush()
    files = list((folder.path / "index").glob("*.tsv"))
    assert len(files) <= 3
    anew()
    index = state.index_of(folder.path)
    assert all(index.state_of(folder.cell(cell)) for cell in cells[:3] + cells[5:8])


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(folder: RunFolder) -> None:
    filled(folder, 3)
    (folder.path / "index").write_text("a file where the folder should be")
    assert survey(folder) == plainly(folder)
