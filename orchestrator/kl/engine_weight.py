"""The importance weight of a policy loss against the engine that wrote its samples."""

from math import inf
from typing import Literal, NamedTuple

Correction = Literal["none", "tis_token", "tis_sequence", "mis_token", "mis_sequence", "geometric"]
"""The weight for the engine's mismatch, of proximal over engine: none; truncated, of the token or
of the sequence (TIS); the same, zero instead of truncated (MIS; of tokens with a lower bound, it is
IcePop); or 1 where the geometric mean over the sequence is within bounds, else 0."""


class EngineWeight(NamedTuple):
    """A weight and its bounds."""

    kind: Correction
    least: float = 0.0
    most: float = inf
