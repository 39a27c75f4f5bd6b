"""Compute the exact effect of clamping each token's KL on its gradient, on the toy model."""

from typing import NamedTuple

from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.derivation import FAR, NEAR, NUM_TOKENS
from orchestrator.kl.estimators import UNCLAMPED, Clamp
from orchestrator.kl.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.settings import Placement

RARE = (ToyPolicy(-3.9, 0.0), ToyPolicy(0.0, 0.0), ToyPolicy(-3.9, 0.0))
"""Policy, reference, rollout policy. The policy gives 2% to a token, the reference gives it 50%."""


class ClampEffect(NamedTuple):
    """The share of the expected gradient that remains with the clamp, at three settings."""

    near: float
    """At 0.08 nats from the reference."""
    far: float
    """At 18 nats from the reference."""
    rare: float
    """At a token that the policy rarely writes (RARE)."""


def clamp_effect(
    clamp: Clamp, estimator: str, placement: Placement, *, old: bool = False
) -> ClampEffect:
    """Return the share of a term's expected gradient that remains with a clamp.

    It is the projection of the clamped gradient on the free one, in lengths of the free one. It is
    1 for a term without a gradient. `old`: True if the rollout policy wrote the samples.
    """
    fractions = []
    for policy, reference, rollout in (NEAR, FAR, RARE):
        setting = LabSetting(policy, reference, NUM_TOKENS, rollout if old else None)
        forms = [KlConfiguration(estimator, placement, clamp=each) for each in (clamp, UNCLAMPED)]
        clamped, free = exact(setting, forms).mean
        size = float(free @ free)
        fractions.append(float(clamped @ free) / size if size > 1e-18 else 1.0)
    return ClampEffect(*fractions)
