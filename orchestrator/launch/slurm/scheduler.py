"""SLURM's commands: argv lists, each with a deadline, what they refuse as a sentence."""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.launch import processes
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import SchedulerReport

DEADLINE_SECONDS = 60.0
MAX_ARGUMENTS = 500
"""Job ids named in one command."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")


class SchedulerUnavailable(EnvironmentFault):
    """The scheduler, or its accounting, does not answer. Nothing is wrong with the request."""


class SchedulerRefusal(EnvironmentFault):
    """It answered, and said no: in its own words."""


class ArrayElement(NamedTuple):
    """One element of an array, as squeue or sacct tells it."""

    word: str
    """SLURM's state, without what follows it (`CANCELLED by 0`)."""
    code: str = ""
    node: str = ""
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    submitted: float = 0.0
    """0 where it is not told."""


NOBODY = -1
"""Index of what is left in SLURM's records of an array whose last waiting elements were cancelled
one by one: the array, cancelled, and no element."""
Answer = Mapping[tuple[str, int], ArrayElement]
"""(array's id, index) -> element."""


def call(argv: Sequence[str], cwd: Path | None = None, patient: bool = False) -> str:
    """What a command prints. Raises Away or Refused.

    patient: its exit code alone tells; else an answer cut by the deadline is Away too.
    """

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
    words = (done.stderr or done.stdout).strip()
    if "configuration source" in words:
        raise EnvironmentFault(
            f"{argv[0]} finds no cluster: no slurm.conf ($SLURM_CONF, /etc/slurm), and "
            "none is announced. Run orch on a login node; site=local rehearses here"
        )
    if not patient and refusal_of(words, {}).passing:
        raise SchedulerUnavailable(words)
    raise SchedulerRefusal(words)


def send(folder: Path) -> str:
    """sbatch of the script in a folder; the array's id. Raises Away or Refused."""
    from orchestrator.launch.slurm.script import argv

    return call(argv(str(folder)), cwd=folder).strip().partition(";")[0]


def find(name: str, since: float) -> str | None:
    """The id of the job of this name, or None if there certainly is none. Raises Away.

    The controller knows every job that has not ended, and for MinJobAge those that have;
    accounting knows the others.
    """
    listed = call(["squeue", "--noheader", "--me", "--states=all", f"--name={name}", "--format=%F"])
    if ids := listed.split():
        return ids[0]
    try:
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 86400))
        listed = call(
            [
                "sacct",
                "-X",
                "--noheader",
                "--parsable2",
                f"--name={name}",
                f"--starttime={start}",
                "--format=JobID",
            ]
        )
    except (SchedulerUnavailable, SchedulerRefusal):
        if time.time() - since > _min_job_age():
            raise SchedulerUnavailable(
                "accounting does not answer, and the job would have left the queue by this time"
            ) from None
        return None
    return listed.split("\n")[0].partition("_")[0].strip() or None


def queue() -> Answer:
    """Every element of this user's arrays that the controller knows: all that have not ended, and
    for MinJobAge (300 s) those that have. Raises Away."""
    listed = call(
        ["squeue", "--noheader", "--me", "--array", "--states=all", "--format=%F|%K|%T|%N|%r|%S|%e"]
    )
    found = {}
    for line in listed.splitlines():
        job, index, word, node, reason, start, end = line.split("|", 6)
        times = _seconds(start), _seconds(end)
        if index.isdigit() or word == "CANCELLED":
            place = int(index) if index.isdigit() else NOBODY
            found[job, place] = ArrayElement(word, "", node, reason, *times)
    return found


def accounting(jobs: Iterable[str]) -> Answer:
    """Every element of these arrays that accounting knows of, in one call. Raises Away."""
    ids = list(jobs)
    if not ids:
        return {}
    try:
        fields = "--format=JobID,State,ExitCode,NodeList,Start,End,Submit,Reason"
        listed = call(
            ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={','.join(ids)}", fields]
        )
    except SchedulerRefusal as error:
        raise SchedulerUnavailable(
            str(error)
        ) from error  # there is no accounting: the queue is asked
    found = {}
    for line in listed.splitlines():
        id_, state, code, node, start, end, sent, reason = line.split("|", 7)
        job, _, which = id_.partition("_")
        times = _seconds(start), _seconds(end), _seconds(sent)
        element = ArrayElement(state.split()[0], code, node, reason, *times)
        for index in indices(which) or ([NOBODY] if element.word == "CANCELLED" else []):
            found[job, index] = element
    return found


