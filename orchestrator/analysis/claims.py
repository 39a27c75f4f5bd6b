"""Verdicts on claims: holds, contradicted, no effect, seen, too few runs, or not testable.

A claim that two things do not differ holds by construction if both are the same training run.

`judge` takes a claim through three steps:

1. `pair_runs` pairs runs. A *setting* is everything that two runs share: the study and every axis
   that the claim's brackets do not name. Within a setting, the left runs are compared with the
   right runs.
2. `contrast` computes the effect: the mean over settings of left minus right. Accuracies are those
   of runs that trained: a collapsed run is an outcome of its own, for which there are claims on
   `collapse` and `unstable`. A run that stands for several libraries counts in the setting of each,
   and once in the variance.
3. `weigh_evidence` computes p-values. A claim names a region for the effect (above 0, within a
   margin). Its p-value is twice the smaller of two one-sided p-values: for an effect outside the
   region, and for an effect inside. A mean is tested with the variances of its configurations
   (`PooledEffect`), a share by a randomisation test over seeds. A claim `at every beta` is
   tested at each: it holds if it holds at all of them.

p-values are corrected by Holm over all claims of a family, testable or not; a spec that declares no
families is one. The seeds of the first
launch are the planned look, with most of the error (`level_of_look`). A claim is decided once its
runs have ended. The interval of an effect is the one that decides. A claim on `works` is counted
and not tested.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import cycle, islice
from statistics import fmean, variance
from typing import Literal, NamedTuple

from orchestrator.analysis.configurations import (
    AxisValues,
    configurations_of,
    mean_by_seed,
)
from orchestrator.analysis.runs import (
    MeasuredRun,
    is_accuracy,
    is_of_trained,
    looks,
    predicted_metric,
)
from orchestrator.analysis.stats import (
    ALPHA,
    MAX_SEEDS,
    POWER,
    Estimate,
    PooledEffect,
    Rate,
    VariancePrior,
    WeightedMean,
    holm,
    level_of_look,
    p_between_shares,
    p_of_share,
    rate,
    variance_prior,
)
from orchestrator.analysis.text import (
    counted,
    estimate_text,
    few,
    listed,
    metric_title,
    number_text,
    p_text,
)
from orchestrator.errors import did_you_mean
from orchestrator.identity import fingerprint
from orchestrator.records import ENDED
from orchestrator.spec.claims import (
    COLLAPSE,
    SHARES,
    UNSTABLE,
    WORKS,
    AxisCondition,
    Claim,
    ClaimSide,
    Relation,
)
from orchestrator.spec.fields import LABELS

ONE_RUN = "both sides are one training run, so the difference is 0 and was not measured"
SEEDS_OF_SHARES = (4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Numbers of seeds that are tried for a claim on shares."""
ClaimVerdict = Literal[
    "holds",
    "contradicted",
    "no effect",
    "holds by construction",
    "seen",
    "too few runs",
    "not testable",
]
"""`no effect`: none larger than SMALL. `seen`: decided if it were the spec's only claim.
`verdict_text` has the words of each."""
OPEN: tuple[ClaimVerdict, ...] = ("seen", "too few runs")
SMALL = 0.05
"""Differences of a share up to this size count as small."""
RunValue = Callable[[MeasuredRun], float | None]
TailProbabilities = Callable[[float], tuple[float, float]]
"""Bound -> one-sided p-values of "not above the bound" and "not below the bound"."""


class NotTestableError(LookupError):
    """Raised for a claim that these runs cannot decide. The message names what is missing."""


class OneRunError(NotTestableError):
    """Raised for a claim whose two sides are the same training runs."""


@dataclass(frozen=True)
class PairedRuns:
    """The left and right runs of one setting. Right is empty for a comparison with a number."""

    study: str
    left: tuple[MeasuredRun, ...]
    right: tuple[MeasuredRun, ...]

    @property
    def runs(self) -> tuple[MeasuredRun, ...]:
        """Return the runs of both sides."""
        return self.left + self.right


def pair_runs(
    claim: Claim, runs: Sequence[MeasuredRun]
) -> tuple[tuple[PairedRuns, ...], list[str], list[str]]:
    """Return the settings of a claim, a text for each setting that is left out, and notes on runs.

    `runs`: one view for each library (`runs.per_library`).

    Raise NotTestableError if nothing can be paired.
    """
    chosen = [_chosen(claim, side, runs) for side in claim.sides]
    free = {trait for side in claim.sides for w in side.where for trait in _traits_named(w.axis)}
    free |= {"beta"} if claim.equal else set()
    by_setting = _sides_by_setting(chosen, free)
    notes: list[str] = []
    left_out: list[str] = []
    settings: list[PairedRuns] = []
    merged = 0
    paired: set[tuple[str | None, tuple[frozenset[str], ...]]] = set()
    for (study, key), (left, right) in by_setting.items():
        if not left or (not right and len(claim.sides) == 2):
            lacking = claim.sides[0 if not left else 1]
            lacks = ", ".join(map(str, lacking.where)) or lacking.metric
            left_out.append(f"left out {setting_name(study, key, runs)}, which has no {lacks}")
            continue
        cells = tuple(frozenset(r.record.cell.id for r in side) for side in (left, right))
        if shared := cells[0] & cells[1]:
            merged += len(shared)
            left, right = (
                [r for r in side if r.record.cell.id not in shared] for side in (left, right)
            )
            if bool(left) != bool(right):
                raise NotTestableError(f"one side has no run of its own: of the others, {ONE_RUN}")
        # The same runs can belong to several studies, and count once. In each library they count.
        if left and (pair := (dict(key).get("backend"), cells)) not in paired:
            paired.add(pair)
            settings.append(PairedRuns(study, tuple(left), tuple(right)))
    if merged and not settings:
        raise OneRunError(ONE_RUN)
    if not settings:
        raise NotTestableError(f"no setting has runs on both sides; {'; '.join(left_out)}")
    if merged:
        notes.append(f"left out {counted(merged, 'run')} that are on both sides")
    for where in claim.at:
        for one in where.each():
            if not any(_matches_setting(run, one) for setting in settings for run in setting.left):
                raise NotTestableError(f"no setting with {one} has runs on both sides")
    return tuple(settings), left_out, notes


