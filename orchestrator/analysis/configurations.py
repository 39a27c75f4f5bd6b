"""Group runs that differ only in their seed to configurations, and compare configurations.

A configuration has means and intervals over its seeds, its share of collapsed runs, and its curves.

`axis_differences` compares the values of one axis with everything else equal, for `orch compare
--by`.

The last part pairs runs by seeds and items. There a configuration is a mapping from seed to run, a
side of a comparison is a group of configurations that are averaged, and a setting is a pair of
sides, left and right. Every run of a task answers the same items in the same order. Callers check
this first: task version and number of items are in `runs.EvaluationProtocol`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from orchestrator.analysis.runs import (
    LearningCurve,
    MeasuredRun,
    is_accuracy,
    is_of_trained,
    learning_curve,
)
from orchestrator.analysis.stats import (
    ALPHA,
    Estimate,
    Rate,
    estimate,
    estimate_over_items,
    holm,
    mean_relative_improvement,
    rate,
    two_sided_p,
)
from orchestrator.errors import SelectionError
from orchestrator.metrics.names import is_divergence
from orchestrator.spec.claims import COLLAPSE
from orchestrator.spec.fields import LABELS

IN_DOMAIN = ("eval/in_domain/mean", "eval/accuracy_in_domain", "train/reward_mean")
"""Metrics of the main result, best first: the harness's, the trainer's, the training reward."""
OUT_OF_DOMAIN = ("eval/out_of_domain/mean", "eval/accuracy_out_of_domain")
STALENESS_MEAN, STALENESS_MAX = "rollout/staleness_mean", "rollout/staleness_max"
RunsBySeed = Mapping[int, MeasuredRun]
"""One configuration: seed -> run."""
AxisValues = tuple[tuple[str, str], ...]
"""(axis, value) of runs that differ only in their seed."""
RunGroup = Sequence[RunsBySeed]
"""Configurations that are averaged."""
_ROUNDING = 1e-5
"""Largest difference between the items' mean and the final value: stored scores are rounded."""


@dataclass(frozen=True)
class Configuration:
    """The runs of one study that differ only in their seed."""

    study: str
    traits: Mapping[str, str]
    """Every axis but seed and KL: model, data, backend, async, ..."""
    kl: str
    """`none`, `k1.reward`, ..."""
    beta: float | None
    """The weight of the KL term; None without one."""
    runs: tuple[MeasuredRun, ...]
    """One run for each seed, in order, finished or not."""
    finals: Mapping[str, Estimate]
    """Canonical name -> final value over the `n` seeds that have one; accuracies are of the runs
    that did not collapse."""
    finals_over_items: Mapping[str, Estimate]
    """The same with an interval over seeds and items, for metrics with scores of single items."""
    collapse: Rate
    """The share of collapsed runs among those that ended well."""
    curves: Mapping[str, LearningCurve]
    staleness: Estimate | None
    """Observed staleness: mean over the train steps of each seed."""
    max_staleness: float | None

    @property
    def name(self) -> str:
        """Return the name of the configuration, such as `k1.reward β=0.1`."""
        return self.kl if self.beta is None else f"{self.kl} β={self.beta:g}"

    @property
    def num_train_steps(self) -> int:
        """Return the number of train steps of its longest run."""
        return max(run.record.cell.settings.num_train_steps for run in self.runs)

    @property
    def num_finished(self) -> int:
        """Return the number of runs that succeeded."""
        return sum(run.record.state == "succeeded" for run in self.runs)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return seed -> final value, for the seeds that have one, as in `finals`."""
        return final_values(finished_by_seed(self.runs, metric), metric)


def configurations(runs: Sequence[MeasuredRun]) -> list[Configuration]:
    """Return every configuration, in the order of the runs."""
    groups: dict[tuple[str, AxisValues], list[MeasuredRun]] = {}
    for run in runs:
        traits = tuple(sorted(run.traits.items()))
        for study in run.record.cell.studies:
            groups.setdefault((study, traits), []).append(run)
    return [
        _configuration(study, sorted(same, key=lambda run: run.seed))
        for (study, _), same in groups.items()
    ]


def _configuration(study: str, runs: Sequence[MeasuredRun]) -> Configuration:
    first = runs[0]
    kl = first.declared.kl
    outcomes = [run.finals[COLLAPSE] for run in runs if COLLAPSE in run.finals]
    stale = [mean for run in runs if (mean := _mean_over_steps(run, STALENESS_MEAN)) is not None]
    largest = [
        max(run.series[STALENESS_MAX].values()) for run in runs if STALENESS_MAX in run.series
    ]
    return Configuration(
        study,
        {name: v for name, v in first.traits.items() if name != "beta" and name[:3] != "kl."},
        kl.label,
        kl.beta if first.has_kl else None,
        tuple(runs),
        {
            metric: estimate(values.values()).within(*range_of(metric))
            for metric in _metric_names(run.finals for run in runs)
            if (values := final_values(finished_by_seed(runs, metric), metric))
        },
        _finals_over_items(runs),
        rate(int(sum(outcomes)), len(outcomes)),
        _curves(runs),
        estimate(stale) if stale else None,
        max(largest, default=None),
    )


def range_of(metric: str) -> tuple[float, float]:
    """Return the range of a metric's mean: no interval goes beyond it."""
    if is_accuracy(metric):
        return 0.0, 1.0
    measured = metric.startswith("eval/") and is_divergence(metric.rpartition("/")[2])
    return (0.0 if measured else -math.inf), math.inf


