"""SLURM's commands as functions, and its job states as orch's states.

Commands are argv lists with a deadline. SchedulerUnavailable means that the scheduler, or its
accounting, does not answer: nothing is known and orch asks again. SchedulerRefusal means that it
answered with an error.

A state that says a job has ended is believed only if the queue does not list the job. A job that is
requeued after NODE_FAIL or PREEMPTED keeps its id.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.launch import processes
from orchestrator.launch.slurm.messages import refusal_of
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import SchedulerReport

DEADLINE_SECONDS = 60.0
MAX_ARGUMENTS = 500
"""Job ids named in one command."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")


class SchedulerUnavailable(EnvironmentFault):
    """Raised if the scheduler, or its accounting, does not answer. The request may be correct."""


class SchedulerRefusal(EnvironmentFault):
    """Raised if the scheduler answers with a refusal. The message is its own."""


class ArrayElement(NamedTuple):
    """One element of an array, as squeue or sacct lists it."""

    word: str
    """SLURM's state, without what follows it (`CANCELLED by 0`)."""
    code: str = ""
    node: str = ""
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    submitted: float = 0.0
    """0 where the command does not say."""


NO_ELEMENT = -1
"""Index of an array whose last waiting elements were cancelled one by one: SLURM's records keep the
array, as cancelled, and no element."""
Answer = Mapping[tuple[str, int], ArrayElement]
"""(array's id, index) -> element."""


def call(argv: Sequence[str], cwd: Path | None = None) -> str:
    """Return the output of a command. Raise SchedulerUnavailable or SchedulerRefusal."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            cwd=cwd,
            check=False,
            stdin=subprocess.DEVNULL,
            errors="replace",
            # a killed orch must not leave an sbatch behind: `reconcile` would look before it ends
            preexec_fn=partial(processes.die_with, os.getpid()),
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )
    except FileNotFoundError as error:
        raise EnvironmentFault(
            f"{argv[0]} is not on PATH: this machine is no login node of a SLURM cluster. "
            "site=local rehearses here; `orch doctor` says more"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerUnavailable(
            f"{argv[0]} said nothing for {DEADLINE_SECONDS:.0f} s"
        ) from error
    if done.returncode == 0:
        return done.stdout
    message = (done.stderr or done.stdout).strip()
    if "configuration source" in message:
        raise EnvironmentFault(
            f"{argv[0]} finds no cluster: no slurm.conf ($SLURM_CONF, /etc/slurm), and "
            "none is announced. Run orch on a login node; site=local rehearses here"
        )
    if refusal_of(message, {}).passing:
        raise SchedulerUnavailable(message)
    raise SchedulerRefusal(message)


def sbatch(argv: Sequence[str], cwd: Path) -> str:
    """Submit a script; return the array's id. Raise SchedulerUnavailable or SchedulerRefusal."""
    return call(argv, cwd=cwd).strip().partition(";")[0]


def find_job(name: str, since: float) -> str | None:
    """Return the id of the job with this name, or None once SLURM confirms there is none.

    since: the earliest time of its submission. Raise SchedulerUnavailable if SLURM cannot be asked.
    The controller knows every job that has not ended, and, for MinJobAge, those that have.
    Accounting knows the others. So without accounting, an absence is confirmed only for MinJobAge.
    """
    listed = call(["squeue", "--noheader", "--me", "--states=all", f"--name={name}", "--format=%F"])
    if ids := listed.split():
        return ids[0]
    # a day earlier, because the clocks of this machine and the cluster may differ
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 86400))
    named, after = f"--name={name}", f"--starttime={start}"
    try:
        listed = call(["sacct", "-X", "--noheader", "--parsable2", named, after, "--format=JobID"])
    except (SchedulerUnavailable, SchedulerRefusal):
        if time.time() - since > _min_job_age():
            raise SchedulerUnavailable(
                "accounting does not answer, and the job would have left the queue by this time"
            ) from None
        return None
    return listed.split("\n")[0].partition("_")[0].strip() or None


