"""Phase maps: the shares of seeds that are stable, unstable or collapsed, over two settings.

The state of a run depends only on metrics that every library records. A map
shows one KL term over beta and over one more numeric setting, such as staleness or learning rate.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.runs import MeasuredRun
from orchestrator.kl.shares import wilson

RunState = Literal["stable", "unstable", "collapsed"]
STATES: tuple[RunState, ...] = ("stable", "unstable", "collapsed")
WINDOW = 10
"""Number of train steps in each mean."""
FALL, FALL_AT_LEAST = 0.2, 0.1
"""Minimum fall of the reward below its best: as a share of the best, and in units of reward."""
KL_TIMES, KL_AT_LEAST = 3.0, 1.0
"""Minimum rise of the last KL over the KL at the best reward: as a factor, and in nats per
sequence."""
ENTROPY_TIMES, ENTROPY_AT_LEAST = 3.0, 0.5
"""Minimum rise of the last entropy over the first: as a factor, and in nats per token."""
GRADIENT_TIMES = 10.0
"""Minimum ratio of the longest gradient to the first."""
RULE = (
    f"Means are over {WINDOW} train steps. Collapsed: the run's outcome says so: a number is not "
    "finite, or the reward ends at a fifth of its best. Unstable: not collapsed, and the reward "
    f"once fell by {FALL:.0%} of its best and by {FALL_AT_LEAST:g}, or the KL ends at "
    f"{KL_TIMES:g} times that of the best reward and {KL_AT_LEAST:g} nat a sequence above, or the "
    f"entropy ends at {ENTROPY_TIMES:g} times the first and {ENTROPY_AT_LEAST:g} nats a token "
    f"above, or the gradient was {GRADIENT_TIMES:g} times as long as the first. Stable: neither; "
    "it does not say that anything was learnt."
)


def state_of(run: MeasuredRun) -> tuple[RunState, str] | None:
    """Return the state of a run and its sign, or None if the run has not ended well."""
    outcome = run.record.outcome
    if run.record.state != "succeeded" or outcome is None:
        return None
    if outcome.kind == "collapsed":
        return "collapsed", outcome.cause
    shown = _unsteady(run.series)
    return ("unstable", shown) if shown else ("stable", "")


def _unsteady(series: Mapping[str, Mapping[int, float]]) -> str:
    """Return the first sign of unstable training: reward, kl, entropy, gradient, or empty text."""
    reward = _means(series.get("train/reward_mean", {}))
    best = 0
    for at, value in enumerate(reward):
        best = at if value > reward[best] else best
        fall = reward[best] - value
        if fall > FALL * reward[best] and fall > FALL_AT_LEAST:
            return "reward"
    kl = _means(series.get("train/kl_reference", {}))
    if reward and len(kl) == len(reward):
        before = kl[best]
        if kl[-1] > KL_TIMES * before and kl[-1] > before + KL_AT_LEAST:
            return "kl"
    entropy = _means(series.get("train/entropy", {}))
    if entropy and entropy[-1] > max(ENTROPY_TIMES * entropy[0], entropy[0] + ENTROPY_AT_LEAST):
        return "entropy"
    gradient = _means(series.get("train/grad_norm", {}))
    return "gradient" if gradient and max(gradient) > GRADIENT_TIMES * gradient[0] else ""


def _means(points: Mapping[int, float]) -> list[float]:
    """Return the means over each WINDOW consecutive points; empty for fewer points than WINDOW."""
    values = [v for v in points.values() if math.isfinite(v)]
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [(b - a) / WINDOW for a, b in zip(sums, sums[WINDOW:], strict=False)]


@dataclass(frozen=True)
class PhaseField:
    """A field of a map: the seeds with one beta and one value of the other setting."""

    counts: Mapping[RunState, int]
    declared: int
    """The number of seeds in the spec."""
    shown_by: Mapping[str, int]
    """Sign of instability or collapse -> the number of runs with it."""

    @property
    def ended(self) -> int:
        """Return the number of seeds that ended well."""
        return sum(self.counts.values())

    def interval(self, state: RunState) -> tuple[float, float]:
        """Return Wilson's 95 % interval of the share of a state."""
        return wilson(self.counts[state], self.ended)


