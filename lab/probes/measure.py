"""Measure a release: ask a library's own functions, and identify what its KL terms are.

`measure` asks everything and returns the evidence. Its parts follow: the value and gradient of an
estimator's name (`classify`); which tokens a KL in the reward moves, and how a loss is averaged;
which objective a whole update has (`measured_objective`); the KL terms of a launch that sets none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.probes.protocol import (
    AT,
    CURVE,
    GROUP,
    LENGTHS,
    NEAR,
    SIZE,
    STEP,
    AnswersByKey,
    Inquiry,
    ProbeBatch,
    ProbeTarget,
    as_array,
    curve,
    every_group,
    expected_gradient,
    first_error,
    probes_of,
    ragged,
    ratios,
    scaled,
    sources,
    two_groups,
)
from lab.probes.surroundings import (
    ask_about_surroundings,
    ask_about_weights,
    measured_surroundings,
    measured_weights,
)
from orchestrator.errors import UnsupportedSetting
from orchestrator.estimators import TABLE, entry, plain_names
from orchestrator.evidence.cells import (
    ADVANTAGES,
    AGGREGATIONS,
    BETA,
    CONSTANT_TOKENS,
    accepted,
    fitting,
    settings,
    sums_a_response,
    term,
    terms,
    translated,
)
from orchestrator.evidence.stored import EstimatorCurve, write
from orchestrator.exact.laboratory import FloatTable, LabSetting, exact
from orchestrator.exact.objectives import generic_settings, gradients, name_objective
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import clamped_value, slope
from orchestrator.kl.verdicts import verdict
from orchestrator.records import LaunchPlan
from orchestrator.settings import Kl, RatioLevel, Settings

Key = tuple[Any, ...]
"""The key of a question and of its answer."""
WEIGHTS: Mapping[str, float | None] = {"on": None, "off": 0.7, "far": 5.0}
"""Curve -> log pi / pi_rollout of its tokens. In `far` a bounded weight is at its bound."""
_AMONG = np.isin(CURVE, NEAR)
CLOSE = 1e-6
"""Tolerance of numbers near 1. It is not smaller because libraries round some steps to float32."""

REGIMES = {"on_policy": True, "off_policy": False}
"""Name in the evidence -> whether the samples are of the policy itself."""
FORMS = tuple(
    name for name, each in TABLE.items() if each.is_of_a_token and not each.is_straight_through
)
"""The estimators whose value and gradient are compared with a library's function."""


def measure(library: str, version: str, where: ProbeTarget, commit: str = "") -> dict[str, Any]:
    """Return the evidence on a release. Raise EnvironmentFault if its functions cannot be run.

    `commit`: of the source, where a release is not a published package.
    """
    probes = probes_of(library)
    inquiry = Inquiry(library, version)
    add_models(inquiry)
    cells = list(ask_about_cells(inquiry))
    refused, units = ask_about_terms(inquiry)
    names = _names(inquiry, probes)
    natives = _natives(inquiry, probes)
    ask_about_silence(inquiry, inquiry.add_own_launch(probes.silent(version)))
    weighted = ask_about_weights(inquiry)
    beside = ask_about_surroundings(inquiry)
    answers, definitions = inquiry.send(where)
    return {
        "library": library,
        "version": version,
        **({"commit": commit} if commit else {}),
        "arithmetic": "float64, CPU",
        "stood_in": probes.STOOD_IN,
        "sources": {key: dict(value) for key, value in sorted(definitions.items())},
        "silent": silent_terms(answers),
        "names": [_name(each, answers) for each in names],
        "reward": {
            advantage: {"refused": refused[advantage]}
            if advantage in refused
            else reward_effect(answers, ("advantage", advantage), BETA * units[advantage])
            for advantage in ADVANTAGES
        },
        "loss": {
            aggregation: {"refused": refused[aggregation]}
            if ("aggregation", aggregation, None) not in answers
            else loss_weights(answers, aggregation)
            for aggregation in AGGREGATIONS
        },
        "ratio": ratio_bound(answers),
        "natives": [_native(each, answers) for each in natives],
        "corrections": measured_weights(weighted, answers),
        "beside": measured_surroundings(beside, answers),
        "cells": list(_cells(cells, answers)),
    }


