"""Each policy loss computes what its entry says, for NumPy and torch alike."""

from math import inf

import numpy as np
import pytest
import torch

from backends.micro.objective import policy_loss
from orchestrator import identity
from orchestrator.losses import table
from orchestrator.losses.table import (
    POLICY_LOSSES,
    Bounds,
    PolicyLossEntry,
    Tokens,
    choices,
    policy_loss_entry,
)
from orchestrator.settings import Loss

RNG = np.random.default_rng(5)
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0.0]])
LOGP_OLD = -RNG.exponential(1.2, MASK.shape)
LOGP = np.minimum(LOGP_OLD + RNG.normal(0, 0.5, MASK.shape), -0.01)
ADVANTAGE = np.array([[1.0], [-0.8], [0.5], [-0.5]])
FROZEN = {
    "cispo": "the weight has no gradient",
    "rollout_is": "the weight has no gradient",
    "vespo": "the weight has no gradient",
}
"""Losses whose value has another derivative than their slope: a factor is held fixed."""


def tokens(entry: PolicyLossEntry, logp: np.ndarray = LOGP, **more: float) -> Tokens:
    bounds = (entry.usual or Bounds())._replace(**more)
    return Tokens(logp, LOGP_OLD, ADVANTAGE, MASK, bounds)


def as_tensors(given: Tokens) -> Tokens:
    logp, old, advantage, mask = map(torch.as_tensor, given[:4])
    return Tokens(logp, old, advantage, mask, given.bounds)


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
@pytest.mark.parametrize("dual", [inf, 1.2])
def test_numpy_and_torch_agree(name: str, dual: float) -> None:
    given = tokens(POLICY_LOSSES[name], dual=dual)
    ours, theirs = (POLICY_LOSSES[name].compute(each) for each in (given, as_tensors(given)))
    for mine, tensor in zip(ours, theirs, strict=True):
        assert mine.shape == LOGP.shape
        np.testing.assert_allclose(mine, tensor.numpy(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES if name not in FROZEN])
def test_the_slope_is_the_derivative_of_the_value(name: str) -> None:
    """Of the sum over a response, token by token, by differences of five points."""
    entry, step = POLICY_LOSSES[name], 1e-4

    def summed(moved: float, at: int) -> np.ndarray:
        logp = LOGP + moved * np.eye(LOGP.shape[1])[at]
        return np.asarray((entry.compute(tokens(entry, logp)).value * MASK).sum(1))

    slope = entry.compute(tokens(entry)).slope
    for at in range(LOGP.shape[1]):
        ends = [summed(k * step, at) for k in (-2, -1, 1, 2)]
        derivative = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
        np.testing.assert_allclose(derivative, slope[:, at] * MASK[:, at], atol=1e-8)


@pytest.mark.parametrize("name", list(FROZEN))
def test_the_slope_of_a_weighted_loss_is_its_weight(name: str) -> None:
    loss = POLICY_LOSSES[name].compute(tokens(POLICY_LOSSES[name]))
    np.testing.assert_allclose(loss.value, loss.slope * LOGP)


def test_gspo_is_ppo_with_the_mean_ratio_of_the_embedded_trainer() -> None:
    """The older spelling has code of its own: autograd through the mean of the log-ratios."""
    logp, old, advantage, mask = map(torch.as_tensor, (LOGP, LOGP_OLD, ADVANTAGE, MASK))

    def gradient(words: dict[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
        loss = Loss.model_validate({"clip": {"low": 0.05, "high": 0.05}, **words})
        own = logp.clone().requires_grad_()
        surrogate = policy_loss(loss, own, old, advantage, mask=mask)[0] * mask
        (slope,) = torch.autograd.grad((surrogate.sum(-1) / mask.sum(-1)).mean(), own)
        return surrogate.detach(), slope

    ours, older = gradient({"policy": "gspo"}), gradient({"ratio_level": "sequence_mean"})
    for one, other in zip(ours, older, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert (ours[1][mask > 0] == 0).any()


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_on_policy_every_loss_has_the_whole_gradient(name: str) -> None:
    """A clip, a mask or a weight does nothing where the policy is the one that sampled."""
    entry = POLICY_LOSSES[name]
    slope = entry.compute(tokens(entry, LOGP_OLD)).slope
    np.testing.assert_allclose(slope * MASK, -ADVANTAGE * MASK, atol=1e-12)


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_only_a_loss_that_says_so_pulls_back(name: str) -> None:
    """The gradient of any other is along the advantage or 0, however far the policy went."""
    entry = POLICY_LOSSES[name]
    x = np.linspace(-4, 4, 81)
    old = np.full_like(x, -5.0)
    against = []
    for advantage in (0.02, -0.02):
        given = Tokens(
            (old + x)[:, None],
            old[:, None],
            np.full((81, 1), advantage),
            np.ones((81, 1)),
            entry.usual or Bounds(),
        )
        against.append((entry.compute(given).slope[:, 0] * advantage > 1e-12).any())
    assert all(against) if entry.pulls_back and entry.bound == "penalty" else True
    assert any(against) == entry.pulls_back


def test_a_spec_gets_the_bounds_of_the_paper() -> None:
    assert Loss.model_validate({}).clip == Loss().clip
    gspo = Loss.model_validate({"policy": "gspo"}).clip
    assert gspo is not None
    assert (gspo.low, gspo.high) == (3e-4, 4e-4)
    assert Loss.model_validate({"policy": "sapo"}).clip is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"policy": "sapo", "clip": {"low": 0.2, "high": 0.2}}, "takes no clip"),
        ({"policy": "cispo", "clip": {"low": 1.0, "high": 4.0, "dual": 3.0}}, "no clip.dual"),
        ({"policy": "gspo", "clip": None}, "nothing but its bounds"),
        ({"policy": "gspo", "ratio_level": "sequence_mean"}, "leave ratio_level out"),
        ({"policy": "dro"}, "Input should be 'ppo'"),
    ],
)
def test_a_field_that_a_loss_does_not_take_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Loss.model_validate(given)


def test_the_default_is_absent_from_an_identity() -> None:
    assert identity.BIRTH_VALUES["loss.policy"] == table.DEFAULT == Loss().policy
    assert choices()[0] == table.DEFAULT


def test_an_unknown_name_is_a_sentence() -> None:
    with pytest.raises(LookupError, match=r"no policy loss is called 'gpso', did you mean 'gspo'"):
        policy_loss_entry("gpso")