def _sides_by_setting(
    chosen: Sequence[Sequence[tuple[str, MeasuredRun]]], free: set[str]
) -> dict[tuple[str, AxisValues], tuple[list[MeasuredRun], list[MeasuredRun]]]:
    """Return (study, values of the shared traits) -> left runs, right runs.

    The study is that of both sides, or "" if the sides name theirs.
    """
    by_setting: dict[tuple[str, AxisValues], tuple[list[MeasuredRun], list[MeasuredRun]]] = {}
    for study in dict.fromkeys(study for side in chosen for study, _ in side):
        sides = [[run for s, run in side if s == study] for side in chosen]
        shared = _shared_traits([run for side in sides for run in side]) - free
        for index, side in enumerate(sides):
            for run in side:
                traits = tuple((t, run.traits[t]) for t in sorted(shared))
                by_setting.setdefault((study, traits), ([], []))[index].append(run)
    return by_setting


def _chosen(
    claim: Claim, side: ClaimSide, runs: Sequence[MeasuredRun]
) -> list[tuple[str, MeasuredRun]]:
    """Return (study, run) for the runs of a side. A run of several studies appears in each.

    Raise NotTestableError if a condition of the claim matches no run.
    """
    studies = {study for run in runs for study in run.record.cell.studies}
    for study in (*claim.studies, *claim.studies_compared):
        if study not in studies:
            raise NotTestableError(f"no study is called '{study}'{did_you_mean(study, studies)}")
    named = side.studies or claim.studies
    chosen = [
        ("" if claim.studies_compared else study, run)
        for run in runs
        if all(run.matches(w) for w in side.where)
        and all(_matches_setting(run, w) for w in claim.at)
        for study in run.record.cell.studies
        if not named or study in named
    ]
    for where in (*side.where, *claim.at):
        for one in where.each():
            if not any(run.matches(one) or _lacks_axis(run, one) for _, run in chosen):
                raise NotTestableError(f"no run has {one}{_known_values(where.axis, runs)}")
    if not chosen:
        raise NotTestableError("nothing ran")
    return chosen


def _matches_setting(run: MeasuredRun, where: AxisCondition) -> bool:
    return _lacks_axis(run, where) or run.matches(where)


def _lacks_axis(run: MeasuredRun, where: AxisCondition) -> bool:
    """Return True for a run without a KL term and an axis of KL terms (beta, placement).

    Such a run is compared at every beta.
    """
    return not run.has_kl and _trait_of(where.axis) in ("beta", "kl.placement")


def _trait_of(axis: str) -> str:
    """Return the trait of a field: `beta` for `kl.beta`, `model` for `model.name`."""
    return next((label for label, field in LABELS.items() if field == axis), axis)


def _traits_named(axis: str) -> set[str]:
    if axis == "backend":  # a library is named with its release
        return {"backend", "backend.version"}
    return {"kl.estimator", "kl.placement"} if axis == "kl" else {_trait_of(axis)}


def _shared_traits(runs: Iterable[MeasuredRun]) -> set[str]:
    """Return the traits that all runs have. A run without KL has no placement and no beta."""
    sets = [set(run.traits) for run in runs]
    return set.intersection(*sets) if sets else set()


def _known_values(axis: str, runs: Sequence[MeasuredRun]) -> str:
    if axis == "kl":
        values = {run.declared.kl.label for run in runs}
    else:
        values = {run.traits[_trait_of(axis)] for run in runs if _trait_of(axis) in run.traits}
    return f" (there are: {', '.join(sorted(values))})" if values else ""


def setting_name(study: str, traits: AxisValues, runs: Sequence[MeasuredRun]) -> str:
    """Return `onpolicy (beta=0.1, model=qwen2.5-7b)`: the traits in which these runs differ."""
    differ = [(t, v) for t, v in traits if len({run.traits.get(t) for run in runs}) > 1]
    return f"{study} ({', '.join(f'{t}={v}' for t, v in differ)})" if differ else study


