"""Runs that differ only in their seed, as one configuration with its means and intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.claims import COLLAPSE
from orchestrator.compare.curves import Curve, curve
from orchestrator.compare.estimates import Estimate, Rate, estimate, rate
from orchestrator.compare.items import column, over_items
from orchestrator.compare.runs import PREDICTED_ACCURACY, Run, is_accuracy
from orchestrator.compare.stability import Stability, stability

IN_DOMAIN = ("eval/in_domain/mean", "eval/accuracy_in_domain", "train/reward_mean")
"""The main result, by preference: the harness's, the trainer's exact one, the training reward."""
OUT_OF_DOMAIN = ("eval/out_of_domain/mean", "eval/accuracy_out_of_domain")
STABILITY = ("eval/accuracy_in_domain", "eval/in_domain/mean", "train/reward_mean")
"""Curves that stability is judged by, by preference."""
STALENESS = ("rollout/staleness_mean", "rollout/staleness_max")


@dataclass(frozen=True)
class Configuration:
    """One study x every axis but the seed."""

    study: str
    traits: Mapping[str, str]
    """Every axis but seed and KL: model, data, backend, async, ..."""
    kl: str
    """`none`, `k1.reward`, ..."""
    beta: float | None
    """None without a KL term."""
    runs: tuple[Run, ...]
    """Every seed, by seed, finished or not."""
    finals: Mapping[str, Estimate]
    """Canonical name -> final value over the seeds that have one (`n` says how many)."""
    finals_over_items: Mapping[str, Estimate]
    """The same with an interval over seeds and items, where single items are known."""
    collapse: Rate
    """Over the runs that ended well."""
    stability: Stability
    predicted: float | None
    """Final accuracy by the closed form, where there is one."""
    curves: Mapping[str, Curve]
    staleness: Estimate | None
    """Observed: mean over the train steps of each seed."""
    max_staleness: float | None

    @property
    def name(self) -> str:
        """`k1.reward β=0.1`."""
        return self.kl if self.beta is None else f"{self.kl} β={self.beta:g}"

    @property
    def num_finished(self) -> int:
        return sum(run.record.state == "succeeded" for run in self.runs)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Seed -> final value."""
        return {run.seed: run.finals[metric] for run in self.runs if metric in run.finals}


def configurations(runs: Sequence[Run]) -> list[Configuration]:
    """Every configuration, in the order of the runs."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Run]] = {}
    for run in runs:
        traits = tuple(sorted(run.traits.items()))
        for study in run.record.cell.studies:
            groups.setdefault((study, traits), []).append(run)
    return [
        _configuration(study, sorted(same, key=lambda run: run.seed))
        for (study, _), same in groups.items()
    ]


def _configuration(study: str, runs: Sequence[Run]) -> Configuration:
    first = runs[0]
    kl = first.asked.kl
    outcomes = [run.finals[COLLAPSE] for run in runs if COLLAPSE in run.finals]
    stale = [mean for run in runs if (mean := _mean_over_steps(run, STALENESS[0])) is not None]
    largest = [max(run.series[STALENESS[1]].values()) for run in runs if STALENESS[1] in run.series]
    return Configuration(
        study,
        {name: v for name, v in first.traits.items() if name != "beta" and name[:3] != "kl."},
        kl.label,
        kl.beta if first.has_kl else None,
        tuple(runs),
        {metric: _final(runs, metric) for metric in _names(run.finals for run in runs)},
        _over_items(runs),
        rate(int(sum(outcomes)), len(outcomes)),
        stability(runs, STABILITY),
        _predicted(runs),
        _curves(runs),
        estimate(stale) if stale else None,
        max(largest, default=None),
    )


def _final(runs: Iterable[Run], metric: str) -> Estimate:
    found = estimate(run.finals[metric] for run in runs if metric in run.finals)
    return found.within(0.0, 1.0) if is_accuracy(metric) else found


def _over_items(runs: Sequence[Run]) -> dict[str, Estimate]:
    if not any(run.items for run in runs):
        return {}
    found = {
        metric: over_items(column(runs, metric), metric)
        for metric in _names(run.protocols for run in runs)
        if any(metric in run.finals for run in runs)
    }
    return {metric: one.within(0.0, 1.0) for metric, one in found.items() if one is not None}


def _predicted(runs: Iterable[Run]) -> float | None:
    values = [value for run in runs for value in run.series.get(PREDICTED_ACCURACY, {}).values()]
    return values[0] if values else None


def _curves(runs: Sequence[Run]) -> dict[str, Curve]:
    """Of every metric, over the seeds that have started to report it."""
    found = {
        metric: curve(
            {run.seed: run.series[metric] for run in runs if metric in run.series},
            bounds=(0.0, 1.0) if is_accuracy(metric) else (-math.inf, math.inf),
        )
        for metric in _names(run.series for run in runs)
    }
    return {metric: one for metric, one in found.items() if one is not None}


def _mean_over_steps(run: Run, metric: str) -> float | None:
    values = [v for v in run.series.get(metric, {}).values() if math.isfinite(v)]
    return math.fsum(values) / len(values) if values else None


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping} - {COLLAPSE})


def main_metric(found: Iterable[Configuration], preferred: Sequence[str]) -> str | None:
    """The first preferred metric that any configuration has a final value of."""
    known = {metric for configuration in found for metric in configuration.finals}
    return next((metric for metric in preferred if metric in known), None)
