"""SLURM's states in orch's words. Pure.

A word that says the end is believed only when the queue does not list the job: a job that is
requeued after NODE_FAIL or PREEMPTED keeps its id.
"""

import re
import time

from orchestrator.launch.slurm.scheduler import Element
from orchestrator.types import ExitRecord, State

WAITING = frozenset({
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
    "RESV_DEL_HOLD", "RESIZING",
})  # fmt: skip
AT_WORK = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED"})

LATE_SECONDS = 60.0
"""How long after a job's end its last words may take to appear on a shared file system, and how
long a job that was stopped may be on its way back into the queue, where nobody lists it."""
FULL = 28
"""Exit code of a job that could not even write down that the disk is full (errno ENOSPC)."""
UNSEEN = 66
"""Exit code of a job whose node does not see the runs folder (EX_NOINPUT of sysexits.h). Where the
node cannot open the job's output either, SLURM itself ends it, with 0:53 (22.05)."""
STOPPED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})

_MEMORY = re.compile(r"exceeded .*memory limit|oom.kill|out of memory", re.IGNORECASE)
"""Without cgroups SLURM says FAILED of a job that it killed for its memory, and this in its log."""


def is_over(word: str) -> bool:
    return word not in WAITING | AT_WORK


def state_of(element: Element) -> State:
    """pending or running for a job that has not ended."""
    return "pending" if element.word in WAITING else "running"


def ending_of(element: Element, log: str, now: float | None = None) -> ExitRecord | None:
    """How a job ended whose worker has not written it; None while it still may.

    log: the last words of the job itself, outside of any attempt.
    """
    now = time.time() if now is None else now
    ended = element.ended or now
    if element.word in {"COMPLETED", *STOPPED} and now - ended < LATE_SECONDS:
        return None
    state, failure, message = _meaning(element)
    if failure == "lost" and _MEMORY.search(log):
        failure = "out_of_memory"
    return ExitRecord(
        state=state, failure=failure, message=f"{message}\n{log}".strip(),
        code=_code(element.code), started=min(element.started or ended, ended), ended=ended,
        host=element.node,
    )  # fmt: skip


def withdrawn(job: str, index: int) -> tuple[State, ExitRecord, str]:
    """Of an element that is nowhere while its array is known, and that never started: SLURM keeps
    no record of an element that was cancelled alone while it waited."""
    now = time.time()
    message = f"cancelled in the scheduler (scancel {job}_{index}) before it started"
    return "cancelled", ExitRecord(state="cancelled", message=message, started=now, ended=now), ""


def forgotten(job: str, index: int) -> tuple[State, ExitRecord, str]:
    """Of a job that neither queue nor accounting knows, though both answer and had time to learn
    of it: a controller that crashed has forgotten it. Should it start after all, it finds its
    cell taken over."""
    now = time.time()
    message = (
        f"the scheduler has forgotten job {job}_{index}: neither the queue nor accounting knows it"
    )
    return "failed", ExitRecord(
        state="failed", failure="lost", message=message, started=now, ended=now
    ), ""  # fmt: skip


def _meaning(element: Element) -> tuple[State, str, str]:
    node = element.node or "its node"
    match element.word:
        case "CANCELLED":
            return "cancelled", "", "cancelled in the scheduler (scancel)"
        case "TIMEOUT" | "DEADLINE":
            return "timed_out", "", "the time limit came before it could be put back into the queue"
        case "PREEMPTED":
            return "preempted", "", "preempted, and not put back into the queue"
        case "NODE_FAIL" | "BOOT_FAIL":
            return "preempted", "node", f"{node} failed"
        case "OUT_OF_MEMORY":
            return "failed", "out_of_memory", "the job used more memory than it may"
        case "FAILED" if element.code == f"{FULL}:0":
            return "failed", "disk", (
                "there was no room left to write to in the runs folder; free some, then `orch "
                "retry` and run: it goes on from its last checkpoint")  # fmt: skip
        case "FAILED" if element.code in (f"{UNSEEN}:0", "0:53"):
            return "failed", "node", (
                f"{node} does not see the runs folder (site.runs_dir), so it is tried on another: "
                "that folder must lie on a file system that every node sees")  # fmt: skip
        case "FAILED" if element.code in ("126:0", "127:0"):
            return "failed", "node", (
                f"{node} cannot start orch's Python (site.options.python): it must lie where every "
                "node sees it")  # fmt: skip
        case "COMPLETED":
            return "failed", "lost", (
                f"the job ended on {node} and left no exit.json: its run directory was removed, or "
                "is not on a file system that the nodes share")  # fmt: skip
    return (
        "failed",
        "lost",
        f"killed on {node} (SLURM says {element.word} {element.code}".rstrip() + ")",
    )


def _code(told: str) -> int | None:
    """`3:0` is exit code 3, `0:9` signal 9."""
    code, _, number = told.partition(":")
    if number.isdigit() and int(number):
        return -int(number)
    return int(code) if code.isdigit() else None
