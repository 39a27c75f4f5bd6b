"""Verdicts on claims: holds, contradicted, no effect, seen, too few runs, or not testable.

A claim that two things do not differ holds by construction if both are the same training run.

`judge` takes a claim through three steps:

1. `pair_runs` pairs runs. A *setting* is everything that two runs share: the study and every axis
   that the claim's brackets do not name. Within a setting, the left runs are compared with the
   right runs.
2. `contrast` computes the numbers that decide the claim, for each seed. The effect of a seed is the
   mean over settings of left minus right. A seed counts only if every configuration has a value for
   it. Otherwise a mean would silently use only the seeds that have finished.
3. `weigh_evidence` computes p-values. A claim names a region for the effect (above 0, within a
   margin). Its p-value is twice the smaller of two one-sided p-values: for an effect outside the
   region, and for an effect inside. The tests are valid at every number of seeds, for any number of
   earlier looks and any reason to add seeds (stats.py). They use paired differences, or shares
   of collapsed runs. A claim with `over items` also includes the spread between items.

p-values are corrected by Holm over all claims that can be tested; below 0.05 a claim is decided.
A claim on `works` is counted and not tested.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.analysis.configurations import (
    difference_over_items,
    mean_by_seed,
    runs_by_configuration,
)
from orchestrator.analysis.runs import MeasuredRun, predicted_metric
from orchestrator.analysis.stats import (
    ALPHA,
    Estimate,
    Rate,
    anytime_interval,
    anytime_p,
    anytime_p_between,
    anytime_p_of_share,
    estimate,
    holm,
    one_sided_p,
    rate,
    seeds_to_decide,
    t_quantile,
)
from orchestrator.analysis.text import (
    counted,
    estimate_text,
    first_names,
    listed,
    metric_title,
    number_text,
    p_text,
)
from orchestrator.errors import did_you_mean
from orchestrator.records import ENDED
from orchestrator.spec.claims import (
    COLLAPSE,
    WORKS,
    AxisCondition,
    Claim,
    ClaimSide,
    Relation,
)
from orchestrator.spec.fields import LABELS

ONE_RUN = "both sides are one training run, so the difference is 0 and was not measured"
MAX_COLLAPSE_SEEDS = 200
"""Maximum of the search for a sufficient number of seeds in a claim on collapse."""
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
DECIDED: tuple[ClaimVerdict, ...] = ("holds", "contradicted", "no effect")
OPEN: tuple[ClaimVerdict, ...] = ("seen", "too few runs")
SMALL = 0.05
"""Differences of a share up to this size count as small."""
AxisValues = tuple[tuple[str, str], ...]
"""(axis, value) of runs that differ only in their seed."""
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
    """Return (study, values of the shared traits) -> left runs, right runs."""
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
    for study in claim.studies:
        if study not in studies:
            raise NotTestableError(f"no study is called '{study}'{did_you_mean(study, studies)}")
    chosen = [
        (study, run)
        for run in runs
        if all(run.matches(w) for w in side.where)
        and all(_matches_setting(run, w) for w in claim.at)
        for study in run.record.cell.studies
        if not claim.studies or study in claim.studies
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
    """The paired numbers that decide a claim."""

    settings: tuple[PairedRuns, ...]
    seeds: tuple[int, ...]
    left: dict[int, float]
    """Seed -> mean over settings and their left runs."""
    right: dict[int, float]
    left_out: tuple[str, ...]
    """A text for each setting that has runs on one side only."""
    notes: tuple[str, ...]
    over_items: Estimate | None = None
    """Left minus right with an interval over seeds and items. None if scores of single items are
    not known or the sides have different metrics."""

    @property
    def differences(self) -> list[float]:
        """Return left minus right of each seed."""
        return [self.left[seed] - self.right[seed] for seed in self.seeds]

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the ids of the cells that these numbers come from."""
        ids = {
            r.record.cell.id: None for s in self.settings for r in s.runs if r.seed in self.seeds
        }
        return tuple(ids)


def contrast(claim: Claim, runs: Sequence[MeasuredRun]) -> Contrast:
    """Return the values of a claim's two sides for each seed.

    Raise NotTestableError with the reason if these runs cannot decide the claim.
    """
    for side in claim.sides:
        _check_measured(side.metric, runs)
    settings, left_out, notes = pair_runs(claim, runs)
    for setting in settings:
        _check_comparable(claim, setting)
    left, right = _sides_by_seed(claim, settings)
    seeds = sorted(left.keys() & right.keys())
    declared = {run.seed for setting in settings for run in setting.runs}
    if not seeds:
        raise NotTestableError("no seed is finished in every configuration it is about")
    if dropped := sorted(declared - set(seeds)):
        notes.append(f"left out seed {listed(dropped)}, not finished in every configuration")
    return Contrast(
        settings,
        tuple(seeds),
        left,
        right,
        tuple(left_out),
        tuple(notes),
        _over_items(claim, settings),
    )


