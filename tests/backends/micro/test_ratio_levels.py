"""Ratios of a token, of a sequence and their mean: exact expectations of the trainer's own loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from backends.micro.objective import Experience, objective
from orchestrator.exact.laboratory import LabSetting, Sequences, ToyPolicy, exact, tables
from orchestrator.exact.objectives import gradients
from orchestrator.exact.surrogates import FAR_AHEAD, PolicyLoss, forces
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.settings import Kl, Loss, Settings
from tests.kl.enumeration import logp_for_autograd

POLICY, SAMPLER, REFERENCE = ToyPolicy(0.5, -0.1), ToyPolicy(0.1, 0.05), ToyPolicy(-0.2, 0.1)


class Enumerated:
    """Every sequence of T tokens that a sampler may write, and the trainer's loss of each."""

    def __init__(self, num_tokens: int = 5, sampler: ToyPolicy = SAMPLER, policy: Any = POLICY):
        self.setting = LabSetting(policy, REFERENCE, num_tokens, sampler)
        self.batch = Sequences(self.setting)
        table = tables(self.setting)
        self.theta, logp = logp_for_autograd(self.batch)
        self.logp = logp[:, :num_tokens]
        self.reference, self.old = (
            torch.tensor(self.batch.taken(each)) for each in (table.logp_ref, table.logp_rollout)
        )
        self.chance = torch.tensor(self.batch.probability)

    def losses(self, kl: Kl, loss: Loss | None = None, advantage: Any = None) -> torch.Tensor:
        """The loss of each sequence [N], summed over its tokens."""
        rows, (count, length) = [], self.old.shape
        loss = loss or Loss(aggregation="constant", constant_tokens=1, clip=None)
        for n in range(count):
            part = (each[n].reshape(1, 1, length) for each in (self.logp, self.old, self.reference))
            logp, old, reference = part
            none, mask = torch.zeros(1, 1), torch.ones(1, 1, length, dtype=torch.float64)
            gain = torch.zeros(1, 1, 1) if advantage is None else advantage[n].reshape(1, 1, 1)
            one = Experience(none, mask, mask, old, reference, none, none, gain)
            rows.append(objective(loss, kl, logp, one).loss)
        return torch.stack(rows)

    def gradient(self, *given: Any) -> np.ndarray:
        (slope,) = torch.autograd.grad(
            self.chance @ self.losses(*given), self.theta, retain_graph=True
        )
        return np.asarray(slope)

    @property
    def true(self) -> np.ndarray:
        return np.asarray(gradients(self.setting)["sequence_reverse_kl"])


def rho(estimator: str, level: str) -> Kl:
    return Kl(estimator=estimator, placement="loss", beta=1.0, ratio_level=level)  # type: ignore[arg-type]  # a level


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_rho_k1_with_the_ratio_of_the_sequence_is_the_reverse_kl_off_policy(
    num_tokens: int,
) -> None:
    """What the paper leaves open: unbiased on samples of another policy, to rounding."""
    world = Enumerated(num_tokens)
    off = np.abs(world.gradient(rho("rho_k1", "sequence")) - world.true).max()
    assert off < 1e-10
    by_token = np.abs(world.gradient(rho("rho_k1", "token")) - world.true).max()
    assert (by_token < 1e-10) == (num_tokens == 1)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_mean"])
@pytest.mark.parametrize("estimator", ["rho_k1", "rho_k2", "sg_rho_k2", "rho_k3"])
def test_every_level_is_the_laboratorys(estimator: str, level: Any) -> None:
    world = Enumerated()
    configuration = KlConfiguration(estimator, "loss", ratio=level)
    mean = exact(world.setting, [configuration]).mean[0]
    np.testing.assert_allclose(world.gradient(rho(estimator, level)), mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("level", "ratio"), [("sequence_mean", "gspo"), ("token", "ppo")])
def test_the_policy_loss_of_a_level_is_the_laboratorys(level: Any, ratio: Any) -> None:
    """GSPO and PPO without a clip, on the task reward, against `forces`."""
    who = FAR_AHEAD._replace(num_tokens=5)
    world = Enumerated(5, who.engine, who.policy)
    own = np.exp(world.batch.taken(tables(world.setting).logp).sum(1))
    reward = (world.batch.tokens.sum(1) * 2 > 5).astype(float)
    gain = torch.tensor(reward - own @ reward)
    loss = Loss(aggregation="constant", constant_tokens=1, clip=None, ratio_level=level)
    mine = -world.gradient(Kl(estimator="none"), loss, gain)
    wide = PolicyLoss(ratio, low=1e6, high=1e6)
    score = world.batch.taken(tables(world.setting).score).sum(2)
    true = score @ (own * reward)
    force = forces(who._replace(proximal=who.engine), wide).reward
    assert mine @ true / (true @ true) == pytest.approx(force.pull, abs=1e-10)


def test_the_product_of_the_sequence_is_the_whole_weight() -> None:
    """With it the expected task gradient is the true one, spread over T tokens."""
    world = Enumerated()
    own = np.exp(world.batch.taken(tables(world.setting).logp).sum(1))
    reward = (world.batch.tokens.sum(1) * 2 > 5).astype(float)
    gain = torch.tensor(reward - own @ reward)
    loss = Loss(aggregation="constant", constant_tokens=1, clip=None, ratio_level="sequence")
    mine = -world.gradient(Kl(estimator="none"), loss, gain)
    true = world.batch.taken(tables(world.setting).score).sum(2) @ (own * reward)
    np.testing.assert_allclose(mine, true, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "values",
    [
        {"estimator": "k1", "placement": "loss", "beta": 0.1, "ratio_level": "sequence"},
        {"estimator": "rho_k1", "placement": "reward", "beta": 0.1, "ratio_level": "sequence"},
    ],
)
def test_a_ratio_without_a_weight_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is of a rho estimator in the loss"):
        Kl(**values)


def test_a_sequences_ratio_takes_one_charge(embedded: Callable[..., Settings]) -> None:
    for estimator in ("k1_to_go", "rho_k1"):
        with pytest.raises(ValueError, match="weights a KL in the reward as a whole"):
            embedded(estimator, "reward", 0.1, loss=Loss(ratio_level="sequence"))
