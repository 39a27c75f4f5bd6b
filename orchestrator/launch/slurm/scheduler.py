"""SLURM's commands as functions, its job states as orch's states, its messages as sentences.

Commands are argv lists with a deadline. SchedulerUnavailable means that the scheduler, or its
accounting, does not answer: the state is unknown, and orch asks again. SchedulerRefusal means that
it answered with an error.

If accounting says that a job has ended and the queue still lists the job, the queue is right: a job
that is requeued after NODE_FAIL or PREEMPTED keeps its id.

The messages, each with the site-file field to change, are data: messages.toml.
"""

import os
import re
import subprocess
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.launch import processes
from orchestrator.records import ExitRecord, State

DEADLINE_SECONDS = 60.0
MAX_ARGUMENTS = 500
"""Job ids named in one command."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")


class SchedulerUnavailable(EnvironmentFault):
    """Raised if the scheduler, or its accounting, does not answer. The request itself may be
    correct."""


class SchedulerRefusal(EnvironmentFault):
    """Raised if the scheduler answers with a refusal. The message is its own."""


class UnclearAnswer(EnvironmentFault):
    """Raised if sbatch ends well and prints no job id: it may have submitted the job or not."""


class ArrayElement(NamedTuple):
    """One element of an array, in the output of squeue or sacct."""

    word: str
    """SLURM's state, without the words after it (`CANCELLED by 0`)."""
    code: str = ""
    node: str = ""
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    """0 if the command does not print it."""
    name: str = ""
    """The job's name."""


NO_ELEMENT = -1
"""Index of an array whose last waiting elements were cancelled one by one: SLURM's records keep the
array, as cancelled, and no element."""
Answer = Mapping[tuple[str, int], ArrayElement]
"""(array's id, index) -> element."""


def call(argv: Sequence[str], cwd: Path | None = None) -> str:
    """Return the output of a command. Raise SchedulerUnavailable or SchedulerRefusal."""
    try:
        done = processes.finished(
            argv,
            DEADLINE_SECONDS,
            cwd=cwd,
            # The command dies with orch. If an sbatch outlived it, `reconcile` of the next orch
            # could ask SLURM for the job before that sbatch has submitted it.
            preexec_fn=partial(processes.die_with, os.getpid()),
            # times in seconds; lists of elements in full (the default cuts them at 64 characters)
            env={**os.environ, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"},
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


_ID = re.compile(r"(\d+)(;\S+)?")
"""The output of `sbatch --parsable`: the id, and the cluster if there are several."""


def sbatch(argv: Sequence[str], cwd: Path | None = None) -> str:
    """Submit a script. Return the job's id.

    The id must be the last line: many sites print a notice before it, and a wrapper of sbatch may
    print nothing. Raise UnclearAnswer if it is not, SchedulerUnavailable or SchedulerRefusal.
    """
    output = call(argv, cwd=cwd)
    lines = output.strip().splitlines()
    if lines and (hit := _ID.fullmatch(lines[-1].strip())):
        return hit[1]
    shown = repr(" ".join(output.split())[:200]) if lines else "nothing"
    raise UnclearAnswer(f"sbatch ended without a fault and printed {shown}, which is no job id")


def queued_ids(name: str) -> list[str]:
    """Return the ids of the jobs with this name that the controller knows, smallest first.

    It knows every job that has not ended. Raise SchedulerUnavailable or SchedulerRefusal.
    """
    # %F is the id of the whole array.
    listed = call(["squeue", "--noheader", f"--name={name}", "--states=all", "--format=%F"])
    return sorted(set(listed.split()), key=int)


def queue(users: Iterable[str]) -> Answer:
    """Return every element of these users' arrays that the controller knows and this user may see.

    It knows all that have not ended and, for MinJobAge (300 s), those that have. Waiting elements
    of an array come as one line. Raise SchedulerUnavailable or SchedulerRefusal.
    """
    # as sacct prints them: `_elements`. squeue has no exit code.
    fields = "--format=%F_%K|%T||%N|%S|%e|%r|%j"
    whose = f"--user={','.join(sorted(users))}"
    return _elements(call(["squeue", "--noheader", whose, "--states=all", fields]))


def accounting(jobs: Iterable[str]) -> Answer:
    """Return every element of these arrays that accounting knows, in one call.

    Raise SchedulerUnavailable, or SchedulerRefusal on a cluster without accounting.
    """
    ids = ",".join(jobs)
    if not ids:
        return {}
    # sacct cuts long names by default, and poll compares whole ones.
    fields = "--format=JobID,State,ExitCode,NodeList,Start,End,Reason,JobName%256"
    argv = ["sacct", "-X", "--noheader", "--parsable2", "--allusers", f"--jobs={ids}", fields]
    return _elements(call(argv))


def _elements(listed: str) -> Answer:
    """Return the elements in lines of `array_index|state|exit code|node|start|end|reason|name`. The
    name is last, because it may have a `|`."""
    elements = {}
    for line in listed.splitlines():
        if line.count("|") < 7:
            continue  # the rest of somebody's job name with a line break in it
        id_, state, code, node, start, end, reason, name = line.split("|", 7)
        job, _, which = id_.partition("_")
        times = _seconds(start), _seconds(end)
        element = ArrayElement(state.split()[0], code, node, reason, *times, name)
        for index in indices(which) or ([NO_ELEMENT] if element.word == "CANCELLED" else []):
            elements[job, index] = element
    return elements


def indices(which: str) -> list[int]:
    """Return the indices in `7`, `[0-19%4]` or `[1,3,5-9:2]`; of a truncated list, those it has."""
    plain = which.strip("[]").partition("%")[0]
    numbers: list[int] = []
    for part in plain.split(","):
        if hit := _RANGE.fullmatch(part):
            first = hit[1]
            last = hit[2] or hit[1]
            step = hit[3] or "1"
            numbers += range(int(first), int(last) + 1, int(step))
    return numbers


def cancel(elements: Iterable[str]) -> None:
    """Call scancel for each `job` or `job_index`, many at a time.

    Raise SchedulerUnavailable or SchedulerRefusal.
    """
    ids = list(elements)
    for start in range(0, len(ids), MAX_ARGUMENTS):
        call(["scancel", "--quiet", *ids[start : start + MAX_ARGUMENTS]])


def config() -> Mapping[str, str]:
    """Return the controller's configuration. Raise SchedulerUnavailable or SchedulerRefusal."""
    return settings_of(call(["scontrol", "show", "config"]))


def settings_of(text: str) -> dict[str, str]:
    """Return the settings in lines of `Key = value`."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def max_array_size(config: Mapping[str, str]) -> int:
    """Return the maximum number of elements of an array. MaxArraySize bounds the index, from 0."""
    text = config.get("MaxArraySize", "")
    return max(1, int(text)) if text.isdigit() else 1001


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


def requeue_job(job: str) -> bool:
    """Put a job back into the queue, under its own id.

    Return True when the job is back in the queue, or when SLURM itself ends it (to cancel or
    requeue it). Return False if the scheduler does not answer.
    """
    deadline = time.monotonic() + _REQUEUE_SECONDS
    while time.monotonic() < deadline:
        with suppress(SchedulerUnavailable, SchedulerRefusal):
            state = call(["squeue", "--noheader", f"--jobs={job}", "--format=%T"]).strip()
            if state in _OURS:
                call(["scontrol", "requeue", job])
            return True
        time.sleep(2)
    return False


# Job states


OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States of a job that has ended (slurm.h). Any state that is neither of these nor of AT_WORK is
waiting, those of a later release too: a job is never taken for lost because of a new word."""
AT_WORK = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED"})
STOPPED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})