def _sides_by_seed(
    claim: Claim, settings: Sequence[PairedRuns]
) -> tuple[dict[int, float], dict[int, float]]:
    """Return seed -> mean over settings, for the left and the right side."""
    left = _by_seed([(s.study, s.left) for s in settings], _final_of(claim.left.metric))
    if isinstance(claim.right, ClaimSide):
        right = _by_seed([(s.study, s.right) for s in settings], _final_of(claim.right.metric))
    elif claim.right == "predicted":
        right = _by_seed([(s.study, s.left) for s in settings], _prediction_of(claim.left.metric))
    else:
        right = dict.fromkeys(left, float(claim.right))
    return left, right


def effects_by_library(claim: Claim, compared: Contrast) -> dict[str, Estimate]:
    """Return library -> effect in its settings alone, over the seeds of the claim.

    Return an empty result unless the settings are of several libraries.
    """
    by_library: dict[str, list[PairedRuns]] = {}
    for setting in compared.settings:
        names = {library_of(run) for run in setting.runs}
        if len(names) == 1:
            by_library.setdefault(names.pop(), []).append(setting)
    if len(by_library) < 2 or sum(map(len, by_library.values())) < len(compared.settings):
        return {}
    sides = {name: _sides_by_seed(claim, settings) for name, settings in by_library.items()}
    return {
        name: estimate(left[seed] - right[seed] for seed in compared.seeds)
        for name, (left, right) in sides.items()
    }


def library_of(run: MeasuredRun) -> str:
    """Return the library of a run's settings with its release: `verl 0.9.1`."""
    names = (run.traits.get("backend", ""), run.traits.get("backend.version", ""))
    return " ".join(name for name in names if name not in ("", "none"))


def _over_items(claim: Claim, settings: Sequence[PairedRuns]) -> Estimate | None:
    metric = claim.left.metric
    if not isinstance(claim.right, ClaimSide) or claim.right.metric != metric:
        return None
    sides = [
        (runs_by_configuration(s.left, metric), runs_by_configuration(s.right, metric))
        for s in settings
    ]
    return difference_over_items(sides, metric)


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
    measured = {name for run in runs for name in run.finals}
    if metric in measured or not measured:
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
    return lambda run: run.finals.get(metric)


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


def _by_seed(
    sides: Sequence[tuple[str, Sequence[MeasuredRun]]], value: RunValue
) -> dict[int, float]:
    """Return seed -> mean over settings of the mean over the configurations of this side."""
    settings: list[list[dict[int, float]]] = []
    for study, runs in sides:
        configurations: dict[AxisValues, dict[int, float]] = {}
        for run in runs:
            by_seed = configurations.setdefault(tuple(sorted(run.traits.items())), {})
            if (measured := value(run)) is not None:
                by_seed[run.seed] = measured
        for configuration, by_seed in configurations.items():
            if not by_seed:
                name = setting_name(
                    study, configuration, [run for _, side in sides for run in side]
                )
                raise NotTestableError(f"no finished run of {name} has its value")
        settings.append(list(configurations.values()))
    return mean_by_seed(settings)


@dataclass(frozen=True)
class ClaimEvidence:
    """The test of one claim, before p-values are corrected for the number of claims."""

    contrast: Contrast
    left: Estimate | Rate
    right: Estimate | Rate | None
    """None if the claim compares with a number."""
    effect: Estimate | None
    """Left minus right over seeds, paired; None for collapse, which has shares."""
    p_for: float
    p_against: float
    """One-sided p-values, valid at every look. `p_for` is small if the effect is inside the claimed
    region, `p_against` if it is outside."""
    p_once: float | None = None
    """Two-sided p-value of Student's t, valid only for a single look; None for shares."""
    over_items: bool = False
    """True if `effect` includes the spread between items; then p is about the items' population."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the effect, valid at every look, or None without one."""
        return None if self.effect is None else anytime_interval(self.effect, ALPHA)

    @property
    def num_items(self) -> int:
        """Return the number of evaluated items, or 0 if single items are not known."""
        sizes = {
            sum(len(shares) for shares in run.items.values())
            for setting in self.contrast.settings
            for run in setting.runs
        }
        return max(sizes, default=0)

    @property
    def p(self) -> float:
        """Return the two-sided p-value, valid at every look."""
        return min(1.0, 2 * min(self.p_for, self.p_against))