def measure_again(
    releases: Sequence[tuple[str, str]],
    python: Path | None,
    source: Path | None,
    within: Path | None,
    say: Callable[[str], None],
) -> Iterator[Path]:
    """Measure releases in their own functions, and keep the evidence. Yield each file.

    python: with torch; None: orch's own. source: the folder of the package of one release; None:
    its environment, in the folder `within`.
    """
    for library, version in releases:
        say(f"{library} {version}: asking its own functions")
        with sources(library, version, python=python, source=source, within=within) as folder:
            yield write(measure(library, version, folder.where, folder.commit))


def _names(inquiry: Inquiry, probes: Any) -> list[tuple[str, str]]:
    """Add the questions about every estimator's name of the library. Return place and name."""
    for at, weight in WEIGHTS.items():
        inquiry.add_batch(f"curve {at}", curve(weight))
    questions = []
    for place, name, more in probes.names(inquiry.version):
        kl = term(probes.TYPICAL[place], place)
        plan = translated(fitting(inquiry.library, inquiry.version, kl))
        launch = inquiry.add_launch(plan, *more)
        for at in WEIGHTS:
            inquiry.add_question(
                ("name", place, name, at), "kl", launch, f"curve {at}", place=place
            )
        questions.append((place, name))
    return questions


def _name(question: tuple[str, str], answers: AnswersByKey) -> dict[str, Any]:
    place, name = question
    replies = {at: answers[("name", place, name, at)] for at in WEIGHTS}
    error = first_error(replies.values())
    classified = {"error": error} if error else asdict(classify(replies))
    return {"place": place, "name": name, **classified}


