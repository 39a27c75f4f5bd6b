"""Measure what surrounds a KL term: corrections, ratio levels, controllers and moving references.

A correction of the engine's mismatch multiplies a sample's loss by a weight: the ratio of two
policies, bounded, or 1 or 0. `rollouts` has a log-ratio near every bound, and responses of several
tokens, so that no two of HYPOTHESES have the same weights on it. The library's gradient is compared
with each of them. The others are compared with closed forms too; `?` fits none. Each is asked
of a cell where the backend accepts one, and else of a launch in the library's own words.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, get_args

import numpy as np

from lab.probes.protocol import (
    LEAST,
    MOST,
    AskedRelease,
    Bounds,
    OwnLaunch,
    ProbeBatch,
    ProbeLaunch,
    or_error,
    probes_of,
    two_groups,
)
from lab.probes.runner import LibraryFault
from orchestrator.errors import UnsupportedSetting
from orchestrator.estimators import entry
from orchestrator.evidence.cells import BETA, accepted, fitting, term, translated
from orchestrator.evidence.stored import ALL_TOKENS
from orchestrator.exact.laboratory import FloatTable
from orchestrator.kl.estimators import EngineWeight, slope, weights
from orchestrator.settings import (
    BetaController,
    CorrectionKind,
    EngineCorrection,
    Kl,
    ReferencePolicy,
    Settings,
)

KINDS: tuple[CorrectionKind, ...] = get_args(CorrectionKind)
CLOSE = 1e-6
"""The largest difference of a weight from its closed form, in units of the largest weight."""
ESTIMATORS_IN_LOSS = ("k2", "k3")
"""Estimators for which the weight of a KL in the loss is measured: the first that a library has.
Their gradient is 0 where the policy is the reference policy."""


# The rollouts.


@dataclass(frozen=True, slots=True)
class MismatchedRollouts:
    """Rollouts of an engine that differs from the trainer. Arrays are [rollouts, tokens]."""

    engine: FloatTable
    """log of the engine's probability of the sampled token."""
    proximal: FloatTable
    """log of the trainer's probability before its first train step."""
    moved: FloatTable
    """log of the trainer's probability after a train step."""
    mask: FloatTable
    reference: FloatTable
    """log of the reference policy's probability."""

    @property
    def tokens(self) -> float:
        """Return the number of tokens."""
        return float(self.mask.sum())


OWN_TOKENS = "each response's own tokens"
PADDING = -1.0
"""The log-probability after the end of a response."""


@cache
def rollouts() -> MismatchedRollouts:
    """Return one-token responses with log-ratios from -2 to 2, and responses of 2 to 4 tokens."""
    rng = np.random.default_rng(11)
    singles = np.arange(-200, 201) / 100 + 0.003
    lengths = np.concatenate([np.ones(len(singles)), rng.integers(2, 5, 199)]).astype(int)
    mask = (np.arange(4) < lengths[:, None]).astype(float)
    log_ratio = rng.normal(0.0, 0.6, mask.shape)
    log_ratio[: len(singles), 0] = singles
    likelier = -rng.uniform(0.05, 2.0, mask.shape)
    # A ratio above 1 must not push the numerator's probability above 1.
    engine = np.where(mask > 0, likelier - log_ratio.clip(min=0.0), PADDING)
    proximal = engine + log_ratio * mask
    return MismatchedRollouts(
        engine=engine,
        proximal=proximal,
        moved=proximal + rng.uniform(-0.09, 0.0, mask.shape) * mask,
        mask=mask,
        reference=proximal - rng.uniform(-0.5, 0.5, mask.shape) * mask,
    )


