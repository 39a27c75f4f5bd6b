"""One attempt on this machine: its environment, its secrets, its end, and nothing left behind."""

import json
import os
import secrets as tokens
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch import node
from orchestrator.launch.endings import Ending, Stopped
from orchestrator.launch.node import agent
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import AttemptDir, RunFolder
from tests.cluster import wait_for
from tests.launch.kit import make_cell, program
from tests.launch.node.kit import carriers, wait_until_gone

ROOT = Path(__file__).parents[3]
SECRET = "not-for-any-file-2207"
Bring = Callable[..., tuple[Ending, AttemptDir]]


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Runs a Python program as a library's plan."""
    for name in [n for n in os.environ if n.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ORCH_TEST", str(tmp_path))
    folder = RunFolder(tmp_path / "a 'b\" $c\nβ" / "test")

    def run(
        code: str,
        options: dict[str, object] | None = None,
        cell: Cell | None = None,
        **plan: Any,
    ) -> tuple[Ending, AttemptDir]:
        chosen = cell or make_cell()
        folder.open()
        home = folder.cell(chosen)
        home.make(chosen)
        attempt = home.new_attempt()
        given = {"argv": (sys.executable, "-c", code), "backend": "fake", "version": "1", **plan}
        made = LaunchPlan(cell_id=chosen.id, **given)
        home.write(chosen, made)
        return node.run(made, attempt, chosen, options or {}), attempt

    return run


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("ModuleNotFoundError: No module named 'verl'", "config"),
        ("train_ppo_ray.py: error: unrecognized arguments: --kl_estimator k1", "config"),
        ("hydra.errors.ConfigCompositionException: Could not override 'a.b'", "config"),
        ("OSError: org/nope is not a local folder and is not a valid model identifier", "config"),
        ("Exception: The current node timed out during startup. This could happen", "node"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "node"),
        ("ValueError: Total available GPUs 4 is less than total desired GPUs 8", "config"),
        ("OSError: [Errno 28] No space left on device", "disk"),
        ("AssertionError: shape mismatch at maxid 7", "error"),
    ],
)
def test_the_class_of_a_failure_is_in_its_last_words(
    bring: Bring, words: str, failure: str
) -> None:
    ending, _ = bring(f"import sys; sys.exit({words!r})")
    assert (ending.state, ending.failure, ending.code) == ("failed", failure, 1)
    assert ending.message == f"exit code 1\n{words}"


def test_a_program_that_falls_silent_is_ended(bring: Bring) -> None:
    """It goes on warning on stderr, as libraries do while they hang."""
    chatter = "import sys, time\nprint('step 1', flush=True)\nfor _ in range(600):\n    time.sleep(.1)\n    print('w', file=sys.stderr, flush=True)"  # noqa: E501
    begun = time.monotonic()
    ending, _ = bring(chatter, {"hung_after_minutes": 0.02})
    assert (ending.state, ending.failure) == ("failed", "hung")
    assert time.monotonic() - begun < 20


def test_whatever_a_program_leaves_running_is_ended(bring: Bring, tmp_path: Path) -> None:
    """A grandchild in a session of its own, as Ray's and vLLM's are."""
    leave = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True); print('left')"  # noqa: E501
    ending, _ = bring(leave)
    assert ending.state == "succeeded"
    assert not list(carriers(ORCH_TEST=str(tmp_path)))