@dataclass(frozen=True)
class Contrast:
    """The numbers that decide a claim."""

    settings: tuple[PairedRuns, ...]
    """For an accuracy, with the runs that trained."""
    seeds: tuple[int, ...]
    left: float
    """Mean over settings and their left runs."""
    right: float
    """The same of the right side; the number that the claim names, or the mean prediction."""
    means: tuple[WeightedMean, ...]
    """The configurations of both sides. Their weighted sum is left minus right."""
    left_out: tuple[str, ...]
    """A text for each setting that is left out: it has runs on one side only, or too few trained
    runs."""
    notes: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the ids of the cells that these numbers come from."""
        return tuple({r.record.cell.id: None for s in self.settings for r in s.runs})


def contrast(claim: Claim, runs: Sequence[MeasuredRun]) -> Contrast:
    """Return the means of a claim's two sides, and the configurations that they are made of.

    Raise NotTestableError with the reason if these runs cannot decide the claim.
    """
    for metric in (*(side.metric for side in claim.sides), *([claim.equal] if claim.equal else [])):
        _check_measured(metric, runs)
    paired, left_out, notes = pair_runs(claim, runs)
    for setting in paired:
        _check_comparable(claim, setting)
    settings, fallen = _trained(claim, paired, runs)
    if not settings:
        raise NotTestableError(f"too few runs trained; {'; '.join(fallen)}")
    left, right, means = _effect(claim, settings)
    finals = [r for s in settings for r in s.runs if r.finals]
    if lacking := len({r.record.cell.id for s in paired for r in s.runs if not r.finals}):
        notes.append(f"left out {counted(lacking, 'run')} without a final value")
    if any(r.finals.get(COLLAPSE) for s in paired for r in s.runs) and _is_of_trained(claim):
        every = {r.record.cell.id for s in paired for r in s.runs if r.finals}
        trained = len({r.record.cell.id for r in finals})
        one, other, _ = _effect(claim, paired)
        notes.append(
            f"among runs that trained ({trained} of {len(every)}); with the collapsed ones the "
            f"difference is {number_text(one - other, '+')}"
        )
    return Contrast(
        tuple(settings),
        tuple(sorted({r.seed for r in finals})),
        left,
        right,
        means,
        (*left_out, *fallen),
        tuple(notes),
    )


def _is_of_trained(claim: Claim) -> bool:
    return any(is_of_trained(side.metric) for side in claim.sides)


def _trained(
    claim: Claim, paired: Sequence[PairedRuns], runs: Sequence[MeasuredRun]
) -> tuple[list[PairedRuns], list[str]]:
    """Return the settings without their collapsed runs, and a text for each that is left out.

    A setting is left out if collapses leave a side fewer than two runs of a configuration. Return
    the settings as they are for a metric that is no accuracy.
    """
    if not _is_of_trained(claim):
        return list(paired), []
    settings, left_out = [], []
    for setting in paired:
        few = [
            f"{kept} of {len(group)} runs of {_term(group[0])} trained"
            for side in (setting.left, setting.right)
            for group in configurations_of(side).values()
            for kept in [sum(not run.finals.get(COLLAPSE) for run in group)]
            if kept < min(2, len(group))
        ]
        if few:
            same = set.intersection(*(set(run.traits.items()) for run in setting.runs))
            name = setting_name(setting.study, tuple(sorted(same)), runs)
            left_out.append(f"left out {name}, where {listed(few)}")
            continue
        left, right = (
            tuple(run for run in side if not run.finals.get(COLLAPSE))
            for side in (setting.left, setting.right)
        )
        settings.append(PairedRuns(setting.study, left, right))
    return settings, left_out


def _term(run: MeasuredRun) -> str:
    kl = run.declared.kl
    return f"{kl.label} β={kl.beta:g}" if run.has_kl else "no KL term"


def _effect(
    claim: Claim, settings: Sequence[PairedRuns]
) -> tuple[float, float, tuple[WeightedMean, ...]]:
    """Return the mean of the left side, that of the right side, and the configurations of both."""
    if claim.equal:
        return _effect_at_equal(claim, settings)
    mean, left = _side(settings, "left", _final_of(claim.left.metric))
    if isinstance(claim.right, ClaimSide):
        other, right = _side(settings, "right", _final_of(claim.right.metric))
        return mean, other, _weighted([*left, *((-weight, values) for weight, values in right)])
    if claim.right == "predicted":
        other, _ = _side(settings, "left", _prediction_of(claim.left.metric))
    else:
        other = float(claim.right)
    if len(left) == 1:
        return mean, other, tuple(replace(m, mean=m.mean - other) for m in _weighted(left))
    # Settings share seeds, and here no other side takes a common effect of the seed away.
    groups = _side_by_seed(settings, "left", _final_of(claim.left.metric))
    by_seed = [value - other for value in mean_by_seed(groups).values()]
    if not by_seed:
        raise NotTestableError("no seed is finished in every configuration it is about")
    spread = variance(by_seed) if len(by_seed) > 1 else math.nan
    return mean, other, (WeightedMean(1.0, fmean(by_seed), len(by_seed), spread, pooled=False),)


Curve = list[tuple[float, float]]
"""(value of the metric that is held equal, value of the metric), ascending."""


def _effect_at_equal(
    claim: Claim, settings: Sequence[PairedRuns]
) -> tuple[float, float, tuple[WeightedMean, ...]]:
    """Return the means of the points that are compared, and the distance of the curves by seed."""
    by_seed: dict[int, list[float]] = {}
    heights: list[float] = []
    for setting in settings:
        left, right = (_curves(runs, claim) for runs in (setting.left, setting.right))
        for seed in left.keys() & right.keys():
            apart = _apart(left[seed], right[seed])
            apart += [-distance for distance in _apart(right[seed], left[seed])]
            if apart:
                by_seed.setdefault(seed, []).append(fmean(apart))
                heights += [y for _, y in left[seed]]
    values = [fmean(each) for each in by_seed.values() if len(each) == len(settings)]
    if not values:
        raise NotTestableError(f"the sides have no {metric_title(claim.equal)} in common")
    spread = variance(values) if len(values) > 1 else math.nan
    mean, effect = fmean(heights), fmean(values)
    means = (WeightedMean(1.0, effect, len(values), spread, pooled=False),)
    return mean, mean - effect, means


def _curves(runs: Sequence[MeasuredRun], claim: Claim) -> dict[int, Curve]:
    """Return seed -> the points of its runs."""
    curves: dict[int, Curve] = {}
    for run in runs:
        x = run.finals.get(claim.equal)
        y = run.finals.get(claim.left.metric)
        if x is not None and y is not None:
            curves.setdefault(run.seed, []).append((x, y))
    return {seed: sorted(points) for seed, points in curves.items()}


def _apart(points: Curve, curve: Curve) -> list[float]:
    """Return the height over a curve of each point that lies within it."""
    import numpy as np

    xs, ys = zip(*curve, strict=True)
    inside = [(x, y) for x, y in points if xs[0] <= x <= xs[-1]]
    return [y - float(np.interp(x, xs, ys)) for x, y in inside]


def _side_by_seed(
    settings: Sequence[PairedRuns], side: Literal["left", "right"], value: RunValue
) -> list[list[dict[int, float]]]:
    """Return for each setting its configurations: seed -> value."""
    groups = _groups(settings, side, value)
    return [[{run.seed: v for run, v in of} for of in setting] for setting in groups]


def _side(
    settings: Sequence[PairedRuns], side: Literal["left", "right"], value: RunValue
) -> tuple[float, list[tuple[float, dict[str, float]]]]:
    """Return the mean, and each configuration of each setting: its weight, cell id -> value."""
    weighted = [
        (1 / len(settings) / len(setting), {run.record.cell.id: v for run, v in of})
        for setting in _groups(settings, side, value)
        for of in setting
    ]
    return math.fsum(weight * fmean(values.values()) for weight, values in weighted), weighted


def _groups(
    settings: Sequence[PairedRuns], side: Literal["left", "right"], value: RunValue
) -> list[list[list[tuple[MeasuredRun, float]]]]:
    """Return for each setting its configurations: the runs that have a value, with it.

    Raise NotTestableError if a configuration has no value.
    """
    every: list[list[list[tuple[MeasuredRun, float]]]] = []
    for setting in settings:
        groups = []
        for traits, group in configurations_of(getattr(setting, side)).items():
            known = [(run, v) for run in group if (v := value(run)) is not None]
            if not known:
                name = setting_name(setting.study, traits, [r for s in settings for r in s.runs])
                raise NotTestableError(f"no finished run of {name} has its value")
            groups.append(known)
        every.append(groups)
    return every


def _weighted(sides: Iterable[tuple[float, Mapping[str, float]]]) -> tuple[WeightedMean, ...]:
    """Return each configuration with its weight: the sum over the settings in which it counts."""
    weights: dict[tuple[tuple[str, float], ...], float] = {}
    for weight, values in sides:
        key = tuple(sorted(values.items()))
        weights[key] = weights.get(key, 0.0) + weight
    return tuple(
        WeightedMean(weight, fmean(x), len(x), variance(x) if len(x) > 1 else math.nan)
        for key, weight in weights.items()
        for x in [[value for _, value in key]]
    )


def prior_of(metric: str, runs: Sequence[MeasuredRun]) -> VariancePrior | None:
    """Return what the configurations of a grid say of variances of a metric's final values."""
    trained = [r for r in runs if not (is_of_trained(metric) and r.finals.get(COLLAPSE))]
    value = _final_of(metric)
    variances: list[tuple[float, int]] = []
    groups: dict[str, list[MeasuredRun]] = {}
    for run in trained:  # traits do not name all settings: two studies may share them
        groups.setdefault(fingerprint(run.record.cell.settings.but(seed=0)), []).append(run)
    for group in groups.values():
        values = {r.record.cell.id: v for r in group if (v := value(r)) is not None}
        if len(values) > 1:
            variances.append((variance(values.values()), len(values)))
    return variance_prior(variances)


