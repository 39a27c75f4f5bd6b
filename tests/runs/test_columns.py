"""The metrics of ended cells, kept as columns: the same records, and never stale ones."""

import json
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import Cell, ExitRecord, Record
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs import columns
from orchestrator.runs.collect import collect
from orchestrator.settings import BackendRef


@pytest.fixture(autouse=True)
def _keeps_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "WORTH_KEEPING", 1)
    monkeypatch.setattr(columns, "SETTLED_NS", 0)


def again(cells: list[Cell], folder: RunFolder) -> list[Record]:
    """Collect as another process does: it knows what is on disk."""
    columns.columns_in.cache_clear()
    return collect(cells, folder)


def files(folder: RunFolder) -> list[Path]:
    return sorted((folder.path / "columns").glob("*.parquet"))


def shown(records: list[Record]) -> list[object]:
    """All of the records; NaN is not equal to itself, and a mapping has no order."""
    return [
        (
            replace(record, metrics=()),
            [(p.step, p.time, sorted(map(repr, p.values.items()))) for p in record.metrics],
        )
        for record in records
    ]


def end(folder: RunFolder, cell: Cell, lines: list[dict[str, Any]]) -> AttemptDir:
    """One more attempt of a cell, which logged these lines and ended well."""
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    attempt = cell_dir.new_attempt()
    attempt.job.write_text("{}")
    attempt.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempt.write_exit(ExitRecord(state="succeeded", started=1.0, ended=2.0))
    return attempt


NAMES = {"a": "train/entropy", "b": "train/reward_mean", "c": "eval/kl_reverse"}


def line(step: int, **values: float) -> dict[str, Any]:
    named = {NAMES[letter]: value for letter, value in values.items()}
    return {"step": step, "time": 1e9 + step / 8, "values": named}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    opened = RunFolder.of(tmp_path / "runs", "x", "micro")
    opened.open()
    return opened


@pytest.fixture
def ended(folder: RunFolder, synthetic: Any) -> list[Cell]:
    """Three cells: with a metric at some steps, with numbers that are none, with nothing."""
    cells = []
    for record in synthetic.grid({"k1.reward": [0.1, 0.2, 0.3]}).records:
        settings = record.cell.settings.model_copy(update={"backend": BackendRef(name="micro")})
        cells.append(record.cell.model_copy(update={"settings": settings}))
    lines = [
        [line(0, a=1.0, b=2.0), line(1, b=0.1, a=1 / 3), line(2, a=1.0, b=2.0, c=5.0)],
        [line(3, a=math.nan), line(4, a=math.inf, c=-0.0), line(5, b=1e-320)],
        [],
    ]
    for one, of_one in zip(cells, lines, strict=True):
        end(folder, one, of_one)
    return cells


def test_records_are_those_of_the_logs(
    ended: list[Cell], folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = shown(again(ended, folder))
    assert len(files(folder)) == 1
    monkeypatch.setattr(columns.Columns, "keep", None)  # what is kept is not parsed
    assert shown(again(ended[:2], folder)) == parsed[:2]
    assert shown(again(ended[1::-1], folder)) == parsed[1::-1]


def test_what_changed_is_parsed_again(ended: list[Cell], folder: RunFolder) -> None:
    again(ended, folder)
    (attempt,) = folder.cell(ended[0]).attempts()
    text = attempt.metrics.read_text()
    before = attempt.metrics.stat()
    attempt.metrics.write_text(text.replace("5.0", "7.0"))
    os.utime(attempt.metrics, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert again(ended, folder)[0].metrics[2].values[NAMES["c"]] == 7.0
    end(folder, ended[0], [line(2, a=9.0)])  # one more attempt
    assert [point.values.get(NAMES["a"]) for point in again(ended, folder)[0].metrics] == [
        1,
        1 / 3,
        9,
    ]


def test_other_code_parses_again(
    ended: list[Cell], folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(ended, folder)
    monkeypatch.setattr(columns, "parsing_code", lambda _backend: "of another release")
    kept = []
    monkeypatch.setattr(columns.Columns, "keep", lambda *args: kept.append(args))
    again(ended, folder)
    assert len(kept) >= 2


@pytest.mark.parametrize("harm", ["removed", "cut", "another"])
def test_without_the_columns_nothing_is_lost(
    ended: list[Cell], folder: RunFolder, harm: str
) -> None:
    parsed = shown(again(ended, folder))
    (path,) = files(folder)
    if harm == "removed":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if harm == "cut" else b"PAR1 no such thing PAR1")
    assert shown(again(ended, folder)) == parsed
    assert shown(again(ended, folder)) == parsed


def test_a_cell_with_a_fault_names_it_each_time(ended: list[Cell], folder: RunFolder) -> None:
    (attempt,) = folder.cell(ended[0]).attempts()
    with attempt.metrics.open("a") as file:
        file.write('{"step": 9, "ti')
    first = again(ended, folder)[0].faults
    assert first
    assert again(ended, folder)[0].faults == first


def test_many_small_files_become_one(
    ended: list[Cell], folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_SMALL_FILES", 1)
    parsed = shown(again(ended[:2], folder))
    again(ended[:1], folder)
    for path in files(folder):
        path.unlink()
    for one in ended[:2]:
        again([one], folder)
    assert len(files(folder)) == 1
    monkeypatch.setattr(columns.Columns, "keep", None)
    assert shown(again(ended[:2], folder)) == parsed


def test_where_nothing_can_be_written_nothing_is_kept(ended: list[Cell], folder: RunFolder) -> None:
    (folder.path / "columns").write_text("a file in the way")
    assert shown(again(ended, folder)) == shown(again(ended, folder))


def test_columns_are_written_and_read_without_pandas(ended: list[Cell], folder: RunFolder) -> None:
    """Its import takes longer than reading the columns of hundreds of cells."""
    code = (
        "import pickle, sys\nfrom orchestrator.runs import columns\n"
        "columns.WORTH_KEEPING, columns.SETTLED_NS = 1, 0\n"
        "from orchestrator.runs.collect import collect\n"
        "folder, cells = pickle.loads(sys.stdin.buffer.read())\n"
        "for _ in range(2):\n"
        "    columns.columns_in.cache_clear()\n"
        "    assert [len(record.metrics) for record in collect(cells, folder)] == [3, 3, 0]\n"
        "assert 'pyarrow' in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps((folder, ended)), check=True)
    assert len(files(folder)) == 1