LATE_SECONDS = 60.0
"""Seconds after a job's end within which its exit record may appear on a shared file system, and
within which a stopped job may return to the queue, while no command lists it."""
FULL = 28
"""Exit code of a job that could not even write down that the disk is full (errno ENOSPC)."""
NO_ROOM_LEFT = (
    "there was no room left to write to in the runs folder; free some, then `orch retry` and run: "
    "it goes on from its last checkpoint"
)
UNSEEN = 66
"""Exit code of a job whose node does not see the runs folder (EX_NOINPUT of sysexits.h). Where the
node cannot open the job's output either, SLURM itself ends it, with 0:53 (22.05)."""

_MEMORY = re.compile(r"exceeded .*memory limit|oom.kill|out of memory", re.IGNORECASE)
"""The line in the log of a job that SLURM killed for its memory. Without cgroups its state is
FAILED."""


def is_waiting(word: str) -> bool:
    """Return True if this is the state of a job that has not begun."""
    return word not in OVER | AT_WORK


def is_held(reason: str) -> bool:
    """Return True if a job waits until somebody releases it, by squeue's reason."""
    return "held" in reason.lower() or reason.startswith("JobHold")


def state_of(element: ArrayElement) -> State:
    """Return `pending` or `running` for a job that has not ended."""
    return "pending" if is_waiting(element.word) else "running"


def ending_of(element: ArrayElement, log: str) -> ExitRecord | None:
    """Return the ending of a job whose worker recorded none; None while it may still do so.

    log: the end of the job's output outside of any attempt.
    """
    now = time.time()
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