def _pooled(means: Sequence[WeightedMean], prior: VariancePrior | None) -> PooledEffect | None:
    try:
        return PooledEffect(means, prior)
    except ValueError:
        return None


def _check_comparable(claim: Claim, setting: PairedRuns) -> None:
    steps = {run.record.cell.settings.num_train_steps for run in setting.runs}
    if len(steps) > 1 and not (claim.studies_compared and claim.left.metric in SHARES):
        raise NotTestableError(
            f"its runs in {setting.study} have {listed(sorted(steps))} train steps; a comparison "
            "never mixes steps"
        )
    if len({side.metric for side in claim.sides}) == 1:
        protocols = {
            ((cell.declared or cell.settings).data.name, run.protocols[claim.left.metric])
            for run in setting.runs
            for cell in (run.record.cell,)
            if claim.left.metric in run.protocols
        }
        if len(protocols) > len({data for data, _ in protocols}):  # tasks follow the data
            raise NotTestableError(
                f"{claim.left.metric} was not measured the same way on all its runs (task "
                "versions, items, repeats, seeds or sampling differ); evaluate them again"
            )


def _check_measured(metric: str, runs: Sequence[MeasuredRun]) -> None:
    measured = {name for run in runs for name in run.finals}
    if metric in measured or metric in SHARES or not measured:
        return
    if metric.startswith("eval/"):
        hint = (
            ". A claim on eval/in_domain/mean or eval/out_of_domain/mean can be tested at every "
            "scale, whatever tasks and repeats ran"
        )
    else:
        hint = did_you_mean(metric, measured).rstrip("?")
    raise NotTestableError(f"no finished run measured {metric}{hint}")


def _final_of(metric: str) -> RunValue:
    if metric != UNSTABLE:
        return lambda run: run.finals.get(metric)
    shares = {"stable": 0.0, "unstable": 1.0, "collapsed": 1.0}
    return lambda run: shares.get(run.record.outcome.word) if run.record.outcome else None


