"""The run directory as a protocol: claims, attempts, identity, and folders that are not ours."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import RunFolderError
from orchestrator.files import (
    append_line,
    read_lines,
    write_changed_text,
    write_text,
)
from orchestrator.records import LaunchPlan
from orchestrator.rundir import CellDir, RunFolder
from tests.launch.kit import leave, make_cell


@pytest.mark.parametrize("before", [None, "", "a wörd", "a wörd\n"])
def test_a_text_that_is_there_is_not_written_again(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "a 'b' é" / "text"
    if before is not None:
        write_text(path, before)
    inode = path.stat().st_ino if before is not None else None
    write_changed_text(path, "a wörd\n")
    assert path.read_text() == "a wörd\n"
    assert (path.stat().st_ino == inode) == (before == "a wörd\n")
    assert [each.name for each in path.parent.iterdir()] == ["text"]


def test_a_folder_that_a_kill_left_half_made_is_ours(folder: RunFolder) -> None:
    folder.cells_path.mkdir(parents=True)
    (folder.path / ".format.json.123").write_text("{")
    folder.open()
    assert json.loads((folder.path / "format.json").read_text())["format"] == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a JSON object"),
        ("\x00\x01", "is not a JSON object"),
        ('{"format": "one"}', "does not say a format"),
        ('{"format": 2, "orch": "9.9"}', "written by orch 9.9; this orch"),
    ],
)
def test_a_marker_that_is_not_ours(text: str, sentence: str, folder: RunFolder) -> None:
    folder.open()
    (folder.path / "format.json").write_text(text)
    with pytest.raises(RunFolderError, match=sentence):
        folder.check()


def test_a_claim_belongs_to_one_process_and_ends_with_it(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell())
    code = (
        "import sys, pathlib; from orchestrator.rundir import CellDir\n"
        "claim = CellDir(pathlib.Path(sys.argv[1])).take_claim()\n"
        "print('held' if claim else 'refused', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(cell_dir.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    assert cell_dir.is_claimed()
    assert cell_dir.take_claim(patience_seconds=0) is None
    process.kill()
    process.communicate()
    assert not cell_dir.is_claimed()
    with cell_dir.take_claim() as claim:
        assert claim is not None


def test_looking_does_not_keep_a_worker_from_its_claim(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell())
    stop = threading.Event()

    def gaze() -> None:
        while not stop.is_set():
            cell_dir.is_claimed()

    gazers = [threading.Thread(target=gaze) for _ in range(2)]
    for gazer in gazers:
        gazer.start()
    try:
        for _ in range(20):
            with cell_dir.take_claim(patience_seconds=10) as claim:
                assert claim is not None
    finally:
        stop.set()
        for gazer in gazers:
            gazer.join()


def test_a_claim_on_a_directory_that_was_pruned_meanwhile_is_not_given(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell())
    with cell_dir.take_claim() as claim:
        assert claim is not None
        moved = cell_dir.path.rename(cell_dir.path.with_name(".removed"))
        assert not cell_dir._is_in_place(claim)
        with pytest.raises(FileNotFoundError):
            cell_dir.take_claim()
    assert moved.exists()


def test_concurrent_attempts_differ(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell())
    made: list[int] = []
    threads = [
        threading.Thread(target=lambda: made.append(cell_dir.new_attempt().number))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(1, 17))


def test_half_made_and_half_removed_directories_are_no_cells(folder: RunFolder) -> None:
    leave(folder, make_cell())
    for name in (".new-x-1-1", ".removed-x-1-4194305"):
        (folder.cells_path / name).mkdir()
    assert len(folder.cells()) == 1


def test_a_plan_writes_only_below_its_folder(folder: RunFolder) -> None:
    cell = make_cell()
    cell_dir = leave(folder, cell)
    plan = LaunchPlan(
        cell_id=cell.id, backend="fake", version="1", argv=(), files={"../../evil": "x"}
    )
    with pytest.raises(RunFolderError, match="may only write below"):
        cell_dir.write(cell, plan)


def test_a_cut_cell_is_told_with_its_path(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell())
    cell_dir.cell.write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"cell.json is not a JSON object \(cut"):
        cell_dir.read_cell()
    cell_dir.cell.unlink()
    with pytest.raises(RunFolderError, match=r"cell.json is missing; remove"):
        CellDir(cell_dir.path).read_cell()


@given(
    lines=st.lists(st.dictionaries(st.text(), st.integers(), max_size=3), max_size=5),
    cut=st.integers(min_value=0, max_value=40),
)
@settings(deadline=None)
def test_a_ledger_torn_anywhere_loses_its_last_line_at_most(
    lines: list[dict[str, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    for line in lines:
        append_line(path, json.dumps(line))
    if not lines:
        return
    torn = json.dumps({"torn": "x" * 50})
    with path.open("a") as file:
        file.write(torn[: min(cut, len(torn) - 1)])
    append_line(path, '{"after": 1}')
    assert list(read_lines(path)) == [*lines, {"after": 1}]


def test_a_torn_line_is_told_where_somebody_asks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n[1]\n{"step"')
    faults: list[str] = []
    assert list(read_lines(path, faults)) == [{"step": 1}]
    assert [fault.partition("jsonl ")[2][:6] for fault in faults] == ["line 2", "line 3"]


def test_a_write_replaces_the_whole_file_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


PROGRAM = """
import sys
from pathlib import Path
from backends.micro.disk import Journal
from orchestrator.files import append_line, write_text
root = Path(sys.argv[1])
write_text(root / "folder" / "a.json", "{}")
append_line(root / "folder" / "ledger.jsonl", "{}")
Journal(root / "attempt")
"""


@pytest.mark.parametrize(
    ("umask", "file", "folder"),
    [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775), (0o027, 0o640, 0o750)],
)
def test_modes_are_what_the_umask_leaves(
    tmp_path: Path, umask: int, file: int, folder: int
) -> None:
    """Files that are appended to were never the group's to write: 0644 whatever the umask."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert len(modes) == 5
    for path, mode in modes.items():
        assert mode == (folder if path.is_dir() else file), path
