"""Which runs a claim sets against which.

A *setting* is everything two runs share: the study and every axis that the claim's brackets do not
name. Within a setting the left runs are set against the right ones.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from orchestrator.analysis import estimates
from orchestrator.analysis.estimates import ALPHA, Estimate, Improvement, Rate, mean_improvement
from orchestrator.analysis.phrases import listed
from orchestrator.analysis.runs import (
    Column,
    MeasuredRun,
    column,
    difference_over_items,
    predicted_for,
    task_metrics,
)
from orchestrator.analysis.runs import ScoreColumns as Columns
from orchestrator.errors import did_you_mean
from orchestrator.spec.claims import COLLAPSE, AxisCondition, Claim, ClaimSide, Relation
from orchestrator.spec.fields import LABELS

ONE_RUN = "what the claim tells apart is one cell at this scale"

AxisValues = tuple[tuple[str, str], ...]
"""What runs that differ only in their seed are called."""


class NotTestableError(LookupError):
    """A claim these runs cannot decide; the sentence says what is missing."""


@dataclass(frozen=True)
class PairedRuns:
    """The runs of one setting, left and right. Right is empty against a number."""

    study: str
    left: tuple[MeasuredRun, ...]
    right: tuple[MeasuredRun, ...]

    @property
    def runs(self) -> tuple[MeasuredRun, ...]:
        return self.left + self.right


def pair(claim: Claim, runs: Sequence[MeasuredRun]) -> tuple[tuple[PairedRuns, ...], list[str]]:
    """The settings of a claim, and notes on what has no counterpart. Raises NotTestableError."""
    chosen = [_chosen(claim, side, runs) for side in claim.sides]
    free = {trait for side in claim.sides for w in side.where for trait in _traits_named(w.axis)}
    found = _sides_by_setting(chosen, free)
    notes: list[str] = []
    settings: list[PairedRuns] = []
    seen: set[tuple[frozenset[str], ...]] = set()
    for (study, key), (left, right) in found.items():
        if not left or (not right and len(claim.sides) == 2):
            lacking = claim.sides[0 if not left else 1]
            lacks = ", ".join(map(str, lacking.where)) or lacking.metric
            notes.append(f"left out {named(study, key, runs)}, which has no {lacks}")
            continue
        cells = tuple(frozenset(r.record.cell.id for r in side) for side in (left, right))
        if cells[0] & cells[1]:
            if cells[0] != cells[1]:
                raise _untestable(ONE_RUN)
            notes.append(f"left out {named(study, key, runs)}: {ONE_RUN}")
        elif cells not in seen:  # the same runs can belong to several studies
            seen.add(cells)
            settings.append(PairedRuns(study, tuple(left), tuple(right)))
    if not settings:
        raise _untestable("; ".join(notes))
    for where in claim.at:
        for one in where.each():
            if not any(_holds_at(run, one) for setting in settings for run in setting.left):
                raise NotTestableError(f"no setting with {one} has runs on both sides")
    return tuple(settings), notes


def _sides_by_setting(
    chosen: Sequence[Sequence[tuple[str, MeasuredRun]]], free: set[str]
) -> dict[tuple[str, AxisValues], tuple[list[MeasuredRun], list[MeasuredRun]]]:
    """Left and right runs of every study and every value of the traits they share."""
    found: dict[tuple[str, AxisValues], tuple[list[MeasuredRun], list[MeasuredRun]]] = {}
    for study in dict.fromkeys(study for side in chosen for study, _ in side):
        here = [[run for s, run in side if s == study] for side in chosen]
        shared = _shared_traits([run for side in here for run in side]) - free
        for index, side in enumerate(here):
            for run in side:
                traits = tuple((t, run.traits[t]) for t in sorted(shared))
                found.setdefault((study, traits), ([], []))[index].append(run)
    return found


def _untestable(told: str) -> NotTestableError:
    one_run = "the same run stands on both sides"
    return NotTestableError(
        f"{one_run if ONE_RUN in told else 'no setting has runs on both sides'}; {told}"
    )


def _chosen(
    claim: Claim, side: ClaimSide, runs: Sequence[MeasuredRun]
) -> list[tuple[str, MeasuredRun]]:
    """The runs of a side, once for each study they belong to."""
    studies = {study for run in runs for study in run.record.cell.studies}
    for study in claim.studies:
        if study not in studies:
            raise NotTestableError(f"no study is called '{study}'{did_you_mean(study, studies)}")
    chosen = [
        (study, run)
        for run in runs
        if all(run.holds(w) for w in side.where) and all(_holds_at(run, w) for w in claim.at)
        for study in run.record.cell.studies
        if not claim.studies or study in claim.studies
    ]
    for where in (*side.where, *claim.at):
        for one in where.each():
            if not any(run.holds(one) or _stands_beside(run, one) for _, run in chosen):
                raise NotTestableError(f"no run has {one}{_known(where.axis, runs)}")
    if not chosen:
        raise NotTestableError("nothing ran")
    return chosen


def _holds_at(run: MeasuredRun, where: AxisCondition) -> bool:
    return _stands_beside(run, where) or run.holds(where)


def _stands_beside(run: MeasuredRun, where: AxisCondition) -> bool:
    """A run without a KL term has no beta, and so is set against runs of every beta."""
    return not run.has_kl and _trait(where.axis) in ("beta", "kl.placement")


def _trait(axis: str) -> str:
    """`beta` for `kl.beta`, `model` for `model.name`: how traits call a field."""
    return next((label for label, field in LABELS.items() if field == axis), axis)


def _traits_named(axis: str) -> set[str]:
    if axis == "backend":  # a library is named with its release
        return {"backend", "backend.version"}
    return {"kl.estimator", "kl.placement"} if axis == "kl" else {_trait(axis)}


def _shared_traits(runs: Iterable[MeasuredRun]) -> set[str]:
    """Traits every run has; without a KL term there is no placement and no beta to share."""
    sets = [set(run.traits) for run in runs]
    return set.intersection(*sets) if sets else set()


def _known(axis: str, runs: Sequence[MeasuredRun]) -> str:
    if axis == "kl":
        values = {run.asked.kl.label for run in runs}
    else:
        values = {run.traits[_trait(axis)] for run in runs if _trait(axis) in run.traits}
    return f" (there are: {', '.join(sorted(values))})" if values else ""


def named(study: str, traits: AxisValues, runs: Sequence[MeasuredRun]) -> str:
    """`onpolicy (beta=0.1, model=qwen2.5-7b)`: the traits in which these runs differ."""
    differ = [(t, v) for t, v in traits if len({run.traits.get(t) for run in runs}) > 1]
    return f"{study} ({', '.join(f'{t}={v}' for t, v in differ)})" if differ else study


# From a claim to the numbers that decide it, seed by seed.
#
# The effect of a seed is the mean over settings of left minus right. Only seeds for which every
# configuration has a value count, so that no mean is silently taken over what happens to be left.


@dataclass(frozen=True)
class Contrast:
    """What decides a claim."""

    settings: tuple[PairedRuns, ...]
    seeds: tuple[int, ...]
    left: dict[int, float]
    """Seed -> mean over settings and their left runs."""
    right: dict[int, float]
    notes: tuple[str, ...]
    over_items: Estimate | None = None
    """Left minus right with an interval over seeds and items, where single items are known and
    both sides are of one metric."""

    @property
    def differences(self) -> list[float]:
        return [self.left[seed] - self.right[seed] for seed in self.seeds]

    @property
    def cells(self) -> tuple[str, ...]:
        ids = {
            r.record.cell.id: None for s in self.settings for r in s.runs if r.seed in self.seeds
        }
        return tuple(ids)


def contrast(claim: Claim, runs: Sequence[MeasuredRun]) -> Contrast:
    """The claim's two sides, seed by seed. Raises NotTestableError, saying why."""
    for side in claim.sides:
        _check_measured(side.metric, runs)
    settings, notes = pair(claim, runs)
    for setting in settings:
        _check_comparable(claim, setting)
    left = _by_seed([(s.study, s.left) for s in settings], _measured(claim.left.metric))
    if isinstance(claim.right, ClaimSide):
        right = _by_seed([(s.study, s.right) for s in settings], _measured(claim.right.metric))
    elif claim.right == "predicted":
        right = _by_seed([(s.study, s.left) for s in settings], _predicted(claim.left.metric))
    else:
        right = dict.fromkeys(left, float(claim.right))
    seeds = sorted(left.keys() & right.keys())
    declared = {run.seed for setting in settings for run in setting.runs}
    if not seeds:
        raise NotTestableError("no seed is finished in every configuration it is about")
    if dropped := sorted(declared - set(seeds)):
        notes.append(f"left out seed {listed(dropped)}, not finished in every configuration")
    return Contrast(settings, tuple(seeds), left, right, tuple(notes), _over_items(claim, settings))


