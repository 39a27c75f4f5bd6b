"""The launcher that travels with a plan: run for real, with programs that stand for Prime-RL's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.prime_rl import BACKEND
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Resources
from tests.backends.shipped import write

PROGRAM = """#!{python}
import json, os, sys, time
with open({seen!r}, "a") as file:
    file.write(json.dumps([sys.argv, os.environ.get("PYTHONPATH"),
                           os.environ.get("CUDA_VISIBLE_DEVICES")]) + "\\n")
deadline = time.monotonic() + 30
while {serves} and open({seen!r}).read().count("\\n") < 2 and time.monotonic() < deadline:
    time.sleep(0.05)
"""
"""A server stays until both are up: when the first of them ends, the launcher ends the other."""


@pytest.fixture
def nasty(tmp_path: Path) -> AttemptPaths:
    root = tmp_path / 'it\'s a "run" ü'
    return AttemptPaths(root / "plan", root / "attempts" / "2", root / "checkpoints")


def launch(cell: Cell, place: AttemptPaths, tmp_path: Path, **variables: str) -> list[Any]:
    """Runs the plan of a cell; what each program of Prime-RL was started with."""
    plan = BACKEND.translate(cell, place)
    place.attempt_dir.mkdir(parents=True, exist_ok=True)
    write(plan, place.plan_dir)
    seen, programs = tmp_path / "seen.jsonl", tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("rl", "inference"):
        (programs / name).write_text(
            PROGRAM.format(python=sys.executable, seen=str(seen), serves=name == "inference")
        )
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, *plan.argv[1:]],
        env={"PATH": path, **plan.env, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in seen.read_text().splitlines()]


def steps(folder: Path, *numbers: int, stable: bool = True) -> None:
    for number in numbers:
        (folder / f"step_{number}").mkdir(parents=True)
        if stable:
            (folder / f"step_{number}" / "STABLE").touch()


def states(place: AttemptPaths, trainer: tuple[int, ...], orchestrator: tuple[int, ...]) -> None:
    """Whole states of both processes, as 0.5.0 leaves them: with no STABLE."""
    for step in trainer:
        state = place.checkpoints_dir / f"checkpoints/step_{step}/trainer"
        state.mkdir(parents=True)
        (state / "__0_0.distcp").touch()
        (state / ".metadata").touch()
    for step in orchestrator:
        state = place.checkpoints_dir / f"run_default/checkpoints/step_{step}/orchestrator"
        (state / "buffer").mkdir(parents=True)
        (state / "progress.pt").touch()
        (state / "buffer" / "rollout_buffer.jsonl").touch()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_first_attempt_starts_rl_with_our_modules(
    base: Cell, nasty: AttemptPaths, tmp_path: Path
) -> None:
    [[argv, path, _]] = launch(base, nasty, tmp_path)
    assert argv[1:] == ["@", str(nasty.plan_dir / "rl.toml")]
    assert path == str(nasty.plan_dir)
    (nasty.checkpoints_dir / "logs" / "trainer.stdout").write_text("kept")
    assert (nasty.attempt_dir / "logs" / "trainer.stdout").read_text() == "kept"


def test_a_later_attempt_resumes_where_both_processes_can(
    base: Cell, nasty: AttemptPaths, tmp_path: Path
) -> None:
    """The orchestrator saved step 100 ten steps before the trainer would have."""
    home, run = nasty.checkpoints_dir, nasty.checkpoints_dir / "run_default"
    states(nasty, (50, 75), (50, 75, 100))
    (home / "checkpoints/step_75/trainer/.metadata").unlink()
    steps(home / "weights", 50, 75)
    steps(run / "broadcasts", 50, 75, 90, 94)
    (run / "rollouts" / "step_96").mkdir(parents=True)
    (run / "control").mkdir()
    (run / "control" / "orch.toml").touch()
    (home / "logs").symlink_to(home.parent / "attempts" / "1")
    [[argv, _, _]] = launch(base, nasty, tmp_path)
    assert argv[-2:] == ["--ckpt.resume-step", "50"]
    assert names(home / "checkpoints") == {"step_50"}
    assert names(run / "checkpoints") == {"step_50"}
    assert names(run / "broadcasts") == {"step_50"}
    assert names(home / "weights") == {"step_50"}
    assert not (run / "rollouts").exists()
    assert not (run / "control").exists(), "the trainer would begin where that attempt did"
    assert (home / "logs").resolve() == (nasty.attempt_dir / "logs").resolve()


@pytest.mark.parametrize("torn", ['{"reward": 1', None])
def test_an_orchestrator_state_that_was_cut_is_not_resumed_from(
    torn: str | None, base: Cell, nasty: AttemptPaths, tmp_path: Path
) -> None:
    states(nasty, (50, 75), (50, 75))
    steps(nasty.checkpoints_dir / "run_default" / "broadcasts", 50, 75)
    buffer = nasty.checkpoints_dir / "run_default/checkpoints/step_75/orchestrator/buffer"
    if torn is None:
        (buffer / "rollout_buffer.jsonl").unlink()
    else:
        (buffer / "rollout_buffer.jsonl").write_text(torn)
    [[argv, _, _]] = launch(base, nasty, tmp_path)
    assert argv[-2:] == ["--ckpt.resume-step", "50"]


def test_an_attempt_killed_before_its_first_checkpoint_starts_anew(
    base: Cell, nasty: AttemptPaths, tmp_path: Path
) -> None:
    states(nasty, (50,), ())
    (nasty.checkpoints_dir / "checkpoints/step_50/trainer/.metadata").unlink()
    steps(nasty.checkpoints_dir / "run_default" / "broadcasts", 12)
    [[argv, _, _]] = launch(base, nasty, tmp_path)
    assert "--ckpt.resume-step" not in argv
    assert not names(nasty.checkpoints_dir / "checkpoints")
    assert not names(nasty.checkpoints_dir / "run_default" / "broadcasts")


def test_two_nodes(base: Cell, nasty: AttemptPaths, tmp_path: Path) -> None:
    cell = base.model_copy(update={"resources": Resources(num_nodes=2, gpus_per_node=4)})
    [[argv, _, _]] = launch(cell, nasty, tmp_path, ORCH_SERVER_HOST="node7")
    text = Path(argv[2]).read_text()
    assert "http://node7:8000/v1" in text
    assert "http://node7:8001/v1" in text
    assert "orch-server-node" not in text
    (tmp_path / "seen.jsonl").unlink()
    served = launch(cell, nasty, tmp_path, ORCH_NODE_RANK="1")
    assert sorted((Path(argv[2]).name, gpus) for argv, _, gpus in served) == [
        ("inference.toml", "0,1,2"),
        ("reference.toml", "3"),
    ]


def test_two_nodes_need_the_name_of_the_second(
    base: Cell, nasty: AttemptPaths, tmp_path: Path
) -> None:
    cell = base.model_copy(update={"resources": Resources(num_nodes=2, gpus_per_node=4)})
    with pytest.raises(RuntimeError, match="set ORCH_SERVER_HOST"):
        launch(cell, nasty, tmp_path)
