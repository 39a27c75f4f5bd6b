"""Programs that the fork server runs after the cells: in place of a new Python."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.launch.fork_server import ForkedProgram, KeptForkServer
from tests.launch.test_local import wait_for

WORD = "ά 'b\n"
PROGRAM = """
import json, os, sys, time
seen = [os.getppid(), sys.argv[1:], os.environ.get("WORD"), "decimal" in sys.modules]
print(json.dumps(seen), flush=True)
for line in sys.stdin:
    if line == "sleep\\n":
        print(os.getpid(), flush=True)
        time.sleep(60)
    print(line.upper(), end="")
sys.stderr.write("last words")
sys.exit(3)
"""


class Running(NamedTuple):
    server: KeptForkServer
    environment: dict[str, str]
    folder: Path

    def start(self, text: str, *arguments: str) -> ForkedProgram:
        with tempfile.TemporaryFile() as orders, (self.folder / "errors").open("wb") as errors:
            orders.write(text.encode())
            orders.seek(0)
            program = self.server.run("words", arguments, self.environment, orders, errors)
        assert program is not None
        return program


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    (tmp_path / "words.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with KeptForkServer() as kept:
        kept.serving(["decimal"])
        yield Running(kept, {**os.environ, "WORD": WORD}, tmp_path)


def pid_of_sleeper(program: ForkedProgram) -> int:
    program.stdout.readline()
    return int(program.stdout.readline())


def is_gone(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_a_program_has_its_own_files_arguments_and_environment(running: Running) -> None:
    for word in ("one", "two"):
        program = running.start(f"{word}\n", "a b", "")
        first, second = program.stdout.read().decode().splitlines()
        parent, argv, variable, is_imported = json.loads(first)
        assert argv == [str(parent), "a b", ""]
        assert (variable, is_imported, second) == (WORD, True, word.upper())
        assert program.wait() == 3
        assert (running.folder / "errors").read_text() == "last words"
        program.end()


def test_a_module_that_has_read_another_environment_is_in_the_way(running: Running) -> None:
    with tempfile.TemporaryFile() as nothing:
        given = "words", (), running.environment, nothing, nothing
        assert running.server.run(*given, without=["decimal", "words"]) is None
        program = running.server.run(*given, without=["words"])
    assert program is not None
    assert program.wait() == 3


def test_a_large_environment_comes_whole(running: Running) -> None:
    environment = {f"LARGE_{number}": "x" * 100_000 for number in range(10)} | running.environment
    program = running._replace(environment=environment).start("word\n")
    assert json.loads(program.stdout.readline())[2] == WORD
    assert program.wait() == 3


def test_nothing_is_forked_before_a_launch() -> None:
    with KeptForkServer() as kept, tempfile.TemporaryFile() as nothing:
        assert kept.run("words", (), {}, nothing, nothing) is None


def test_a_program_ends_with_the_server(running: Running) -> None:
    program = running.start("sleep\n")
    sleeper = pid_of_sleeper(program)
    running.server.serving([]).process.kill()
    assert program.stdout.read() == b""
    assert program.wait() == -9
    wait_for(lambda: is_gone(sleeper))
    with tempfile.TemporaryFile() as nothing:
        assert running.server.run("words", (), {}, nothing, nothing) is None


def test_a_program_that_nobody_waits_for_is_killed(running: Running) -> None:
    program = running.start("sleep\n")
    sleeper = pid_of_sleeper(program)
    program.end()
    wait_for(lambda: is_gone(sleeper))
