"""Fencing, without a cluster: what an attempt may do when there is another."""

import json
import os
import time
from collections.abc import Callable

import pytest

from orchestrator.launch.slurm import lease
from orchestrator.launch.slurm.lease import Lease, open_attempt, wait_for_earlier_attempts
from orchestrator.records import Cell
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from tests.launch.kit import ended


@pytest.fixture
def cell_dir(folder: RunFolder, cell: Callable[..., Cell]) -> CellDir:
    folder.open()
    made = folder.cell(cell())
    made.make(cell())
    return made


def reserve(cell_dir: CellDir, submission: str) -> AttemptDir:
    return cell_dir.reserve(json.dumps({"submission": submission, "index": 0}))


def test_only_the_submission_of_the_last_attempt_may_start(cell_dir: CellDir) -> None:
    first = reserve(cell_dir, "one")
    assert open_attempt(cell_dir, "one", first.number) == first
    assert reserve(cell_dir, "two") == first, "it never started, and is taken over"
    assert open_attempt(cell_dir, "one", first.number) is None
    assert open_attempt(cell_dir, "two", first.number) == first


def test_a_job_that_slurm_starts_again_gets_a_new_attempt(cell_dir: CellDir) -> None:
    first = reserve(cell_dir, "one")
    first.job.write_text("{}")
    second = open_attempt(cell_dir, "one", first.number)
    assert second is not None
    assert second.number == 2
    assert second.read_order() == first.read_order()


def test_also_where_the_first_was_stopped_before_it_said_who_it_is(cell_dir: CellDir) -> None:
    first = reserve(cell_dir, "one")
    first.write_exit(ended("preempted"))
    second = open_attempt(cell_dir, "one", first.number)
    assert second is not None
    assert second.number == 2


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_but_not_after_a_last_word(cell_dir: CellDir, state: str) -> None:
    first = reserve(cell_dir, "one")
    first.job.write_text("{}")
    first.write_exit(ended(state))
    assert open_attempt(cell_dir, "one", first.number) is None
    assert len(cell_dir.attempts()) == 1


def test_a_cancelled_cell_does_not_start(cell_dir: CellDir) -> None:
    first = reserve(cell_dir, "one")
    cell_dir.open_attempt().write_exit(ended("cancelled"))
    assert open_attempt(cell_dir, "one", first.number) is None


def test_the_newer_attempt_waits_while_the_older_one_beats(
    cell_dir: CellDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.8)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.2)
    first = reserve(cell_dir, "one")
    first.job.write_text("{}")
    first.heartbeat.touch()
    second = open_attempt(cell_dir, "one", 1)
    assert second is not None
    began = time.monotonic()
    wait_for_earlier_attempts(cell_dir, second)
    assert time.monotonic() - began >= 0.7, "the other could still have been writing"
    first.heartbeat.touch()
    first.write_exit(ended("preempted"))
    began = time.monotonic()
    wait_for_earlier_attempts(cell_dir, second)
    assert time.monotonic() - began < 0.5, "its last word is enough"


def test_a_zombie_is_told_to_end(cell_dir: CellDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *of: killed.append(of))
    mine = reserve(cell_dir, "one")
    mine.job.write_text("{}")
    with Lease(cell_dir, mine, lambda: None).held() as held:
        time.sleep(0.3)
        assert not killed
        open_attempt(cell_dir, "one", 1)
        deadline = time.monotonic() + 10
        while not killed:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert held.lost
    assert killed[0][0] == os.getpid()