@dataclass(frozen=True)
class WorkingRuns:
    """The counted runs of a claim on `works`. The count infers nothing about other runs."""

    works: tuple[str, ...]
    """Ids of the cells that trained to their end, did not collapse and were evaluated."""
    failing: Mapping[str, str]
    """Name of every other cell -> the reason, such as `collapsed at step 40`."""

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
    claims: Mapping[str, Claim], runs: Sequence[MeasuredRun], *, evaluated: bool = True
) -> list[JudgedClaim]:
    """Return every claim with its verdict, in order. `evaluated`: the spec has evaluation tasks."""
    drafts: dict[str, ClaimEvidence | NotTestableError] = {}
    judged: dict[str, JudgedClaim] = {}
    for name, claim in claims.items():
        try:
            if claim.left.metric == WORKS:
                judged[name] = _counted(name, claim, runs, evaluated)
                continue
            drafts[name] = weigh_evidence(claim, contrast(claim, runs))
        except OneRunError as reason:
            if claim.relation in ("~", ">=", "<="):
                judged[name] = JudgedClaim(name, claim, "holds by construction", str(reason))
            drafts[name] = reason
        except NotTestableError as reason:
            drafts[name] = reason
    testable = {name: draft for name, draft in drafts.items() if isinstance(draft, ClaimEvidence)}
    corrected = holm([draft.p for draft in testable.values()])
    judged |= {
        name: _judged(name, claims[name], evidence, p, len(testable))
        for (name, evidence), p in zip(testable.items(), corrected, strict=True)
    }
    return [
        judged.get(name) or JudgedClaim(name, claim, "not testable", missing=str(drafts[name]))
        for name, claim in claims.items()
    ]


def _judged(name: str, claim: Claim, evidence: ClaimEvidence, p: float, family: int) -> JudgedClaim:
    if p < ALPHA:
        verdict: ClaimVerdict = "holds" if evidence.p_for < evidence.p_against else "contradicted"
        return JudgedClaim(name, claim, verdict, "", evidence, p, family)
    # Bonferroni's level: the first and strictest step of Holm's correction.
    needed = _seeds_needed(claim, evidence, ALPHA / family)
    if needed is not None:
        needed = max(needed, len(evidence.contrast.seeds) + 1)
    alone = evidence.p if evidence.p_once is None else evidence.p_once
    verdict = "seen" if alone < ALPHA else "too few runs"
    return JudgedClaim(name, claim, verdict, "", evidence, p, family, needed)


def _distance(claim: Claim, effect: Estimate) -> float:
    """Return the distance of an effect from the nearer end of the claimed region."""
    return min(abs(effect.mean - bound) for bound in _region_bounds(claim.relation, claim.margin))