def _over_items(claim: Claim, settings: Sequence[PairedRuns]) -> Estimate | None:
    metric = claim.left.metric
    if not isinstance(claim.right, ClaimSide) or claim.right.metric != metric:
        return None
    sides = [(columns(s.left, metric), columns(s.right, metric)) for s in settings]
    return difference_over_items(sides, metric)


def columns(runs: Sequence[MeasuredRun], metric: str) -> list[Column]:
    """Runs by configuration: those that have a final value of the metric."""
    configurations: dict[AxisValues, list[MeasuredRun]] = {}
    for run in runs:
        configurations.setdefault(tuple(sorted(run.traits.items())), []).append(run)
    return [column(same, metric) for same in configurations.values()]


def _check_comparable(claim: Claim, setting: PairedRuns) -> None:
    steps = {run.record.cell.settings.num_train_steps for run in setting.runs}
    if len(steps) > 1:
        raise NotTestableError(
            f"its runs in {setting.study} have {listed(sorted(steps))} train steps; a comparison "
            "never mixes steps"
        )
    if len({side.metric for side in claim.sides}) == 1:
        protocols = {
            run.protocols[claim.left.metric]
            for run in setting.runs
            if claim.left.metric in run.protocols
        }
        if len(protocols) > 1:
            raise NotTestableError(
                f"{claim.left.metric} was not measured the same way on all its runs (task "
                "versions, items, repeats, seeds or sampling differ); evaluate them again"
            )


