"""Interpreters of the libraries' environments, each started once and asked many times.

Starting one costs more than most questions. A child lives as long as the test module that asked it
first, reads a line of JSON and writes one line that begins with ANSWER; what a library prints
besides goes by. See tests/conftest.py, which ends them.
"""

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

FORKS = Path(__file__).with_name("forks.py")
MARK = "ANSWER "
LONGEST_SECONDS = 600


class Child:
    """A running interpreter. Raises AssertionError with what it said, if it ends early."""

    def __init__(self, command: tuple[str, ...]):
        self._said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the child)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=tempfile.gettempdir(),
        )

    def ask(self, question: object) -> Any:
        """The answer to a question, both plain JSON."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        late = threading.Timer(LONGEST_SECONDS, self._process.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                into.write(json.dumps(question) + "\n")
                into.flush()
            for line in out:
                if line.startswith(MARK):
                    return json.loads(line.removeprefix(MARK))
            self._process.wait()
        finally:
            late.cancel()
        self._said.seek(0)
        raise AssertionError(f"it ended: {self._said.read()[-2000:]}")

    def end(self) -> None:
        """Ends it, for it reads to the end of its questions."""
        try:
            self._process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._said.close()


_LIVING: dict[tuple[str, ...], Child] = {}


def ask(command: tuple[str | Path, ...], question: object) -> Any:
    """Asks the child of that command, which is started if there is none."""
    key = tuple(map(str, command))
    if key not in _LIVING:
        _LIVING[key] = Child(key)
    try:
        return _LIVING[key].ask(question)
    except AssertionError:
        _LIVING.pop(key).end()
        raise


def end_all() -> None:
    """Ends every child of a test module."""
    while _LIVING:
        _LIVING.popitem()[1].end()


class Imported(NamedTuple):
    """A Python of an environment that has imported modules, and nothing of orch."""

    python: Path
    modules: tuple[str, ...]


def forked(
    parent: Imported,
    program: str,
    arguments: Sequence[object],
    folder: Path,
    given: str = "",
) -> "subprocess.CompletedProcess[str]":
    """What `python -c PROGRAM ARGUMENTS` did in a folder, in a fork of the parent (forks.py)."""
    command = (parent.python, "-E", FORKS, *parent.modules)
    argv = list(map(str, arguments))
    question = (program, argv, str(folder), given)
    code, out, errors = ask(command, question)
    return subprocess.CompletedProcess(argv, code, out, errors)