def queue() -> Answer:
    """Return every element of this user's arrays that the controller knows.

    It knows all that have not ended and, for MinJobAge (300 s), those that have. Raise
    SchedulerUnavailable.
    """
    listed = call(
        ["squeue", "--noheader", "--me", "--array", "--states=all", "--format=%F|%K|%T|%N|%r|%S|%e"]
    )
    elements = {}
    for line in listed.splitlines():
        job, index, word, node, reason, start, end = line.split("|", 6)
        times = _seconds(start), _seconds(end)
        if index.isdigit() or word == "CANCELLED":
            number = int(index) if index.isdigit() else NO_ELEMENT
            elements[job, number] = ArrayElement(word, "", node, reason, *times)
    return elements


def accounting(jobs: Iterable[str]) -> Answer:
    """Return every element of these arrays that accounting knows, in one call.

    Raise SchedulerUnavailable.
    """
    ids = list(jobs)
    if not ids:
        return {}
    fields = "--format=JobID,State,ExitCode,NodeList,Start,End,Submit,Reason"
    argv = ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={','.join(ids)}", fields]
    try:
        listed = call(argv)
    except SchedulerRefusal as error:
        # there is no accounting: the queue is asked instead
        raise SchedulerUnavailable(str(error)) from error
    elements = {}
    for line in listed.splitlines():
        id_, state, code, node, start, end, sent, reason = line.split("|", 7)
        job, _, which = id_.partition("_")
        times = _seconds(start), _seconds(end), _seconds(sent)
        element = ArrayElement(state.split()[0], code, node, reason, *times)
        for index in indices(which) or ([NO_ELEMENT] if element.word == "CANCELLED" else []):
            elements[job, index] = element
    return elements


def indices(which: str) -> list[int]:
    """Return the elements of `7`, `[0-19%4]` or `[1,3,5-9:2]`; of a truncated list, its part."""
    plain = which.strip("[]").partition("%")[0]
    numbers: list[int] = []
    for part in plain.split(","):
        if hit := _RANGE.fullmatch(part):
            first, last, step = hit[1], hit[2] or hit[1], hit[3] or "1"
            numbers += range(int(first), int(last) + 1, int(step))
    return numbers


def cancel(elements: Iterable[str]) -> None:
    """Call scancel for each `job` or `job_index`, many at a time.

    Raise SchedulerUnavailable or SchedulerRefusal.
    """
    ids = list(elements)
    for start in range(0, len(ids), MAX_ARGUMENTS):
        call(["scancel", "--quiet", *ids[start : start + MAX_ARGUMENTS]])


def max_array_size() -> int:
    """Return the maximum number of elements of an array. MaxArraySize bounds the index, from 0."""
    config = call(["scontrol", "show", "config"])
    hit = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
    return max(1, int(hit[1])) if hit else 1001


def _min_job_age() -> float:
    hit = re.search(r"^MinJobAge\s*=\s*(\d+)", call(["scontrol", "show", "config"]), re.MULTILINE)
    return float(hit[1]) if hit else 0.0


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


# Inside a job


_REQUEUE_SECONDS = 120
_OURS = ("RUNNING", "SIGNALING")
"""States in which nobody else ends the job; the second is that of a job that was signalled just
now."""


def job_id() -> str:
    """Return `<array>_<index>` of this job, in the form of SLURM's commands."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def restarts() -> int:
    """Return how often SLURM has started this job again, by its own inexact count."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def requeue_job(job: str) -> bool:
    """Put a job back into the queue, under its own id.

    Return True when the job is back in the queue, or when SLURM itself ends it (to cancel or
    requeue it). Return False if the scheduler does not answer.
    """
    run = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=60)
    deadline = time.monotonic() + _REQUEUE_SECONDS
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            listed = run(["squeue", "--noheader", f"--jobs={job}", "--format=%T"])
            if listed.returncode == 0 and listed.stdout.strip() not in _OURS:
                return True
            if run(["scontrol", "requeue", job]).returncode == 0:
                return True
        time.sleep(2)
    return False


# Job states


WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
        "RESIZING",
    }
)
AT_WORK = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED"})
STOPPED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})

