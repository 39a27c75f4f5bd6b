"""What a search is after: a metric, or a weighted sum of metrics.

eval/in_domain/mean
eval/accuracy_in_domain - 0.5 * eval/kl_reverse
"""

import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from orchestrator.names import METRICS

Direction = Literal["maximize", "minimize"]

_TERM = re.compile(r"(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*\*\s*)?([A-Za-z]\w*/[\w./@+-]+)")
_SIGN = re.compile(r"\s([+-])\s")


class Objective(NamedTuple):
    """A sum of weighted metrics and which way is better."""

    text: str
    terms: tuple[tuple[float, str], ...]
    direction: Direction = "maximize"

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(metric for _, metric in self.terms)

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.direction == "maximize" else -1

    @property
    def is_scored(self) -> bool:
        """Whether some metric is lm-evaluation-harness's, which training does not report."""
        return not all(is_reported(metric) for metric in self.metrics)

    def value(self, values: Mapping[str, float]) -> float:
        """NaN if a metric is not among the values."""
        return math.fsum(weight * values.get(metric, math.nan) for weight, metric in self.terms)

    def missing(self, values: Mapping[str, float]) -> list[str]:
        return [metric for metric in self.metrics if metric not in values]

    def __str__(self) -> str:
        return f"{self.direction} {self.text}"


def objective(text: str, direction: Direction = "maximize") -> Objective:
    """Reads a formula. Raises ValueError with a sentence."""
    first, *rest = _SIGN.split(f" {text.strip()}" if text.strip()[:1] in "+-" else text.strip())
    parts = [*([("+", first)] if first.strip() else []), *zip(rest[::2], rest[1::2], strict=True)]
    terms = []
    for sign, part in parts:
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise ValueError(
                f"an objective is a sum of metrics, `a/b` or `0.5 * a/b`, with spaces around + "
                f"and -; got {part.strip()!r} in {text!r}"
            )
        weight = float(found[1] or 1)
        terms.append((-weight if sign == "-" else weight, found[2]))
    if not terms:
        raise ValueError("an objective names at least one metric; it is empty")
    return Objective(" ".join(text.split()), tuple(terms), direction)


def is_reported(metric: str) -> bool:
    """Whether training itself reports a metric, step by step."""
    return metric in METRICS or metric.startswith("eval/accuracy/")