def test_secrets_are_handed_on_by_name_and_written_nowhere(
    bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{SECRET}-file\n")
    monkeypatch.setenv("HELD", SECRET)
    secrets = {"HELD": None, "FILED": {"file": str(tmp_path / "token")}}
    tell = "import os, sys; assert os.environ['HELD'] + '-file' == os.environ['FILED'], 'lost'"
    ending, attempt = bring(tell, {"secrets": secrets, "env": {"PLAIN": "x"}})
    assert ending.state == "succeeded", ending
    for path in attempt.path.parents[3].rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_plan_runs_in_its_librarys_environment_and_not_in_orchs(
    bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my env"
    program(home / "bin" / "python", 'echo "$VIRTUAL_ENV|$PYTHONPATH|$*"')
    monkeypatch.setenv("PYTHONPATH", "orchs own")
    options = {"environments": {"verl@0.9.1": {"venv": str(home)}}}
    plan = {"argv": ("python", "-m", "x y"), "backend": "verl", "version": "0.9.1"}
    _, attempt = bring("", options, **plan)
    assert attempt.stdout.read_text() == f"{home}||-m x y\n"
    record = json.loads((attempt.path / "nodes.json").read_text())
    assert record["environment"]["venv"] == str(home)


def test_setup_lines_run_first_and_words_stay_words(bring: Bring, tmp_path: Path) -> None:
    python = program(tmp_path / "py" / "python", 'echo "$LOADED|$1"')
    entry = {"python": str(python), "setup": ["export LOADED='cuda 12'"]}
    plan = {"argv": ("python", "$(id) `id` 'a'\nb"), "backend": "verl", "version": "0.8.0"}
    ending, attempt = bring("", {"environments": {"verl": entry}}, **plan)
    assert ending.state == "succeeded", ending
    assert attempt.stdout.read_text() == "cuda 12|$(id) `id` 'a'\nb\n"


@pytest.mark.parametrize(
    ("image", "runtime", "first"),
    [
        ("/i/verl.sif", "apptainer", "exec\n--nv\n--pwd\n"),
        ("/i/verl.sqsh", "enroot", "start\n--rw\n--mount\n"),
    ],
)
def test_an_image_sees_the_runs_folder_and_secrets_by_name(
    bring: Bring,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    runtime: str,
    first: str,
) -> None:
    """Neither is installed here: a program of that name writes down how it was called."""
    asked = tmp_path / "asked"
    program(tmp_path / "bin" / runtime, f'printf "%s\\n" "$@" > {asked}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HELD", SECRET)
    options = {"environments": {"verl": {"image": image, "binds": ["/data"]}}, "secrets": ["HELD"]}
    ending, attempt = bring(
        "pass",
        options,
        backend="verl",
        version="0.9.1",
        argv=("python", "-m", "verl"),
        env={"MINE": "x"},
    )
    assert ending.state == "succeeded", ending
    told = asked.read_text()
    root = str(attempt.path.parents[3])
    assert told.startswith(first)
    assert f"{root}:{root}\n" in told
    assert "/data:/data\n" in told
    assert told.endswith("python\n-m\nverl\n")
    assert SECRET not in told
    if runtime == "enroot":
        assert "--env\nHELD\n--env\nMINE\n" in told


def test_being_asked_to_stop_ends_the_program_and_passes_on(bring: Bring, tmp_path: Path) -> None:
    def ask(_number: int, _frame: object) -> None:
        raise Stopped("preempted")

    held = signal.signal(signal.SIGALRM, ask)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        with pytest.raises(Stopped):
            bring("import time; time.sleep(300)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, held)
    assert not list(carriers(ORCH_TEST=str(tmp_path)))


def test_an_agent_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """kill -9 of the worker: the pipe closes, the agent ends all and clears its scratch."""
    scratch, token = tmp_path / "scratch", tokens.token_hex(8)
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from orchestrator.launch.node.process_group import ProcessGroup\n"
        f"group = ProcessGroup({token!r}, Path({str(tmp_path)!r}) / 'nodes')\n"
        f"group.scratch = Path({str(scratch)!r})\n"
        "group.start('here', ['sh', '-c', 'setsid sleep 300 & sleep 300'], dict(os.environ),"
        " Path('/'), None)\ntime.sleep(300)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code])
    try:
        token += ".0"
        wait_for(lambda: len(list(carriers(ORCH_RANK_TOKEN=token))) >= 3, 120, "it to start")
        assert scratch.is_dir()
        worker.kill()
        wait_until_gone(ORCH_RANK_TOKEN=token)
        wait_for(lambda: not scratch.exists(), 60, "the scratch folder to go")
    finally:
        worker.kill()
        worker.wait()


def test_scratch_of_killed_runs_is_cleared_and_nobody_elses(tmp_path: Path) -> None:
    living, dead, young, other = (
        tmp_path / name
        for name in (
            "orch-1111111111111111",
            "orch-2222222222222222",
            "orch-3333333333333333",
            "orch-not-ours",
        )
    )
    for path in (living, dead, young, other):
        path.mkdir()
        if path != young:
            os.utime(path, (1, 1))
    argv = ["sleep", "60"]
    held = subprocess.Popen(argv, env={**os.environ, "ORCH_RANK_TOKEN": "1111111111111111.1"})
    try:
        agent.clear_orphans(tmp_path)
    finally:
        held.kill()
        held.wait()
    assert {path for path in (living, dead, young, other) if path.exists()} == {
        living,
        young,
        other,
    }