def _prediction_of(metric: str) -> RunValue:
    name = predicted_metric(metric)
    if name is None:
        raise NotTestableError(f"no closed form predicts {metric}")

    def value(run: MeasuredRun) -> float | None:
        if run.finals and name not in run.finals:
            raise NotTestableError(
                f"no closed form predicts {run.record.cell.slug}: only the embedded trainer has "
                "one, for on-policy gradients of the sequence's reverse KL"
            )
        return run.finals.get(name)

    return value


@dataclass(frozen=True)
class ClaimEvidence:
    """The test of one claim, before p-values are corrected for the number of claims."""

    contrast: Contrast
    left: Estimate | Rate
    right: Estimate | Rate | None
    """None if the claim compares with a number."""
    effect: Estimate | None
    """Left minus right; in a `JudgedClaim`, with the interval that decides. None for shares."""
    p_for: float
    p_against: float
    """One-sided p-values. `p_for` is small if the effect is inside the claimed region, `p_against`
    if it is outside."""
    pooled: PooledEffect | None = None
    """The distribution of the effect; None for shares, with one run, or without any spread."""
    each: Mapping[str, "ClaimEvidence"] = field(default_factory=dict)
    """Value of the axis -> evidence there, of a claim `at every` value of an axis."""

    @property
    def p(self) -> float:
        """Return the two-sided p-value."""
        return min(1.0, 2 * min(self.p_for, self.p_against))

    @property
    def waiting(self) -> int:
        """Return the number of runs that have not ended."""
        runs = {r.record.cell.id: r for s in self.contrast.settings for r in s.runs}
        return sum(run.record.state not in ENDED for run in runs.values())


@dataclass(frozen=True)
class WorkingRuns:
    """The counted runs of a claim on `works`. The count infers nothing about other runs."""

    works: tuple[str, ...]
    """Ids of the cells that trained to their end, did not collapse and were evaluated."""
    failing: Mapping[str, str]
    """Name of every other cell -> the reason, such as `collapsed at step 40`."""
    untold: int
    """The number of `works` whose curve cannot tell if they collapsed."""

    @property
    def n(self) -> int:
        """Return the number of runs."""
        return len(self.works) + len(self.failing)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and its verdict."""

    name: str
    claim: Claim
    verdict: ClaimVerdict
    missing: str = ""
    """The reason why it is not testable."""
    evidence: ClaimEvidence | None = None
    p_corrected: float | None = None
    family: int = 0
    """The number of claims in Holm's correction."""
    seeds_needed: int | None = None
    """Seeds that would decide an open claim with power 0.8 if effect and spread do not change."""
    counted: WorkingRuns | None = None
    """The counts of a claim on `works`; such a claim has no evidence."""

    @property
    def num_seeds(self) -> int:
        """Return the number of seeds that the verdict depends on."""
        return len(self.evidence.contrast.seeds) if self.evidence else 0


def judge(
    claims: Mapping[str, Claim],
    runs: Sequence[MeasuredRun],
    *,
    evaluated: bool = True,
    families: Mapping[str, str] | None = None,
) -> list[JudgedClaim]:
    """Return every claim with its verdict, in order.

    evaluated: the spec has evaluation tasks. families: name of a claim -> its family.
    """
    drafts: dict[str, ClaimEvidence | NotTestableError] = {}
    judged: dict[str, JudgedClaim] = {}
    priors = {
        metric: prior_of(metric, runs)
        for metric in dict.fromkeys(claim.left.metric for claim in claims.values())
        if metric not in (WORKS, *SHARES)
    }
    for name, claim in claims.items():
        try:
            if claim.left.metric == WORKS:
                judged[name] = _counted(name, claim, runs, evaluated)
                continue
            drafts[name] = _evidence(claim, runs, priors.get(claim.left.metric))
        except OneRunError as reason:
            if claim.relation in ("~", ">=", "<="):
                judged[name] = JudgedClaim(name, claim, "holds by construction", str(reason))
            drafts[name] = reason
        except NotTestableError as reason:
            drafts[name] = reason
    looked = looks(runs)
    level = level_of_look(looked)
    by_family: dict[str, list[str]] = {}
    for name, claim in claims.items():
        if claim.left.metric != WORKS:
            by_family.setdefault((families or {}).get(name, ""), []).append(name)
    for names in by_family.values():
        testable = {n: draft for n in names if isinstance(draft := drafts[n], ClaimEvidence)}
        # The family is that of the spec: it does not grow as claims become testable.
        family = len(names)
        p_values = [draft.p for draft in testable.values()]
        corrected = holm([*p_values, *[1.0] * (family - len(testable))])
        decided = sum(p < level for p in corrected)
        for (name, evidence), p in zip(testable.items(), corrected, strict=False):
            rank = sum(other < evidence.p for other in p_values) if p < level else decided
            judged[name] = _judged(name, claims[name], evidence, p, looked, family, family - rank)
    return [
        judged.get(name) or JudgedClaim(name, claim, "not testable", missing=str(drafts[name]))
        for name, claim in claims.items()
    ]


def _evidence(
    claim: Claim, runs: Sequence[MeasuredRun], prior: VariancePrior | None
) -> ClaimEvidence:
    """Return the evidence on a claim; on one `at every` value of an axis, with that at each."""
    pooled = weigh_evidence(claim, contrast(claim, runs), prior)
    if not claim.every:
        return pooled
    each = {
        value: weigh_evidence(place, contrast(place, runs), prior)
        for value, place in places_of(claim, pooled.contrast.settings).items()
    }
    weakest = max(each.values(), key=lambda one: one.p_for)
    return replace(
        pooled,
        effect=weakest.effect,
        pooled=weakest.pooled,
        p_for=weakest.p_for,
        p_against=min(1.0, len(each) * min(one.p_against for one in each.values())),
        each=each,
    )


