"""Ending all that a run started on a node, wherever it went: known by a token in its variables."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.launch import processes

TOKEN = "ORCH_RANK_TOKEN"  # noqa: S105  (a variable's name)
SCRATCH = "orch-"
"""How the name of a run's scratch folder begins; its token follows."""


def sweep(token: str, patience_seconds: float = 3.0) -> int:
    """Ends every process of this user that carries the token; how many there were."""
    first = list(carriers(token))
    for number, seconds in ((signal.SIGTERM, patience_seconds), (signal.SIGKILL, 2.0)):
        left = list(carriers(token))
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [pid for pid in left if processes.is_running(pid)]
    return len(first)


def carriers(token: str) -> Iterator[int]:
    """Processes of this user that carry the token: of one rank (`<run>.<rank>`), or of a run."""
    needle = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                held = (entry / "environ").read_bytes().split(b"\0")
                mine = any(word == needle or word.startswith(needle + b".") for word in held)
                if mine and processes.is_running(int(entry.name)):
                    yield int(entry.name)
