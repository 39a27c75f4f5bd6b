"""Running a plan that has no entry to fork: its argv, as a program of its own."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from functools import partial
from typing import IO

from orchestrator.files import read_tail
from orchestrator.launch import system
from orchestrator.launch.channel import GRACE_SECONDS
from orchestrator.launch.endings import Ending, Stopped
from orchestrator.rundir import AttemptDir
from orchestrator.types import LaunchPlan

_OUT_OF_MEMORY = re.compile(rb"out of memory|OutOfMemoryError|MemoryError", re.IGNORECASE)
_LAST_LINES = 5


def run(plan: LaunchPlan, attempt: AttemptDir, claim: IO[str]) -> Ending:
    """Runs argv to its end, in the plan's folder, printing to this process's own streams.

    The program holds the cell's claim too, so the cell stays claimed while any of it lives.
    """
    place = attempt.path.parents[1] / "plan"
    try:
        process = subprocess.Popen(
            plan.argv, cwd=place, env={**os.environ, **plan.env}, stdin=subprocess.DEVNULL,
            pass_fds=[claim.fileno()], start_new_session=True,
            preexec_fn=partial(system.die_with, os.getpid()),
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as error:
        return Ending("failed", code=127, failure="config",
                      message=f"{plan.argv[0]} cannot be run: {error.strerror}. `orch doctor` says "
                      "what this machine has")  # fmt: skip
    try:
        code = process.wait()
    except Stopped:
        _end(process)
        raise
    return _ending(code, attempt)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=GRACE_SECONDS / 2)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ending(code: int, attempt: AttemptDir) -> Ending:
    if code == 0:
        return Ending("succeeded", code=0)
    tail = read_tail(attempt.stderr, 1 << 14)
    failure = "out_of_memory" if _OUT_OF_MEMORY.search(tail) else "error"
    how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    last = b"\n".join(tail.rstrip().splitlines()[-_LAST_LINES:]).decode(errors="replace")
    return Ending("failed", code=code, failure=failure, message=f"{how}\n{last}".rstrip())
