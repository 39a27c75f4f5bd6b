"""Measuring one release of a library: everything the matrix says about it, as one document."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from orchestrator import registry
from orchestrator.matrix import entering, objective, silence
from orchestrator.matrix.asking import Where
from orchestrator.matrix.batches import curve
from orchestrator.matrix.cells import ADVANTAGES, AGGREGATIONS, settings, term, translated
from orchestrator.matrix.curves import WEIGHTS, classify
from orchestrator.matrix.inquiry import Inquiry
from orchestrator.settings import Kl

Answered = Mapping[Any, Mapping[str, Any]]


def measure(library: str, version: str, where: Where, commit: str = "") -> dict[str, Any]:
    """The evidence on a release. Raises EnvironmentFault if its functions cannot be run.

    `commit`: of the source, where a release is not a published package.
    """
    probes = registry.probes(library)
    inquiry = Inquiry(library, version)
    objective.prepare(inquiry)
    cells = list(objective.every_cell(inquiry))
    refused = entering.prepare(inquiry)
    names = _names(inquiry, probes)
    natives = _natives(inquiry, probes)
    silence.enquire(inquiry, inquiry.raw(probes.silent(version)))
    answers, told = inquiry.put(where)
    return {
        "library": library,
        "version": version,
        **({"commit": commit} if commit else {}),
        "arithmetic": "float64, CPU",
        "stood_in": probes.STOOD_IN,
        "sources": {key: dict(value) for key, value in sorted(told.sources.items())},
        "silent": silence.told(answers),
        "names": [_name(each, answers) for each in names],
        "reward": {
            advantage: {"refused": refused[advantage]}
            if advantage in refused
            else entering.reward(answers, ("advantage", advantage))
            for advantage in ADVANTAGES
        },
        "loss": {
            aggregation: {"refused": refused[aggregation]}
            if ("aggregation", aggregation, None) not in answers
            else entering.loss(answers, aggregation)
            for aggregation in AGGREGATIONS
        },
        "ratio": entering.ratio(answers),
        "natives": [_native(each, answers) for each in natives],
        "cells": list(_cells(cells, answers)),
    }


def _names(inquiry: Inquiry, probes: Any) -> list[tuple[str, str]]:
    """Ask for the curve of every name the library has for an estimator, in each place."""
    for at, weight in WEIGHTS.items():
        inquiry.batch(f"curve {at}", curve(weight))
    asked = []
    for place, name, more in probes.names(inquiry.version):
        plan = translated(
            settings(inquiry.library, inquiry.version, term(probes.TYPICAL[place], place))
        )
        launch = inquiry.launch(plan, *more)
        for at in WEIGHTS:
            inquiry.question(("name", place, name, at), "kl", launch, f"curve {at}", place=place)
        asked.append((place, name))
    return asked


def _name(asked: tuple[str, str], answers: Answered) -> dict[str, Any]:
    place, name = asked
    told = {at: answers[("name", place, name, at)] for at in WEIGHTS}
    error = next((each["error"] for each in told.values() if "error" in each), None)
    found = {"error": error} if error else asdict(classify(told))
    return {"place": place, "name": name, **found}


def _natives(inquiry: Inquiry, probes: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Ask about launches of the library's own that no cell is translated into."""
    found = []
    for label, native in probes.natives(inquiry.version).items():
        launch = inquiry.raw({"argv": native["argv"], "files": native["files"]})
        for on_policy in (True, False):
            objective.enquire(inquiry, ("native", label, on_policy), launch, on_policy)
        larger = native.get("groups_of_four", native)
        launch = inquiry.raw({"argv": larger["argv"], "files": larger["files"]})
        entering.ask_about(inquiry, ("native reward", label), launch)
        found.append((label, native))
    return found


def _native(asked: tuple[str, Mapping[str, Any]], answers: Answered) -> dict[str, Any]:
    label, native = asked
    return {
        "name": label,
        "reward": entering.reward(answers, ("native reward", label), native["beta"]),
        **{
            name: _rounded(objective.measured(answers, ("native", label, on), on, native["beta"]))
            for name, on in (("on_policy", True), ("off_policy", False))
        },
    }


def _cells(
    asked: list[tuple[Kl, bool, objective.Key | str]], answers: Answered
) -> Iterator[dict[str, Any]]:
    """One entry for every KL term, on- and off-policy."""
    for kl, on_policy, key in asked:
        entry = {"estimator": kl.estimator, "placement": kl.placement, "on_policy": on_policy}
        if isinstance(key, str):
            yield {**entry, "refused": key}
            continue
        found = objective.measured(answers, key, on_policy)
        told = objective.compared(kl, on_policy, found)
        yield {**entry, **_rounded(found), **told}


def _rounded(found: Mapping[str, Any]) -> dict[str, Any]:
    """With as many digits of its gradient as machines agree on."""
    if "gradient" not in found:
        return dict(found)
    rows = [[float(f"{x:.8g}") for x in row] for row in found["gradient"]]
    return {**found, "gradient": [[0.0 if abs(x) < 1e-12 else x for x in row] for row in rows]}
