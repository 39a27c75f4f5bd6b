"""Ratios of a token, of a sequence and their mean: exact expectations of the trainer's own loss."""

from typing import Any

import numpy as np
import pytest

from orchestrator.exact.laboratory import exact
from orchestrator.exact.surrogates import FAR_AHEAD, PolicyLoss, forces
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.settings import Kl, Loss
from tests.backends.micro.cells import embedded
from tests.backends.micro.every_sequence import SUMMED, Enumerated

NO_KL = Kl(estimator="none")


def rho(estimator: str, level: str) -> Kl:
    return Kl(estimator=estimator, placement="loss", beta=1.0, ratio_level=level)  # type: ignore[arg-type]  # a level


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_rho_k1_with_the_ratio_of_the_sequence_is_the_reverse_kl_off_policy(
    num_tokens: int,
) -> None:
    """What the paper leaves open: unbiased on samples of another policy, to rounding."""
    world = Enumerated(num_tokens)
    off = np.abs(world.gradient(rho("rho_k1", "sequence")) - world.true_kl).max()
    assert off < 1e-10
    by_token = np.abs(world.gradient(rho("rho_k1", "token")) - world.true_kl).max()
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
    mine = -world.gradient(NO_KL, SUMMED.but(ratio_level=level), of_reward=True)
    wide = PolicyLoss(ratio, low=1e6, high=1e6)
    force = forces(who._replace(proximal=who.engine), wide).reward
    pull = mine @ world.true_gain / (world.true_gain @ world.true_gain)
    assert pull == pytest.approx(force.pull, abs=1e-10)


def test_the_product_of_the_sequence_is_the_whole_weight() -> None:
    """With it the expected task gradient is the true one, spread over T tokens."""
    world = Enumerated()
    mine = -world.gradient(NO_KL, SUMMED.but(ratio_level="sequence"), of_reward=True)
    np.testing.assert_allclose(mine, world.true_gain, rtol=0, atol=1e-10)


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


def test_a_sequences_ratio_takes_one_charge() -> None:
    for estimator in ("k1_to_go", "rho_k1"):
        with pytest.raises(ValueError, match="weights a KL in the reward as a whole"):
            embedded(estimator, "reward", 0.1, loss=Loss(ratio_level="sequence"))
