"""The parametric autoregressive model of the paper (eq. 17, 18), as tables over its states.

A policy writes T binary tokens; P(y_t = 1) = sigmoid(a + b c) where c counts the ones so far. All
that happens at a token depends on (c, y) alone, so a table has shape [2, T]: token y, count c.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError

Table = np.ndarray[Any, np.dtype[Any]]

MAX_LOGIT = 300.0
"""Beyond it a token's probability is below 1e-130, and ratios of sequences overflow."""


class Policy(NamedTuple):
    """sigmoid(a + b c) is the probability of a 1 after c ones."""

    a: float
    b: float

    def logits(self, num_tokens: int) -> Table:
        """[T] logits of a 1, by count."""
        return self.a + self.b * np.arange(num_tokens)

    def logp(self, num_tokens: int) -> Table:
        """[2, T] log-probability of a 0 and of a 1, by count."""
        logits = self.logits(num_tokens)
        return np.stack([-np.logaddexp(0.0, logits), -np.logaddexp(0.0, -logits)])


@dataclass(frozen=True, slots=True)
class Setting:
    """Who is trained, towards whom, on whose samples, and for how many tokens.

    Raises LaboratoryError on parameters that are not finite, on less than one token, and on a
    rollout policy that never writes what the policy writes.
    """

    policy: Policy
    reference: Policy
    num_tokens: int
    rollout: Policy | None = None
    """The behaviour model that wrote the samples; None: the policy itself (on-policy)."""

    def __post_init__(self) -> None:
        if isinstance(self.num_tokens, bool) or not isinstance(self.num_tokens, int):
            raise LaboratoryError(f"num_tokens must be a whole number, got {self.num_tokens!r}")
        if self.num_tokens < 1:
            raise LaboratoryError(f"num_tokens must be at least 1, got {self.num_tokens}")
        for name in ("policy", "reference", "rollout"):
            self._check(name)

    def _check(self, name: str) -> None:
        given: Policy | None = getattr(self, name)
        if given is None:
            return
        for parameter, value in zip("ab", given, strict=True):
            if not math.isfinite(value):
                raise LaboratoryError(f"{name}.{parameter} must be finite, got {value}")
        worst = float(np.abs(given.logits(self.num_tokens)).max())
        if worst > MAX_LOGIT and name == "rollout":
            raise LaboratoryError(
                "the rollout policy has no support on tokens the policy writes: its logit reaches "
                f"{worst:g} within {self.num_tokens} tokens (at most {MAX_LOGIT:g} is "
                "allowed); bring rollout.a and rollout.b nearer to the policy's"
            )
        if worst > MAX_LOGIT:
            raise LaboratoryError(
                f"|{name}.a + {name}.b c| must stay below {MAX_LOGIT:g} for counts c up to "
                f"num_tokens - 1, got {worst:g}; use smaller parameters or fewer tokens"
            )

    @property
    def on_policy(self) -> bool:
        return self.rollout is None or self.rollout == self.policy

    @property
    def sampler(self) -> Policy:
        return self.rollout or self.policy


class Tables(NamedTuple):
    """Everything one token can contribute, [2, T] each; `score` [2 parameters, 2, T]."""

    logp: Table
    logp_ref: Table
    logp_rollout: Table
    score: Table
    """d log pi / d (a, b) = (y - P(1)) (1, c)."""

    @property
    def x(self) -> Table:
        """log pi / pi_ref."""
        return self.logp - self.logp_ref

    @property
    def w(self) -> Table:
        """pi / pi_rollout."""
        weight: Table = np.exp(self.logp - self.logp_rollout)
        return weight


def tables(setting: Setting) -> Tables:
    """The tables of a setting."""
    num_tokens = setting.num_tokens
    logp = setting.policy.logp(num_tokens)
    residual = np.array([[0.0], [1.0]]) - np.exp(logp[1])
    return Tables(
        logp=logp,
        logp_ref=setting.reference.logp(num_tokens),
        logp_rollout=setting.sampler.logp(num_tokens),
        score=np.stack([residual, residual * np.arange(num_tokens)]),
    )
