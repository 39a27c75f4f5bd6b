"""TRL itself, in its own environment: what orch emits trains, survives a kill, and is scored.

One run of the line is shared: three KL configurations of experiments/real_smoke.yaml, one of them
also with an adapter, killed with SIGKILL while they train, and gone on with by the same command.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backends.trl import BACKEND
from orchestrator.rundir import RunFolder
from tests.backends.environments import cpu_python, root
from tests.lab.real import distances

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.long(100)]

ROOT = Path(__file__).parents[3]
RELEASE = "1.16.0"
STEPS, EVERY, KILLED_AFTER = 24, 8, 11
SPEC = ROOT / "experiments" / "real_smoke.yaml"
CHANGES = [
    "site=gpus",
    "seeds=[0]",
    f"studies.placement.base.num_train_steps={STEPS}",
    f"studies.placement.base.cadence.checkpoint_every_steps={EVERY}",
]
ADAPTED = "rank8-alpha16"
CHANGES.append(
    "studies.placement.include=[{kl: {estimator: k3, placement: loss, beta: 0.3}, "
    "lora: {rank: 8, alpha: 16}}]"
)
WHERE = ["--where", "beta=0.3"]


def line(folder: Path) -> "subprocess.Popen[str]":
    """`orch run` of the spec, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "run", str(SPEC), *CHANGES, *WHERE],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
            "ORCH_ENVIRONMENTS": str(root()),
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def logged(cell: Path, attempt: int) -> list[dict[str, Any]]:
    """The train steps of an attempt's log, without a line that is cut off.

    TRL validates before the first step and after the last: lines of their own.
    """
    path = cell / "attempts" / str(attempt) / "trl.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(each) for each in lines if each.endswith("\n")]
    return [each for each in rows if "grad_norm" in each["values"]]


def cells(folder: Path) -> list[Path]:
    return sorted((folder / "runs" / "real_smoke" / "cells").glob("*"))


def trainers() -> list[str]:
    """The processes that train below a folder of these tests."""
    commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return [each.decode() for each in commands if b"orch_trl.py" in each]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that was killed and gone on with, and what the second command said."""
    cpu_python("trl", RELEASE)
    folder = tmp_path_factory.mktemp(
        "it's a run " + "ü" * 100
    )  # more bytes than a file name may have
    first = line(folder)
    deadline = time.monotonic() + 400
    while not any(len(logged(cell, 1)) >= KILLED_AFTER for cell in cells(folder)):
        assert first.poll() is None, first.stdout and first.stdout.read()
        assert time.monotonic() < deadline, "nothing trained"
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    while any(str(folder) in each for each in trainers()):
        assert time.monotonic() < deadline, "the trainers outlive orch"
        time.sleep(0.1)
    second = line(folder)
    said, _ = second.communicate(timeout=400)
    assert second.returncode == 0, said
    return folder, said


def test_a_kill_loses_and_changes_nothing(run: tuple[Path, str]) -> None:
    """Train steps that both attempts made, from the checkpoint on, have equal digits."""
    folder, _ = run
    compared = 0
    for cell in cells(folder):
        second = {each["step"]: each["values"] for each in logged(cell, 2)}
        first = {each["step"]: each["values"] for each in logged(cell, 1)}
        assert max(second or first) == STEPS
        if not second:
            continue
        assert (
            min(second)
            == max((n for n in range(0, STEPS, EVERY) if n < min(second)), default=0) + 1
        )
        for step in first.keys() & second.keys():
            before, after = (
                {k: v for k, v in values.items() if k != "step_time"}
                for values in (first[step], second[step])
            )
            assert after == before, (cell.name, step)
            compared += min(second) > 1
    assert compared, "the kill came before anything was trained twice"


def test_orch_reads_what_the_library_left(run: tuple[Path, str]) -> None:
    from orchestrator.runs.collect import collect

    folder, _ = run
    home = RunFolder(folder / "runs" / "real_smoke")
    records = collect([each.read_cell() for each in home.cells()], home)
    assert len(records) == 4
    for record in records:
        assert record.state == "succeeded"
        assert not record.faults
        points = [each for each in record.metrics if "train/grad_norm" in each.values]
        assert [each.step for each in points] == list(range(1, STEPS + 1))
        assert [each.step for each in record.checkpoints] == list(range(EVERY, STEPS + 1, EVERY))
        first, last = points[0].values, points[-1].values
        assert first["train/kl_term"] == 0, "on policy, the policy is its own reference"
        assert last["train/kl_term"] > 0
        assert all(point.values["train/grad_norm"] > 0 for point in points)
        rewards = [point.values["train/reward_mean"] for point in points]
        assert sum(rewards[-4:]) > sum(rewards[:4]), "it learns"
        plan = json.loads((record.directory / "plan" / "plan.json").read_text())
        back = BACKEND.parse(plan["argv"], _files(record.directory / "plan"))
        assert back == record.cell.settings


def _files(folder: Path) -> dict[str, str]:
    return {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.suffix in (".yaml", ".json")
    }


def test_the_rest_of_the_line_follows(run: tuple[Path, str]) -> None:
    """Scored by lm-eval, mirrored to MLflow, compared and reported."""
    folder, said = run
    scores = list((folder / "runs" / "real_smoke" / "cells").glob("*/eval/*.json"))
    assert len(scores) >= 4, said
    assert (folder / "runs" / "real_smoke" / "report" / "index.html").is_file()
    assert "every_cell_learns" in said, said
    assert "MICRO SCALE" not in said
    with closing(sqlite3.connect(folder / "runs" / "mlflow.db")) as store:
        mirrored = store.execute("select count(distinct run_uuid) from latest_metrics").fetchone()
    assert mirrored[0] >= 3


def test_the_adapter_and_not_its_base_is_scored(run: tuple[Path, str]) -> None:
    """What lm-eval read is another policy than the model, and the one that PEFT makes of the
    adapter."""
    folder, _ = run
    [cell] = [each for each in cells(folder) if ADAPTED in each.name]
    *_, last = BACKEND.find_checkpoints(cell / "checkpoints")
    assert last.needs_export
    [export] = cell.glob("exports/*/huggingface")
    assert (export / "model.safetensors").is_file()
    [score] = cell.glob("eval/*.json")
    assert json.loads(score.read_text())["files"]
    base = Path(ROOT / "backends" / "micro" / "policies" / "elder")
    apart = distances(cpu_python("trl", RELEASE), base, last.path, export)
    assert apart["merged"] < 1e-4 < 0.1 < apart["base"], apart
