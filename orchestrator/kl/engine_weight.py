"""The importance weight of a sample against the engine that wrote it.

A trainer multiplies its policy loss with it, its KL in the loss, or both. The functions take NumPy
arrays and torch tensors: the exact laboratory and the embedded trainer share them.
"""

from math import inf
from typing import Literal, NamedTuple

from orchestrator.estimators import Array, elementwise
from orchestrator.kl.estimators import where
from orchestrator.settings import CorrectionKind, EngineCorrection

Correction = Literal["none", CorrectionKind]
"""The weight for the engine's mismatch, of proximal over engine, or none. See CorrectionKind."""

Ratio = Literal["token", "ppo_clip", "cispo", "gspo", "none"]
"""The weight of the policy loss, of policy over proximal: the token's; the token's, clipped as PPO
does; the token's, bounded without loss of its gradient (CISPO); the geometric mean over the
sequence, clipped (GSPO); or none."""


class EngineWeight(NamedTuple):
    """A weight and its bounds."""

    kind: Correction
    least: float = 0.0
    most: float = inf


def weight_of(correction: EngineCorrection) -> EngineWeight:
    """Return the weight that the settings of a cell ask for."""
    most = inf if correction.most is None else correction.most
    return EngineWeight(correction.kind, correction.least, most)


def ratio_of_unit(kind: Correction, log_ratio: Array, mask: Array | None = None) -> Array:
    """Return the ratios that a correction bounds: of tokens [..., T], or of sequences [..., 1].

    log_ratio [..., T]: of proximal over engine. mask [..., T]: 1 for response tokens, else 0; None:
    every token is one.
    """
    if mask is not None:
        log_ratio = log_ratio * mask
    if kind == "geometric" or kind.endswith("sequence"):
        length = log_ratio.shape[-1] if mask is None else mask.sum(-1)
        log_ratio = log_ratio.sum(-1) / (length if kind == "geometric" else 1)
        log_ratio = log_ratio[..., None]
    return elementwise("exp", log_ratio)


def weights(weight: EngineWeight, log_ratio: Array, mask: Array | None = None) -> Array:
    """Return the factor of each token, [..., T], or [..., 1] where a sequence has one.

    The arguments are those of `ratio_of_unit`.
    """
    if weight.kind == "none":
        return 0.0 * log_ratio + 1.0
    ratio = ratio_of_unit(weight.kind, log_ratio, mask)
    if weight.kind.startswith("tis"):
        return ratio.clip(weight.least, weight.most)
    within = (ratio >= weight.least) & (ratio <= weight.most)
    value = ratio if weight.kind.startswith("mis") else ratio.clip(1.0, 1.0)
    return where(within, value)