def _check_measured(metric: str, runs: Sequence[MeasuredRun]) -> None:
    known = {name for run in runs for name in run.finals}
    if metric in known or not known:
        return
    if metric.startswith("eval/"):
        hint = (
            ". A claim on eval/in_domain/mean or eval/out_of_domain/mean can be tested at every "
            "scale, whatever tasks and repeats ran"
        )
    else:
        hint = did_you_mean(metric, known).rstrip("?")
    raise NotTestableError(f"no finished run measured {metric}{hint}")


RunValue = Callable[[MeasuredRun], float | None]


def _measured(metric: str) -> RunValue:
    return lambda run: run.finals.get(metric)


def _predicted(metric: str) -> RunValue:
    name = predicted_for(metric)
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


def _by_seed(
    sides: Sequence[tuple[str, Sequence[MeasuredRun]]], value: RunValue
) -> dict[int, float]:
    """Seed -> mean over settings of the mean over the configurations of this side."""
    columns: list[list[dict[int, float]]] = []
    for study, runs in sides:
        configurations: dict[AxisValues, dict[int, float]] = {}
        for run in runs:
            at = configurations.setdefault(tuple(sorted(run.traits.items())), {})
            found = value(run)
            if found is not None:
                at[run.seed] = found
        for configuration, at in configurations.items():
            if not at:
                name = named(study, configuration, [run for _, side in sides for run in side])
                raise NotTestableError(f"no finished run of {name} has its value")
        columns.append(list(configurations.values()))
    return over_seeds(columns)