def places_of(claim: Claim, settings: Sequence[PairedRuns]) -> dict[str, Claim]:
    """Return value -> the claim there, for each value of the axis of a claim `at every`."""
    trait = _trait_of(claim.every)
    values = {r.traits[trait]: None for s in settings for r in s.left if claim.every}
    # A condition on the same axis has already chosen these values.
    others = tuple(where for where in claim.at if _trait_of(where.axis) != trait)
    return {
        value: replace(claim, every="", at=(*others, AxisCondition(claim.every, (value,))))
        for value in values
    }


def _judged(
    name: str,
    claim: Claim,
    evidence: ClaimEvidence,
    p: float,
    looked: Sequence[int],
    family: int,
    step: int,
) -> JudgedClaim:
    """Return the verdict. `step`: the number by which Holm divides the level for this claim."""
    e, small, level = evidence, False, level_of_look(looked)
    if e.effect is not None and e.pooled is not None:
        low, high = e.pooled.interval(level / step)
        e = replace(e, effect=replace(e.effect, low=low, high=high))
        small = is_accuracy(claim.left.metric) and max(-low, high) <= SMALL
    needed = None
    if e.waiting:
        verdict: ClaimVerdict = "seen" if e.p < level else "too few runs"
    elif p < level:
        verdict = "holds" if e.p_for < e.p_against else "contradicted"
    elif small and claim.relation in (">", "<") and not claim.every:
        verdict = "no effect"
    else:
        verdict = "seen" if e.p < level else "too few runs"
        # Seeds that are added have the level of another look.
        needed = _seeds_needed(claim, e, lambda n: level_of_look([*looked, n]) / family)
    return JudgedClaim(name, claim, verdict, "", e, p, family, needed)


def _counted(name: str, claim: Claim, runs: Sequence[MeasuredRun], evaluated: bool) -> JudgedClaim:
    """Return the verdict on a claim on `works`.

    Raise NotTestableError if unfinished runs may still change it.
    """
    chosen = {run.record.cell.id: run for _, run in _chosen(claim, claim.left, runs)}.values()
    working = [run.record for run in chosen if not _lacks(run, evaluated)]
    counted_runs = WorkingRuns(
        tuple(record.cell.id for record in working),
        {r.record.cell.slug: lack for r in chosen if (lack := _lacks(r, evaluated))},
        sum(r.outcome is not None and r.outcome.collapsed is None for r in working),
    )
    assert isinstance(claim.right, float)  # noqa: S101  (for mypy: the grammar allows no other)
    # Decided early: the runs that are still waited for can only add to this number.
    if len(working) >= claim.right * counted_runs.n:
        return JudgedClaim(name, claim, "holds", counted=counted_runs)
    waiting = [r for r in chosen if r.record.state not in ENDED or _lacks(r, evaluated) == UNSCORED]
    if len(working) + len(waiting) >= claim.right * counted_runs.n:
        raise NotTestableError(
            f"{len(waiting)} of {counted_runs.n} runs are not yet trained and evaluated"
        )
    return JudgedClaim(name, claim, "contradicted", counted=counted_runs)


UNSCORED = "not evaluated"


def _lacks(run: MeasuredRun, evaluated: bool) -> str:
    """Return why a run does not count as working, or an empty text if it works."""
    record = run.record
    if record.state != "succeeded":
        return record.state.replace("_", " ")
    if record.outcome is not None and record.outcome.kind == "collapsed":
        return f"collapsed at step {record.outcome.step}"
    return UNSCORED if evaluated and not run.protocols else ""


def weigh_evidence(claim: Claim, contrast: Contrast, prior: VariancePrior | None) -> ClaimEvidence:
    """Return the evidence on a claim: its sides, its effect and its one-sided p-values."""
    if claim.left.metric in SHARES:
        return _evidence_of_shares(claim, contrast)
    n = len(contrast.seeds)
    pooled = _pooled(contrast.means, prior)
    p = _region_p(claim.relation, claim.margin, pooled.tails) if pooled else (0.5, 0.5)
    ends = pooled.interval(ALPHA) if pooled else (None, None)
    return ClaimEvidence(
        contrast,
        Estimate(contrast.left, n),
        None if isinstance(claim.right, float) else Estimate(contrast.right, n),
        Estimate(contrast.left - contrast.right, n, math.nan, *ends),
        *p,
        pooled,
    )


class SeedTotals(NamedTuple):
    """The runs of one side of a claim on shares, by seed."""

    totals: list[int]
    """Of each seed, over the settings: a part of `whole`."""
    whole: int

    @property
    def fall_together(self) -> bool:
        """Return True if all runs of a seed have one outcome, at each seed."""
        return all(total in (0, self.whole) for total in self.totals)


TOGETHER = (
    "The runs of a seed fall together on one side and not on the other: equal shares of such sides "
    "are told apart in up to 13 % of simulated experiments, at level 0.05"
)
"""Simulated with 4 settings and 4 to 20 seeds; `tests/analysis/test_pooled.py` holds it."""


def _evidence_of_shares(claim: Claim, contrast: Contrast) -> ClaimEvidence:
    sides = _seed_totals(claim, contrast)
    p = _p_of_shares(claim, sides)
    left, *right = (_share(contrast, side, claim) for side, _ in zip(_SIDES, sides, strict=False))
    if len({side.fall_together for side in sides}) > 1 and 2 * min(p) < ALPHA:
        contrast = replace(contrast, notes=(*contrast.notes, TOGETHER))
    return ClaimEvidence(contrast, left, right[0] if right else None, None, *p)


