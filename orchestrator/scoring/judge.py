"""Algebra (`algebra`, with sympy and math-verify) in a process of its own, which can be killed.

sympy can be made to compute for ever inside one machine instruction of Python, where no signal
handler runs, and math-verify's own limits are signals, which threads cannot have. So a child
compares answers, under a limit of CPU time that the kernel enforces for each pair (a busy machine
changes no score), and of memory. A pair that kills the child is not equal.

A server (`python judge.py`) imports math-verify once, and forks the child that answers: one that a
pair has killed is replaced in milliseconds. Threads that ask take turns.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

MAX_CPU_SECONDS = 1.0
"""For one pair."""
MAX_WALL_SECONDS = 120.0
"""For one pair, whatever it is doing: a machine this slow is a machine that hangs."""
MAX_BYTES = 4 << 30
"""Address space of a child."""
_READY_SECONDS = 300.0
_BEGUN, _EQUAL, _OTHER, _TIME_IS_UP, _DIED = b"?", b"1", b"0", b"t", b"x"
"""What comes back for a pair: that the child has it, and then its answer or how the child died."""


def ready() -> None:
    """Start the server. Raise ModuleNotFoundError where math-verify is missing."""
    if find_spec("math_verify") is None:
        raise ModuleNotFoundError(
            f"the rewards of mathematics need math-verify, and {sys.executable} has none: "
            "pip install 'math-verify[antlr4_9_3]==0.9.0' there"
        )
    with _JUDGE.lock:
        _ = _JUDGE.pipe or _JUDGE.begin()


@lru_cache(maxsize=100_000)
def same(gold: str, given: str) -> bool:
    """Return whether algebra finds two answers equal. Safe in threads and after a fork."""
    line = json.dumps([gold, given, MAX_CPU_SECONDS]).encode() + b"\n"
    with _JUDGE.lock:
        answer = _JUDGE.ask(line)
        if answer not in (_EQUAL, _OTHER, _TIME_IS_UP):
            answer = _JUDGE.ask(line)  # for a death of another kind the pair gets a second child
    return answer == _EQUAL


class _Judge:
    """The server that compares this process's pairs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server: subprocess.Popen[bytes] | None = None
        self.pipe: socket.socket | None = None

    def ask(self, line: bytes) -> bytes:
        """Return what came of a pair; nothing if the server is gone: the next one is another."""
        pipe = self.pipe or self.begin()
        begun = False
        with contextlib.suppress(OSError):
            pipe.settimeout(MAX_WALL_SECONDS)
            pipe.sendall(line)
            while sign := pipe.recv(1):
                if sign == _BEGUN:
                    begun = True
                elif begun:  # else a child died before it had this pair
                    return sign
        self._end()
        return b""

    def begin(self) -> socket.socket:
        """Return the way to a new server. Raise RuntimeError if math-verify does not start."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.server = subprocess.Popen(
                [sys.executable, __file__],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.pipe = ours
        ours.settimeout(_READY_SECONDS)
        with contextlib.suppress(OSError):
            if ours.recv(1):
                return ours
        raise RuntimeError(
            f"math-verify does not start in {sys.executable} (exit code {self._end()}); see: "
            f"{sys.executable} -c 'import math_verify'"
        )

    def _end(self) -> "int | None":
        code = None
        if self.pipe is not None:
            self.pipe.close()
        if self.server is not None:
            self.server.kill()
            code = self.server.wait()
        self.server = self.pipe = None
        return code


_JUDGE = _Judge()


def _forget() -> None:
    """In a forked process: the server belongs to the parent."""
    global _JUDGE
    if _JUDGE.server is not None:
        _JUDGE.server.returncode = 0  # it is not ours to wait for
    _JUDGE = _Judge()


os.register_at_fork(after_in_child=_forget)


def _serve() -> None:
    """Import algebra; keep a child that answers, until the parent ends."""
    import logging

    logging.disable(logging.CRITICAL)
    algebra = import_module(
        "algebra"
    )  # lies beside this file: Python has put that folder on its path
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (as sys.path has it: a string)
    sys.path[:] = [path for path in sys.path if path != own]
    algebra.equal("\\frac{1}{2}", "x^2")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's Ctrl-C is the parent's to answer
    os.write(1, b"r")
    while True:
        pid = os.fork()
        if not pid:
            _judge(algebra)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        if not status:
            return
        time_is_up = os.waitstatus_to_exitcode(status) == -signal.SIGPROF
        os.write(1, _TIME_IS_UP if time_is_up else _DIED)


def _judge(algebra: ModuleType) -> None:
    """Answer every line [gold, given, CPU seconds], until the parent ends."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for line in sys.stdin:
        os.write(1, _BEGUN)
        gold, given, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            same = algebra.equal(gold, given)
        except (Exception, RecursionError, MemoryError):
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, _EQUAL if same else _OTHER)


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        _serve()