@dataclass(frozen=True)
class PhaseMap:
    """A map of one KL term of a study."""

    study: str
    setting: str
    """The traits that are equal in all fields, as text."""
    kl: str
    axis: str
    """The second setting, as a trait: `async`, `optimizer.learning_rate`."""
    xs: tuple[str, ...]
    betas: tuple[float | None, ...]
    """The betas, ascending. The first is None if the map has a row without a KL term."""
    fields: Mapping[tuple[float | None, str], PhaseField]
    """(beta, value of the second setting) -> field."""


def phase_maps(configurations: Sequence[Configuration]) -> list[PhaseMap]:
    """Return a map for each KL term of which beta and one more numeric trait vary."""
    maps = []
    for (study, axis, setting), group in _grids(configurations).items():
        xs = tuple(sorted({c.traits[axis] for c in group}, key=float))
        without = [c for c in group if c.beta is None]
        for kl in dict.fromkeys(c.kl for c in group if c.beta is not None):
            own = [c for c in group if c.kl == kl and c.beta is not None]
            betas = tuple(sorted({c.beta for c in own if c.beta is not None}))
            if len(betas) < 2 or len({c.traits[axis] for c in own}) < 2:
                continue
            rows: tuple[float | None, ...] = (None, *betas) if without else betas
            fields = {(c.beta, c.traits[axis]): _field(c) for c in (*without, *own)}
            maps.append(PhaseMap(study, setting, kl, axis, xs, rows, fields))
    return maps


def _grids(
    configurations: Sequence[Configuration],
) -> dict[tuple[str, str, str], list[Configuration]]:
    """Return (study, axis, other traits) -> configurations, for each numeric axis of a study.

    A cell of two studies has the axes of both. So only the axes that all cells of a study have
    count.
    """
    grids: dict[tuple[str, str, str], list[Configuration]] = {}
    for study in dict.fromkeys(c.study for c in configurations):
        own = [c for c in configurations if c.study == study]
        common = [axis for axis in own[0].traits if all(axis in c.traits for c in own)]
        axes = [axis for axis in common if _is_number_axis(own, axis)]
        for c in own:
            for axis in axes:
                rest = ", ".join(c.traits[name] for name in common if name != axis)
                grids.setdefault((study, axis, rest), []).append(c)
    return grids


def _is_number_axis(configurations: Sequence[Configuration], axis: str) -> bool:
    values = {c.traits[axis] for c in configurations}
    return len(values) > 1 and all(map(_is_number, values))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _field(c: Configuration) -> PhaseField:
    counts: dict[RunState, int] = dict.fromkeys(STATES, 0)
    shown_by: dict[str, int] = {}
    for state, shown in filter(None, map(state_of, c.runs)):
        counts[state] += 1
        if shown:
            shown_by[shown] = shown_by.get(shown, 0) + 1
    return PhaseField(counts, len(c.runs), shown_by)


def phase_data(maps: Iterable[PhaseMap]) -> list[dict[str, Any]]:
    """Return maps as plain data, for `orch compare --json` and for figures."""
    return [
        {
            "study": one.study,
            "setting": one.setting,
            "kl": one.kl,
            "axis": one.axis,
            "x": list(one.xs),
            "beta": list(one.betas),
            "fields": [
                [_field_data(one.fields.get((beta, x))) for x in one.xs] for beta in one.betas
            ],
        }
        for one in maps
    ]


def _field_data(field: PhaseField | None) -> dict[str, Any] | None:
    if field is None:
        return None
    return {
        "counts": [field.counts[state] for state in STATES],
        "intervals": [[round(end, 3) for end in field.interval(state)] for state in STATES],
        "declared": field.declared,
        "shown_by": dict(field.shown_by),
    }
