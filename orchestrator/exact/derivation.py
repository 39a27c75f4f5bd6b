"""Derive the verdicts: compare every configuration's exact gradient with every objective.

verdicts.json stores the rows of orch's own estimators, so that `orch plan` need not compute them. A
test derives them again and compares. Write the file with `python -m orchestrator.exact.derivation >
orchestrator/kl/verdicts.json`. `derive_one` derives the rows of an added estimator at the first
use.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import EstimatorEntry, entry, names
from orchestrator.exact.laboratory import FloatTable, LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import (
    generic_settings,
    gradients,
    name_objective,
    wide_policy,
)
from orchestrator.kl.configuration import PLACEMENTS, KlConfiguration
from orchestrator.kl.estimators import Ratio, vocabulary_kl

NEAR = (ToyPolicy(0.1, 0.005), ToyPolicy(0.0, 0.0), ToyPolicy(0.09, 0.0045))
"""Policy, reference, rollout policy early in training: 0.08 nats from the reference."""

FAR = (ToyPolicy(-0.33, -0.082), ToyPolicy(1.17, 0.037), ToyPolicy(-0.2, -0.07))
"""The laboratory's default for Fig. 1: 18 nats from the reference."""

NEAR_WIDE = (wide_policy(1.0, 0.04), wide_policy(1.0, 0.0), wide_policy(1.0, 0.035))
"""The same as NEAR for eight tokens and the top-k estimators: 0.03 nats from the reference."""

FAR_WIDE = (wide_policy(1.3, 1.4), wide_policy(1.0, 0.0), wide_policy(1.3, 1.3))
"""The same as FAR for eight tokens and the top-k estimators."""

NUM_TOKENS = 32

ROUNDING = 1e-9
"""A smaller relative bias counts as 0. An unbiased term has a computed bias below 1e-12."""


