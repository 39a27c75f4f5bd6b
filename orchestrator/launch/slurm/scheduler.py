"""SLURM's commands: argv lists, each with a deadline, what they refuse as a sentence."""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.launch import system

DEADLINE_SECONDS = 60.0
MAX_ARGUMENTS = 500
"""Job ids named in one command."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")


class Away(EnvironmentFault):
    """The scheduler, or its accounting, does not answer. Nothing is wrong with the request."""


class Refused(EnvironmentFault):
    """It answered, and said no: in its own words."""


class Element(NamedTuple):
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
Answer = Mapping[tuple[str, int], Element]
"""(array's id, index) -> element."""


def call(argv: Sequence[str], cwd: Path | None = None, patient: bool = False) -> str:
    """What a command prints. Raises Away or Refused.

    patient: its exit code alone tells; else an answer cut by the deadline is Away too.
    """
    from orchestrator.site.messages import told

    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS, cwd=cwd, check=False,
            stdin=subprocess.DEVNULL, errors="replace",
            preexec_fn=partial(system.die_with, os.getpid()),
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
    except FileNotFoundError as error:
        raise EnvironmentFault(
            f"{argv[0]} is not on PATH: this machine is no login node of a SLURM cluster. "
            "site=local rehearses here; `orch doctor` says more"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Away(f"{argv[0]} said nothing for {DEADLINE_SECONDS:.0f} s") from error
    if done.returncode == 0:
        return done.stdout
    words = (done.stderr or done.stdout).strip()
    if "configuration source" in words:
        raise EnvironmentFault(
            f"{argv[0]} finds no cluster: no slurm.conf ($SLURM_CONF, /etc/slurm), and "
            "none is announced. Run orch on a login node; site=local rehearses here"
        )
    if not patient and told(words, {}).passing:
        raise Away(words)
    raise Refused(words)


def send(folder: Path) -> str:
    """sbatch of the script in a folder; the array's id. Raises Away or Refused."""
    from orchestrator.launch.slurm.script import argv

    return call(argv(str(folder)), cwd=folder).strip().partition(";")[0]


def find(name: str, since: float) -> str | None:
    """The id of the job of this name, or None if there certainly is none. Raises Away.

    The controller knows every job that has not ended, and for MinJobAge those that have;
    accounting knows the others.
    """
    listed = call(["squeue", "--noheader", "--me", "--states=all", f"--name={name}",
                   "--format=%F"])  # fmt: skip
    if ids := listed.split():
        return ids[0]
    try:
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 86400))
        listed = call(["sacct", "-X", "--noheader", "--parsable2", f"--name={name}",
                       f"--starttime={start}", "--format=JobID"])  # fmt: skip
    except (Away, Refused):
        if time.time() - since > _min_job_age():
            raise Away(
                "accounting does not answer, and the job would have left the queue by this time"
            ) from None
        return None
    return listed.split("\n")[0].partition("_")[0].strip() or None


def queue() -> Answer:
    """Every element of this user's arrays that the controller knows: all that have not ended, and
    for MinJobAge (300 s) those that have. Raises Away."""
    listed = call(["squeue", "--noheader", "--me", "--array", "--states=all",
                   "--format=%F|%K|%T|%N|%r|%S|%e"])  # fmt: skip
    found = {}
    for line in listed.splitlines():
        job, index, word, node, reason, start, end = line.split("|", 6)
        times = _seconds(start), _seconds(end)
        if index.isdigit() or word == "CANCELLED":
            place = int(index) if index.isdigit() else NOBODY
            found[job, place] = Element(word, "", node, reason, *times)
    return found


def accounting(jobs: Iterable[str]) -> Answer:
    """Every element of these arrays that accounting knows of, in one call. Raises Away."""
    ids = list(jobs)
    if not ids:
        return {}
    try:
        fields = "--format=JobID,State,ExitCode,NodeList,Start,End,Submit,Reason"
        listed = call(["sacct", "-X", "--noheader", "--parsable2", f"--jobs={','.join(ids)}",
                       fields])  # fmt: skip
    except Refused as error:
        raise Away(str(error)) from error  # there is no accounting: the queue is asked
    found = {}
    for line in listed.splitlines():
        id_, state, code, node, start, end, sent, reason = line.split("|", 7)
        job, _, which = id_.partition("_")
        times = _seconds(start), _seconds(end), _seconds(sent)
        element = Element(state.split()[0], code, node, reason, *times)
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
