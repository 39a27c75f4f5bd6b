"""SLURM's words, answers and array notation in orch's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launch.slurm import scheduler
from orchestrator.launch.slurm.scheduler import ArrayElement, indices


@pytest.mark.parametrize(
    ("word", "code", "log", "state", "failure"),
    [
        ("CANCELLED", "0:0", "", "cancelled", ""),
        ("TIMEOUT", "0:15", "", "timed_out", ""),
        ("PREEMPTED", "0:0", "", "preempted", ""),
        ("NODE_FAIL", "0:0", "", "preempted", "node"),
        ("BOOT_FAIL", "0:0", "", "preempted", "node"),
        ("OUT_OF_MEMORY", "0:125", "", "failed", "out_of_memory"),
        (
            "FAILED",
            "0:9",
            "slurmstepd: error: Exceeded job memory limit",
            "failed",
            "out_of_memory",
        ),
        ("FAILED", "0:9", "", "failed", "lost"),
        ("COMPLETED", "0:0", "", "failed", "lost"),
    ],
)
def test_an_end_without_a_last_word(
    word: str, code: str, log: str, state: str, failure: str
) -> None:
    ended = scheduler.ending_of(ArrayElement(word, code, "n1", "", 10, 20), log, now=1000)
    assert ended is not None
    assert (ended.state, ended.failure) == (state, failure)
    assert ended.host == "n1"


@pytest.mark.parametrize("word", ["COMPLETED", "NODE_FAIL", "PREEMPTED"])
def test_a_job_that_ended_just_now_may_still_be_heard_or_come_back(word: str) -> None:
    assert scheduler.ending_of(ArrayElement(word, "0:0", "n1", "", 10, 990), "", now=1000) is None


@pytest.mark.parametrize(
    ("word", "state"),
    [
        *((word, "running") for word in sorted(scheduler.AT_WORK)),
        *((word, "pending") for word in ("PENDING", "CONFIGURING", "REQUEUE_HOLD", "RESIZING")),
        *((word, "pending") for word in ("EXPEDITING", "POWERING_UP", "OF_A_LATER_RELEASE")),
    ],
)
def test_what_is_not_over(word: str, state: str) -> None:
    """A word that orch does not know is no end: the job would be taken for lost."""
    assert not scheduler.is_over(word)
    assert scheduler.state_of(ArrayElement(word)) == state


@given(st.sets(st.integers(0, 400), min_size=1), st.integers(1, 9))
def test_array_notation_is_read_back(members: set[int], throttle: int) -> None:
    ordered = sorted(members)
    parts: list[str] = []
    start = previous = ordered[0]
    for value in [*ordered[1:], 10**6]:
        if value != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = value
        previous = value
    assert indices(f"[{','.join(parts)}%{throttle}]") == ordered


def test_other_notations() -> None:
    assert indices("7") == [7]
    assert indices("[0-8:4,10]") == [0, 4, 8, 10]
    assert indices("[0-3,7,...]") == [0, 1, 2, 3, 7], "a list that SLURM cut off"
    assert indices("") == []