def _counted(name: str, claim: Claim, runs: Sequence[MeasuredRun], evaluated: bool) -> JudgedClaim:
    """Return the verdict on a claim on `works`.

    Raise NotTestableError if unfinished runs may still change it.
    """
    chosen = {run.record.cell.id: run for _, run in _chosen(claim, claim.left, runs)}.values()
    working = [run for run in chosen if not _lacks(run, evaluated)]
    failing = {run.record.cell.slug: _lacks(run, evaluated) for run in chosen}
    counted_runs = WorkingRuns(
        tuple(run.record.cell.id for run in working),
        {slug: lack for slug, lack in failing.items() if lack},
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


def weigh_evidence(claim: Claim, contrast: Contrast) -> ClaimEvidence:
    """Return the evidence on a claim: its sides, its effect and its one-sided p-values."""
    if claim.left.metric == COLLAPSE:
        left = _collapse_rate(contrast, "left")
        right = _collapse_rate(contrast, "right") if isinstance(claim.right, ClaimSide) else None
        return ClaimEvidence(contrast, left, right, None, *_share_p(claim, left, right))
    effect = _judged_effect(claim, contrast)
    sides = [estimate(s[seed] for seed in contrast.seeds) for s in (contrast.left, contrast.right)]
    p = _region_p(claim.relation, claim.margin, lambda bound: anytime_p(effect, bound))
    once = _region_p(claim.relation, claim.margin, lambda bound: one_sided_p(effect, bound))
    right_side = None if isinstance(claim.right, float) else sides[1]
    return ClaimEvidence(
        contrast, sides[0], right_side, effect, *p, min(1.0, 2 * min(once)), claim.over_items
    )


def _judged_effect(claim: Claim, contrast: Contrast) -> Estimate:
    """Return the effect over seeds. For a claim over items, widen its spread by that of the items.

    Raise NotTestableError if the claim is over items and single items are not known.
    """
    effect = estimate(contrast.differences)
    if not claim.over_items or effect.n < 2:
        return effect
    wider = contrast.over_items
    if wider is None or wider.half_width is None:
        raise NotTestableError(
            "the scores of single items are not known on both sides; evaluate them again, or leave "
            "out `over items`"
        )
    # sd = half width / (t / sqrt(n)): the spread between seeds that gives an interval as wide as
    # the one over seeds and items. The sequential tests below take only a mean and a spread.
    reach = t_quantile(1 - ALPHA / 2, effect.n - 1) / math.sqrt(effect.n)
    return replace(wider, sd=max(effect.sd, wider.half_width / reach), mean=effect.mean)


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


def _collapse_rate(contrast: Contrast, side: Literal["left", "right"]) -> Rate:
    runs = [run for setting in contrast.settings for run in getattr(setting, side)]
    outcomes = {r.record.cell.id: r.finals[COLLAPSE] for r in runs if r.seed in contrast.seeds}
    return rate(int(sum(outcomes.values())), len(outcomes))


def _share_p(claim: Claim, left: Rate, right: Rate | None) -> tuple[float, float]:
    if right is not None:
        between = anytime_p_between(left, right)
        return _region_p(claim.relation, 0.0, lambda _: between)
    centre = float(claim.right) if isinstance(claim.right, float) else math.nan

    return _region_p(
        claim.relation, claim.margin, lambda bound: anytime_p_of_share(left, centre + bound)
    )


def _seeds_needed(claim: Claim, evidence: ClaimEvidence, alpha: float) -> int | None:
    """Return the number of seeds that would decide the claim if effect and spread do not change.

    Return None if no number up to the search's maximum suffices.
    """
    now = len(evidence.contrast.seeds)
    if evidence.effect is not None:
        if evidence.effect.n < 2:
            return now + 1
        return seeds_to_decide(_distance(claim, evidence.effect), evidence.effect.sd, alpha)
    for seeds in range(now + 1, MAX_COLLAPSE_SEEDS + 1):
        grown = [
            None if rate is None else _scaled(rate, seeds / now)
            for rate in (evidence.left, evidence.right)
        ]
        if grown[0] and 2 * min(_share_p(claim, grown[0], grown[1])) < alpha:
            return seeds
    return None


def _scaled(share: Estimate | Rate, factor: float) -> Rate | None:
    """Return the same share over `factor` times as many runs, or None for an Estimate."""
    if not isinstance(share, Rate):
        return None
    n = round(share.n * factor)
    return Rate(round(share.share * n), n, share.low, share.high)


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
        text = f"{share}{where} trains to its end, without a collapse, and is evaluated"
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
    text = f", at {' and '.join(map(_condition_text, claim.at))}" if claim.at else ""
    text += f", in study {listed(claim.studies)}" if claim.studies else ""
    return text + (", over the population of items" if claim.over_items else "")


def working_text(runs: WorkingRuns) -> str:
    """Return the number of working runs, and the reasons why the others do not work."""
    text = f"{len(runs.works)} of {counted(runs.n, 'run')} trained to the end, without a collapse"
    text += ", and were evaluated"
    if not runs.failing:
        return f"{text}."
    lacks = [f"{slug} ({lack})" for slug, lack in runs.failing.items()]
    return f"{text}. Not so: {first_names(lacks)}."


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
    text = _numbers_text(finding, e) + _libraries_text(finding.claim, e)
    if finding.verdict in OPEN:
        text += " " + _advice_text(finding, e)
    return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in e.contrast.notes)])


def _numbers_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    over = f"{counted(len(e.contrast.seeds), 'seed')}, {_settings_text(e.contrast)}"
    p = p_text(e.p)
    if finding.family > 1:
        corrected = p_text(finding.p_corrected).removeprefix("p ").removeprefix("= ")
        p += f" ({corrected} corrected over {finding.family} claims)"
    if e.effect is None:
        sides = [estimate_text(side) for side in (e.left, e.right) if side is not None]
        return f"Collapsed: {' against '.join(sides)} ({over}); {p}."
    against = finding.claim.right if isinstance(finding.claim.right, float) else 0.0
    right = estimate_text(e.right, interval=False) if e.right else number_text(against)
    text = f"{estimate_text(e.left, interval=False)} against {right}"
    text += f", difference {estimate_text(e.effect, signed=True)} ({over})"
    items = e.contrast.over_items
    if items is not None and items.low is not None and not e.over_items:
        text += f", over seeds and items {estimate_text(items, signed=True)}"
    if e.effect.n < 2:
        return f"{text}."
    if (interval := e.interval) is not None:
        text += f", at every look [{interval[0]:+.3f}, {interval[1]:+.3f}]"
    once = "" if e.p_once is None else f", {p_text(e.p_once)} if this were the only look"
    return f"{text}; {p} at every look{once}. {population_text(e)}"


