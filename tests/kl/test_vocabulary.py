"""Estimators over the vocabulary: values, slopes, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import vocabulary_names
from orchestrator.exact.laboratory import LabSetting, ToyPolicy
from orchestrator.exact.objectives import wide_policy
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import Clamp, token_kl, vocabulary_kl, vocabulary_slope


def summed(name: str, q: np.ndarray, p: np.ndarray) -> Any:
    """The estimate of a state, written out."""
    terms = lambda q, p: q * np.log(q / p)  # noqa: E731  (the integrand of each divergence)
    if name.endswith("forward"):
        terms = lambda q, p: p * np.log(p / q)  # noqa: E731
    if name.endswith("js"):
        terms = lambda q, p: (q * np.log(2 * q / (q + p)) + p * np.log(2 * p / (q + p))) / 2  # noqa: E731
    if not name.startswith("top"):
        return terms(q, p).sum()
    best = np.argsort(-(p if name in ("top4_forward", "top4_js") else q).real)[:4]
    rest = np.setdiff1d(np.arange(len(q)), best)
    total = terms(q[best], p[best]).sum()
    if name in ("top4_tail", "top4_js") and len(rest):
        total += terms(q[rest].sum(), p[rest].sum())
    return total


@pytest.mark.parametrize("name", vocabulary_names())
def test_slopes_are_torchs_and_those_of_differences(name: str) -> None:
    random = np.random.default_rng(1)
    logits, ref = random.normal(size=(2, 3, 9))
    logp, logp_ref = (x - np.logaddexp.reduce(x, -1, keepdims=True) for x in (logits, ref))
    leaf = torch.tensor(logits, requires_grad=True)
    value = vocabulary_kl(name, leaf.log_softmax(-1), torch.tensor(logp_ref))
    np.testing.assert_allclose(value.detach(), vocabulary_kl(name, logp, logp_ref), rtol=1e-12)
    value.sum().backward()
    of_logp = np.exp(logp) * vocabulary_slope(name, logp, logp_ref)
    closed = of_logp - np.exp(logp) * of_logp.sum(-1, keepdims=True)
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad, closed, rtol=1e-10, atol=1e-12)
    for state, q, p in zip(value.tolist(), np.exp(logp), np.exp(logp_ref), strict=True):
        assert state == pytest.approx(summed("full" if name.startswith("rb") else name, q, p))
    with pytest.raises(TypeError, match="vocabulary_kl"):
        token_kl(name, leaf, leaf)


def test_what_is_refused() -> None:
    with pytest.raises(LaboratoryError, match="use ratio 'token'"):
        KlConfiguration("rb", "reward", ratio="sequence")
    with pytest.raises(LaboratoryError, match="leave it out"):
        KlConfiguration("full", "loss", clamp=Clamp(1.0, None))
    with pytest.raises(LaboratoryError, match="as many tokens"):
        LabSetting(ToyPolicy(0.1, 0.1), wide_policy(1.0, 0.0), 3)