def indices(which: str) -> list[int]:
    """`7`, `[0-19%4]`, `[1,3,5-9:2]`: the elements of an array. A cut list gives what it says."""
    plain = which.strip("[]").partition("%")[0]
    found: list[int] = []
    for part in plain.split(","):
        if hit := _RANGE.fullmatch(part):
            first, last, step = hit[1], hit[2] or hit[1], hit[3] or "1"
            found += range(int(first), int(last) + 1, int(step))
    return found


def cancel(elements: Iterable[str]) -> None:
    """scancel of `job` or `job_index`, many at a time. Raises Away or Refused."""
    ids = list(elements)
    for start in range(0, len(ids), MAX_ARGUMENTS):
        call(["scancel", "--quiet", *ids[start : start + MAX_ARGUMENTS]])


def max_array_size() -> int:
    """Elements that one array may have: MaxArraySize bounds the index, which begins at 0."""
    shown = call(["scontrol", "show", "config"])
    hit = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    return max(1, int(hit[1])) if hit else 1001


def _min_job_age() -> float:
    hit = re.search(r"^MinJobAge\s*=\s*(\d+)", call(["scontrol", "show", "config"]), re.MULTILINE)
    return float(hit[1]) if hit else 0.0


def _seconds(told: str) -> float:
    return float(told) if told.isdigit() else 0.0


# SLURM's states in orch's words. Pure.
#
# A word that says the end is believed only when the queue does not list the job: a job that is
# requeued after NODE_FAIL or PREEMPTED keeps its id.


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


def state_of(element: ArrayElement) -> State:
    """pending or running for a job that has not ended."""
    return "pending" if element.word in WAITING else "running"


def ending_of(element: ArrayElement, log: str, now: float | None = None) -> ExitRecord | None:
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
        state=state,
        failure=failure,
        message=f"{message}\n{log}".strip(),
        code=_code(element.code),
        started=min(element.started or ended, ended),
        ended=ended,
        host=element.node,
    )


def withdrawn(job: str, index: int) -> SchedulerReport:
    """Of an element that is nowhere while its array is known, and that never started: SLURM keeps
    no record of an element that was cancelled alone while it waited."""
    now = time.time()
    message = f"cancelled in the scheduler (scancel {job}_{index}) before it started"
    record = ExitRecord(state="cancelled", message=message, started=now, ended=now)
    return SchedulerReport("cancelled", record)


def forgotten(job: str, index: int) -> SchedulerReport:
    """Of a job that neither queue nor accounting knows, though both answer and had time to learn
    of it: a controller that crashed has forgotten it. Should it start after all, it finds its
    cell taken over."""
    now = time.time()
    message = (
        f"the scheduler has forgotten job {job}_{index}: neither the queue nor accounting knows it"
    )
    record = ExitRecord(state="failed", failure="lost", message=message, started=now, ended=now)
    return SchedulerReport("failed", record)


def _meaning(element: ArrayElement) -> tuple[State, str, str]:
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
            return (
                "failed",
                "disk",
                (
                    "there was no room left to write to in the runs folder; free some, then `orch "
                    "retry` and run: it goes on from its last checkpoint"
                ),
            )
        case "FAILED" if element.code in (f"{UNSEEN}:0", "0:53"):
            return (
                "failed",
                "node",
                (
                    f"{node} does not see the runs folder (site.runs_dir), so it is tried on "
                    f"another: "
                    "that folder must lie on a file system that every node sees"
                ),
            )
        case "FAILED" if element.code in ("126:0", "127:0"):
            return (
                "failed",
                "node",
                (
                    f"{node} cannot start orch's Python (site.options.python): it must lie "
                    f"where every "
                    "node sees it"
                ),
            )
        case "COMPLETED":
            return (
                "failed",
                "lost",
                (
                    f"the job ended on {node} and left no exit.json: its run directory was "
                    f"removed, or "
                    "is not on a file system that the nodes share"
                ),
            )
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


