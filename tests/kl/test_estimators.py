"""One definition for NumPy and torch, with the gradient its name promises."""

from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.estimators import TABLE
from orchestrator.kl.estimators import UNCLAMPED, Clamp, importance_ratio, token_kl

FORMS: tuple[Any, ...] = (
    "none",
    *(k for k, each in TABLE.items() if not each.is_of_vocabulary),
)
RNG = np.random.default_rng(3)
LOGP, LOGP_REF, LOGP_OLD = -RNG.exponential(1.5, (3, 4, 6))
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])


@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_mean"])
@pytest.mark.parametrize(
    "clamp", [UNCLAMPED, Clamp(20.0, 10.0), Clamp(None, 10.0), Clamp(0.8, 0.5)]
)
@pytest.mark.parametrize("form", FORMS)
def test_numpy_and_torch_agree(form: Any, clamp: Clamp, ratio: Any) -> None:
    rest = {"ratio": ratio, "clamp": clamp}
    ours = token_kl(form, LOGP, LOGP_REF, LOGP_OLD, mask=MASK, **rest)
    tensors = (torch.as_tensor(each) for each in (LOGP, LOGP_REF, LOGP_OLD))
    theirs = token_kl(form, *tensors, mask=torch.as_tensor(MASK), **rest)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-14, atol=1e-15)
    assert ours.shape == LOGP.shape


def test_a_sequence_ratio_stops_at_the_mask_and_gives_the_past_its_gradient() -> None:
    logp = torch.tensor(LOGP, requires_grad=True)
    old, mask = torch.as_tensor(LOGP_OLD), torch.as_tensor(MASK)
    ratio = importance_ratio(logp, old, "sequence", mask)
    wanted = np.exp(((LOGP - LOGP_OLD) * MASK).sum(1, keepdims=True))
    np.testing.assert_allclose(ratio.detach(), wanted, rtol=1e-13)
    ratio.sum().backward()
    assert logp.grad is not None
    np.testing.assert_allclose(logp.grad, wanted * MASK, rtol=1e-13)


def test_small_log_ratios_keep_their_digits() -> None:
    """k3 of x is x^2 / 2 to first order; computed as exp(-x) - 1 + x it would be rounding."""
    x = torch.tensor([1e-3, -1e-3], dtype=torch.float32)
    found = token_kl("k3", x, torch.zeros(2))
    np.testing.assert_allclose(found, [5e-7, 5e-7], rtol=1e-3)


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"rho_k1.*rollout policy"):
        token_kl("rho_k1", LOGP, LOGP_REF)
    with pytest.raises(LookupError, match="'k0'"):
        token_kl("k0", LOGP, LOGP_REF)
