"""The same cells in several libraries: who was asked what, and their curves at equal progress.

A *question* is a cell without its library and its seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestrator.compare.runs import Run
from orchestrator.errors import SelectionError
from orchestrator.fingerprint import digest, drift, identity
from orchestrator.settings import BackendRef, Settings
from orchestrator.types import Cell


@dataclass(frozen=True)
class Asked:
    """One declared cell, and the id under which it is trained at a scale."""

    cell: Cell
    """As declared."""
    id: str

    @property
    def library(self) -> str:
        return label(self.cell.settings.backend)

    @property
    def seed(self) -> int:
        return self.cell.settings.seed

    @property
    def question(self) -> str:
        return question_of(self.cell.settings)


def label(backend: BackendRef) -> str:
    """`verl@0.9.1`."""
    return f"{backend.name}@{backend.version}" if backend.version else backend.name


def question_of(settings: Settings) -> str:
    """What is the same for all libraries and seeds, as a digest."""
    return digest(_question(settings))


def _question(settings: Settings) -> dict[str, object]:
    plain = identity(settings)
    return {name: value for name, value in plain.items() if name not in ("backend", "seed")}


@dataclass(frozen=True)
class Question:
    """A cell as every library was asked it: library -> seed -> what was asked."""

    name: str
    asked: Mapping[str, Mapping[int, Asked]]

    def one(self, library: str) -> Asked:
        """Any seed of a library."""
        return next(iter(self.asked[library].values()))


def questions(asked: Sequence[Asked]) -> list[Question]:
    """Every question asked of two libraries or more, in order.

    Raises SelectionError if there is none, saying what the nearest cells differ in.
    """
    libraries = list(dict.fromkeys(each.library for each in asked))
    if len(libraries) < 2:
        raise SelectionError(
            f"all these cells are of {libraries[0] if libraries else 'no library'}: name two "
            "libraries or more on the axis `backend`"
        )
    grouped: dict[str, dict[str, dict[int, Asked]]] = {}
    for each in asked:
        grouped.setdefault(each.question, {}).setdefault(each.library, {})[each.seed] = each
    shared = {key: found for key, found in grouped.items() if len(found) > 1}
    if not shared:
        raise SelectionError(_not_the_same(asked, libraries))
    names = _names([next(iter(next(iter(f.values())).values())).cell for f in shared.values()])
    return [Question(name, found) for name, found in zip(names, shared.values(), strict=True)]


def _not_the_same(asked: Sequence[Asked], libraries: Sequence[str]) -> str:
    one = next(e for e in asked if e.library == libraries[0])
    others = [e for e in asked if e.library != one.library]
    gaps = [drift(_question(one.cell.settings), _question(e.cell.settings)) for e in others]
    at = min(range(len(gaps)), key=lambda i: len(gaps[i]))
    said = ", ".join(f"{field} ({a} and {b})" for field, (a, b) in list(gaps[at].items())[:6])
    return (
        f"no cell is asked of two libraries: {one.cell.slug} and its nearest, "
        f"{others[at].cell.slug}, differ in {said}. Cells compare where all but the library is "
        "equal: make `backend` an axis of one study, or give both the same recipe"
    )


def _names(cells: Sequence[Cell]) -> list[str]:
    """`k1.reward β=0.05`, with whatever else tells these cells apart."""
    shown = ("kl", "beta", "backend", "seed", "backend.version")
    axes = [{k: v for k, v in cell.axes.items() if k not in shown} for cell in cells]
    differ = [k for k in axes[0] if len({a.get(k) for a in axes}) > 1] if axes else []
    studies = len({cell.studies for cell in cells}) > 1
    named = []
    for cell in cells:
        kl = cell.settings.kl
        words = [kl.label if kl.placement is None else f"{kl.label} β={kl.beta:g}"]
        words += [f"{k}={cell.axes[k]}" for k in differ if k in cell.axes]
        words += [",".join(cell.studies)] if studies else []
        named.append(" ".join(words))
    twice = {name for name in named if named.count(name) > 1}
    return [f"{n} ({c.id})" if n in twice else n for n, c in zip(named, cells, strict=True)]


def curve_at(
    runs: Mapping[str, Run], question: Question, metric: str, points: int = 6
) -> tuple[tuple[int, ...], dict[str, tuple[float, ...]]]:
    """Samples, and per library the mean over its seeds, at progress that every run has reached.

    Progress is counted in rollouts seen, which for equal batches is equal train steps.
    """
    series: dict[str, list[Mapping[int, float]]] = {}
    for library, asked in question.asked.items():
        for each in asked.values():
            run = runs.get(each.id)
            if run is not None and metric in run.series:
                per = rollouts_per_step(run.record.cell.settings)
                series.setdefault(library, []).append(
                    {step * per: v for step, v in run.series[metric].items()}
                )
    every = [set(points_) for rows in series.values() for points_ in rows]
    common = sorted(set.intersection(*every)) if every else []
    last = len(common) - 1
    at = (
        tuple(dict.fromkeys(common[round(i * last / (points - 1))] for i in range(points)))
        if (common)
        else ()
    )
    return at, {
        library: tuple(fmean(row[x] for row in rows) for x in at)
        for library, rows in series.items()
    }


def rollouts_per_step(settings: Settings) -> int:
    """Rollouts of a train step."""
    return (
        settings.batch.num_prompts * settings.rollout.group_size // settings.batch.num_minibatches
    )