def _p_of_shares(claim: Claim, sides: Sequence[SeedTotals]) -> tuple[float, float]:
    """Return the one-sided p for and against a claim on shares, of its side or both."""
    left, *others = sides
    if not others:
        centre = float(claim.right) if isinstance(claim.right, float) else math.nan
        return _region_p(
            claim.relation,
            claim.margin,
            lambda bound: p_of_share(left.totals, left.whole, centre + bound),
        )
    whole = math.lcm(*(side.whole for side in sides))
    one, other = ([n * (whole // side.whole) for n in side.totals] for side in sides)
    p = p_between_shares(one, other, whole)
    return _region_p(claim.relation, 0.0, lambda _: p)


def _seed_totals(claim: Claim, contrast: Contrast) -> list[SeedTotals]:
    """Return the share of each seed over the settings, of the claim's side or both.

    Each setting counts the same, and in it each configuration. Runs of a seed that are not known
    are left out, and a seed of which less than half is.
    """
    sides = []
    for side, _ in zip(_SIDES, claim.sides, strict=False):
        groups = _side_by_seed(contrast.settings, side, _final_of(claim.left.metric))
        num_runs = sum(map(len, groups))
        shares: list[Fraction] = []
        for seed in sorted({seed for group in groups for one in group for seed in one}):
            known = [[int(one[seed]) for one in group if seed in one] for group in groups]
            if 2 * sum(map(len, known)) >= num_runs:
                means = [Fraction(sum(values), len(values)) for values in known if values]
                shares.append(sum(means, Fraction(0)) / len(means))
        whole = math.lcm(*(share.denominator for share in shares))
        sides.append(SeedTotals([int(share * whole) for share in shares], whole))
    return sides


def _share(contrast: Contrast, side: Literal["left", "right"], claim: Claim) -> Rate:
    value = _final_of(claim.left.metric)
    runs = {r.record.cell.id: r for s in contrast.settings for r in getattr(s, side)}
    outcomes = [v for run in runs.values() if (v := value(run)) is not None]
    return rate(int(sum(outcomes)), len(outcomes))


def _region_p(relation: Relation, margin: float, tails: TailProbabilities) -> tuple[float, float]:
    """Return the one-sided p for and against an effect in the relation's region around 0."""
    if relation == "~":
        (above_low, below_low), (above_high, below_high) = tails(-margin), tails(margin)
        # Two one-sided tests: inside the margin if above its low end and below its high end;
        # outside if one of these fails.
        return max(above_low, below_high), min(below_low, above_high)
    above, below = tails(_region_bounds(relation, margin)[0])
    return (above, below) if relation.startswith(">") else (below, above)


def _region_bounds(relation: Relation, margin: float) -> tuple[float, ...]:
    """Return the ends of the relation's region."""
    return {">": (0.0,), "<": (0.0,), ">=": (-margin,), "<=": (margin,), "~": (-margin, margin)}[
        relation
    ]


_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def _seeds_needed(
    claim: Claim, evidence: ClaimEvidence, level: Callable[[int], float]
) -> int | None:
    """Return the number of seeds that would decide the claim if effect and spread do not change.

    `level`: of a number of seeds, by the smallest of its family's p-values. Return None if no
    number up to the search's maximum suffices.
    """
    now = len(evidence.contrast.seeds)
    if evidence.effect is not None:
        if evidence.pooled is None:
            return max(2, now + 1)
        mean, ends = evidence.effect.mean, _region_bounds(claim.relation, claim.margin)
        distance = min(abs(mean - end) for end in ends) / evidence.pooled.caution
        return evidence.pooled.seeds_to_decide(distance, now, level)
    weakest = max((evidence.each or {"": evidence}).values(), key=lambda each: each.p_for)
    sides = _seed_totals(claim, weakest.contrast)
    for seeds in (n for n in SEEDS_OF_SHARES if n > now and all(side.totals for side in sides)):
        # The seeds that have ended, again and again.
        grown = [side._replace(totals=list(islice(cycle(side.totals), seeds))) for side in sides]
        if 2 * min(_p_of_shares(claim, grown)) < level(seeds):
            return seeds
    return None


# Claims and their verdicts as English sentences.


_RELATIONS = {
    ">": "is higher with {left} than with {right}",
    "<": "is lower with {left} than with {right}",
    ">=": "is not lower with {left} than with {right}",
    "<=": "is not higher with {left} than with {right}",
    "~": "is the same with {left} as with {right}",
}


_AGAINST_NUMBER = {
    ">": "is above {right} with {left}",
    "<": "is below {right} with {left}",
    ">=": "is not below {right} with {left}",
    "<=": "is not above {right} with {left}",
    "~": "is {right} with {left}",
}


def statement(claim: Claim) -> str:
    """Return the claim as an English sentence."""
    right, left = claim.right, claim.left
    if left.metric == WORKS and isinstance(right, float):
        share = "every run" if right == 1 else f"at least {right:.0%} of runs"
        where = f" with {_runs_text(left)}" if left.where else ""
        text = f"{share}{where} trains to its end, without a visible collapse, and is evaluated"
        return text[0].upper() + text[1:] + _scope_text(claim) + "."
    if isinstance(right, ClaimSide):
        other = (
            _runs_text(right)
            if right.metric == left.metric
            else f"{metric_title(right.metric)}, {right}"
        )
        words = _RELATIONS[claim.relation].format(left=_runs_text(left), right=other)
    else:
        number = "the closed form's prediction" if right == "predicted" else f"{right:g}"
        words = _AGAINST_NUMBER[claim.relation].format(left=_runs_text(left), right=number)
    text = f"{metric_title(left.metric)} {words}"
    if claim.margin:
        text += f", within {claim.margin:g}"
    return text[0].upper() + text[1:] + _scope_text(claim) + "."


def _scope_text(claim: Claim) -> str:
    """Return the conditions of a claim: `, at β 0.1, in study onpolicy`."""
    places = [*([f"every {_axis_text(claim.every)}"] if claim.every else [])]
    places += map(_condition_text, claim.at)
    places += [f"equal {metric_title(claim.equal)}"] if claim.equal else []
    text = f", at {' and '.join(places)}" if places else ""
    return text + (f", in study {listed(claim.studies)}" if claim.studies else "")


def working_text(runs: WorkingRuns) -> str:
    """Return the number of working runs, and the reasons why the others do not work."""
    text = f"{len(runs.works)} of {counted(runs.n, 'run')} trained to the end"
    text += ", without a visible collapse, and were evaluated"
    if runs.untold:
        text += f"; {runs.untold} of them too short or noisy to call stable"
    if not runs.failing:
        return f"{text}."
    lacks = [f"{slug} ({lack})" for slug, lack in runs.failing.items()]
    return f"{text}. Not so: {few(lacks)}."


def reason(finding: JudgedClaim) -> str:
    """Return the numbers behind a verdict in sentences, with advice if it is open.

    For a claim that is not testable, return the reason.
    """
    if finding.counted is not None:
        return f"{working_text(finding.counted)} Counted on these runs: no inference."
    e = finding.evidence
    if finding.verdict == "holds by construction":
        return (
            "Both sides are one training run here: orch found that at this scale the two mean the "
            "same mathematics. The difference is 0 and was not measured."
        )
    if e is None:
        return f"Not testable here: {finding.missing}."
    text = _numbers_text(finding, e)
    if e.waiting:
        text += f" {counted(e.waiting, 'run')} not ended: it is judged when all have."
    elif finding.verdict in OPEN:
        text += " " + _advice_text(finding, e)
    return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in e.contrast.notes)])


