"""Keys of a launch that depend on others, and what travels with it.

The numbers of the loss that orch_skyrl.py registers are held in tests/losses/test_libraries.py.
"""

from types import SimpleNamespace

import pytest
import torch

from backends.skyrl import BACKEND
from backends.skyrl.launch.orch_skyrl import OPTIONS, repeated, rollout_ppo, split
from backends.skyrl.overrides import read
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import EngineCorrection
from tests.backends.skyrl.cells import PLACE, asynchronous, changed, onpolicy

A, P, E = "trainer.algorithm", "trainer.placement", "generator.inference_engine"


def plan(cell: Cell) -> LaunchPlan:
    return BACKEND.translate(cell, PLACE)


def test_an_engine_whose_probabilities_are_in_the_ratio_reports_them_at_the_temperature() -> None:
    """vLLM reports raw ones unless told; the trainer's are at the temperature of the rollout."""
    key = f"{E}.engine_init_kwargs.logprobs_mode"
    cell = asynchronous("0.4.0")
    warm = changed(cell, rollout=cell.settings.rollout.but(temperature=0.6))
    assert read(plan(warm).argv)[key] == "processed_logprobs"
    on = onpolicy("0.4.0")
    weighted = on.settings.loss.but(correction=EngineCorrection(kind="tis_token", most=2.0))
    corrected = changed(on, loss=weighted, rollout=on.settings.rollout.but(temperature=0.6))
    assert read(plan(corrected).argv)[key] == "processed_logprobs"
    recomputed = changed(on, rollout=on.settings.rollout.but(temperature=0.6))
    assert not any(key in argument for each in (cell, recomputed) for argument in plan(each).argv)


def test_ray_is_told_the_cpus_that_skyrl_claims() -> None:
    """One a GPU; one of each node, for the task that removes old checkpoints; its program's own."""
    for cell in (onpolicy("0.4.0"), asynchronous("0.4.0")):
        assert plan(cell).ray_cpus == 2 * (4 + 1) + 1
    assert plan(onpolicy("0.3.0")).ray_cpus is None


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
