"""A program and its end: started, watched, stopped with all it started, and what it died of."""

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
from orchestrator.launch.channel import GRACE_SECONDS
from orchestrator.launch.endings import Ending, failure_of
from orchestrator.rundir import AttemptDir

_LAST_LINES = 5
_TAIL_BYTES = 1 << 15
_LOOK_SECONDS = 0.5


def run(
    argv: Sequence[str],
    attempt: AttemptDir,
    *,
    cwd: Path,
    env: Mapping[str, str],
    claim: IO[str] | None = None,
    patience_seconds: float = 0,
    watch: Callable[[], Ending | None] = lambda: None,
) -> Ending:
    """Runs argv to its end, printing into the attempt's files.

    env is all that it gets. The program holds the cell's claim too, so that the cell stays claimed
    while any of it lives. It is ended when nothing is written for patience_seconds (0: for ever),
    when `watch` gives an ending, and when this process is asked to stop.
    """
    quiet = HangWatch(attempt.path, patience_seconds)
    before = processes.oom_kills()
    with attempt.stdout.open("ab") as out, attempt.stderr.open("ab") as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=[claim.fileno()] if claim else [],
                start_new_session=True,
                preexec_fn=partial(processes.die_with, os.getpid()),
            )
        except (FileNotFoundError, PermissionError) as error:
            return cannot_run(argv[0], error)
    try:
        told = _until_the_end(process, quiet, watch)
    finally:
        end(process)
    if told is not None:
        return told
    return ending_of_code(process.returncode, attempt.stderr, processes.oom_kills() > before)


def _until_the_end(
    process: "subprocess.Popen[bytes]", quiet: "HangWatch", watch: Callable[[], Ending | None]
) -> Ending | None:
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_LOOK_SECONDS)
            return None
        told = watch() or quiet.ending()
        if told is not None:
            return told


def end(process: "subprocess.Popen[bytes]", grace_seconds: float = GRACE_SECONDS / 2) -> None:
    """Ends a program that leads a session, and all of it: asked first, then killed."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_seconds)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cannot_run(name: str, error: OSError) -> Ending:
    """The ending of a program that is not there."""
    return Ending(
        "failed",
        code=127,
        failure="config",
        message=f"{name} cannot be run: {error.strerror}. `orch doctor` says what this machine has",
    )


def ending_of_code(code: int, stderr: Path, oom: bool = False) -> Ending:
    """The ending of a program with this exit code; its last words say the class of a failure."""
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
    """Whether an attempt has stopped writing: its output, its metrics and whatever else lies in
    its folder. stderr does not count: libraries repeat warnings on it while they hang."""

    def __init__(self, folder: Path, patience_seconds: float):
        self.folder, self.patience = folder, patience_seconds
        self.seen: object = None
        self.since = self.looked = time.monotonic()

    def ending(self) -> Ending | None:
        """The ending of an attempt that hangs, or None."""
        now = time.monotonic()
        if not self.patience or now - self.looked < min(10, self.patience / 10):
            return None
        self.looked = now
        written = self._written()
        if written != self.seen:
            self.seen, self.since = written, now
        if now - self.since < self.patience:
            return None
        return Ending(
            "failed",
            failure="hung",
            message=(
                f"no output and no metrics for {self.patience / 60:.3g} minutes; it was ended "
                "(site.options.hung_after_minutes)"
            ),
        )

    def _written(self) -> frozenset[tuple[str, int]]:
        found = set()
        for folder, _, names in os.walk(self.folder):
            for name in names:
                if name != "stderr":
                    with suppress(OSError):
                        path = Path(folder, name)
                        found.add((str(path), path.stat().st_size))
        return frozenset(found)