def _numbers_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    over = f"{counted(len(e.contrast.seeds), 'seed')}, {_settings_text(e.contrast)}"
    p = p_text(e.p)
    if finding.family > 1:
        corrected = p_text(finding.p_corrected).removeprefix("p ").removeprefix("= ")
        p += f" ({corrected} corrected over {finding.family} claims)"
    each = "".join(
        f" At {_axis_text(finding.claim.every)} {v}: {_in_short(one)}." for v, one in e.each.items()
    )
    if e.effect is None:
        of = metric_title(finding.claim.left.metric).removeprefix("the share of ")
        return f"{of[0].upper()}{of[1:]}: {_in_short(e)} ({over}); {p}, counted by seed.{each}"
    against = finding.claim.right if isinstance(finding.claim.right, float) else 0.0
    right = estimate_text(e.right, interval=False) if e.right else number_text(against)
    text = f"{estimate_text(e.left, interval=False)} against {right}, difference "
    text += f"{_in_short(e)} ({over})"
    if e.pooled is None:
        return f"{text}.{each}"
    return f"{text}; {p}.{each} It speaks of all seeds on these evaluations."


def _in_short(e: ClaimEvidence) -> str:
    if e.effect is not None:
        return estimate_text(e.effect, signed=True)
    sides = [estimate_text(side, interval=False) for side in (e.left, e.right) if side is not None]
    return " against ".join(sides)


def _settings_text(compared: Contrast) -> str:
    """Return `6 settings`, or `2 of 6 settings: left out ...` with what is left out."""
    settings = len(compared.settings)
    if not compared.left_out:
        return counted(settings, "setting")
    every = counted(settings + len(compared.left_out), "setting")
    return f"{settings} of {every}: {'; '.join(compared.left_out)}"


def verdict_text(finding: JudgedClaim) -> str:
    """Return a verdict in the words that readers see, with the direction of what is open."""
    e = finding.evidence
    if finding.verdict == "no effect":
        return f"no effect larger than {SMALL:g}"
    if finding.verdict == "contradicted":
        return "contrary"
    if finding.verdict not in OPEN or e is None or e.waiting:
        return finding.verdict
    if finding.verdict == "seen":
        return "seen, not certain" if e.p_for < e.p_against else "contrary, not certain"
    if e.p_for == e.p_against:
        return "open, nothing seen"
    return "open, as claimed" if e.p_for < e.p_against else "open, contrary"


def _advice_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    if finding.num_seeds < 2 and e.effect is not None:
        return "One seed has no interval: at least 1 more is needed to say anything."
    if e.effect is not None and e.pooled is None:
        return "All runs of a configuration have the same value: no spread is measured."
    stays = "if effect and spread stay as seen"
    if finding.seeds_needed is None:
        most = SEEDS_OF_SHARES[-1] if e.effect is None else MAX_SEEDS
        return f"To decide it takes more than {most} seeds, {stays}."
    needed = counted(finding.seeds_needed, "seed")
    return f"About {needed} in all decide it with power {POWER:g}, {stays}."


def _runs_text(side: ClaimSide) -> str:
    return ", ".join(map(_condition_text, side.where)) if side.where else "all runs"


def _condition_text(where: AxisCondition) -> str:
    values = " or ".join(where.values)
    if where.axis == "kl":
        return values if values != "none" else "no KL term"
    return f"{_axis_text(where.axis)} {values}"


def _axis_text(axis: str) -> str:
    return "β" if axis in ("beta", "kl.beta") else axis
