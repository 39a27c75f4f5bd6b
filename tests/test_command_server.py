"""The server of the tests' commands: whom it serves, what its commands leave, when it ends."""

import os
import time
from pathlib import Path

import pytest
from command_line import Server

PROGRAM = """
import os, signal, sys
print(os.getppid(), os.getcwd(), sys.argv[1:], os.environ["SAID"], flush=True)
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit("an error")
"""


def test_processes_of_a_test_run_share_a_server_which_ends_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", tmp_path.name + str(os.getpid()))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {**os.environ, "SAID": "β"}
    assert Server(variables, program).call(tmp_path, [], {**variables, "HF_HOME": "/e"}) is None
    servers = [Server(variables, program) for _ in range(2)]
    first, second = (server.call(tmp_path, ["a b"], variables) for server in servers)
    assert first is not None
    assert second is not None
    parent, rest = first.stdout.split(" ", 1)
    assert rest == f"{tmp_path} ['a b'] β\n"
    assert (first.returncode, first.stderr) == (1, "an error\n")
    assert second.stdout == first.stdout, "one server, with all its imports, for both"
    servers[0].leave()
    killed = servers[1].call(tmp_path, ["die"], variables)
    assert killed is not None
    assert (killed.returncode, killed.stdout.split()[0]) == (-9, parent)
    servers[1].leave()
    deadline = time.monotonic() + 60
    while _is_alive(parent):
        assert time.monotonic() < deadline, "it serves nobody"
        time.sleep(0.05)


def _is_alive(pid: str) -> bool:
    """Whether a process runs: one that nobody has waited for is still listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
