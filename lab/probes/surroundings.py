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
from typing import Any, NamedTuple, get_args

import numpy as np

from lab.probes.protocol import (
    AnswersByKey,
    Inquiry,
    ProbeBatch,
    as_array,
    first_error,
    probes_of,
    two_groups,
)
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

Bounds = tuple[float | None, float | None]
"""The lower and the upper bound of a launch's correction; None: it has none."""

KINDS: tuple[CorrectionKind, ...] = get_args(CorrectionKind)
LEAST, MOST = 0.5, 3.0
"""Bounds of the ratio in the corrections that are measured. 1 / MOST is not LEAST: a library that
bounds the inverse ratio is seen."""
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


def batches() -> dict[str, ProbeBatch]:
    """Return the rollouts before and after a train step, and with a KL to the reference alone."""
    sample = rollouts()
    count = len(sample.mask)
    plain = ProbeBatch(
        logp=sample.proximal.tolist(),
        ref=sample.proximal.tolist(),
        old=sample.proximal.tolist(),
        engine=sample.engine.tolist(),
        mask=sample.mask.tolist(),
        rewards=[0.0] * count,
        groups=[i // 2 for i in range(count)],
        advantages=sample.mask.tolist(),
    )
    moved = sample.moved.tolist()
    return {
        "weights": plain,
        "weights, moved": ProbeBatch(**{**plain, "logp": moved, "ref": moved}),
        "weights, KL": ProbeBatch(
            **{**plain, "ref": sample.reference.tolist(), "advantages": (0 * sample.mask).tolist()}
        ),
    }


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


def ask_about_weights(inquiry: Inquiry) -> list["AskedWeight"]:
    """Add the questions about every correction: of cells, then in the library's own words."""
    for name, batch in batches().items():
        inquiry.add_batch(name, batch)
    launches = [*_of_cells(inquiry), *_own(inquiry)]
    for each in launches:
        if each.launch is not None:
            for name in batches():
                inquiry.add_question(("weights", each.name, name), "loss", each.launch, name)
    return launches


@dataclass(frozen=True, slots=True)
class AskedWeight:
    """A launch whose correction is measured."""

    name: str
    """The correction of a cell, or else the library's own words."""
    bounds: Bounds
    estimator: str | None
    """The estimator of the KL in the loss; None: the launch has none."""
    cell: EngineCorrection | None = None
    launch: int | None = None
    """The number of the launch; None: the backend refuses the cell."""
    is_silent: bool = False
    """True: the launch says nothing about a correction."""
    refused: str = ""
    """The field that the backend refuses."""


def _of_cells(inquiry: Inquiry) -> Iterator[AskedWeight]:
    for kind in KINDS:
        for least in (0.0, LEAST):
            correction = EngineCorrection(kind=kind, least=least, most=MOST)
            name = f"loss.correction {kind} {least:g} {MOST:g}"
            bounds = (least or None, MOST)
            wanted = _with(inquiry.library, inquiry.version, correction)
            if isinstance(wanted, str):
                yield AskedWeight(name, bounds, None, correction, refused=wanted)
            else:
                launch = inquiry.add_launch(translated(wanted))
                estimator = wanted.kl.estimator if wanted.kl.placement else None
                yield AskedWeight(name, bounds, estimator, correction, launch)


def _with(library: str, version: str, correction: EngineCorrection) -> Settings | str:
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


def _own(inquiry: Inquiry) -> Iterator[AskedWeight]:
    probes = probes_of(inquiry.library)
    for label, own in getattr(probes, "corrections", lambda _: {})(inquiry.version).items():
        launch = inquiry.add_own_launch(own)
        silent = "silent" in own
        yield AskedWeight(label, own["bounds"], own["estimator"], None, launch, silent)


def measured_weights(launches: Sequence[AskedWeight], answers: AnswersByKey) -> dict[str, Any]:
    """Return the evidence on the corrections: of cells by kind, and in the library's own words."""
    return {
        "cells": [_cell(each, each.cell, answers) for each in launches if each.cell],
        "own": [_entry(each, answers) for each in launches if not each.cell],
    }


def _cell(
    launch: AskedWeight, correction: EngineCorrection, answers: AnswersByKey
) -> dict[str, Any]:
    """Return the measurement of a cell, and whether it has the meaning of its settings."""
    row: dict[str, Any] = {
        "kind": correction.kind,
        "least": correction.least,
        "most": correction.most,
    }
    if launch.launch is None:
        return {**row, "refused": launch.refused}
    identified = _entry(launch, answers)
    identified.pop("name")
    sample = rollouts()
    unit = EngineWeight(correction.kind, correction.least, correction.most or inf)
    closed = weights(unit, sample.proximal - sample.engine, sample.mask) * sample.mask
    policy = identified.get("policy", {})
    alone = identified.get("kl", {}).get("weight") in (None, "1")
    agrees = (
        "error" not in identified
        and policy.get("of") == "proximal"
        and _off(_weights(answers, launch, "weights"), np.asarray(closed)) <= CLOSE
        and alone
    )
    return {**row, **identified, "agrees": agrees}


def _entry(launch: AskedWeight, answers: AnswersByKey) -> dict[str, Any]:
    """Return the weight of the policy loss and of a KL in the loss."""
    row: dict[str, Any] = {"name": launch.name, "bounds": list(launch.bounds)}
    if launch.is_silent:
        row["silent"] = True
    replies = [answers["weights", launch.name, name] for name in batches()]
    if error := first_error(replies):
        return {**row, "error": error}
    sample = rollouts()
    hypothesis, divisor, off = _nearest(
        _weights(answers, launch, "weights"), sample.proximal, launch.bounds
    )
    policy = _described(hypothesis, divisor, off, launch.bounds)
    if hypothesis is not None:
        policy["of"] = _whose(hypothesis, divisor, launch, answers)
    row["policy"] = policy
    if launch.estimator is not None:
        unit = np.where(
            sample.mask > 0, slope(launch.estimator, sample.proximal - sample.reference), 1.0
        )
        in_loss = _weights(answers, launch, "weights, KL") / -(BETA * unit)
        row["kl"] = _described(*_nearest(in_loss, sample.proximal, launch.bounds), launch.bounds)
    return row


def _weights(answers: AnswersByKey, launch: AskedWeight, batch: str) -> FloatTable:
    """Return the measured weights [N, T]: the gradient, of a mean over tokens and advantages 1."""
    gradient = as_array(answers["weights", launch.name, batch], "gradient")
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


def _whose(hypothesis: Hypothesis, divisor: str, launch: AskedWeight, answers: AnswersByKey) -> str:
    """Return the numerator of the weight's ratio: `proximal`, `policy`, or `?` for another.

    With `proximal` the loss has the importance ratio policy / proximal policy beside the weight.
    With `policy` the weight is of the policy itself, and the loss has no other ratio.
    """
    sample = rollouts()
    values = _weights(answers, launch, "weights, moved")
    ratio = np.exp(sample.moved - sample.proximal)
    for whose, p, beside in (("proximal", sample.proximal, ratio), ("policy", sample.moved, 1.0)):
        closed = hypothesis.on(p, sample.engine, sample.mask, launch.bounds)
        factor = _divisors(closed, sample.mask).get(divisor, 1.0)
        if _off(values, closed * factor * beside) <= CLOSE:
            return whose
    return "?"


# What stands beside a KL term: ratio levels, controllers of beta, references that move.


HORIZON, SHARE, EVERY, STEPS = 100, 0.6, 2, 4


class AskedSurrounding(NamedTuple):
    """A launch whose ratio level, controller or reference is measured."""

    subject: str
    """level, controller or reference."""
    name: str
    is_cell: bool
    estimator: str | None = None
    """For a ratio level: the estimator of the KL in the loss."""


def ask_about_surroundings(inquiry: Inquiry) -> list[AskedSurrounding]:
    """Add the questions about all three. Return what was asked."""
    named = batches()
    moved = named["weights, moved"]
    at_old = {key: value for key, value in moved.items() if key != "engine"}
    inquiry.add_batch("level", ProbeBatch(**at_old))  # type: ignore[typeddict-item]  # a batch less a key
    of_kl = {
        **at_old,
        "ref": rollouts().reference.tolist(),
        "advantages": (0 * rollouts().mask).tolist(),
    }
    inquiry.add_batch("level, KL", ProbeBatch(**of_kl))  # type: ignore[typeddict-item]  # as above
    inquiry.add_batch("controlled", _controlled())
    return [*_levels(inquiry), *_controllers(inquiry), *_references(inquiry)]


def _levels(inquiry: Inquiry) -> Iterator[AskedSurrounding]:
    probes = probes_of(inquiry.library)
    for label, own in getattr(probes, "ratio_levels", lambda _: {})(inquiry.version).items():
        launch = inquiry.add_own_launch(own)
        for batch in ("level", "level, KL")[: 1 + (own["estimator"] is not None)]:
            inquiry.add_question(("level", label, batch), "loss", launch, batch)
        yield AskedSurrounding("level", label, False, own["estimator"])


def _controllers(inquiry: Inquiry) -> Iterator[AskedSurrounding]:
    probes = probes_of(inquiry.library)
    own = getattr(probes, "controller", None)
    for i, target in enumerate(targets()):
        kl = Kl(
            estimator="k1",
            placement="reward",
            beta=BETA,
            controller=BetaController(target=target, horizon=HORIZON),
        )
        wanted = accepted(inquiry.library, inquiry.version, kl)
        if isinstance(wanted, Settings):
            launch = inquiry.add_launch(translated(wanted))
        elif own is not None:
            launch = inquiry.add_own_launch(own(inquiry.version, target, HORIZON, BETA))
        else:
            return
        inquiry.add_question(("controller", i), "controller", launch, "controlled")
    is_cell = isinstance(wanted, Settings)
    name = "kl.controller" if is_cell else probes.CONTROLLER
    yield AskedSurrounding("controller", name, is_cell)


def _references(inquiry: Inquiry) -> Iterator[AskedSurrounding]:
    for label in ("k3", "k2"):
        kl = term(label, "loss").model_copy(
            update={"reference": ReferencePolicy(kind="ema", share=SHARE, every_steps=EVERY)}
        )
        wanted = accepted(inquiry.library, inquiry.version, kl)
        if isinstance(wanted, str):
            continue
        launch = inquiry.add_launch(translated(wanted))
        inquiry.add_question(("reference",), "reference", launch, "controlled")
        name = f"kl.reference ema, share {SHARE:g}, every {EVERY} steps"
        yield AskedSurrounding("reference", name, True)
        return


def measured_surroundings(
    subjects: Sequence[AskedSurrounding], answers: AnswersByKey
) -> list[dict[str, Any]]:
    """Return one entry for each subject."""
    how = {"level": _level, "controller": _controller, "reference": _reference}
    return [
        {
            "subject": each.subject,
            "name": each.name,
            "cell": each.is_cell,
            **how[each.subject](each, answers),
        }
        for each in subjects
    ]


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


def _level(subject: AskedSurrounding, answers: AnswersByKey) -> dict[str, Any]:
    sample = rollouts()
    replies = {key: each for key, each in answers.items() if key[:2] == ("level", subject.name)}
    if error := first_error(replies.values()):
        return {"error": error}
    policy = -as_array(replies["level", subject.name, "level"], "gradient") * sample.tokens
    row = {"policy": _fitted(policy, ratios_of_levels())}
    if subject.estimator is not None:
        gradient = as_array(replies["level", subject.name, "level, KL"], "gradient") * sample.tokens
        row["kl"] = _fitted(gradient / BETA, kl_gradients(subject.estimator))
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
    rng = np.random.default_rng(6)
    batch = two_groups()
    ref = np.asarray(batch["old"]) - rng.uniform(0.0, 0.5, np.asarray(batch["old"]).shape)
    return ProbeBatch(**{**batch, "ref": ref.tolist()})


def followed_kls() -> dict[str, float]:
    """Return the KLs that a controller may follow."""
    batch = _controlled()
    mask = np.asarray(batch["mask"])
    kl = (np.asarray(batch["old"]) - np.asarray(batch["ref"])) * mask
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


def _controller(_: AskedSurrounding, answers: AnswersByKey) -> dict[str, Any]:
    replies = [answers["controller", i] for i in range(len(targets()))]
    if error := first_error(replies):
        return {"error": error}
    betas = np.array([each["beta"] for each in replies])
    mask = np.asarray(_controlled()["mask"])
    for words, current in followed_kls().items():
        for unit, count in (("responses", len(mask)), ("tokens", float(mask.sum()))):
            steps = np.clip(current / np.array(targets()) - 1, -0.2, 0.2)
            off = float(np.abs(betas - BETA * (1 + steps * count / HORIZON)).max())
            if off <= CLOSE:
                return {"follows": words, "counts": unit, "deviation": float(f"{off:.1g}")}
    return {"follows": "?"}


# A reference policy that moves.


def _reference(_: AskedSurrounding, answers: AnswersByKey) -> dict[str, Any]:
    reply = answers[("reference",)]
    if "error" in reply:
        return {"error": reply["error"]}
    expected, at = [], 0.0
    for step in range(1, STEPS + 1):
        at += SHARE * (1 - at) * (step % EVERY == 0)
        expected.append(at)
    off = float(np.abs(np.array(reply["reference"]) - np.array(expected)).max())
    return {"agrees": off <= CLOSE, "deviation": float(f"{off:.1g}")}
