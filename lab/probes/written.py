"""What the lab writes as evidence: backends/<library>/evidence/<version>.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.evidence.stored import ReleaseEvidence, path, read
from orchestrator.files import write_text

VOLATILE = ("gradient", "deviation", "moved", "policy_weights", "kl_weights")
"""Fields with numbers whose last digits depend on the machine. They are compared within CLOSE."""
CLOSE = 1e-6


@dataclass(frozen=True, slots=True)
class EstimatorCurve:
    """The measured value and gradient of one estimator's name in a library, for one token."""

    value: str
    """The estimator of orch with this value, or `?` if none has it."""
    gradient: str
    """The estimator of orch with this gradient, or `?`. `sg_rho_k2`: w k1 with w constant."""
    straight_through: bool
    """True if the gradient is not the derivative of the value."""
    value_bound: float | None
    """The largest absolute value, if the library clamps it."""
    flat_below: float | None
    """The gradient is 0 if log pi / pi_ref is below this."""
    flat_above: float | None
    """The gradient is 0 if log pi / pi_ref is above this."""
    weight_bound: float | None
    """The largest importance weight, if the library bounds it."""
    deviation: float
    """Largest difference of value and gradient from the closed form, within |x| <= 1.5."""


def write(evidence: ReleaseEvidence) -> Path:
    """Write the evidence to its file, one entry of a long list a line. Return the file."""
    file = path(evidence["library"], evidence["version"])
    file.parent.mkdir(exist_ok=True)
    write_text(file, as_text(evidence))
    read.cache_clear()
    return file


def as_text(evidence: ReleaseEvidence) -> str:
    """Return the evidence as JSON; long lists have one entry a line."""
    parts = []
    for key, value in evidence.items():
        if isinstance(value, list) and value:
            lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in value)
            parts.append(f" {json.dumps(key)}: [\n{lines}\n ]")
        elif isinstance(value, dict) and value:
            lines = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}"
                for name, each in value.items()
            )
            parts.append(f" {json.dumps(key)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Return the differences of two documents of evidence: `cells[3].objective: 'zero' -> ...`.

    Numbers of VOLATILE fields are equal if they differ by at most CLOSE.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = list(dict.fromkeys([*one, *other]))
        inner = [(f"{at}.{key}".lstrip("."), one.get(key), other.get(key)) for key in keys]
        return [line for where, a, b in inner for line in differences(a, b, where)]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{at}[{i}]")]
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and any(f".{name}" in f".{at}" for name in VOLATILE):
        return [] if abs(one - other) <= CLOSE else [f"{at}: {one!r} -> {other!r}"]
    return [] if one == other else [f"{at}: {one!r} -> {other!r}"]