def derive(estimators: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return one row per configuration, on- and off-policy: objective, terms, bias, pull, noise.

    `estimators`: names of entries; None: all that a spec may have. Raise LaboratoryError with the
    first fault that `problems` returns for an entry.
    """
    chosen = tuple(names() if estimators is None else estimators)
    for name in chosen:
        for problem in problems(entry(name)):
            raise LaboratoryError(problem)
    rows = (_rows(part, on) for on in (True, False) for part in _kinds(chosen))
    order = {name: i for i, name in enumerate(chosen)}
    verdict_rows = [row for each in rows for row in each]
    return sorted(verdict_rows, key=lambda row: (not row["on_policy"], order[row["estimator"]]))


def _kinds(estimators: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield groups of estimators that have the same candidates and the same settings."""
    over = [name for name in estimators if entry(name).is_of_vocabulary]
    yield [name for name in estimators if name not in over]
    yield from ([name] for name in over)


@cache
def derive_one(form: EstimatorEntry) -> tuple[dict[str, Any], ...]:
    """Return the rows of one estimator, derived once in a process."""
    return tuple(derive([form.name]))


def as_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a JSON list with one row per line."""
    return "[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]"


def problems(form: EstimatorEntry) -> list[str]:
    """Return one sentence for each contradiction in an entry.

    The slope must equal central differences of the value. The mean must equal the reverse KL if
    `is_reverse_kl` is True, and differ from it otherwise.
    """
    x = np.concatenate([np.linspace(-2.0, -0.05, 40), np.linspace(0.05, 2.0, 40)])
    faults = []
    if form.is_plain or form.is_of_vocabulary:
        numeric = (form.value(x + _STEP) - form.value(x - _STEP)) / (2 * _STEP)
        off = np.abs(form.slope(x) - numeric) / (1 + np.abs(numeric))
        if not off.max() < _CLOSE:  # `not <` is also True for NaN
            i = int(off.argmax())
            faults.append(
                f"the slope of the KL estimator '{form.name}' is not the derivative of its value: "
                f"at x = {x[i]:.3g} it is {form.slope(x)[i]:.6g}, by differences {numeric[i]:.6g}"
            )
    policy, reference = (np.array(each) / 20 for each in ((1, 2, 6, 3, 5, 3), (7, 5, 3, 2, 2, 1)))
    log_ratio = np.log(policy / reference)
    mean, kl = float(policy @ form.value(log_ratio)), float(policy @ log_ratio)
    if form.is_of_vocabulary:
        mean = float(vocabulary_kl(form.name, np.log(policy), np.log(reference)))
    if (abs(mean - kl) < _CLOSE) != form.is_reverse_kl:
        claimed = "is said to be" if form.is_reverse_kl else "is said not to be"
        faults.append(
            f"the mean of the KL estimator '{form.name}' {claimed} the reverse KL; on six tokens "
            f"it is {mean:.6g}, and the reverse KL {kl:.6g}: set is_reverse_kl"
        )
    return faults


_STEP, _CLOSE = 1e-5, 1e-6


def _rows(estimators: Sequence[str], on_policy: bool) -> Iterator[dict[str, Any]]:
    """Yield the row of each configuration. All estimators must be in one group of `_kinds`."""
    configurations = tuple(_configurations(estimators, on_policy))
    if not configurations:
        return
    over = [name for name in estimators if entry(name).is_of_vocabulary]
    wide = any(entry(name).top for name in over)
    settings = generic_settings(on_policy=on_policy, wide=wide)
    candidates = [gradients(setting, over) for setting in settings]
    generic = [exact(setting, configurations) for setting in settings]
    places = (("near", NEAR_WIDE if wide else NEAR), ("far", FAR_WIDE if wide else FAR))
    at = {
        name: LabSetting(policy, reference, NUM_TOKENS, None if on_policy else rollout)
        for name, (policy, reference, rollout) in places
    }
    measured = {name: exact(setting, configurations) for name, setting in at.items()}
    truth = {name: gradients(setting)["sequence_reverse_kl"] for name, setting in at.items()}
    for i, configuration in enumerate(configurations):
        naming = name_objective(
            np.stack([each.mean[i] for each in generic]),
            candidates,
            magnitude=max(float(each.magnitude[i].max()) for each in generic),
        )
        yield {
            "estimator": configuration.estimator,
            "placement": configuration.placement,
            "on_policy": on_policy,
            "ratio": configuration.ratio,
            "reward_kl_of": configuration.reward_kl_of,
            "objective": str(naming.kind),
            "terms": [list(term) for term in naming.terms],
            **{k: _framed(measured[k].mean[i], truth[k]) for k in at},
            "noise_near": _noise(measured["near"].variance[i], truth["near"]),
        }


def _configurations(estimators: Sequence[str], on_policy: bool) -> Iterator[KlConfiguration]:
    """Yield every valid configuration with an importance ratio."""
    ratios: Sequence[Ratio] = ("token", "sequence", "sequence_mean")
    for estimator in estimators:
        for placement in PLACEMENTS:
            off_reward = not on_policy and placement != "loss"
            for of in ("policy", "rollout") if off_reward else ("policy",):
                for ratio in ratios:
                    try:
                        yield KlConfiguration(estimator, placement, ratio, reward_kl_of=of)
                    except LaboratoryError:
                        continue


def _framed(mean: FloatTable, truth: FloatTable) -> list[float]:
    """Return the mean in lengths of `truth`, in a frame in which `truth` is (1, 0, ...).

    `truth`: the gradient of the sequence reverse KL. The frame is a reflection that takes the
    direction of `truth` to the first axis.
    """
    length = float(np.linalg.norm(truth))
    mirror = truth / length - np.eye(len(truth))[0]
    size = float(mirror @ mirror)
    framed = mean / length
    if size > ROUNDING:
        framed = framed - 2 * mirror * float(mirror @ framed) / size
    true = np.eye(len(truth))[0]
    if np.linalg.norm(framed - true) < ROUNDING:
        return [float(each) for each in true]
    return [0.0 if abs(each) < ROUNDING else float(f"{each:.7g}") for each in framed]


def _noise(variance: FloatTable, truth: FloatTable) -> float:
    """Return the standard deviation of one sequence's gradient, in lengths of `truth`."""
    return float(f"{np.sqrt(variance.sum()) / np.linalg.norm(truth):.4g}")


if __name__ == "__main__":
    sys.stdout.write(as_text(derive()))
