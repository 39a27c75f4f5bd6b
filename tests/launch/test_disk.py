"""Disks that are full, limited or read-only: a sentence, exit code 1, and nothing lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.state import read_state
from tests.launch.kit import Orch, make_cell, units


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB, where we may mount one."""
    disk = tmp_path / "a small 'disk'"
    disk.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        subprocess.run(argv, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: S607  (wherever it is)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)  # noqa: S607  (wherever it is)


def check_it_goes_on(orch: Orch, cells: list[Cell], folder: RunFolder) -> None:
    summary = orch.run(cells, folder)
    assert summary["succeeded"] == len(cells)
    assert all(units(folder, c) == [1, 2, 3] for c in cells)


def test_a_disk_that_fills_up_while_training(orch: Orch, small: Path) -> None:
    folder = RunFolder(small / "runs" / "test")
    cells = [make_cell(0, "fill"), make_cell(1, "slow")]
    done = orch.ended(cells, folder)
    err = done.stderr
    assert done.returncode == 1
    assert "Traceback" not in err
    by_the_worker_that_fills_it = (
        "there is no room left to write to" in err
        and "the cell goes on from its last checkpoint" in err
    )
    by_one_that_finds_it_full = "the disk is full: free some room and run again" in err
    assert by_the_worker_that_fills_it or by_one_that_finds_it_full
    assert read_state(folder.cell(cells[0])).state == "preempted"
    remount(small, "size=40m")
    check_it_goes_on(orch, cells, folder)


def test_a_read_only_disk(orch: Orch, small: Path) -> None:
    folder = RunFolder(small / "runs" / "test")
    orch.run([make_cell(0)], folder)
    remount(small, "ro")
    assert orch.run([make_cell(0)], folder)["succeeded"] == 1, "what is there can be read"
    done = orch.ended([make_cell(0), make_cell(1)], folder)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "the file system is read-only: choose another folder (--runs-dir for runs)\n"
    )


def test_a_ledger_that_cannot_be_written_stops_everything(orch: Orch, folder: RunFolder) -> None:
    folder.open()
    folder.ledger.mkdir()
    done = orch.ended([make_cell(0)], folder)
    assert done.returncode == 1
    assert done.stderr.endswith("ledger.jsonl: it is a folder where a file should be; remove it\n")
    folder.ledger.rmdir()
    check_it_goes_on(orch, [make_cell(0)], folder)