def _finals_over_items(runs: Sequence[MeasuredRun]) -> dict[str, Estimate]:
    if not any(run.items for run in runs):
        return {}
    means = {
        metric: difference_over_items([([finished], [])], metric)
        for metric in _metric_names(run.protocols for run in runs)
        if (finished := finished_by_seed(runs, metric))
    }
    return {metric: one.within(0.0, 1.0) for metric, one in means.items() if one is not None}


def _curves(runs: Sequence[MeasuredRun]) -> dict[str, LearningCurve]:
    """Return each metric's curve over the seeds that report it."""
    curves = {
        metric: learning_curve(
            {run.seed: run.series[metric] for run in runs if metric in run.series},
            bounds=range_of(metric),
        )
        for metric in _metric_names(run.series for run in runs)
    }
    return {metric: one for metric, one in curves.items() if one is not None}


def _mean_over_steps(run: MeasuredRun, metric: str) -> float | None:
    values = [v for v in run.series.get(metric, {}).values() if math.isfinite(v)]
    return math.fsum(values) / len(values) if values else None


def _metric_names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping} - {COLLAPSE})


def main_metric(configurations: Iterable[Configuration], preferred: Sequence[str]) -> str | None:
    """Return the first preferred metric that any configuration has a final value of, or None."""
    measured = {metric for c in configurations for metric in c.finals}
    return next((metric for metric in preferred if metric in measured), None)


@dataclass(frozen=True)
class AxisDifference:
    """The difference `left` minus `right`, paired on common seeds, over their common settings."""

    axis: str
    left: str
    right: str
    metric: str
    difference: Estimate
    settings: tuple[str, ...]
    """The settings that are equal in each pair."""
    p: float
    p_corrected: float
    """p corrected by Holm over all differences of this axis."""
    over_items: Estimate | None = None
    """The difference with an interval over seeds and items; None without scores of single items."""
    relative: Estimate | None = None
    """Left minus right as a share of right: mean over tasks and settings."""

    @property
    def verdict(self) -> str:
        """Return `differs` or `not told apart`.

        `not told apart` means no evidence of a difference. It is never evidence of equality.
        """
        return "differs" if self.p_corrected < ALPHA else "not told apart"


OtherAxes = tuple[tuple[str, str | None], ...]
"""(axis, value) of every axis that is equal in a comparison."""


