"""Which objective a library's whole update optimises, by its exact expected gradient."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestrator.errors import UnsupportedSetting
from orchestrator.matrix.batches import every_group, expected_gradient
from orchestrator.matrix.cells import BETA, settings, terms, translated
from orchestrator.matrix.inquiry import Inquiry
from orchestrator.semantics.catalogue import Objective
from orchestrator.semantics.configuration import Configuration
from orchestrator.semantics.laboratory import exact
from orchestrator.semantics.model import Setting, Table
from orchestrator.semantics.naming import generic_settings, name_objective
from orchestrator.semantics.objectives import gradients
from orchestrator.semantics.verdict import verdict
from orchestrator.settings import Kl, Settings

NUM_TOKENS = 3
TOLERANCE = 1e-6
"""Relative; libraries add 1e-8 to a divisor here and there, and round a ratio to float32."""

Key = tuple[Any, ...]


def models(on_policy: bool) -> Sequence[Setting]:
    """The policies at which a gradient must agree with an objective to bear its name."""
    return generic_settings(on_policy=on_policy, num_tokens=NUM_TOKENS)


def name(on_policy: bool, index: int) -> str:
    """Of a model's batch."""
    return f"{'on' if on_policy else 'off'}-policy {index}"


def prepare(inquiry: Inquiry) -> None:
    """The batches of every model."""
    for on_policy in (True, False):
        for index, setting in enumerate(models(on_policy)):
            inquiry.batch(name(on_policy, index), every_group(setting))


def enquire(inquiry: Inquiry, key: Key, launch: int, on_policy: bool) -> None:
    """Ask for the update of a launch at every model."""
    for index in range(len(models(on_policy))):
        inquiry.question((*key, index), "update", launch, name(on_policy, index), only="gradient")


def every_cell(inquiry: Inquiry) -> Iterator[tuple[Kl, bool, Key | str]]:
    """Ask about every KL term, on- and off-policy: its key, or the field the backend refuses."""
    for kl in terms():
        for on_policy in (True, False):
            found = launch_of(inquiry.library, inquiry.version, kl, on_policy)
            if isinstance(found, str):
                yield kl, on_policy, found
                continue
            key = ("cell", kl.label, on_policy)
            enquire(inquiry, key, inquiry.launch(translated(found)), on_policy)
            yield kl, on_policy, key


def launch_of(library: str, version: str, kl: Kl, on_policy: bool) -> Settings | str:
    """A cell with that KL term, or the field the backend refuses. Off-policy it has minibatches, or
    staleness where the library has no minibatches."""
    wanted = settings(library, version, kl, on_policy=on_policy)
    try:
        translated(wanted)
    except UnsupportedSetting as error:
        if on_policy or error.field != "batch.num_minibatches":
            return error.field
    else:
        return wanted
    stale = settings(library, version, kl, on_policy=False, num_minibatches=1)
    try:
        translated(stale)
    except UnsupportedSetting as error:
        return error.field
    return stale


def measured(
    answers: Mapping[Any, Mapping[str, Any]], key: Key, on_policy: bool, beta: float = BETA
) -> dict[str, Any]:
    """The objective whose gradient the library's update has, or what the library raised."""
    settings_ = models(on_policy)
    told = [answers[(*key, index)] for index in range(len(settings_))]
    failed = next((each["error"] for each in told if "error" in each), None)
    if failed:
        return {"error": failed}
    gradient = np.stack(
        [
            expected_gradient(setting, each["gradient"], beta)
            for setting, each in zip(settings_, told, strict=True)
        ]
    )
    candidates = [gradients(each) for each in settings_]
    size = max(float(np.abs(row).max()) for each in candidates for row in each.values())
    naming = name_objective(gradient, candidates, magnitude=size, tolerance=TOLERANCE)
    towards = {}
    if naming.kind is Objective.UNKNOWN and not on_policy:
        lagging = [gradients(_towards_rollout(each)) for each in settings_]
        naming = name_objective(gradient, lagging, magnitude=size, tolerance=TOLERANCE)
        towards = {} if naming.kind is Objective.UNKNOWN else {"towards": "rollout"}
    return {
        **towards,
        "objective": str(naming.kind),
        "terms": [[sign, name] for sign, name in naming.terms],
        "scale": float(f"{naming.scale:.6g}"),
        "gradient": gradient.tolist(),
    }


def _towards_rollout(setting: Setting) -> Setting:
    """The same, regularised towards the rollout policy instead of the reference policy."""
    return replace(setting, reference=setting.sampler)


def compared(kl: Kl, on_policy: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    """What orch says of such a term, whether the measurement agrees, and how far it is off: max
    |measured - closed form|, in units of one sequence's gradient.

    Off-policy a KL in the reward may be that of the rollout policy, computed once, or that of the
    policy being updated: `reward_kl_of` is whichever the library has.
    """
    told: dict[str, Any] = {}
    for of in _whose(kl, on_policy):
        says = verdict(kl, on_policy=on_policy, reward_kl_of=of)
        expected = {"objective": str(says.objective), "terms": [list(term) for term in says.terms]}
        agrees = found.get("terms") == expected["terms"] and found.get("scale") == 1
        if told and not agrees:
            continue
        told = {"verdict": expected, "agrees": agrees}
        if len(_whose(kl, on_policy)) > 1:
            told["reward_kl_of"] = of if agrees else None
        if "gradient" in found:
            off = _deviation(kl, on_policy, of, np.asarray(found["gradient"]))
            told["deviation"] = off
    return told


def _whose(kl: Kl, on_policy: bool) -> tuple[str, ...]:
    return ("rollout", "policy") if not on_policy and kl.placement != "loss" else ("policy",)


def _deviation(kl: Kl, on_policy: bool, of: str, gradient: Table) -> float | None:
    if kl.placement is None:
        return None
    configuration = Configuration(kl.estimator, kl.placement, reward_kl_of=of)
    rows = [exact(setting, [configuration]) for setting in models(on_policy)]
    closed = np.stack([row.mean[0] for row in rows])
    size = max(float(row.magnitude.max()) for row in rows)
    return float(f"{np.abs(gradient - closed).max() / size:.1g}")