def relative(settings: Sequence[tuple[Columns, Columns]], metric: str) -> Improvement | None:
    """Mean over settings, and over the tasks of a domain, of how much higher left is."""
    runs = [run for sides in settings for side in sides for one in side for run in one.values()]
    return mean_improvement(
        [
            (
                over_seeds([[values(one, name) for one in left]]),
                over_seeds([[values(one, name) for one in right]]),
            )
            for name in task_metrics(runs, metric)
            for left, right in settings
        ]
    )


def values(runs: Column, metric: str) -> dict[int, float]:
    """Seed -> final value."""
    return {seed: run.finals[metric] for seed, run in runs.items() if metric in run.finals}


def over_seeds(settings: Sequence[Sequence[Mapping[int, float]]]) -> dict[int, float]:
    """Seed -> mean over settings of the mean over their configurations, each seed -> value.

    Only seeds that every configuration of every setting has.
    """
    finished = [set(at) for setting in settings for at in setting]
    seeds = set.intersection(*finished) if finished else set()
    return {seed: fmean(fmean(at[seed] for at in one) for one in settings) for seed in seeds}


# Verdicts on claims: supported, contradicted, underpowered, or not testable on these runs.
#
# A claim names a region for the effect (above 0, within a margin, ...). Its p-value is twice the
# smaller of two one-sided ones: for an effect outside the region, and for one inside. p-values are
# corrected over all claims that could be tested (Holm); below 0.05 a claim is decided. Means over
# seeds are tested by Student's t on paired differences, shares of collapsed runs exactly (Fisher
# between two shares, the binomial against a number).


ClaimVerdict = Literal["supported", "contradicted", "underpowered", "not testable"]
MAX_COLLAPSE_SEEDS = 200
"""Search for a sufficient number of seeds ends here, for shares."""


@dataclass(frozen=True)
class ClaimEvidence:
    """What the runs say of a claim, before it is set among the other claims."""

    contrast: Contrast
    left: Estimate | Rate
    right: Estimate | Rate | None
    """None against a number."""
    effect: Estimate | None
    """Left minus right over seeds, paired; None for collapse, which has shares."""
    p_for: float
    p_against: float
    """One-sided: small when the effect is surely inside, or outside, the claimed region."""

    @property
    def p(self) -> float:
        return min(1.0, 2 * min(self.p_for, self.p_against))


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and its verdict."""

    name: str
    claim: Claim
    verdict: ClaimVerdict
    missing: str = ""
    """Why it is not testable."""
    evidence: ClaimEvidence | None = None
    p_corrected: float | None = None
    family: int = 0
    """Claims the correction is over."""
    more_seeds: int | None = None
    """Seeds that would decide an underpowered claim if effect and spread stayed as they are."""

    @property
    def num_seeds(self) -> int:
        return len(self.evidence.contrast.seeds) if self.evidence else 0


def judge(claims: Mapping[str, Claim], runs: Sequence[MeasuredRun]) -> list[JudgedClaim]:
    """One finding a claim, in order."""
    drafts: dict[str, ClaimEvidence | NotTestableError] = {}
    for name, claim in claims.items():
        try:
            drafts[name] = weigh(claim, contrast(claim, runs))
        except NotTestableError as reason:
            drafts[name] = reason
    testable = {name: draft for name, draft in drafts.items() if isinstance(draft, ClaimEvidence)}
    corrected = estimates.holm([draft.p for draft in testable.values()])
    findings = {
        name: _finding(name, claims[name], evidence, p, len(testable))
        for (name, evidence), p in zip(testable.items(), corrected, strict=True)
    }
    return [
        findings.get(name) or JudgedClaim(name, claim, "not testable", missing=str(drafts[name]))
        for name, claim in claims.items()
    ]


def _finding(
    name: str, claim: Claim, evidence: ClaimEvidence, p: float, family: int
) -> JudgedClaim:
    if p < ALPHA:
        verdict: ClaimVerdict = (
            "supported" if evidence.p_for < evidence.p_against else "contradicted"
        )
        return JudgedClaim(name, claim, verdict, "", evidence, p, family)
    needed = _seeds_needed(claim, evidence, ALPHA / family)
    more = None if needed is None else max(1, needed - len(evidence.contrast.seeds))
    return JudgedClaim(name, claim, "underpowered", "", evidence, p, family, more)


def weigh(claim: Claim, found: Contrast) -> ClaimEvidence:
    """The evidence of the runs a claim is about."""
    if claim.left.metric == COLLAPSE:
        left = _collapsed(found, "left")
        right = _collapsed(found, "right") if isinstance(claim.right, ClaimSide) else None
        return ClaimEvidence(found, left, right, None, *_share_test(claim, left, right))
    effect = estimates.estimate(found.differences)
    sides = [estimates.estimate(s[seed] for seed in found.seeds) for s in (found.left, found.right)]
    p = _region(claim.relation, claim.margin, lambda bound: estimates.tails(effect, bound))
    right_side = None if isinstance(claim.right, float) else sides[1]
    return ClaimEvidence(found, sides[0], right_side, effect, *p)


TailProbabilities = Callable[[float], tuple[float, float]]


def _region(relation: Relation, margin: float, tails: TailProbabilities) -> tuple[float, float]:
    """One-sided p for and against an effect in the relation's region around 0."""
    if relation == "~":
        (above_low, below_low), (above_high, below_high) = tails(-margin), tails(margin)
        return max(above_low, below_high), min(below_low, above_high)
    above, below = tails(_bounds(relation, margin)[0])
    return (above, below) if relation.startswith(">") else (below, above)