def _natives(inquiry: Inquiry, probes: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Add the questions about launches that no cell is translated into. Return name and launch."""
    natives = []
    for label, native in probes.natives(inquiry.version).items():
        launch = inquiry.add_own_launch(native)
        for on_policy in (True, False):
            ask_for_update(inquiry, ("native", label, on_policy), launch, on_policy)
        larger = native.get("groups_of_four", native)
        launch = inquiry.add_own_launch(larger)
        ask_about_reward(inquiry, ("native reward", label), launch)
        natives.append((label, native))
    return natives


def _native(question: tuple[str, Mapping[str, Any]], answers: AnswersByKey) -> dict[str, Any]:
    label, native = question
    beta, summed = native["beta"], native.get("of_responses")
    tokens, of_sequence = (TOKENS_A_RESPONSE, NUM_TOKENS) if summed else (1, 1)
    return {
        "name": label,
        "reward": reward_effect(answers, ("native reward", label), beta * tokens),
        **{
            name: _rounded(
                measured_objective(answers, ("native", label, on), on, beta * of_sequence)
            )
            for name, on in REGIMES.items()
        },
    }


def _cells(questions: list["AskedCell"], answers: AnswersByKey) -> Iterator[dict[str, Any]]:
    """Yield one entry for every KL term, on- and off-policy."""
    for kl, on_policy, key, summed in questions:
        entry: dict[str, Any] = {
            "estimator": kl.estimator,
            "placement": kl.placement,
            "on_policy": on_policy,
        }
        if isinstance(key, str):
            yield {**entry, "refused": key}
            continue
        over = [kl.estimator] * TABLE[kl.estimator].is_of_vocabulary
        beta = BETA * (NUM_TOKENS if summed else 1)
        cell = measured_objective(answers, key, on_policy, beta, over)
        if summed:
            entry["loss"] = "sum over a response"
        comparison = compared_with_verdict(kl, on_policy, cell)
        yield {**entry, **_rounded(cell), **comparison}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with 8 digits of its gradient, as many as are equal on all machines."""
    if "gradient" not in values:
        return dict(values)
    rows = [[float(f"{x:.8g}") for x in row] for row in values["gradient"]]
    return {**values, "gradient": [[0.0 if abs(x) < 1e-12 else x for x in row] for row in rows]}


# Identify the estimator of a per-token KL: its value, gradient, bounds and weight.


def classify(answers: Mapping[str, Mapping[str, Any]]) -> EstimatorCurve:
    """Return the curve of an estimator, from the answers to `kl` on curve(WEIGHTS[name])."""
    value = {name: as_array(each, "value")[0] for name, each in answers.items()}
    gradient = {name: as_array(each, "slope")[0] for name, each in answers.items()}
    bound_of, (below, above) = value["on"], flat_beyond(gradient["on"])
    value["on"], gradient["on"] = value["on"][_AMONG], gradient["on"][_AMONG]
    whose, off = _nearest(value, _values)
    whose_gradient, off_gradient = _nearest(gradient, _gradients)
    weight = _bound_of_weight(gradient) if "rho" in whose_gradient else None
    return EstimatorCurve(
        value=whose,
        gradient=whose_gradient,
        straight_through=_through(value, gradient, whose),
        value_bound=_bound(bound_of, whose),
        flat_below=below,
        flat_above=above,
        weight_bound=None if weight is None else float(f"{weight:.4g}"),
        deviation=float(f"{max(off, off_gradient):.2g}"),
    )


def _values(name: str, x: FloatTable, weight: float) -> FloatTable:
    form = entry(name)
    return np.asarray(form.value(x) * (weight if form.is_weighted else 1.0))


def _gradients(name: str, x: FloatTable, weight: float) -> FloatTable:
    form = entry(name)
    gradients = form.slope(x)
    # The attached ratio is a factor with a gradient: the product's second part is the value.
    if form.form == "ratio_attached":
        gradients = gradients + form.value(x)
    return np.asarray(gradients * (weight if form.is_weighted else 1.0))


def _nearest(curves: Mapping[str, FloatTable], closed: Any) -> tuple[str, float]:
    """Return the estimator nearest to the curves `on` and `off`, and its largest difference.

    Return "?" if none is within 10 * CLOSE.
    """
    best = ("?", float("inf"))
    for form in FORMS:
        off = max(
            float(np.abs(curves[at] - closed(form, NEAR, float(np.exp(WEIGHTS[at] or 0.0)))).max())
            for at in ("on", "off")
        )
        # Two forms may be equal on this curve up to rounding: a later one must be clearly nearer.
        if off < best[1] * 0.5:
            best = (form, off)
    return best if best[1] <= CLOSE * 10 else ("?", best[1])


def _through(
    value: Mapping[str, FloatTable], gradient: Mapping[str, FloatTable], whose: str
) -> bool:
    """Return True if the gradient is not the derivative of the value.

    The derivative is the slope of the estimator with this value, or central differences if no
    estimator has it. All tokens of a curve have one importance weight, so differences do not show
    the weight's gradient. That gradient is the value itself, so it is added where the value has
    the weight.
    """
    step = NEAR[1] - NEAR[0]
    if whose in TABLE:
        form = entry(whose)
        own = (form.slope(NEAR) * (np.exp(WEIGHTS["off"] or 0.0) if form.is_weighted else 1.0))[
            1:-1
        ]
    else:
        own = (value["off"][2:] - value["off"][:-2]) / (2 * step)
    slope = gradient["off"][1:-1]
    inner = np.abs(NEAR[1:-1]) > 2 * step
    plain = float(np.abs(own - slope)[inner].max())
    attached = float(np.abs(own + value["off"][1:-1] - slope)[inner].max())
    return plain > 1e-3 and (attached > 1e-3 or "rho" not in whose)


def _bound_of_weight(gradient: Mapping[str, FloatTable]) -> float | None:
    """Return the gradient's weight at a large pi / pi_rollout, or None if it is that ratio."""
    on, largest = gradient["on"], float(np.exp(WEIGHTS["far"] or 0.0))
    # Where a gradient is 0, as that of k2 and k3 at log-ratio 0, the quotient says nothing.
    bound = float(np.nanmedian(gradient["far"] / np.where(on == 0, np.nan, on)))
    return None if bound > 0.9 * largest else bound


def _bound(value: FloatTable, whose: str) -> float | None:
    if whose == "?":
        return None
    free = _values(whose, CURVE, 1.0)
    clamped = np.abs(value) < np.abs(free) * (1 - 1e-6) - 1e-6
    return float(f"{np.abs(value[clamped]).max():.4g}") if clamped.any() else None


def flat_beyond(gradient: FloatTable) -> tuple[float | None, float | None]:
    """Return the log-ratios below and above which the gradient is 0, each None if there is none.

    gradient: [len(CURVE)], one token at each point of CURVE.
    """
    zero = np.abs(gradient) <= 1e-12
    zero |= ~np.isfinite(gradient)
    below = np.flatnonzero(~zero & (CURVE < -0.5))
    above = np.flatnonzero(~zero & (CURVE > 0.5))
    low = None if zero[0] is np.False_ or not len(below) else float(CURVE[below[0]])
    high = None if zero[-1] is np.False_ or not len(above) else float(CURVE[above[-1]])
    return (low if zero[0] else None), (high if zero[-1] else None)


# Measure how a KL term enters an update: the tokens and rollouts that it moves, and the weights.


CLOSE_WEIGHTS = 1e-4
IN_LOSS = ("k1", "k3")
"""Estimators for which the weights of tokens in the loss are measured: the first that a library
has."""
BATCHES = {
    "as it is": two_groups(),
    "raised": two_groups(STEP),
    "lowered": two_groups(-STEP),
    "ten times": scaled(two_groups(), 10.0, 10.0),
}


def ask_about_terms(inquiry: Inquiry) -> tuple[dict[str, str], dict[str, float]]:
    """Add the questions about k1 in the reward and a KL in the loss.

    The former are asked with each advantage, the latter with each aggregation. Return two mappings:
    advantage or aggregation -> the field that the backend refuses in it; and advantage -> the
    factor from the unit of its loss to that of a mean over tokens, which `reward_effect` needs.
    """
    for name, batch in BATCHES.items():
        inquiry.add_batch(name, batch)
    inquiry.add_batch("ragged", ragged())
    inquiry.add_batch("ratios", ratios())
    refused: dict[str, str] = {}
    units: dict[str, float] = {}
    release = (inquiry.library, inquiry.version)
    for advantage in ADVANTAGES:
        try:
            wanted = fitting(*release, term("k1", "reward"), advantage=advantage, group_size=SIZE)
        except UnsupportedSetting as error:
            refused[advantage] = error.field
            continue
        units[advantage] = TOKENS_A_RESPONSE if sums_a_response(wanted) else 1.0
        ask_about_reward(inquiry, ("advantage", advantage), inquiry.add_launch(translated(wanted)))
    for aggregation in AGGREGATIONS:
        for key, kl in _averaged(aggregation):
            wanted = settings(
                *release, kl, advantage="dr_grpo", aggregation=aggregation, group_size=GROUP
            )
            plan = _plan(wanted, aggregation, refused)
            if plan:
                what = "update" if kl.placement else "loss"
                inquiry.add_question(key, what, inquiry.add_launch(plan), "ragged")
    stale = translated(fitting(*release, term("none", None), on_policy=False, advantage="dr_grpo"))
    inquiry.add_question(("ratios",), "loss", inquiry.add_launch(stale), "ratios")
    return refused, units


def _averaged(aggregation: str) -> Iterator[tuple[Key, Kl]]:
    """Yield key and KL term for the weights of tokens: no KL, then each of IN_LOSS in the loss."""
    yield ("aggregation", aggregation, None), term("none", None)
    for estimator in IN_LOSS:
        yield ("aggregation", aggregation, estimator), term(estimator, "loss")


TOKENS_A_RESPONSE = sum(LENGTHS) / len(LENGTHS)
"""Mean tokens of a response of `two_groups`: the factor from a sum over its tokens to a mean."""


def ask_about_reward(inquiry: Inquiry, key: tuple[Any, ...], launch: int) -> None:
    """Add the questions about a KL in the reward of a launch, one for each of BATCHES."""
    for batch in BATCHES:
        inquiry.add_question((*key, batch), "update", launch, batch)


def _plan(wanted: Settings, what: str, refused: dict[str, str]) -> LaunchPlan | None:
    """Return the launch, or None and note the refused field.

    A library that is never on-policy gets a staleness of one step.
    """
    try:
        return translated(wanted)
    except UnsupportedSetting as error:
        if error.field == "max_staleness_steps" and not wanted.max_staleness_steps:
            return _plan(wanted.model_copy(update={"max_staleness_steps": 1}), what, refused)
        refused[what] = error.field
        return None


def reward_effect(
    answers: AnswersByKey, key: tuple[Any, ...], beta: float = BETA
) -> dict[str, Any]:
    """Return which tokens the KL of one token moves through the reward.

    `within`, in its own rollout: response (all tokens), to_go (the token and those before it),
    token (itself), none. `others`, in other rollouts: leave_one_out or group_mean (the KL is inside
    that baseline), batch (inside a whitening), none (outside).
    """
    if error := first_error(answers[*key, batch] for batch in BATCHES):
        return {"error": error}
    raised, lowered = (_advantages(answers[(*key, name)]) for name in ("raised", "lowered"))
    # A central difference in the KL of one token. The minus: a KL is a cost in the reward.
    moved = -(raised - lowered) / (2 * STEP * beta)
    plain, large = (_advantages(answers[(*key, name)]) for name in ("as it is", "ten times"))
    bounded = bool(np.abs(large).max() < 5 * np.abs(plain).max())
    own, group = moved[AT[0]], moved[1:SIZE]
    return {
        "within": _within(own),
        "others": _others(own, group, moved[SIZE:]),
        "divided_by_deviation": bounded,
        "moved": [[float(f"{x:.4g}") for x in row] for row in moved[:SIZE]],
    }


def _advantages(answer: Mapping[str, Any]) -> FloatTable:
    """Return the factor of each token's score, [N, T], on-policy. The loss is a token mean."""
    return -as_array(answer, "gradient") * sum(LENGTHS)


def _within(own: FloatTable) -> str:
    strongest = np.abs(own).max()
    if strongest < CLOSE_WEIGHTS:
        return "none"
    same = np.abs(own / strongest - 1) < CLOSE_WEIGHTS
    shapes = {
        (True, True, True): "response",
        (True, True, False): "to_go",
        (False, True, False): "token",
    }
    a, b, c = map(bool, same)
    return shapes.get((a, b, c), "other")


def _others(own: FloatTable, group: FloatTable, elsewhere: FloatTable) -> str:
    if np.abs(elsewhere).max() > CLOSE_WEIGHTS:
        return "batch"
    strongest = float(np.abs(own).max())
    if strongest < CLOSE_WEIGHTS or np.abs(group).max() < CLOSE_WEIGHTS:
        return "none"
    share = float(group[0, 0]) / strongest
    names = {
        -1 / (SIZE - 1): "leave_one_out" if abs(strongest - 1) < CLOSE_WEIGHTS else "group_mean"
    }
    return next(
        (name for value, name in names.items() if abs(share - value) < CLOSE_WEIGHTS), "group"
    )


def loss_weights(answers: AnswersByKey, aggregation: str) -> dict[str, Any]:
    """Return the weights of tokens in the policy loss and in a KL in the loss.

    The batch is `ragged`: two responses of 3 and 1 tokens.
    """
    keys = [("aggregation", aggregation, each) for each in IN_LOSS]
    questions = {
        "policy": answers[("aggregation", aggregation, None)],
        "kl": next((answers[each] for each in keys if each in answers), None),
    }
    estimator = next((each[-1] for each in keys if each in answers), IN_LOSS[0])
    batch = ragged()
    x = np.asarray(batch["logp"]) - np.asarray(batch["ref"])
    unit = np.where(np.asarray(batch["mask"]) > 0, slope(estimator, x), 1.0)
    measured: dict[str, Any] = {}
    for what, answer in questions.items():
        if answer is None:
            measured[what] = "refused"
            continue
        if "error" in answer:
            return {"error": answer["error"]}
        weights = as_array(answer, "gradient") / (BETA * unit if what == "kl" else -1.0)
        measured[what] = _aggregation(weights)
        measured[f"{what}_weights"] = [[float(f"{x:.6g}") for x in row] for row in weights + 0.0]
    return measured


def ratio_bound(answers: AnswersByKey) -> dict[str, Any]:
    """Return `flat_above`: the log pi / pi_rollout above which an unclipped policy loss is flat.

    It is None if the loss has a gradient up to 30.
    """
    gradient = as_array(answers[("ratios",)], "gradient")[0]
    return {"flat_above": flat_beyond(gradient)[1]}


def _aggregation(weights: FloatTable) -> str:
    known = {
        "token_mean": (1 / 4, 1 / 4),
        "sequence_mean": (1 / 6, 1 / 2),
        "constant": (1 / (2 * CONSTANT_TOKENS),) * 2,
    }
    for name, (long, short) in known.items():
        expected = np.array([[long] * 3, [short, 0.0, 0.0]])
        if np.abs(weights - expected).max() < CLOSE_WEIGHTS:
            return name
    return "other"


# Identify the objective of a library's whole update by its exact expected gradient.


NUM_TOKENS = 3
TOLERANCE = 1e-6
"""Relative. Libraries add 1e-8 to some divisors and round some ratios to float32."""


def models(on_policy: bool) -> Sequence[LabSetting]:
    """Return the policies at which a gradient must equal that of an objective to be named so."""
    return generic_settings(on_policy=on_policy, num_tokens=NUM_TOKENS)


def batch_name(on_policy: bool, index: int) -> str:
    """Return the name of a model's batch."""
    return f"{'on' if on_policy else 'off'}-policy {index}"


def add_models(inquiry: Inquiry) -> None:
    """Add the batch of every model to the inquiry."""
    for on_policy in (True, False):
        for index, setting in enumerate(models(on_policy)):
            inquiry.add_batch(batch_name(on_policy, index), every_group(setting))


def ask_for_update(
    inquiry: Inquiry, key: Key, launch: int, on_policy: bool, what: str = "update"
) -> None:
    """Add the questions for a launch's update at every model. `what="loss"`: for its loss alone."""
    for index in range(len(models(on_policy))):
        inquiry.add_question(
            (*key, index), what, launch, batch_name(on_policy, index), only="gradient"
        )


class AskedCell(NamedTuple):
    """A KL term that was asked about, on- or off-policy."""

    kl: Kl
    on_policy: bool
    key: Key | str
    """The key of its answers, or, as a text, the field that the backend refuses."""
    summed: bool = False
    """True if the loss sums a response's tokens; False if it is a mean over tokens."""


def ask_about_cells(inquiry: Inquiry) -> Iterator[AskedCell]:
    """Add the questions about every KL term, on- and off-policy. Yield each term."""
    for kl in terms():
        for on_policy in (True, False):
            wanted = accepted(inquiry.library, inquiry.version, kl, on_policy)
            if isinstance(wanted, str):
                yield AskedCell(kl, on_policy, wanted)
                continue
            key = ("cell", kl.label, on_policy)
            ask_for_update(inquiry, key, inquiry.add_launch(translated(wanted)), on_policy)
            yield AskedCell(kl, on_policy, key, sums_a_response(wanted))


def measured_objective(
    answers: AnswersByKey,
    key: Key,
    on_policy: bool,
    beta: float = BETA,
    over: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the objective whose gradient the library's update has, or the library's error.

    `over`: estimators over the vocabulary, whose objectives are then candidates too.
    """
    settings_ = models(on_policy)
    replies = [answers[(*key, index)] for index in range(len(settings_))]
    if error := first_error(replies):
        return {"error": error}
    gradient = np.stack(
        [
            expected_gradient(setting, each["gradient"], beta)
            for setting, each in zip(settings_, replies, strict=True)
        ]
    )
    candidates = [gradients(each, over) for each in settings_]
    size = max(float(np.abs(row).max()) for each in candidates for row in each.values())
    naming = name_objective(gradient, candidates, magnitude=size, tolerance=TOLERANCE)
    towards = {}
    if naming.kind is ObjectiveKind.UNKNOWN and not on_policy:
        lagging = [gradients(replace(each, reference=each.sampler), over) for each in settings_]
        naming = name_objective(gradient, lagging, magnitude=size, tolerance=TOLERANCE)
        towards = {} if naming.kind is ObjectiveKind.UNKNOWN else {"towards": "rollout"}
    return {
        **towards,
        "objective": str(naming.kind),
        "terms": [[sign, name] for sign, name in naming.terms],
        "scale": float(f"{naming.scale:.6g}"),
        "gradient": gradient.tolist(),
    }


def compared_with_verdict(kl: Kl, on_policy: bool, cell: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a measurement with orch's verdict on the term.

    Return `verdict`; `agrees`; and `deviation`, which is max |measured - closed form| in units of
    one sequence's gradient. Off-policy a KL in the reward is either that of the rollout policy,
    computed once, or that of the policy being updated: `reward_kl_of` names the one that agrees.
    `ratio` is present if the library has one importance ratio for each response.
    """
    comparison: dict[str, Any] = {}
    for of, ratio in product(_whose(kl, on_policy), _ratios(kl, on_policy)):
        says = verdict(kl, on_policy=on_policy, reward_kl_of=of, ratio=ratio)
        expected = {"objective": str(says.objective), "terms": [list(term) for term in says.terms]}
        agrees = cell.get("terms") == expected["terms"] and cell.get("scale") == 1
        if comparison and not agrees:
            continue
        comparison = {"verdict": expected, "agrees": agrees}
        if len(_whose(kl, on_policy)) > 1:
            comparison["reward_kl_of"] = of if agrees else None
        if agrees and ratio != "token":
            comparison["ratio"] = ratio
        if "gradient" in cell:
            gradient = np.asarray(cell["gradient"])
            comparison["deviation"] = _deviation(kl, on_policy, (of, ratio), gradient)
    return comparison


def _ratios(kl: Kl, on_policy: bool) -> tuple[RatioLevel, ...]:
    """Return the importance ratios that a KL in the reward may have.

    Off-policy it may also be one for each response, if the laboratory has that estimator so.
    """
    several = not on_policy and kl.placement == "reward" and entry(kl.estimator).is_plain
    return ("token", "sequence") if several and entry(kl.estimator).is_of_a_token else ("token",)


def _whose(kl: Kl, on_policy: bool) -> tuple[str, ...]:
    return ("rollout", "policy") if not on_policy and kl.placement != "loss" else ("policy",)


def _deviation(
    kl: Kl, on_policy: bool, how: tuple[str, RatioLevel], gradient: FloatTable
) -> float | None:
    if kl.placement is None:
        return None
    of, ratio = how
    configuration = KlConfiguration(kl.estimator, kl.placement, ratio=ratio, reward_kl_of=of)
    rows = [exact(setting, [configuration]) for setting in models(on_policy)]
    closed = np.stack([row.mean[0] for row in rows])
    size = max(float(row.magnitude.max()) for row in rows)
    return float(f"{np.abs(gradient - closed).max() / size:.1g}")


# Measure the KL terms of a launch without KL options.


SILENCE_CLOSE = 1e-6


def _batches() -> dict[str, ProbeBatch]:
    """Return batches with a KL to the reference policy, without KL, and to the rollout policy.

    Task rewards and advantages are 0.
    """
    some = ProbeBatch(**{**two_groups(), "rewards": [0.0] * 8})
    some["mask"] = [[1.0] * 3] * 8
    some["advantages"] = [[0.0] * 3] * 8
    none = ProbeBatch(**{**some, "ref": some["logp"]})
    old = (np.asarray(some["ref"]) * 0.6 + np.asarray(some["logp"]) * 0.4).tolist()
    return {
        "silent": some,
        "silent, none": none,
        "silent, stale": ProbeBatch(**{**none, "old": old}),
    }


def ask_about_silence(inquiry: Inquiry, launch: int) -> None:
    """Add the questions about a launch without KL options."""
    for name, batch in _batches().items():
        inquiry.add_batch(name, batch)
        inquiry.add_question(("silent", "reward", name), "advantages", launch, name)
        inquiry.add_question(("silent", "loss", name), "loss", launch, name)


def silent_terms(answers: AnswersByKey) -> dict[str, Any]:
    """Return the active KL terms: `reward`, `loss`, and `proximal` (in the loss, to the rollout
    policy). Each is an estimator and its beta, or None.
    """
    batches = _batches()
    some, stale = batches["silent"], batches["silent, stale"]
    x = np.asarray(some["logp"]) - np.asarray(some["ref"])
    lag = np.asarray(stale["logp"]) - np.asarray(stale["old"])
    rewards = {name: answers[("silent", "reward", name)] for name in ("silent", "silent, none")}
    penalty = as_array(rewards["silent, none"], "rewards") - as_array(rewards["silent"], "rewards")
    size = x.size
    return {
        "reward": _fitted(penalty, x, clamped_value),
        "loss": _fitted(_gradient(answers, "silent") * size, x, slope),
        "proximal": _fitted(_gradient(answers, "silent, stale") * size, lag, slope),
    }


def _gradient(answers: AnswersByKey, name: str) -> FloatTable:
    return as_array(answers[("silent", "loss", name)], "gradient")


def _fitted(gradient: FloatTable, x: FloatTable, closed: Any) -> dict[str, Any] | None:
    """Return the estimator and beta that give the measured values or gradients at x, or None for 0.

    closed: a function of an estimator's name and x.
    """
    if np.abs(gradient).max() <= SILENCE_CLOSE * 1e-2:
        return None
    for form in plain_names():
        shape = closed(form, x)
        beta = float((gradient * shape).sum() / (shape * shape).sum())
        if np.abs(gradient - beta * shape).max() <= SILENCE_CLOSE * max(1.0, abs(beta)):
            return {"estimator": form, "beta": float(f"{beta:.6g}")}
    return {"estimator": "?", "beta": None}
