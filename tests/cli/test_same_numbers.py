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


def numbers(folder: Path, kl: str) -> dict[str, Any]:
    """Return what a cell's curves, checkpoints, scores and responses are, by file."""
    (cell,) = (folder / "runs" / "smoke.micro" / "cells").glob(f"*-{kl}-*")
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


def test_the_embedded_trainer_repeats_byte_for_byte(finished: Path, empty: Path) -> None:
    """Scores of one spec differed between two runs, by up to 0.053.

    The first run trains the cell beside three others, the second alone.
    """
    for command in (("run", "--train-only"), ("eval",)):
        done = orch(empty, *command, SMOKE, "-w", "kl=k3.loss")
        assert done.returncode == 0, done.stderr
    first, second = numbers(finished, "k3.loss"), numbers(empty, "k3.loss")
    kinds = {re.split("[/ ]", name)[0] for name in first}
    assert kinds == {"checkpoints", "eval", "step", "score"}
    names = first.keys() | second.keys()
    assert [name for name in names if first.get(name) != second.get(name)] == []
    other = numbers(finished, "k1.reward")
    assert first["step 16"] != other["step 16"], "what is compared depends on the run"
