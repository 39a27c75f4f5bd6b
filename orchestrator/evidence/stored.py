"""Evidence: backends/<library>/evidence/<version>.json, which the lab writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.estimators import TABLE
from orchestrator.files import write_text
from orchestrator.kl.catalogue import Naming, ObjectiveKind

ReleaseEvidence = Mapping[str, Any]

VOLATILE = ("gradient", "deviation", "moved", "policy_weights", "kl_weights")
"""Fields with numbers whose last digits depend on the machine. They are compared within CLOSE."""
CLOSE = 1e-6
ALL_TOKENS = "all tokens"
"""The divisor of a mean over the tokens of a batch, in the evidence on weights."""


def path(library: str, version: str) -> Path:
    """Return the path of the evidence on a release, which may lie in the project's folder."""
    return plugins.evidence_dir(library) / f"{version}.json"


@cache
def read(library: str, version: str) -> ReleaseEvidence | None:
    """Return the evidence on a release, or None if it was not measured."""
    file = path(library, version)
    if not file.exists():
        return None
    try:
        release: ReleaseEvidence = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EnvironmentFault(
            f"{file} is not JSON ({error}): measure again with "
            f"`python -m lab measure {library}@{version}`"
        ) from error
    return release


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


# The measured KL of one token under one name of a library. Plain data without NumPy.


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


def curve_text(curve: Mapping[str, Any]) -> str:
    """Return a curve in a few words: `k3, held within ±10, no gradient for x < -2.61`."""
    value, below, above = curve["value"], curve.get("flat_below"), curve.get("flat_above")
    names = TABLE[value].symbol if value in TABLE else value
    if curve.get("straight_through"):
        other = curve["gradient"]
        names += ", the gradient of another" if other == "?" else f", gradient of {other}"
    words = [names]
    if curve.get("value_bound") is not None:
        words.append(f"held within ±{curve['value_bound']:g}")
    ends = [f"x < {below:g}"] if below is not None else []
    ends += [f"x > {above:g}"] if above is not None else []
    if ends:
        words.append(f"no gradient for {' or '.join(ends)}")
    if curve.get("weight_bound") is not None:
        words.append(f"weight at most {curve['weight_bound']:g}")
    return ", ".join(words)


def objective_text(measured: Mapping[str, Any] | None) -> str:
    """Return the measured objective in words: `token-level reverse KL`."""
    if measured is None:
        return "not measured"
    if "refused" in measured:
        return "refused"
    if "error" in measured:
        return f"raises {measured['error'].partition(':')[0]}"
    if measured["objective"] == ObjectiveKind.ZERO:
        return "nothing: zero-mean noise"
    terms = tuple((sign, key) for sign, key in measured["terms"])
    naming = Naming(ObjectiveKind(measured["objective"]), terms, measured["scale"])
    text = naming.words
    if measured.get("towards") == "rollout":
        return f"{text}, with the rollout policy in the place of the reference policy"
    return text
