"""From a claim to the numbers that decide it, seed by seed.

The effect of a seed is the mean over settings of left minus right. Only seeds for which every
configuration has a value count, so that no mean is silently taken over what happens to be left.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestrator.claims import Claim, Side
from orchestrator.compare.estimates import Estimate
from orchestrator.compare.items import Column, column, difference_over_items, task_metrics
from orchestrator.compare.items import Side as Columns
from orchestrator.compare.pairing import Configuration, NotTestableError, Setting, named, pair
from orchestrator.compare.phrases import listed
from orchestrator.compare.ratio import Improvement, mean_improvement
from orchestrator.compare.runs import Run, predicted_for
from orchestrator.errors import did_you_mean


@dataclass(frozen=True)
class Contrast:
    """What decides a claim."""

    settings: tuple[Setting, ...]
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


def contrast(claim: Claim, runs: Sequence[Run]) -> Contrast:
    """The claim's two sides, seed by seed. Raises NotTestableError, saying why."""
    for side in claim.sides:
        _check_measured(side.metric, runs)
    settings, notes = pair(claim, runs)
    for setting in settings:
        _check_comparable(claim, setting)
    left = _by_seed([(s.study, s.left) for s in settings], _measured(claim.left.metric))
    if isinstance(claim.right, Side):
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


def _over_items(claim: Claim, settings: Sequence[Setting]) -> Estimate | None:
    metric = claim.left.metric
    if not isinstance(claim.right, Side) or claim.right.metric != metric:
        return None
    sides = [(columns(s.left, metric), columns(s.right, metric)) for s in settings]
    return difference_over_items(sides, metric)


def columns(runs: Sequence[Run], metric: str) -> list[Column]:
    """Runs by configuration: those that have a final value of the metric."""
    configurations: dict[Configuration, list[Run]] = {}
    for run in runs:
        configurations.setdefault(tuple(sorted(run.traits.items())), []).append(run)
    return [column(same, metric) for same in configurations.values()]


def _check_comparable(claim: Claim, setting: Setting) -> None:
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


def _check_measured(metric: str, runs: Sequence[Run]) -> None:
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


Value = Callable[[Run], float | None]


def _measured(metric: str) -> Value:
    return lambda run: run.finals.get(metric)


def _predicted(metric: str) -> Value:
    name = predicted_for(metric)
    if name is None:
        raise NotTestableError(f"no closed form predicts {metric}")

    def value(run: Run) -> float | None:
        if run.finals and name not in run.finals:
            raise NotTestableError(
                f"no closed form predicts {run.record.cell.slug}: only the embedded trainer has "
                "one, for on-policy gradients of the sequence's reverse KL"
            )
        return run.finals.get(name)

    return value


def _by_seed(sides: Sequence[tuple[str, Sequence[Run]]], value: Value) -> dict[int, float]:
    """Seed -> mean over settings of the mean over the configurations of this side."""
    columns: list[list[dict[int, float]]] = []
    for study, runs in sides:
        configurations: dict[Configuration, dict[int, float]] = {}
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
    return mean_improvement([
        (over_seeds([[values(one, name) for one in left]]),
         over_seeds([[values(one, name) for one in right]]))
        for name in task_metrics(runs, metric) for left, right in settings
    ])  # fmt: skip


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