# SLURM's words as sentences: which field of the site file to change, and whether to ask again.
#
# The phrases are slurm_strerror's (src/common/slurm_errno.c, 22.05 to 24.11) and those sbatch, srun
# and scontrol print themselves; the reasons are squeue's (job_reason_string).


class SchedulerMessage(NamedTuple):
    """One refusal, for a person."""

    sentence: str
    field: str = ""
    """The field to change, dotted (`site.options.partition`); empty where none is at fault."""
    passing: bool = False
    """The scheduler is away or busy: ask again later, nothing is wrong with the request."""


class _Rule(NamedTuple):
    phrase: str
    says: str
    """May use {value}: what the site file says in that field."""
    field: str = ""
    passing: bool = False


_AWAY = "the scheduler does not answer ({line}); nothing is lost, it is asked again"
_RULES = tuple(
    _Rule(*rule)
    for rule in (
        # away or busy
        ("Unable to contact slurm controller", _AWAY, "", True),
        ("slurm controller not responding", _AWAY, "", True),
        ("Unable to connect to .*slurm", _AWAY, "", True),
        ("Socket timed out", _AWAY, "", True),
        ("Connection (refused|timed out|reset)", _AWAY, "", True),
        ("backup controller in standby", _AWAY, "", True),
        ("temporarily unable to accept job", _AWAY, "", True),
        ("Resource temporarily unavailable", _AWAY, "", True),
        ("Zero Bytes were transmitted", _AWAY, "", True),
        (
            "Problem talking to the database",
            (
                "the accounting database does not answer; it is asked "
                "again, and the queue is asked meanwhile"
            ),
            "",
            True,
        ),
        (
            "munge|Invalid authentication credential|authentication plugin",
            (
                "munge does not vouch for this user on this machine ({line}); ask the "
                "administrator whether "
                "munged runs here and the clocks agree"
            ),
            "",
            True,
        ),
        # what was asked for
        (
            (
                "Invalid account or account/partition|account.*not permitted|User's group not "
                "permitted|"
                "Invalid account"
            ),
            "the account {value} may not submit to this partition",
            "account",
        ),
        ("invalid partition|Invalid partition", "there is no partition {value}", "partition"),
        (
            (
                "Required partition not available|partition configuration not "
                "available|partition .*(down|"
                "inactive)"
            ),
            "the partition {value} takes no jobs at present",
            "partition",
        ),
        (
            "Invalid qos",
            ("the quality of service {value} does not exist or is not allowed for this account"),
            "qos",
        ),
        (
            "(Job|user).*violates accounting/QOS policy|QOSMaxSubmit|AssocMaxSubmit|AssocGrpSubmit",
            (
                "the cluster's policy refuses the job: too many jobs submitted, or a size or "
                "time beyond "
                "what the account and its QOS allow"
            ),
            "qos",
        ),
        (
            (
                "Requested time limit is invalid|Invalid --?time|Invalid time limit|"
                "time limit.*exceeds"
            ),
            "the time limit {value} is longer than the partition allows, or cannot be read",
            "time_limit_hours",
        ),
        (
            "Invalid generic resource|invalid .*gres|--gres|invalid --gpus|gpu.*specification",
            "no node has the GPUs asked for ({value})",
            "gres",
        ),
        (
            "Invalid job array",
            "the array has more elements, or higher indices, than MaxArraySize",
            "max_array_size",
        ),
        (
            "Invalid feature specification|invalid constraint",
            "no node has the feature {value}",
            "constraint",
        ),
        (
            "Invalid node name|Invalid nodelist|invalid host ?list",
            ("a node named to be excluded does not exist ({value})"),
            "exclude",
        ),
        (
            "Invalid --mem|Memory (required|specification)",
            ("no node of the partition has that much memory ({value})"),
            "memory_gib",
        ),
        (
            "Node count specification invalid|More nodes requested|Invalid node count",
            "the partition does not have that many nodes",
            "partition",
        ),
        (
            "CPU count per node|CPU count specification|More processors requested|Invalid --?cpus",
            "no node of the partition has that many CPUs ({value})",
            "cpus_per_gpu",
        ),
        ("Invalid license", "the license asked for does not exist ({value})", "extra"),
        ("Invalid wckey", "the cluster wants a wckey it knows; give one as an extra flag", "extra"),
        (
            "[Rr]eservation",
            "the reservation asked for is not valid for this user or time ({value})",
            "reservation",
        ),
        (
            "unrecognized option|invalid option|ambiguous option",
            ("this SLURM does not know a flag: {line}"),
            "extra",
        ),
        (
            "Requested node configuration is not available",
            (
                "no node of the partition has what is "
                "asked of one node together: GPUs, CPUs, memory and features"
            ),
            "gres",
        ),
        (
            "Access/permission denied|Permission denied",
            ("SLURM or the file system denies this user: {line}"),
            "",
        ),
        (
            "Unable to open file|couldn't chdir|error opening|Unable to create",
            (
                "the job's folder "
                "cannot be reached: {line}. It must lie on a file system that every node sees"
            ),
            "runs_dir",
        ),
        (
            "Pathname of a file.*too long|script.*too large|Argument list too long",
            "what was submitted is too large for SLURM: {line}",
            "",
        ),
        ("job_submit|lua", "the cluster's own submission filter refuses the job: {line}", ""),
    )
)