_BLIND = (
    "does not see the runs folder (site.runs_dir), so it is tried on another: that folder must lie "
    "on a file system that every node sees"
)
_NO_PYTHON = (
    "cannot start orch's Python (site.options.python): it must lie where every node sees it"
)
_NO_RECORD = (
    "left no exit.json: its run directory was removed, or is not on a file system that the nodes "
    "share"
)
_ENDINGS: tuple[tuple[str, str, State, str, str], ...] = (
    ("CANCELLED", "", "cancelled", "", "cancelled in the scheduler (scancel)"),
    ("TIMEOUT DEADLINE", "", "timed_out", "", "the time limit came before it could be requeued"),
    ("PREEMPTED", "", "preempted", "", "preempted, and not put back into the queue"),
    ("NODE_FAIL BOOT_FAIL", "", "preempted", "node", "{node} failed"),
    ("OUT_OF_MEMORY", "", "failed", "out_of_memory", "the job used more memory than it may"),
    ("FAILED", f"{FULL}:0", "failed", "disk", NO_ROOM_LEFT),
    ("FAILED", f"{UNSEEN}:0 0:53", "failed", "node", f"{{node}} {_BLIND}"),
    # of a shell that cannot run, or cannot find, a program
    ("FAILED", "126:0 127:0", "failed", "node", f"{{node}} {_NO_PYTHON}"),
    ("COMPLETED", "", "failed", "lost", f"the job ended on {{node}} and {_NO_RECORD}"),
)
"""Words of SLURM and exit codes (empty: any) of a job that has ended -> state, class of failure
and message. The first row that fits counts."""


def _ending(element: ArrayElement) -> tuple[State, str, str]:
    """Return state, class of failure and message of a job that has ended."""
    node = element.node or "its node"
    for words, codes, state, failure, message in _ENDINGS:
        if element.word in words.split() and (not codes or element.code in codes.split()):
            return state, failure, message.format(node=node)
    killed = f"killed on {node} (SLURM says {element.word} {element.code}".rstrip()
    return "failed", "lost", f"{killed})"


def _code(text: str) -> int | None:
    """Return 3 for `3:0` (exit code 3) and -9 for `0:9` (signal 9)."""
    code, _, number = text.partition(":")
    if number.isdigit() and int(number):
        return -int(number)
    return int(code) if code.isdigit() else None


class SchedulerMessage(NamedTuple):
    """One message of the scheduler, as a sentence for a user."""

    sentence: str
    field: str = ""
    """The field to change, dotted (`site.options.partition`); empty if no field is at fault."""
    passing: bool = False
    """True if the scheduler is absent or busy: the request is right and can be repeated later."""


def refusal_of(
    stderr: str, options: Mapping[str, object], names: Mapping[str, list[str]] | None = None
) -> SchedulerMessage:
    """Return the output of a failed sbatch, srun, scontrol or sacct, as a sentence.

    options: `site.options`. names: field -> the cluster's names, for a suggestion.
    """
    line = _telling_line(stderr)
    for rule in _table()["refusal"]:
        if re.search(rule["phrase"], stderr, re.IGNORECASE):
            return _message(rule, line, options, names or {})
    return SchedulerMessage(f"SLURM refuses: {line or 'without a word'}")


def stuck_reason(
    reason: str, options: Mapping[str, object], jobs: str = "<job id>"
) -> SchedulerMessage | None:
    """Return why a pending job will never start, by squeue's reason, or None if it may start.

    jobs: their ids, as scontrol takes them, for the sentence of a job that is held.
    """
    name = reason.strip("()").split(",")[0].strip()
    for rule in _table()["reason"]:
        if rule["name"] == name:
            return _message(rule, name, options, {}, jobs)
    return None


@cache
def _table() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))


def _message(
    rule: Mapping[str, Any],
    line: str,
    options: Mapping[str, object],
    names: Mapping[str, list[str]],
    jobs: str = "",
) -> SchedulerMessage:
    template, field, passing = rule["sentence"], rule.get("field", ""), rule.get("passing", False)
    value = options.get(field)
    shown = "that was asked for" if value is None else f"'{value}'"
    sentence = template.format(value=shown, line=line, jobs=jobs)
    if not field:
        return SchedulerMessage(sentence, passing=passing)
    path = "site.runs_dir" if field == "runs_dir" else f"site.options.{field}"
    offered = names.get(field, [])
    hint = did_you_mean(str(value), offered) if value is not None else ""
    if not hint and offered:
        hint = f" (there are: {', '.join(offered)})"
    if template.endswith("{line}") or line in sentence:
        return SchedulerMessage(f"{sentence}{hint}; change {path}", path, passing)
    return SchedulerMessage(f"{sentence}{hint}; change {path}. SLURM: {line}", path, passing)


def _telling_line(stderr: str) -> str:
    """Return the last line with `error` in it, else the last line, without SLURM's prefixes."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    chosen = next((line for line in reversed(lines) if "error" in line.lower()), "")
    chosen = chosen or (lines[-1] if lines else "")
    return re.sub(
        r"^(sbatch|srun|scontrol|squeue|sacct|sacctmgr|scancel|error|fatal): *",
        "",
        re.sub(r"^\w+: ", "", chosen),
    ).strip()
