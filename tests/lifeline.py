"""Servers of tests: they and all they start end with the test process, however that ends."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import keeper


def held(argv: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    """A program below a keeper, which watches this end of its standard input."""
    return subprocess.Popen(
        [sys.executable, keeper.__file__, *argv],
        stdin=subprocess.PIPE,
        start_new_session=True,
        **options,
    )


def let_go(process: "subprocess.Popen[bytes]", seconds: float = 30) -> None:
    """Has the program and all it started ended, and waits for that."""
    process.stdin.close()
    process.wait(seconds)


def kill(process: "subprocess.Popen[bytes]", seconds: float = 60) -> None:
    """Kills the program and all it started at once, without a word."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:  # each leads a group of its own
        os.killpg(int(child), signal.SIGKILL)
    process.wait(seconds)


def first_page(url: str, process: "subprocess.Popen[Any]", seconds: float = 300) -> str:
    """What a server of this process answers first: MLflow takes half a minute to start."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as page:  # noqa: S310  (our own server)
                return str(page.read().decode())
        except OSError:
            assert process.poll() is None, "it ended before it answered"
            assert time.monotonic() < deadline, "it did not answer"
            time.sleep(0.3)


def heed_ctrl_c() -> None:
    """A `preexec_fn`: a suite in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
