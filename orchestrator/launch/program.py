"""Run a program to its end: watch it, stop it with all it started, and classify its failure."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from orchestrator.files import read_tail
from orchestrator.launch import processes
from orchestrator.launch.endings import Ending, failure_of
from orchestrator.launch.processes import GRACE_SECONDS

_LAST_LINES = 5
_TAIL_BYTES = 1 << 15
_LOOK_SECONDS = 0.5


def run(
    argv: Sequence[str],
    stdout: Path,
    stderr: Path,
    *,
    cwd: Path,
    env: Mapping[str, str],
    claim: IO[str] | None = None,
    watch: Callable[[], Ending | None] = lambda: None,
) -> Ending:
    """Run argv to its end, with its output in these files. Return the ending.

    env: all variables of the program. The program inherits the cell's claim, so that the cell stays
    claimed while any part of the program lives. End it if `watch` returns an ending, or if this
    process is asked to stop.
    """
    # The kernel counts for the whole cgroup: only an increase during this run says something.
    before = processes.oom_kills()
    with stdout.open("ab") as out, stderr.open("ab") as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=[claim.fileno()] if claim else [],
                # A session of its own: `end` then reaches the program's whole process group.
                start_new_session=True,
                preexec_fn=partial(processes.die_with, os.getpid()),
            )
        except (FileNotFoundError, PermissionError) as error:
            why = f"{argv[0]} cannot be run: {error.strerror}. `orch doctor` says what is here"
            return Ending("failed", code=127, failure="config", message=why)
    try:
        ending = _wait(process, watch)
    finally:
        # Also after a normal end: processes that the program started may still live.
        end(process)
    if ending is not None:
        return ending
    return ending_of_code(process.returncode, stderr, processes.oom_kills() > before)


def _wait(process: "subprocess.Popen[bytes]", watch: Callable[[], Ending | None]) -> Ending | None:
    """Wait for a program. Return an ending if it must be ended, None if it ended by itself."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_LOOK_SECONDS)
            return None
        if (ending := watch()) is not None:
            return ending


def end(process: "subprocess.Popen[bytes]", grace_seconds: float = GRACE_SECONDS / 2) -> None:
    """End a program that leads a session, with its process group: SIGTERM, then SIGKILL."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_seconds)
    # The program itself may have ended while others of its group ignore SIGTERM.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ending_of_code(code: int, stderr: Path, oom: bool = False) -> Ending:
    """Return the ending of a program with this exit code.

    The end of its stderr shows the class of a failure. oom: the kernel killed a process for memory.
    """
    if code == 0:
        return Ending("succeeded", code=0)
    tail = read_tail(stderr, _TAIL_BYTES).decode(errors="replace")
    failure = "out_of_memory" if oom else failure_of(tail)
    how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    if oom:
        how += " by the system: the job used more memory than it may"
    last = "\n".join(tail.rstrip().splitlines()[-_LAST_LINES:])
    return Ending("failed", code=code, failure=failure, message=f"{how}\n{last}".rstrip())


class HangWatch:
    """A watch on an attempt that stops writing to its folder: output, metrics or anything else.

    stderr does not count, because libraries repeat warnings on it while they hang.
    """

    def __init__(self, folder: Path, patience_seconds: float):
        self.folder, self.patience = folder, patience_seconds
        self._sizes: object = None
        self._since = self._looked = time.monotonic()

    def ending(self) -> Ending | None:
        """Return the ending of an attempt that hangs, or None."""
        now = time.monotonic()
        if not self.patience or now - self._looked < min(10, self.patience / 10):
            return None
        self._looked = now
        sizes = self._file_sizes()
        if sizes != self._sizes:
            self._sizes, self._since = sizes, now
        if now - self._since < self.patience:
            return None
        return Ending(
            "failed",
            failure="hung",
            message=(
                f"no output and no metrics for {self.patience / 60:.3g} minutes; it was ended "
                "(site.options.hung_after_minutes)"
            ),
        )

    def _file_sizes(self) -> frozenset[tuple[str, int]]:
        sizes = set()
        for folder, _, names in os.walk(self.folder):
            for name in names:
                if name != "stderr":
                    with suppress(OSError):
                        path = Path(folder, name)
                        sizes.add((str(path), path.stat().st_size))
        return frozenset(sizes)