LATE_SECONDS = 60.0
"""How long after a job's end its exit record may take to appear on a shared file system, and how
long a job that was stopped may be on its way back into the queue, where nobody lists it."""
FULL = 28
"""Exit code of a job that could not even write down that the disk is full (errno ENOSPC)."""
UNSEEN = 66
"""Exit code of a job whose node does not see the runs folder (EX_NOINPUT of sysexits.h). Where the
node cannot open the job's output either, SLURM itself ends it, with 0:53 (22.05)."""

_MEMORY = re.compile(r"exceeded .*memory limit|oom.kill|out of memory", re.IGNORECASE)
"""Without cgroups SLURM says FAILED of a job that it killed for its memory, and this in its log."""


def is_over(word: str) -> bool:
    """Return True if a job in this state has ended."""
    return word not in WAITING | AT_WORK


def state_of(element: ArrayElement) -> State:
    """Return `pending` or `running` for a job that has not ended."""
    return "pending" if element.word in WAITING else "running"


def ending_of(element: ArrayElement, log: str, now: float | None = None) -> ExitRecord | None:
    """Return the ending of a job whose worker recorded none; None while it may still do so.

    log: the end of the job's output outside of any attempt.
    """
    now = time.time() if now is None else now
    ended = element.ended or now
    if element.word in {"COMPLETED", *STOPPED} and now - ended < LATE_SECONDS:
        return None
    state, failure, message = _ending(element)
    if failure == "lost" and _MEMORY.search(log):
        failure = "out_of_memory"
    return ExitRecord(
        state=state,
        failure=failure,
        message=f"{message}\n{log}".strip(),
        code=_code(element.code),
        started=min(element.started or ended, ended),
        ended=ended,
        host=element.node,
    )


def cancelled_unstarted(job: str, index: int) -> SchedulerReport:
    """Return the report of an element that SLURM no longer lists and that never started.

    Its array is known. SLURM keeps no record of an element that was cancelled alone while it
    waited.
    """
    now = time.time()
    message = f"cancelled in the scheduler (scancel {job}_{index}) before it started"
    record = ExitRecord(state="cancelled", message=message, started=now, ended=now)
    return SchedulerReport("cancelled", record)


def forgotten(job: str, index: int) -> SchedulerReport:
    """Return the report of a job that neither queue nor accounting knows.

    Both answer, and both had time to learn of it. So a controller that crashed has forgotten it. If
    the job starts later, it finds that its cell belongs to another submission.
    """
    now = time.time()
    message = (
        f"the scheduler has forgotten job {job}_{index}: neither the queue nor accounting knows it"
    )
    record = ExitRecord(state="failed", failure="lost", message=message, started=now, ended=now)
    return SchedulerReport("failed", record)


def _ending(element: ArrayElement) -> tuple[State, str, str]:
    """Return state, class of failure and message of a job that has ended."""
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
            message = (
                "there was no room left to write to in the runs folder; free some, then `orch "
                "retry` and run: it goes on from its last checkpoint"
            )
            return "failed", "disk", message
        case "FAILED" if element.code in (f"{UNSEEN}:0", "0:53"):
            message = (
                f"{node} does not see the runs folder (site.runs_dir), so it is tried on another: "
                "that folder must lie on a file system that every node sees"
            )
            return "failed", "node", message
        case "FAILED" if element.code in ("126:0", "127:0"):
            message = (
                f"{node} cannot start orch's Python (site.options.python): it must lie where "
                "every node sees it"
            )
            return "failed", "node", message
        case "COMPLETED":
            message = (
                f"the job ended on {node} and left no exit.json: its run directory was removed, "
                "or is not on a file system that the nodes share"
            )
            return "failed", "lost", message
    killed = f"killed on {node} (SLURM says {element.word} {element.code}".rstrip()
    return "failed", "lost", f"{killed})"


def _code(text: str) -> int | None:
    """Return 3 for `3:0` (exit code 3) and -9 for `0:9` (signal 9)."""
    code, _, number = text.partition(":")
    if number.isdigit() and int(number):
        return -int(number)
    return int(code) if code.isdigit() else None
