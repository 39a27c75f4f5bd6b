"""A file system without locks, as Lustre without `-o flock`: what reads goes on, the rest says why.

The C library's `flock` is replaced by one that answers ENOSYS, in every process of a command.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import orch

WITHOUT_FLOCK = (
    "#include <errno.h>\nint flock(int f, int o) { (void)f; (void)o; errno = ENOSYS; return -1; }\n"
)
SENTENCE = "this file system has no locks"


@pytest.fixture(scope="module")
def no_locks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A variable of a process whose file systems have no locks."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("shim") / "flock.so"
    argv = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(argv, input=WITHOUT_FLOCK, text=True, check=True)
    return {"LD_PRELOAD": str(library)}


def test_what_only_reads_goes_on(workspace: Path, no_locks: dict[str, str]) -> None:
    for arguments in (["status", "experiments/smoke.yaml"], ["plan", "experiments/smoke.yaml"]):
        done = orch(workspace, *arguments, **no_locks)
        assert done.returncode == 0, done.stderr
    assert SENTENCE not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["report", "experiments/smoke.yaml"], ["tune", "experiments/beta_sweep.yaml"]],
    ids=lambda arguments: arguments[0],
)
def test_what_writes_says_it_in_a_sentence(
    workspace: Path, no_locks: dict[str, str], arguments: list[str]
) -> None:
    done = orch(workspace, *arguments, **no_locks)
    assert SENTENCE in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_trained_where_nobody_can_be_alone(
    empty: Path, no_locks: dict[str, str]
) -> None:
    done = orch(empty, "run", "experiments/smoke.yaml", **no_locks)
    assert done.returncode == 1
    assert SENTENCE in done.stderr
    assert "site.runs_dir=" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(empty.glob("runs/*/cells/*/checkpoints/*"))
