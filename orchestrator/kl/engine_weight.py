"""Importance weights that correct the mismatch between the trainer and the inference engine.

A trainer multiplies its policy loss, its KL in the loss, or both by the weight. The functions take
NumPy arrays and torch tensors, so the exact laboratory and the embedded trainer share them.
"""

from math import inf
from typing import Literal, NamedTuple

from orchestrator.estimators import Array, elementwise
from orchestrator.kl.estimators import where
from orchestrator.settings import CorrectionKind, EngineCorrection

Correction = Literal["none", CorrectionKind]
"""The kind of weight, from the ratio proximal policy / engine; or none. See CorrectionKind."""

Ratio = Literal["token", "ppo_clip", "cispo", "gspo", "none"]
"""The ratio policy / proximal policy in the policy loss. `token`: each token's ratio. `ppo_clip`:
the token's ratio with PPO's clip. `cispo`: the token's ratio, bounded, and the token keeps its
gradient. `gspo`: the clipped geometric mean over the sequence. `none`: 1."""


class EngineWeight(NamedTuple):
    """A kind of weight with its bounds."""

    kind: Correction
    least: float = 0.0
    most: float = inf


def weight_of(correction: EngineCorrection) -> EngineWeight:
    """Return the weight that a cell's settings describe."""
    most = inf if correction.most is None else correction.most
    return EngineWeight(correction.kind, correction.least, most)


def ratio_of_unit(kind: Correction, log_ratio: Array, mask: Array | None = None) -> Array:
    """Return the ratios that a correction bounds: per token [..., T], or per sequence [..., 1].

    log_ratio: [..., T], the log of proximal policy / engine. mask: [..., T], 1 for response tokens
    and 0 for others; None: all tokens are response tokens.
    """
    if mask is not None:
        log_ratio = log_ratio * mask
    if kind == "geometric" or kind.endswith("sequence"):
        length = log_ratio.shape[-1] if mask is None else mask.sum(-1)
        log_ratio = log_ratio.sum(-1) / (length if kind == "geometric" else 1)
        log_ratio = log_ratio[..., None]
    return elementwise("exp", log_ratio)


def weights(weight: EngineWeight, log_ratio: Array, mask: Array | None = None) -> Array:
    """Return the weights after their bounds: per token [..., T], or per sequence [..., 1].

    Arguments as for `ratio_of_unit`.
    """
    if weight.kind == "none":
        # Ones in the shape and the type of the ratio, for NumPy and for torch.
        return 0.0 * log_ratio + 1.0
    ratio = ratio_of_unit(weight.kind, log_ratio, mask)
    if weight.kind.startswith("tis"):
        return ratio.clip(weight.least, weight.most)
    within = (ratio >= weight.least) & (ratio <= weight.most)
    # `mis` weighs by the ratio within its bounds; the other kinds only leave samples out.
    value = ratio if weight.kind.startswith("mis") else ratio.clip(1.0, 1.0)
    return where(within, value)
