"""What the bounds of a token's KL leave of its gradient, exactly, on the laboratory's model."""

from typing import NamedTuple

from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.derivation import FAR, NEAR, NUM_TOKENS
from orchestrator.kl.estimators import UNCLAMPED, Clamp
from orchestrator.kl.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.settings import Placement

RARE = (ToyPolicy(-3.9, 0.0), ToyPolicy(0.0, 0.0), ToyPolicy(-3.9, 0.0))
"""Policy, reference, rollout policy: 2% for a token that the reference gives 50%."""


class ClampEffect(NamedTuple):
    """The pull of the expected gradient within the bounds, over that of the one without."""

    near: float
    """0.08 nats from the reference."""
    far: float
    """18 nats from it."""
    rare: float
    """At a token that the policy has nearly given up."""


def clamp_effect(
    clamp: Clamp, estimator: str, placement: Placement, *, old: bool = False
) -> ClampEffect:
    """Return what a clamp leaves of a term's expected gradient, along the one without it.

    `old`: from samples of the rollout policy. A term without a gradient keeps all of it.
    """
    fractions = []
    for policy, reference, rollout in (NEAR, FAR, RARE):
        setting = LabSetting(policy, reference, NUM_TOKENS, rollout if old else None)
        forms = [KlConfiguration(estimator, placement, clamp=each) for each in (clamp, UNCLAMPED)]
        clamped, free = exact(setting, forms).mean
        size = float(free @ free)
        fractions.append(float(clamped @ free) / size if size > 1e-18 else 1.0)
    return ClampEffect(*fractions)