def _bounds(relation: Relation, margin: float) -> tuple[float, ...]:
    """Where the region ends."""
    return {">": (0.0,), "<": (0.0,), ">=": (-margin,), "<=": (margin,), "~": (-margin, margin)}[
        relation
    ]


def _collapsed(found: Contrast, side: Literal["left", "right"]) -> Rate:
    runs = [run for setting in found.settings for run in getattr(setting, side)]
    outcomes = {r.record.cell.id: r.finals[COLLAPSE] for r in runs if r.seed in found.seeds}
    return estimates.rate(int(sum(outcomes.values())), len(outcomes))


def _share_test(claim: Claim, left: Rate, right: Rate | None) -> tuple[float, float]:
    if right is not None:
        fisher = (
            estimates.p_fisher(left.count, left.n, right.count, right.n),
            estimates.p_fisher(right.count, right.n, left.count, left.n),
        )
        return _region(claim.relation, 0.0, lambda _: fisher)
    centre = float(claim.right) if isinstance(claim.right, float) else math.nan

    def tails(bound: float) -> tuple[float, float]:
        return (
            estimates.p_share_above(left.count, left.n, centre + bound),
            estimates.p_share_above(left.n - left.count, left.n, 1 - centre - bound),
        )

    return _region(claim.relation, claim.margin, tails)


def _seeds_needed(claim: Claim, evidence: ClaimEvidence, alpha: float) -> int | None:
    """Seeds that would decide the claim, if effect and spread stayed as they are."""
    now = len(evidence.contrast.seeds)
    if evidence.effect is not None:
        if evidence.effect.n < 2:
            return now + 1
        bounds = _bounds(claim.relation, claim.margin)
        distance = min(abs(evidence.effect.mean - bound) for bound in bounds)
        return estimates.seeds_needed(distance, evidence.effect.sd, alpha)
    for seeds in range(now + 1, MAX_COLLAPSE_SEEDS + 1):
        grown = [
            None if rate is None else _grown(rate, seeds / now)
            for rate in (evidence.left, evidence.right)
        ]
        if grown[0] and 2 * min(_share_test(claim, grown[0], grown[1])) < alpha:
            return seeds
    return None


def _grown(found: Estimate | Rate, factor: float) -> Rate | None:
    """The same share of more runs."""
    if not isinstance(found, Rate):
        return None
    n = round(found.n * factor)
    return Rate(round(found.share * n), n, found.low, found.high)
