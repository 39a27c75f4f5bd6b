"""A line of JSON objects between two processes, and the nursery as orch holds it."""

import json
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import environ, getpid
from typing import IO, Any

from orchestrator.errors import EnvironmentFault

GRACE_SECONDS = 10.0
"""How long a worker that was asked to stop may take to write down what it has."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Channel:
    """Whole JSON objects over a socket. Both ends: sending never waits for the other to read."""

    def __init__(self, end: socket.socket):
        self.socket = end
        self.open = True
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        """Says it, or notes that nobody is there any more."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.open = False

    def receive(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """What has come, after waiting for it so long at most. `open` is False after the end."""
        if not select.select([self.socket], [], [], timeout_seconds)[0]:
            return []
        try:
            raw = self.socket.recv(1 << 16)
        except OSError:
            raw = b""
        self.open = self.open and bool(raw)
        *lines, self._rest = (self._rest + raw).split(b"\n")
        return [json.loads(line) for line in lines]


class ForkServer:
    """The process that forks workers, seen from orch."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Channel, noise: IO[bytes]):
        self.process, self.channel, self._noise = process, channel, noise
        self._used = False

    def start(self, order: dict[str, Any]) -> None:
        """Asks for a worker; see worker.Order."""
        self._used = True
        self.channel.send({"do": "start", "order": order})

    def last_words(self) -> str:
        """The end of what it wrote to stderr, for a message."""
        self._noise.seek(0)
        return self._noise.read().decode(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """Workers write down what they have and end; then the nursery ends. Waits for it."""
        self.channel.send({"do": "stop"})
        # with no worker there is nobody to wait for, and it may be importing for seconds
        deadline = time.monotonic() + (GRACE_SECONDS if self._used else 0)
        while self.channel.open and time.monotonic() < deadline:
            self.channel.receive(0.1)
        self.kill()

    def kill(self) -> None:
        """Ends it and its workers at once."""
        self.channel.send({"do": "kill"})
        self.channel.socket.close()
        try:
            self.process.wait(timeout=2 if self._used else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def fork_server(modules: Iterable[str]) -> Iterator[ForkServer]:
    """A nursery that has imported these modules. Raises EnvironmentFault if it cannot.

    It is in a session of its own, so a Ctrl-C reaches orch and not its workers; its words are
    kept out of the terminal. Leaving the context stops its workers.
    """
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as noise, ours, theirs:
        argv = [
            sys.executable,
            "-P",
            "-m",
            "orchestrator.launch.fork_server",
            str(getpid()),
            str(theirs.fileno()),
        ]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=noise,
            stderr=noise,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
            env={**environ, **ONE_THREAD},
        )
        theirs.close()
        held = ForkServer(process, Channel(ours), noise)
        try:
            held.channel.send({"do": "prepare", "modules": sorted(set(modules))})
            yield held
        finally:
            held.stop()


def refusal(message: str) -> EnvironmentFault:
    """What to say when a backend's entry module cannot be imported."""
    return EnvironmentFault(
        f"the trainer cannot be imported: {message}. `orch doctor` says what is missing; nothing "
        "was started"
    )
