"""Evidence: backends/<library>/evidence/<version>.json, which the lab writes."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.estimators import TABLE
from orchestrator.kl.catalogue import Naming, ObjectiveKind

ReleaseEvidence = Mapping[str, Any]

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