def _batch() -> ProbeBatch:
    """Return the rollouts before a train step, with advantages 1 and without a KL."""
    sample = rollouts()
    count = len(sample.mask)
    return ProbeBatch(
        logp=sample.proximal,
        ref=sample.proximal,
        old=sample.proximal,
        engine=sample.engine,
        mask=sample.mask,
        rewards=np.zeros(count),
        groups=[i // 2 for i in range(count)],
        advantages=sample.mask,
    )


def _moved() -> ProbeBatch:
    """Return the rollouts after a train step."""
    moved = rollouts().moved
    return _batch()._replace(logp=moved, ref=moved)


def _with_kl(batch: ProbeBatch) -> ProbeBatch:
    """Return a batch in which only a KL to the reference policy has a gradient."""
    sample = rollouts()
    return batch._replace(ref=sample.reference, advantages=0 * sample.mask)


# Hypotheses: every weight that is looked for, in closed form.


def _sum(values: FloatTable, mask: FloatTable) -> FloatTable:
    return np.asarray((values * mask).sum(-1, keepdims=True))


def _mean(values: FloatTable, mask: FloatTable) -> FloatTable:
    return np.asarray(_sum(values, mask) / mask.sum(-1, keepdims=True))


def _largest(values: FloatTable, mask: FloatTable) -> FloatTable:
    return np.asarray(np.where(mask > 0, values, -np.inf).max(-1, keepdims=True))


Statistic = Callable[[FloatTable, FloatTable, FloatTable], FloatTable]
"""A function of three arrays [N, T]: log-probabilities of numerator and denominator, and the mask.
It returns [N, T] or [N, 1]."""

RATIOS: Mapping[str, Statistic] = {
    "the token's ratio": lambda p, q, _: np.exp(p - q),
    "the response's ratio": lambda p, q, mask: np.exp(_sum(p - q, mask)),
    "the geometric mean of the response's ratios": lambda p, q, mask: np.exp(_mean(p - q, mask)),
}
"""The ratios that a weight may be."""


def _k2(p: FloatTable, q: FloatTable) -> FloatTable:
    return np.asarray((p - q) ** 2 / 2)


def _k3(p: FloatTable, q: FloatTable) -> FloatTable:
    return np.asarray(np.exp(p - q) - 1 - (p - q))


def _of_two_outcomes(p: FloatTable, q: FloatTable) -> FloatTable:
    """Return KL(engine || trainer) between "the sampled token" and "another"."""
    trainer, engine = np.exp(p), np.exp(q)
    other = (1 - engine) * np.log((1 - engine) / (1 - trainer))
    return np.asarray(engine * np.log(engine / trainer) + other)


def _difference(p: FloatTable, q: FloatTable) -> FloatTable:
    return np.asarray(np.exp(p) - np.exp(q))


def _over_response(
    over: Callable[[FloatTable, FloatTable], FloatTable],
    of: Callable[[FloatTable, FloatTable], FloatTable],
) -> Statistic:
    return lambda p, q, mask: over(of(p, q), mask)


GATES: Mapping[str, Statistic] = {
    **RATIOS,
    "each ratio of the response": RATIOS["the token's ratio"],
    "the token's k2": lambda p, q, _: _k2(p, q),
    "the token's k3": lambda p, q, _: _k3(p, q),
    **{
        f"the {word} of the response's {name}": _over_response(over, of)
        for word, over in (("sum", _sum), ("mean", _mean), ("largest", _largest))
        for name, of in (("k2", _k2), ("k3", _k3))
    },
    "the difference of the token's probabilities": lambda p, q, _: _difference(p, q),
    "the absolute difference of the token's probabilities": lambda p, q, _: np.abs(
        _difference(p, q)
    ),
    "the mean absolute difference of the response's probabilities": lambda p, q, mask: _mean(
        np.abs(_difference(p, q)), mask
    ),
    "the token's KL of two outcomes": lambda p, q, _: _of_two_outcomes(p, q),
    "the mean of the response's KLs of two outcomes": lambda p, q, mask: _mean(
        _of_two_outcomes(p, q), mask
    ),
}
"""The statistics outside whose bounds a weight may be 0."""
INVERSE = "the inverse of "


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A weight: a value, and what bounds it."""

    value: str
    """A name of RATIOS, or `1`."""
    truncated: bool = False
    """True: the value is held within the bounds."""
    gate: str = ""
    """The statistic outside whose bounds the weight is 0; empty: none."""

    def on(self, p: FloatTable, q: FloatTable, mask: FloatTable, bounds: Bounds) -> FloatTable:
        """Return the weights [N, T] of tokens, 0 where the mask is 0."""
        least, most = (-inf if bounds[0] is None else bounds[0]), bounds[1] or inf
        value = np.ones_like(p) if self.value == "1" else RATIOS[self.value](p, q, mask)
        if self.truncated:
            value = value.clip(max(least, 0.0), most)
        weight = value * mask
        if self.gate:
            name = self.gate.removeprefix(INVERSE)
            statistic = GATES[name](p, q, mask)
            statistic = 1 / statistic if self.gate.startswith(INVERSE) else statistic
            within = (statistic >= least) & (statistic <= most)
            if name == "each ratio of the response":
                within = (within | (mask == 0)).all(-1, keepdims=True)
            weight = weight * within
        return weight

    def words(self, bounds: Bounds) -> str:
        """Return the weight in words."""
        text = "1" if self.value == "1" else self.value
        if self.truncated:
            text += f", truncated {_range(bounds)}"
        if self.gate:
            text += f", and 0 where {self.gate} is not {_range(bounds)}"
        return text


def _range(bounds: Bounds) -> str:
    least, most = bounds
    if least is None:
        return f"at most {most:g}"
    return f"at least {least:g}" if most is None else f"within [{least:g}, {most:g}]"


HYPOTHESES: tuple[Hypothesis, ...] = (
    Hypothesis("1"),
    *(Hypothesis(value, truncated) for value in RATIOS for truncated in (False, True)),
    *(Hypothesis(value, gate=gate) for value in ("1", *RATIOS) for gate in GATES),
    *(
        Hypothesis(value, gate=INVERSE + gate)
        for value in ("1", *RATIOS)
        for gate in ("each ratio of the response", *RATIOS)
    ),
)
OF_A_KIND: Mapping[Hypothesis, CorrectionKind] = {
    Hypothesis("the token's ratio", truncated=True): "tis_token",
    Hypothesis("the response's ratio", truncated=True): "tis_sequence",
    Hypothesis("the token's ratio", gate="the token's ratio"): "mis_token",
    Hypothesis("the response's ratio", gate="the response's ratio"): "mis_sequence",
    Hypothesis("1", gate="the token's ratio"): "reject_token",
    Hypothesis("1", gate="the response's ratio"): "reject_sequence",
    Hypothesis("1", gate="the geometric mean of the response's ratios"): "geometric",
}
"""The weights that a cell can ask for, as `loss.correction.kind`."""


# The divisor of the mean over tokens.


def _divisors(weight: FloatTable, mask: FloatTable) -> dict[str, FloatTable | float]:
    """Return the factor of the weights for each divisor that a loss may have."""
    tokens, lengths = mask.sum(), mask.sum(-1, keepdims=True)
    kept = (weight != 0).sum()
    own = (weight != 0).sum(-1, keepdims=True)
    responses = (weight.sum(-1, keepdims=True) / lengths).mean()
    factors: dict[str, FloatTable | float] = {ALL_TOKENS: 1.0}
    if 0 < kept < tokens:
        factors["the tokens whose weight is not 0"] = tokens / kept
    if weight.sum() > 0 and abs(weight.sum() / tokens - 1) > CLOSE:
        factors["the weights of all tokens"] = tokens / weight.sum()
        factors["all tokens, and the mean weight of a response"] = 1 / responses
    factors[OWN_TOKENS] = tokens / len(mask) / np.maximum(lengths, 1)
    if 0 < kept < tokens:
        factors["each response's own tokens whose weight is not 0"] = (
            tokens / len(mask) / np.maximum(own, 1)
        )
    return factors


# Ask and compare.


def measured_weights(release: AskedRelease) -> dict[str, Any]:
    """Return the evidence on the corrections: of cells by kind, and in the library's own words."""
    own = probes_of(release.library).corrections(release.version)
    return {
        "cells": [
            _of_cell(release, EngineCorrection(kind=kind, least=least, most=MOST))
            for kind in KINDS
            for least in (0.0, LEAST)
        ],
        "own": [_entry(release, launch, {"name": name})[0] for name, launch in own.items()],
    }


def corrected(library: str, version: str, correction: EngineCorrection) -> Settings | str:
    """Return a cell with that correction and a KL in the loss, or the field that is refused."""
    fields: list[str] = []
    accepted = None
    for kl in (term("none", None), *(term(each, "loss") for each in reversed(ESTIMATORS_IN_LOSS))):
        try:
            plain = fitting(library, version, kl)
            loss = plain.loss.model_copy(update={"correction": correction})
            wanted = plain.model_copy(update={"loss": loss})
            translated(wanted)
        except UnsupportedSetting as error:
            fields.append(error.field)
        else:
            accepted = wanted
    of_correction = (each for each in fields if each.startswith("loss.correction"))
    return accepted or next(of_correction, fields[-1])


def _of_cell(release: AskedRelease, correction: EngineCorrection) -> dict[str, Any]:
    """Return the measurement of a cell, and whether it has the meaning of its settings."""
    kind, least, most = correction.kind, correction.least, MOST
    row: dict[str, Any] = {"kind": kind, "least": least, "most": most}
    wanted = corrected(release.library, release.version, correction)
    if isinstance(wanted, str):
        return {**row, "refused": wanted}
    plan = translated(wanted)
    estimator = wanted.kl.estimator if wanted.kl.placement else None
    launch = OwnLaunch(plan.argv, plan.files, (least or None, most), estimator)
    identified, measured = _entry(release, launch, row)
    if measured is None:
        return {**identified, "agrees": False}
    sample = rollouts()
    unit = EngineWeight(kind, least, most)
    closed = weights(unit, sample.proximal - sample.engine, sample.mask) * sample.mask
    alone = identified.get("kl", {}).get("weight") in (None, "1")
    of_proximal = identified["policy"].get("of") == "proximal"
    agrees = alone and of_proximal and _off(measured, np.asarray(closed)) <= CLOSE
    return {**identified, "agrees": agrees}


def _entry(
    release: AskedRelease, launch: OwnLaunch, row: dict[str, Any]
) -> tuple[dict[str, Any], FloatTable | None]:
    """Return the weight of the policy loss and of a KL in the loss, after what `row` has.

    Beside it the weights of the policy loss, or None where the library raised an exception.
    """
    row = {**row, "bounds": list(launch.bounds)}
    if launch.is_silent:
        row["silent"] = True
    plain = _batch()
    try:
        measured, moved, of_kl = (
            _weights(release, launch, batch) for batch in (plain, _moved(), _with_kl(plain))
        )
    except LibraryFault as fault:
        return {**row, "error": fault.said}, None
    sample, bounds = rollouts(), launch.bounds
    hypothesis, divisor, off = _nearest(measured, sample.proximal, bounds)
    policy = _described(hypothesis, divisor, off, bounds)
    if hypothesis is not None:
        policy["of"] = _whose(hypothesis, divisor, bounds, moved)
    row["policy"] = policy
    if launch.estimator is not None:
        unit = np.where(
            sample.mask > 0, slope(launch.estimator, sample.proximal - sample.reference), 1.0
        )
        nearest = _nearest(of_kl / -(BETA * unit), sample.proximal, bounds)
        row["kl"] = _described(*nearest, bounds)
    return row, measured


def _weights(release: AskedRelease, launch: ProbeLaunch, batch: ProbeBatch) -> FloatTable:
    """Return the measured weights [N, T]: the gradient, of a mean over tokens and advantages 1."""
    gradient: FloatTable = release.ask("loss", launch, batch)["gradient"]
    return -gradient * rollouts().tokens


def _off(values: FloatTable, closed: FloatTable) -> float:
    return float(np.abs(values - closed).max() / max(np.abs(closed).max(), 1e-12))


def _nearest(
    values: FloatTable, p: FloatTable, bounds: Bounds
) -> tuple[Hypothesis | None, str, float]:
    """Return the hypothesis with these weights, its divisor and the difference.

    Return None for the hypothesis if none is CLOSE.
    """
    sample = rollouts()
    best = (inf, Hypothesis("1"), "")
    for hypothesis in HYPOTHESES:
        closed = hypothesis.on(p, sample.engine, sample.mask, bounds)
        for divisor, factor in _divisors(closed, sample.mask).items():
            off = _off(values, closed * factor)
            if off < best[0] * 0.5:
                best = (off, hypothesis, divisor)
    off, hypothesis, divisor = best
    return (hypothesis, divisor, off) if off <= CLOSE else (None, "", off)


def _described(
    hypothesis: Hypothesis | None, divisor: str, off: float, bounds: Bounds
) -> dict[str, Any]:
    if hypothesis is None:
        return {"weight": "?", "deviation": float(f"{off:.1g}")}
    kind = OF_A_KIND.get(hypothesis)
    return {
        "weight": hypothesis.words(bounds),
        **({"kind": kind} if kind else {}),
        "divisor": divisor,
        "deviation": float(f"{off:.1g}"),
    }


def _whose(hypothesis: Hypothesis, divisor: str, bounds: Bounds, values: FloatTable) -> str:
    """Return the numerator of the weight's ratio: `proximal`, `policy`, or `?` for another.

    With `proximal` the loss has the importance ratio policy / proximal policy beside the weight.
    With `policy` the weight is of the policy itself, and the loss has no other ratio. values: the
    weights after a train step.
    """
    sample = rollouts()
    ratio = np.exp(sample.moved - sample.proximal)
    for whose, p, beside in (("proximal", sample.proximal, ratio), ("policy", sample.moved, 1.0)):
        closed = hypothesis.on(p, sample.engine, sample.mask, bounds)
        factor = _divisors(closed, sample.mask).get(divisor, 1.0)
        if _off(values, closed * factor * beside) <= CLOSE:
            return whose
    return "?"


# What stands beside a KL term: ratio levels, controllers of beta, references that move.


HORIZON, SHARE, EVERY, STEPS = 100, 0.6, 2, 4


def measured_surroundings(release: AskedRelease) -> list[dict[str, Any]]:
    """Return one entry for each ratio level, controller and reference that moves.

    `cell`: it is that of a cell, and not in the library's own words.
    """
    return [*_levels(release), *_controllers(release), *_references(release)]


def _levels(release: AskedRelease) -> Iterator[dict[str, Any]]:
    own = probes_of(release.library).ratio_levels(release.version)
    for label, launch in own.items():
        entry = {"subject": "level", "name": label, "cell": False}
        yield {**entry, **_level(release, launch)}


def _controllers(release: AskedRelease) -> Iterator[dict[str, Any]]:
    probes = probes_of(release.library)
    own = getattr(probes, "controller", None)
    launches: list[ProbeLaunch] = []
    is_cell = False
    for target in targets():
        kl = Kl(
            estimator="k1",
            placement="reward",
            beta=BETA,
            controller=BetaController(target=target, horizon=HORIZON),
        )
        wanted = accepted(release.library, release.version, kl)
        is_cell = isinstance(wanted, Settings)
        if isinstance(wanted, Settings):
            launches.append(translated(wanted))
        elif own is not None:
            launches.append(own(release.version, target, HORIZON, BETA))
        else:
            return
    name = "kl.controller" if is_cell else probes.CONTROLLER
    entry = {"subject": "controller", "name": name, "cell": is_cell}
    yield {**entry, **_controller(release, launches)}


def _references(release: AskedRelease) -> Iterator[dict[str, Any]]:
    for label in ("k3", "k2"):
        kl = term(label, "loss").model_copy(
            update={"reference": ReferencePolicy(kind="ema", share=SHARE, every_steps=EVERY)}
        )
        wanted = accepted(release.library, release.version, kl)
        if isinstance(wanted, Settings):
            name = f"kl.reference ema, share {SHARE:g}, every {EVERY} steps"
            entry = {"subject": "reference", "name": name, "cell": True}
            yield {**entry, **_reference(release, translated(wanted))}
            return


# The level of the importance ratio, of the policy loss and of a KL in the loss.


def ratios_of_levels() -> dict[str, FloatTable]:
    """Return the ratio of policy to proximal policy at each level, [N, T]."""
    sample = rollouts()
    log_ratio = (sample.moved - sample.proximal) * sample.mask
    whole = log_ratio.sum(-1, keepdims=True)
    return {
        "token": np.exp(log_ratio),
        "sequence": np.exp(whole) + 0 * log_ratio,
        "sequence_mean": np.exp(whole / sample.mask.sum(-1, keepdims=True)) + 0 * log_ratio,
    }


@or_error
def _level(release: AskedRelease, launch: OwnLaunch) -> dict[str, Any]:
    moved = _moved()._replace(engine=None)
    row = {"policy": _fitted(_weights(release, launch, moved), ratios_of_levels())}
    if launch.estimator is not None:
        gradient = -_weights(release, launch, _with_kl(moved))
        row["kl"] = _fitted(gradient / BETA, kl_gradients(launch.estimator))
    return row


def kl_gradients(estimator: str) -> dict[str, FloatTable]:
    """Return the gradients of a KL in the loss: without a ratio, and with each level of it."""
    sample, form, ratio = rollouts(), entry(estimator), ratios_of_levels()
    x = (sample.moved - sample.reference) * sample.mask
    value, slope = form.value(x), form.slope(x)
    summed = (value * sample.mask).sum(-1, keepdims=True)
    mean = summed / sample.mask.sum(-1, keepdims=True)
    return {
        "none": slope,
        "token": ratio["token"] * (slope + value),
        "sequence": ratio["sequence"] * (slope + summed),
        "sequence_mean": ratio["sequence_mean"] * (slope + mean),
    }


def _fitted(values: FloatTable, closed: Mapping[str, FloatTable]) -> dict[str, Any]:
    """Return the level whose gradient this is, and the divisor of its mean."""
    sample = rollouts()
    own = sample.tokens / len(sample.mask) / sample.mask.sum(-1, keepdims=True)
    best = (inf, "?", ALL_TOKENS)
    for level, table in closed.items():
        for divisor, factor in ((ALL_TOKENS, 1.0), (OWN_TOKENS, own)):
            best = min(best, (_off(values, table * sample.mask * factor), level, divisor))
    off, level, divisor = best
    if off > CLOSE:
        return {"level": "?", "deviation": float(f"{off:.1g}")}
    return {"level": level, "divisor": divisor, "deviation": float(f"{off:.1g}")}


# The controller of beta.


def _controlled() -> ProbeBatch:
    """Return rollouts whose policy gives every token more than the reference policy."""
    batch = two_groups()
    lag = np.random.default_rng(6).uniform(0.0, 0.5, batch.old.shape)
    return batch._replace(ref=batch.old - lag)


def followed_kls() -> dict[str, float]:
    """Return the KLs that a controller may follow."""
    batch = _controlled()
    mask = batch.mask
    kl = (batch.old - batch.ref) * mask
    return {
        "the mean over responses of their mean over tokens": float(
            (kl.sum(1) / mask.sum(1)).mean()
        ),
        "the mean over tokens": float(kl.sum() / mask.sum()),
        "the mean over responses of their sum": float(kl.sum(1).mean()),
    }


def targets() -> list[float]:
    """Return targets at both bounds of a step, and near each KL that may be followed."""
    return [1e-3, 1e3, *(round(1.1 * each, 6) for each in followed_kls().values())]


@or_error
def _controller(release: AskedRelease, launches: Sequence[ProbeLaunch]) -> dict[str, Any]:
    batch = _controlled()
    betas = np.array([release.ask("controller", each, batch)["beta"] for each in launches])
    for words, current in followed_kls().items():
        for unit, count in (("responses", len(batch.mask)), ("tokens", float(batch.mask.sum()))):
            steps = np.clip(current / np.array(targets()) - 1, -0.2, 0.2)
            off = float(np.abs(betas - BETA * (1 + steps * count / HORIZON)).max())
            if off <= CLOSE:
                return {"follows": words, "counts": unit, "deviation": float(f"{off:.1g}")}
    return {"follows": "?"}


# A reference policy that moves.


@or_error
def _reference(release: AskedRelease, launch: ProbeLaunch) -> dict[str, Any]:
    return moved_as_asked(release.ask("reference", launch, _controlled())["reference"])


def moved_as_asked(reference: Sequence[float]) -> dict[str, Any]:
    """Return whether a weight of the reference policy, after each step, is as the cell says."""
    expected, at = [], 0.0
    for step in range(1, STEPS + 1):
        at += SHARE * (1 - at) * (step % EVERY == 0)
        expected.append(at)
    off = float(np.abs(np.array(reference) - np.array(expected)).max())
    return {"agrees": off <= CLOSE, "deviation": float(f"{off:.1g}")}
