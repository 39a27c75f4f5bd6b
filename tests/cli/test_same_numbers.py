"""The same cell, run twice: the embedded trainer and its evaluation repeat exactly."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import orch

from orchestrator.evaluate import read_scores
from orchestrator.rundir import CellDir

pytestmark = [pytest.mark.slow, pytest.mark.long]

SMOKE = "experiments/smoke.yaml"


def numbers(folder: Path) -> dict[str, Any]:
    """Return what the cell's curves, checkpoints, scores and responses are, by file."""
    (cell,) = (folder / "runs" / "smoke.micro" / "cells").iterdir()
    results: dict[str, Any] = {
        str(path.relative_to(cell)): path.read_bytes()
        for pattern in ("checkpoints/*/*", "eval/*.jsonl")
        for path in cell.glob(pattern)
        if path.name != "state.safetensors"  # it holds the time that was used
    }
    for line in (cell / "attempts" / "1" / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        values = {k: v for k, v in point["values"].items() if not k.startswith("time/")}
        results[f"step {point['step']}"] = values
    for score in read_scores(CellDir(cell)):
        results[f"score {score.task} {score.metric}"] = score.value, score.stderr
    return results


def test_the_embedded_trainer_repeats_byte_for_byte(empty: Path, tmp_path: Path) -> None:
    """Scores of one spec differed between two runs, by up to 0.053."""
    runs = []
    for name, seed in (("first", 0), ("second", 0), ("other seed", 1)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "experiments").symlink_to(empty / "experiments")
        done = orch(folder, "run", SMOKE, "site=local", f"seeds=[{seed}]", "-w", "kl=k3.loss")
        assert done.returncode == 0, done.stderr
        runs.append(numbers(folder))
    first, second, other = runs
    kinds = {re.split("[/ ]", name)[0] for name in first}
    assert kinds == {"checkpoints", "eval", "step", "score"}
    names = first.keys() | second.keys()
    assert [name for name in names if first.get(name) != second.get(name)] == []
    assert first["step 16"] != other["step 16"], "what is compared depends on the run"
