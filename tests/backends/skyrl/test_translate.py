"""Keys of a launch that depend on others, and what travels with it.

The numbers of the loss that orch_skyrl.py registers are held in tests/losses/test_libraries.py.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.skyrl import BACKEND
from backends.skyrl.launch.orch_skyrl import (
    OPTIONS,
    number_last_export,
    repeated,
    rollout_ppo,
    split,
)
from backends.skyrl.overrides import read
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from tests import golden
from tests.backends.asked import python_of
from tests.backends.shipped import write

K1 = {"estimator": "k1", "placement": "reward", "beta": 0.05}
STALE = {"max_staleness_steps": 10, "num_train_steps": 350, "batch": {"num_prompts": 32}}
WARM = {"rollout.temperature": 0.6}


def cell_of(version: str, changes: Mapping[str, Any] = {}) -> Cell:
    """On two nodes."""
    machine = {"num_nodes": 2, "gpus_per_node": 4}
    return golden.cell_of("skyrl", version, {"kl": K1, "resources": machine, **changes})


def plan(changes: Mapping[str, Any] = {}, version: str = "0.4.0") -> LaunchPlan:
    return BACKEND.translate(cell_of(version, changes), golden.PLACE)


def test_an_engine_whose_probabilities_are_in_the_ratio_reports_them_at_the_temperature() -> None:
    """vLLM reports raw ones unless told; the trainer's are at the temperature of the rollout."""
    key = "generator.inference_engine.engine_init_kwargs.logprobs_mode"
    weighted = {"loss.correction": {"kind": "tis_token", "most": 2.0}}
    for changes in (STALE | WARM, weighted | WARM):
        assert read(plan(changes).argv)[key] == "processed_logprobs"
    for changes in (STALE, WARM):
        assert not any(key in argument for argument in plan(changes).argv)


def test_ray_is_told_the_cpus_that_skyrl_claims() -> None:
    """One a GPU; one of each node, for the task that removes old checkpoints; its program's own."""
    assert plan().ray_cpus == plan(STALE).ray_cpus == 2 * (4 + 1) + 1
    assert plan(version="0.3.0").ray_cpus is None


# ---------------------------------------------------------------- what travels with a launch


def test_options_are_taken_out_of_the_arguments() -> None:
    options, overrides = split(["a.b=1", "orch.chat_template=none", "c=orch.x"])
    assert options == {**OPTIONS, "chat_template": "none"}
    assert overrides == ["a.b=1", "c=orch.x"]
    with pytest.raises(SystemExit, match=r"orch\.colour"):
        split(["orch.colour=red"])


def test_data_is_repeated_to_exactly_the_rows_wanted() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"n": list(range(10))})
    numbers = repeated(rows, 25, seed=0)["n"]
    assert len(numbers) == 25
    assert sorted(numbers[:10]) == sorted(numbers[10:20]) == list(range(10))
    assert list(numbers[:10]) != list(numbers[10:20]), "each pass is shuffled anew"


CLIPPED = SimpleNamespace(
    policy_loss_type="orch_rollout_ppo", eps_clip_low=0.2, eps_clip_high=0.3, clip_ratio_c=3.0
)


def test_masked_tokens_of_the_registered_loss_are_nothing() -> None:
    """Even where SkyRL pads log-probabilities with what no arithmetic survives."""
    logp = torch.tensor([[-0.1, -2.0, -0.7]], requires_grad=True)
    rollout, mask = torch.tensor([[-0.6, -1.2, float("nan")]]), torch.tensor([[1.0, 1.0, 0.0]])
    ones = torch.ones_like(logp)
    value, _ = rollout_ppo(logp, logp, ones, CLIPPED, loss_mask=mask, rollout_logprobs=rollout)
    (slope,) = torch.autograd.grad(value, logp)
    assert value.isfinite()
    assert slope.isfinite().all()
    assert slope[0, 2] == 0
    with pytest.raises(ValueError, match="logprobs=1"):
        rollout_ppo(logp, logp, ones, CLIPPED)


# ---------------------------------------------------------------- with SkyRL's own code around it


def launched(version: str, changes: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """What comes of a plan as it lies on disk, up to the trainer (ask/launch.py); the reward needs
    no package."""
    place = AttemptPaths(root / "a 'plan'", root / "attempts" / "1", root / "checkpoints")
    made = BACKEND.translate(cell_of(version, changes), place)
    write(made, place.plan_dir)
    (place.plan_dir / "reward.py").write_text(
        "def score(response, answer):\n    return 0.25 * ((response, answer) == ('four', '4'))"
    )
    program = Path(__file__).parent / "ask" / "launch.py"
    done = subprocess.run(
        [python_of("skyrl", version), program, *made.argv[1:]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **made.env},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.rpartition("ANSWER ")[2])
    return seen


@pytest.mark.slow
@pytest.mark.thorough  # in a library's environment
@pytest.mark.parametrize("version", BACKEND.versions)
def test_it_is_the_trainer_of_the_cell(version: str, tmp_path: Path) -> None:
    """A KL in both places reaches it, though SkyRL's validator, which runs before, refuses it."""
    seen = launched(version, {"num_train_steps": 250}, tmp_path / "on")
    assert seen["trainer"] == "SimpleNamespace", "whatever BasePPOExp makes"
    assert seen["algorithm"] == [True, False]
    assert (seen["reward"], seen["done"]) == (0.25, True)
    assert seen["template"] == "its own"
    assert seen["tensorboard"] == str(tmp_path / "on" / "attempts" / "1" / "tensorboard-x1")
    assert seen["data"] == (["rows", 250 * 256, 0] if version == "0.2.0" else "rows")
    seen = launched(version, STALE, tmp_path / "stale")
    assert seen["trainer"] == "FullyAsyncRayPPOTrainer"
    assert seen["data"] == (["rows", 350 * 32, 0] if version == "0.2.0" else "rows")
    both = {"kl": {**K1, "placement": "reward_and_loss"}, "model.chat_template": "none"}
    seen = launched(version, both, tmp_path / "both")
    assert seen["algorithm"] == [True, True]
    assert "message['content']" in seen["template"]


def test_the_last_export_of_an_asynchronous_run_has_the_number_of_its_last_step(
    tmp_path: Path,
) -> None:
    """The trainer's own end: it has counted one step more, and saves once again."""

    class Trainer:
        cfg = SimpleNamespace(trainer=SimpleNamespace(export_path=str(tmp_path)))
        total_training_steps = 5
        global_step = 0

        def save_models(self) -> None:
            export = tmp_path / f"global_step_{self.global_step}" / "policy"
            export.mkdir(parents=True)
            (export / "tokenizer_config.json").write_text("{}")

    def end(trainer: Trainer, *steps: int) -> list[str]:
        for trainer.global_step in steps:
            trainer.save_models()
        return sorted(path.name for path in tmp_path.iterdir())

    trainer = Trainer()
    number_last_export(trainer)
    assert end(trainer, 2, 6) == ["global_step_2", "global_step_5"]
    assert trainer.global_step == 6, "what resumes counts on"
    shutil.rmtree(tmp_path / "global_step_2")
    assert end(trainer, 6) == ["global_step_5"], "it is there already"