def _settings_text(compared: Contrast) -> str:
    """Return `6 settings`, or `2 of 6 settings: left out ...` with what is left out."""
    settings = len(compared.settings)
    if not compared.left_out:
        return counted(settings, "setting")
    every = counted(settings + len(compared.left_out), "setting")
    return f"{settings} of {every}: {'; '.join(compared.left_out)}"


def _libraries_text(claim: Claim, e: ClaimEvidence) -> str:
    """Return the effect in each library and the number of runs that count in several."""
    effects = {} if e.effect is None else effects_by_library(claim, e.contrast)
    if not effects:
        return ""
    each = ", ".join(f"{name} {estimate_text(one, signed=True)}" for name, one in effects.items())
    libraries: dict[str, set[str]] = {}
    for setting in e.contrast.settings:
        for run in setting.runs:
            libraries.setdefault(run.record.cell.id, set()).add(library_of(run))
    shared = sum(len(names) > 1 for names in libraries.values())
    text = f" By library: {each}."
    return f"{text} {counted(shared, 'run')} count in several libraries." if shared else text


def effect_sentence(claim: Claim, e: ClaimEvidence) -> str:
    """Return the measured effect, independent of the claim: `accuracy is 0.05 higher with ...`."""
    left, over = _runs_text(claim.left), counted(len(e.contrast.seeds), "seed")
    where = _scope_text(claim)
    if e.effect is None:
        sides = [
            f"{s.count} of {counted(s.n, 'run')}" for s in (e.left, e.right) if isinstance(s, Rate)
        ]
        right = _runs_text(claim.right) if isinstance(claim.right, ClaimSide) else ""
        other = f", and {right} in {sides[1]}" if right else ""
        return f"{left} collapsed in {sides[0]}{other}{where}"
    size = number_text(abs(e.effect.mean))
    way = "higher" if e.effect.mean >= 0 else "lower"
    if isinstance(claim.right, ClaimSide):
        other = f"{way} with {left} than with {_runs_text(claim.right)}"
    elif claim.right == "predicted":
        other = f"{way} with {left} than the closed form predicts"
    else:
        other = f"{'above' if e.effect.mean >= 0 else 'below'} {claim.right:g} with {left}"
    if e.effect.low is None or e.effect.high is None:
        interval = "one seed, no interval"
    else:
        bounds = sorted((abs(e.effect.low), abs(e.effect.high)))
        sign = 1 if e.effect.mean >= 0 else -1
        if e.effect.low * e.effect.high < 0:
            bounds = sorted((sign * e.effect.low, sign * e.effect.high))
        low, high = map(number_text, bounds)
        interval = f"95 % interval {low} to {high}, {over}"
    return f"{metric_title(claim.left.metric)} is {size} {other}{where} ({interval})"


def population_text(e: ClaimEvidence) -> str:
    """Return the population of a verdict: these items, or the tasks they were drawn from."""
    if e.over_items:
        return "It speaks of all seeds and of the tasks that the items were drawn from."
    if e.num_items:
        return f"It speaks of all seeds on these {e.num_items} items, not of other items."
    return "It speaks of all seeds on these evaluations."


def verdict_text(finding: JudgedClaim) -> str:
    """Return a verdict in the words that readers see."""
    if finding.verdict == "no effect":
        return f"no effect larger than {SMALL:g}"
    if finding.verdict == "seen":
        return "seen, not yet certain"
    if finding.verdict == "too few runs" and finding.seeds_needed is not None:
        return f"too few runs, about {counted(finding.seeds_needed, 'seed')}"
    return finding.verdict


def _advice_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    if finding.num_seeds < 2 and e.effect is not None:
        return "One seed has no interval: at least 1 more is needed to say anything."
    if finding.seeds_needed is None:
        return "No number of seeds up to a thousand would decide what is seen here."
    needed = counted(finding.seeds_needed, "seed")
    return f"About {needed} in all decide it with power 0.8, if effect and spread stay as seen."


def _runs_text(side: ClaimSide) -> str:
    return ", ".join(map(_condition_text, side.where)) if side.where else "all runs"


def _condition_text(where: AxisCondition) -> str:
    values = " or ".join(where.values)
    if where.axis == "kl":
        return values if values != "none" else "no KL term"
    return f"{'β' if where.axis in ('beta', 'kl.beta') else where.axis} {values}"