def axis_differences(
    configurations: Sequence[Configuration], axis: str, metric: str
) -> list[AxisDifference]:
    """Return the difference of every pair of values of an axis (`kl`, `beta`, `model`, ...), which
    may also be named by its field (`max_staleness_steps`).

    Leave out pairs without a common setting or seed. Correct p-values by Holm over all pairs. Raise
    SelectionError for an axis that no configuration has.
    """
    axis = _LABEL_OF.get(axis, axis)
    values = list(
        dict.fromkeys(v for c in configurations if (v := axis_value(c, axis)) is not None)
    )
    if not values:
        axes = sorted({name for c in configurations for name in c.traits})
        raise SelectionError(
            f"no configuration has an axis '{axis}' (there are: kl, beta, {', '.join(axes)})"
        )
    shared = [
        (pair, settings, effect)
        for pair in combinations(values, 2)
        for settings in [_shared_settings(configurations, axis, pair, metric)]
        for effect in [_paired_effect(list(settings.values()), metric)]
        if effect is not None
    ]
    p_values = [two_sided_p(effect) for _, _, effect in shared]
    return [
        AxisDifference(
            axis,
            *pair,
            metric,
            effect,
            tuple(map(_setting_text, settings)),
            p,
            corrected,
            difference_over_items(list(settings.values()), metric),
            relative_difference(list(settings.values()), metric),
        )
        for (pair, settings, effect), p, corrected in zip(
            shared, p_values, holm(p_values), strict=True
        )
    ]


_LABEL_OF = {field: label for label, field in LABELS.items() if field}


def axis_value(configuration: Configuration, axis: str) -> str | None:
    """Return a configuration's value on an axis, or None if it has no such axis."""
    if axis == "kl":
        return configuration.kl
    if axis == "beta":
        return None if configuration.beta is None else f"{configuration.beta:g}"
    return configuration.study if axis == "study" else configuration.traits.get(axis)


def differences_to_no_kl(
    configurations: Sequence[Configuration], metric: str
) -> dict[int, Estimate]:
    """Return index of a configuration -> its difference to no KL, paired on seeds."""
    baselines = {
        _other_axes(c, ("kl", "beta")): c.by_seed(metric) for c in configurations if c.beta is None
    }
    differences = {}
    for index, c in enumerate(configurations):
        base = baselines.get(_other_axes(c, ("kl", "beta")), {}) if c.beta is not None else {}
        own = c.by_seed(metric)
        if own.keys() & base.keys():
            differences[index] = estimate(own[seed] - base[seed] for seed in own.keys() & base)
    return differences


def _other_axes(configuration: Configuration, without: Sequence[str]) -> OtherAxes:
    names = ["study", "kl", "beta", *configuration.traits]
    return tuple((name, axis_value(configuration, name)) for name in names if name not in without)


def _shared_settings(
    configurations: Sequence[Configuration], axis: str, pair: tuple[str, str], metric: str
) -> dict[OtherAxes, tuple[list[RunsBySeed], list[RunsBySeed]]]:
    """Return the settings with finished runs on both sides.

    A run without KL has no beta. It is compared with the mean over the other side's betas.
    """
    without = (axis, "beta") if axis == "kl" and "none" in pair else (axis,)
    settings: dict[OtherAxes, tuple[list[RunsBySeed], list[RunsBySeed]]] = {}
    for configuration in configurations:
        value, runs = axis_value(configuration, axis), finished_by_seed(configuration.runs, metric)
        if value in pair and value is not None and runs:
            sides = settings.setdefault(_other_axes(configuration, without), ([], []))
            sides[pair.index(value)].append(runs)
    return {setting: sides for setting, sides in settings.items() if all(sides)}


def _paired_effect(settings: Sequence[tuple[RunGroup, RunGroup]], metric: str) -> Estimate | None:
    one, other = (
        mean_by_seed([[final_values(runs, metric) for runs in sides[index]] for sides in settings])
        for index in (0, 1)
    )
    seeds = one.keys() & other.keys()
    return estimate(one[seed] - other[seed] for seed in seeds) if seeds else None


def _setting_text(setting: OtherAxes) -> str:
    return ", ".join(
        value if name in ("study", "kl") else f"{name}={value}"
        for name, value in setting
        if value is not None
    )


# Pairs of runs: the same seeds and the same items, with everything else equal.


def finished_by_seed(runs: Iterable[MeasuredRun], metric: str) -> RunsBySeed:
    """Return seed -> run for the runs that have a final value of the metric.

    A collapsed run has no accuracy: it counts in the share of collapsed runs.
    """
    return {
        run.seed: run
        for run in runs
        if metric in run.finals and not (is_of_trained(metric) and run.finals.get(COLLAPSE))
    }


def runs_by_configuration(runs: Sequence[MeasuredRun], metric: str) -> list[RunsBySeed]:
    """Return the configurations of these runs, each with the runs that have a final value."""
    return [finished_by_seed(same, metric) for same in configurations_of(runs).values()]