_REASONS: Mapping[str, tuple[str, str]] = {
    "PartitionTimeLimit": (
        (
            "the time limit {value} is longer than the partition allows, so the "
            "job would wait for ever"
        ),
        "time_limit_hours",
    ),
    "PartitionConfig": (
        (
            "the partition {value} cannot give what is asked for (time or number of "
            "nodes), so the job would wait for ever"
        ),
        "partition",
    ),
    "PartitionNodeLimit": (
        "the job asks for more, or fewer, nodes than the partition allows",
        "partition",
    ),
    "BadConstraints": ("no node meets what is asked for together", "gres"),
    "DependencyNeverSatisfied": ("the job it waits for failed, so it would wait for ever", ""),
    "JobHeldUser": ("the job is held by its user: `scontrol release` lets it go", ""),
    "JobHeldAdmin": ("the job is held by an administrator, or by SLURM after many requeues", ""),
    "AccountNotAllowed": ("the account {value} may not use this partition", "account"),
    "QOSNotAllowed": ("the quality of service {value} may not use this partition", "qos"),
    "InvalidAccount": ("the account {value} does not exist any more", "account"),
    "InvalidQOS": ("the quality of service {value} does not exist any more", "qos"),
    "QOSMaxWallDurationPerJobLimit": (
        "the time limit {value} is longer than its QOS allows",
        "time_limit_hours",
    ),
    "AssocMaxWallDurationPerJobLimit": (
        "the time limit {value} is longer than the account allows",
        "time_limit_hours",
    ),
    "QOSMaxGRESPerJob": ("one job asks for more GPUs than its QOS allows", "qos"),
    "AssocMaxGRESPerJob": ("one job asks for more GPUs than the account allows", "account"),
    "QOSUsageThreshold": ("the QOS has used up its share", "qos"),
    "AssocGrpGRESMinutes": ("the account has used up its GPU time", "account"),
    "QOSMaxNodePerJobLimit": ("one job asks for more nodes than its QOS allows", "qos"),
    "AssocMaxNodePerJobLimit": ("one job asks for more nodes than the account allows", "account"),
    "QOSMaxCpuPerJobLimit": ("one job asks for more CPUs than its QOS allows", "qos"),
    "AssocMaxCpuPerJobLimit": ("one job asks for more CPUs than the account allows", "account"),
    "QOSMaxMemoryPerJob": ("one job asks for more memory than its QOS allows", "memory_gib"),
    "AssocMaxMemPerJob": ("one job asks for more memory than the account allows", "memory_gib"),
    "QOSMinGRES": ("one job asks for fewer GPUs than its QOS wants", "qos"),
    "ReqNodeNotAvail": (
        ("the nodes it may run on are down, drained or reserved; it starts when one comes back"),
        "",
    ),
    "PartitionDown": (
        "the partition {value} is down: it starts when that is up again",
        "partition",
    ),
    "PartitionInactive": (
        "the partition {value} takes no jobs: it starts when it does",
        "partition",
    ),
    "ReservationDeleted": ("the reservation {value} is gone", "reservation"),
    "JobHoldMaxRequeue": (
        ("SLURM holds the job after too many requeues: `scontrol release` lets it go"),
        "",
    ),
    "launch_failed_requeued_held": (
        ("a node could not start the job, so SLURM holds it: `scontrol release` lets it go"),
        "",
    ),
    "AssocGrpCPUMinutesLimit": ("the account has used up its CPU time", "account"),
}
"""Reasons that do not pass by waiting, or only when somebody does something about them."""


