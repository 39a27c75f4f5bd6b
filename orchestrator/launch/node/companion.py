"""`python -m orchestrator.launch.node.companion --token T [...] -- ARGV`: one node's part of a run.

Runs ARGV to its end or until it is told to stop (SIGTERM, SIGINT, the death of its parent), then
ends everything that ARGV started, wherever it went: children are known by the token in their
environment. Keeps the logs of a run that failed, and removes the node's scratch folder.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.launch import program, system

TOKEN = "ORCH_RANK_TOKEN"  # noqa: S105
GRACE_SECONDS = 8.0
_MOST_LOGS, _MOST_BYTES = 60, 1 << 20


def main() -> int:
    """Exits with ARGV's code; 143 when it was told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--token", required=True)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--logs", type=Path, help="where logs go, if the next exists at the end")
    parser.add_argument("--keep-if", type=Path)
    parser.add_argument("--parent", type=int, help="die with this process")
    parser.add_argument("argv", nargs="+")
    given = parser.parse_args()
    stop = system.Stop()
    with stop.listening():
        if given.parent:
            system.die_with(given.parent)
        if given.scratch:
            given.scratch.mkdir(parents=True, exist_ok=True)
        code = _run(given.argv, given.token, stop)
        sweep(given.token)
        if given.scratch:
            if given.logs and (code != 143 or given.keep_if.exists()):
                keep_logs(given.scratch, given.logs)
            shutil.rmtree(given.scratch, ignore_errors=True)
    return code


def _run(argv: list[str], token: str, stop: system.Stop) -> int:
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            argv, env={**os.environ, TOKEN: token}, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=lambda: system.die_with(parent),
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as error:
        sys.stderr.write(f"{argv[0]}: command not found ({error.strerror})\n")
        return 127
    while not stop.asked:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
            return process.returncode if process.returncode >= 0 else 128 - process.returncode
    program.end(process, GRACE_SECONDS)
    return 143


def sweep(token: str, patience_seconds: float = 3.0) -> int:
    """Ends every process of this user that carries the token; how many there were."""
    first = list(_carriers(token))
    for number, seconds in ((signal.SIGTERM, patience_seconds), (signal.SIGKILL, 2.0)):
        left = list(_carriers(token))
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [pid for pid in left if system.is_running(pid)]
    return len(first)


def _carriers(token: str) -> Iterator[int]:
    needle = f"{TOKEN}={token}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                environ = Path(entry.path, "environ").read_bytes()
                if needle in environ.split(b"\0") and system.is_running(int(entry.name)):
                    yield int(entry.name)


def keep_logs(scratch: Path, target: Path) -> None:
    """The ends of Ray's own logs, newest first, for the reader of a failure."""
    found = [path for path in scratch.glob("session_2*/logs/*") if path.is_file()]
    with suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)[:_MOST_LOGS]:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_BYTES))
                if size:
                    (target / path.name).write_bytes(file.read())


if __name__ == "__main__":
    sys.exit(main())