def configurations_of(runs: Iterable[MeasuredRun]) -> dict[AxisValues, list[MeasuredRun]]:
    """Return the runs that differ only in their seed, by their traits."""
    groups: dict[AxisValues, list[MeasuredRun]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.traits.items())), []).append(run)
    return groups


def final_values(runs: RunsBySeed, metric: str) -> dict[int, float]:
    """Return seed -> final value."""
    return {seed: run.finals[metric] for seed, run in runs.items() if metric in run.finals}


def mean_by_seed(settings: Sequence[Sequence[Mapping[int, float]]]) -> dict[int, float]:
    """Return seed -> mean over settings of the mean over their configurations.

    Each configuration maps a seed to a value. The result has only the seeds that every
    configuration of every setting has.
    """
    finished = [set(values) for setting in settings for values in setting]
    seeds = set.intersection(*finished) if finished else set()
    return {seed: fmean(fmean(at[seed] for at in one) for one in settings) for seed in seeds}


def relative_difference(
    settings: Sequence[tuple[RunGroup, RunGroup]], metric: str
) -> Estimate | None:
    """Return the relative improvement of left over right, averaged over settings and tasks."""
    runs = [run for sides in settings for side in sides for one in side for run in one.values()]
    return mean_relative_improvement(
        [
            (
                mean_by_seed([[final_values(one, name) for one in left]]),
                mean_by_seed([[final_values(one, name) for one in right]]),
            )
            for name in task_metrics(runs, metric)
            for left, right in settings
        ]
    )


def difference_over_items(
    settings: Sequence[tuple[RunGroup, RunGroup]], metric: str
) -> Estimate | None:
    """Return left minus right over common seeds and items, averaged over settings.

    Return None without scores of single items.
    """
    import numpy as np

    configurations = [one for sides in settings for side in sides for one in side]
    seeds = sorted(set.intersection(*map(set, configurations))) if configurations else []
    runs = [one[seed] for one in configurations for seed in seeds]
    tasks = tasks_of(runs, metric)
    if not tasks or not all(_items_match_final(run, metric) for run in runs):
        return None
    tables = []  # of each task: [seeds, items]
    for task in tasks:
        if len({len(run.items.get(task, ())) for run in runs}) != 1:
            return None
        rows = [[_item_row(left, right, seed, task) for left, right in settings] for seed in seeds]
        tables.append(np.mean(rows, axis=1))
    return estimate_over_items(tables)


def task_metrics(runs: Sequence[MeasuredRun], metric: str) -> list[str]:
    """Return the mean@k of each task of a domain's mean. Return [metric] for other metrics."""
    tasks = tasks_of(runs, metric)
    if metric.split("/")[1:2] not in (["in_domain"], ["out_of_domain"]) or not tasks:
        return [metric]
    largest = []
    for task in tasks:
        names = [m for run in runs for m in run.finals if m.startswith(f"eval/{task}/mean@")]
        if names:
            largest.append(max(names, key=lambda name: int(name.rpartition("@")[2])))
    return largest or [metric]


def _item_row(left: RunGroup, right: RunGroup, seed: int, task: str) -> Any:
    """Return the mean of left minus the mean of right for one seed, [items]."""
    import numpy as np

    mean = np.mean([one[seed].items[task] for one in left], axis=0)
    return mean - np.mean([one[seed].items[task] for one in right], axis=0) if right else mean


def tasks_of(runs: Sequence[MeasuredRun], metric: str) -> list[str]:
    """Return the tasks that a metric averages, or no tasks if it is not a mean over items."""
    if not metric.startswith("eval/") or not metric.rpartition("/")[2].startswith("mean"):
        return []
    protocols = [run.protocols.get(metric, frozenset()) for run in runs]
    return sorted({str(part[0]) for protocol in protocols for part in protocol})


def _items_match_final(run: MeasuredRun, metric: str) -> bool:
    """Return True if every task's items are known and average to the final value."""
    tasks = tasks_of([run], metric)
    if not all(len(run.items.get(task, ())) for task in tasks):
        return False
    means = [fmean(map(float, run.items[task])) for task in tasks]
    return abs(fmean(means) - run.finals[metric]) < _ROUNDING
