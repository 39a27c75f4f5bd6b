"""What a planted truth demands of the claims and of the paper's figures."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from orchestrator.analysis.claims import NotTestableError, pair_runs
from orchestrator.analysis.runs import MeasuredRun, per_library
from orchestrator.evaluate.survey import tasks_of
from orchestrator.records import EvaluationSpec
from orchestrator.spec.claims import SHARES, Claim, ClaimSide
from tests.replay.truth import Truth

CLEAR = 0.008
"""A planted difference that a claim can see."""


class Demanded(NamedTuple):
    """What was planted for a claim."""

    true: bool | None
    """None: what was planted decides nothing, as where no run of a side trained."""
    counted: str
    """Of a claim on shares: what its left side has, as the reason tells it."""


def demanded(
    claim: Claim, runs: Sequence[MeasuredRun], truths: dict[str, Truth], spec: EvaluationSpec
) -> Demanded:
    """Return what was planted for a claim."""
    if claim.equal:  # the planted KLs of two terms never meet
        return Demanded(None, "")
    try:
        settings, _, _ = pair_runs(claim, per_library(runs))
    except NotTestableError:
        return Demanded(None, "")

    def planted(side: Iterable[MeasuredRun]) -> list[float]:
        values = (_value(claim.left.metric, run, truths, spec) for run in side)
        return [value for value in values if value is not None]

    effects: list[float] = []
    for one in settings:
        left, right = planted(one.left), planted(one.right)
        if left and (right or not isinstance(claim.right, ClaimSide)):
            effects.append(fmean(left) - (fmean(right) if right else float(str(claim.right))))
    counted = ""
    if claim.left.metric in SHARES:
        every = [value for one in settings for value in planted(one.left)]
        counted = f"{round(sum(every))} of {len(every)} runs"
    if not claim.every:
        effects = [fmean(effects)] if effects else []
    size = 30.0 if "kl_forward" in claim.left.metric else 1.0
    answers = [_answer(claim, effect / size) for effect in effects]
    if not answers:
        return Demanded(None, counted)
    return Demanded(True if all(answers) else False if False in answers else None, counted)


def _answer(claim: Claim, effect: float) -> bool | None:
    if claim.relation == "~":
        return abs(effect) < claim.margin / 2
    above = effect if claim.relation[0] == ">" else -effect
    return None if abs(above) < CLEAR else above > 0


def _value(
    metric: str, run: MeasuredRun, truths: dict[str, Truth], spec: EvaluationSpec
) -> float | None:
    own = truths[run.record.cell.id]
    if metric == "collapse":
        return float(own.falls_at is not None)
    if metric == "unstable":
        return float(own.falls_at is not None or own.dips_at is not None)
    if own.falls_at is not None:  # a run that collapsed has no accuracy
        return None
    mean = {
        domain: fmean(
            own.scores[task.name]
            for task in tasks_of(run.record.cell, spec)
            if task.domain == domain
        )
        for domain in ("in", "out")
    }
    named: dict[str, Callable[[], float]] = {
        "eval/in_domain/mean": lambda: mean["in"],
        "eval/out_of_domain/mean": lambda: mean["out"],
        "eval/out_over_in/mean": lambda: mean["out"] / mean["in"],
        "eval/in_domain/kl_forward": lambda: own.kl,
        "eval/in_domain/entropy": lambda: own.entropy,
    }
    return named[metric]()


class Drawn(NamedTuple):
    """A panel of a figure: what it draws, of which configurations."""

    metric: str
    study: str
    model: str
    terms: tuple[str, ...]
    betas: tuple[float, ...] | None = None


VALIDATION = "eval/validation/mean"
QWEN, LLAMA, QWEN3 = "qwen2.5-7b", "llama-3.1-8b-instruct", "qwen3-4b-instruct-2507"
TASKS = (
    "math500",
    "math2",
    "mmlu_college_physics",
    "mmlu_college_chemistry",
    "mmlu_college_biology",
)
_EVERY = ("no KL", "k1.reward", "k1.loss", "k3.reward", "k3.loss")
_STABLE = ("no KL", "k1.reward", "k3.loss")
_BOTH = ("k1.reward", "k3.loss", "k1.both", "k3.both")


def _of_tasks(*rest: object) -> list[Drawn]:
    return [Drawn(f"eval/{task}/mean@32", *rest) for task in TASKS]  # type: ignore[arg-type]  # a tuple


FIGURES: dict[str, list[Drawn]] = {
    "Fig. 2": [
        Drawn(VALIDATION, "onpolicy", QWEN, ("no KL", "k1.loss")),
        Drawn(VALIDATION, "minibatch4", QWEN, ("no KL", "k1.loss")),
        Drawn(VALIDATION, "onpolicy", LLAMA, ("no KL", "k1.loss")),
    ],
    "Fig. 3": [Drawn(VALIDATION, "onpolicy", one, ("k3.reward",)) for one in (QWEN, LLAMA)],
    "Fig. 4": [Drawn(VALIDATION, "onpolicy", QWEN, (one,)) for one in ("k3.loss", "k1.reward")],
    "Fig. 5": _of_tasks("onpolicy", QWEN, _STABLE, (0.0, 0.05, 0.1)),
    "Fig. 6": _of_tasks("onpolicy", LLAMA, _STABLE, (0.0, 0.05, 0.1)),
    "Fig. 7": [Drawn(VALIDATION, "async10", one, _EVERY) for one in (QWEN, QWEN3)],
    "Fig. 8": _of_tasks("async10", QWEN, _STABLE),
    "Fig. 9": [Drawn(VALIDATION, "both", QWEN, _BOTH), *_of_tasks("both", QWEN, _BOTH)],
    "Fig. 10": _of_tasks("onpolicy", QWEN, _STABLE, (0.0, 0.3, 1.0)),
    "Fig. 11": [Drawn(VALIDATION, "minibatch4", QWEN, ("no KL", "k1.reward"))],
    "Fig. 12": [
        Drawn(f"eval/{task}/{metric}", "onpolicy", QWEN, ("k1.reward", "k3.loss"))
        for metric in ("kl_forward", "entropy")
        for task in ("math_test", "mmlu_college_biology")
    ],
}
"""The figures of the paper, in its own form: metric, setting, terms; None: every beta."""