def refusal_of(
    stderr: str, options: Mapping[str, object], known: Mapping[str, list[str]] | None = None
) -> SchedulerMessage:
    """What a failed sbatch, srun, scontrol or sacct said, as a sentence.

    options: `site.options`; known: field -> the names the cluster has, for a suggestion.
    """
    line = _line(stderr)
    rule = next((r for r in _RULES if re.search(r.phrase, stderr, re.IGNORECASE)), None)
    if rule is None:
        return SchedulerMessage(f"SLURM refuses: {line or 'without a word'}")
    return _told(rule.says, rule.field, line, options, known or {}, rule.passing)


def stuck_reason(reason: str, options: Mapping[str, object]) -> SchedulerMessage | None:
    """Why a pending job will never start, by squeue's reason; None for reasons that pass."""
    name = reason.strip("()").split(",")[0].strip()
    found = _REASONS.get(name)
    if found is None:
        return None
    return _told(*found, name, options, {}, passing=False)


def _told(
    says: str,
    field: str,
    line: str,
    options: Mapping[str, object],
    known: Mapping[str, list[str]],
    passing: bool,
) -> SchedulerMessage:
    value = options.get(field)
    shown = "that was asked for" if value is None else f"'{value}'"
    sentence = says.format(value=shown, line=line)
    if not field:
        return SchedulerMessage(sentence, passing=passing)
    path = "site.runs_dir" if field == "runs_dir" else f"site.options.{field}"
    names = known.get(field, [])
    hint = did_you_mean(str(value), names) if value is not None else ""
    if not hint and names:
        hint = f" (there are: {', '.join(names)})"
    if says.endswith("{line}") or line in sentence:
        return SchedulerMessage(f"{sentence}{hint}; change {path}", path, passing)
    return SchedulerMessage(f"{sentence}{hint}; change {path}. SLURM: {line}", path, passing)


def _line(stderr: str) -> str:
    """The line that says most: the last one with `error`, without SLURM's prefixes."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    chosen = next((line for line in reversed(lines) if "error" in line.lower()), "")
    chosen = chosen or (lines[-1] if lines else "")
    return re.sub(
        r"^(sbatch|srun|scontrol|squeue|sacct|sacctmgr|scancel|error|fatal): *",
        "",
        re.sub(r"^\w+: ", "", chosen),
    ).strip()


# A job that puts itself back into the queue, under its own id.


_PATIENCE_SECONDS = 120
_OURS = ("RUNNING", "SIGNALING")
"""States in which nobody else ends the job; the second is that of one that was told just now."""


def job_id() -> str:
    """`<array>_<index>` of this job, as SLURM's commands take it."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def restarts() -> int:
    """How often SLURM has started this job again; not exact where it had troubles of its own."""
    told = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(told) if told.isdigit() else 0


def requeue_job(job: str) -> bool:
    """Whether the job was put back, or SLURM is at it itself (also to cancel it)."""
    call = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=60)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            listed = call(["squeue", "--noheader", f"--jobs={job}", "--format=%T"])
            if listed.returncode == 0 and listed.stdout.strip() not in _OURS:
                return True
            if call(["scontrol", "requeue", job]).returncode == 0:
                return True
        time.sleep(2)
    return False
