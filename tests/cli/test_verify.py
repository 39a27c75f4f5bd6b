"""The same spec twice: CI's check that the embedded trainer and its evaluation repeat exactly."""

import json
from pathlib import Path

import pytest
from command_line import orch

pytestmark = [pytest.mark.slow, pytest.mark.long]

SMOKE = "experiments/smoke.yaml"


def test_the_embedded_trainer_repeats_byte_for_byte(empty: Path) -> None:
    """Scores of one spec differed between two runs, by up to 0.053."""
    done = orch(empty, "verify", SMOKE, "site=local", "-w", "kl=k3.loss", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["what"] for row in rows] == ["curves", "checkpoints", "scores"]
    assert {row["agreement"] for row in rows} == {"identical"}
    assert "same spec, same numbers" in done.stderr
    assert not list((empty / "runs").glob("verify-*")), "nothing is left behind"


def test_a_folder_that_cannot_be_made_is_a_sentence(empty: Path) -> None:
    done = orch(empty, "verify", SMOKE, "site=local", "site.runs_dir=/proc/none")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "site.runs_dir" in done.stderr
