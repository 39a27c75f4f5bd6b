"""Phase maps: the shares of seeds that are stable, unstable or collapsed, over two settings.

The state of a run is its outcome (orchestrator/metrics/outcome.py). A map
shows one KL term over beta and over one more numeric setting, such as staleness or learning rate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.configurations import Configuration
from orchestrator.kl.shares import wilson
from orchestrator.records import OUTCOMES, RunState

STATES: tuple[RunState, ...] = tuple(OUTCOMES.values())


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

    def trains_up_to(self, beta: float | None) -> str:
        """Return the largest value of the second setting up to which at most half of the seeds
        are unstable or collapsed, and in brackets the values that Wilson's 95 % interval leaves.

        `none`: not even the smallest. A seed whose curve cannot tell does not count.
        """
        found: list[str] = []
        for side in range(3):  # the share as seen, the upper and the lower end of its interval
            last = "none"
            for x in self.xs:
                field = self.fields.get((beta, x))
                known = 0 if field is None else field.ended - field.counts["cannot tell"]
                if field is None or not known:
                    break
                fallen = field.counts["unstable"] + field.counts["collapsed"]
                low, high = wilson(fallen, known)
                if (fallen / known, high, low)[side] > 0.5:
                    break
                last = f"{float(x):g}"
            found.append(last)
        return f"{found[0]} [{found[1]}, {found[2]}]"


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
    for outcome in filter(None, (run.record.outcome for run in c.runs)):
        counts[outcome.word] += 1
        if outcome.cause:
            shown_by[outcome.cause] = shown_by.get(outcome.cause, 0) + 1
    return PhaseField(counts, len(c.runs), shown_by)
