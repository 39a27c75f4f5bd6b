"""Ablation of a difference between libraries A and B: change one cause at a time, from A towards B.

Each step trains A's cell in A's dialect with one cause changed to B's value, on A's seeds and
random numbers. The effects of single causes need not sum to the effect of all; the report gives the
rest. Steps are ordinary cells of the embedded trainer. Their ids include the partial dialect.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from orchestrator import plugins
from orchestrator.analysis.libraries import (
    FinalValue,
    LibraryCell,
    LibraryQuestion,
    differing_causes,
    final_values_by_cell,
    relevant_dialect,
)
from orchestrator.analysis.runs import measure
from orchestrator.analysis.stats import Estimate, estimate
from orchestrator.errors import EnvironmentFault, UnsupportedSetting
from orchestrator.files import write_text
from orchestrator.kl.library_semantics import DIFFERENCES, Dialect, relevant, with_difference
from orchestrator.launch import LaunchEvent
from orchestrator.launch.local import launch
from orchestrator.records import Cell, Record, Spec
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.spec.rehearse import semantics

EXACT = "eval/accuracy_in_domain"
"""The default metric of an ablation. It is exact and measured during training."""
Display = Callable[[Sequence[Cell], int], AbstractContextManager[Callable[[LaunchEvent], None]]]
"""(cells to train, number of all cells) -> a context that shows their progress."""


class AblationEnds(NamedTuple):
    """The two cells of one question and seed, both at micro scale."""

    question: str
    seed: int
    left: Cell
    right: Cell


@dataclass(frozen=True)
class AblationStep:
    """A cell of A for one seed, with one cause changed to B's value."""

    question: str
    cause: str
    title: str
    seed: int
    cell: Cell


@dataclass(frozen=True)
class Ablation:
    """The steps between two libraries, and the cells at both ends."""

    left: str
    right: str
    steps: tuple[AblationStep, ...]
    ends: tuple[AblationEnds, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return every cell once."""
        cells = [step.cell for step in self.steps]
        cells += [cell for ends in self.ends for cell in (ends.left, ends.right)]
        return tuple({cell.id: cell for cell in cells}.values())


@dataclass(frozen=True)
class CauseEffect:
    """The effect of one cause alone."""

    question: str
    cause: str
    title: str
    effect: Estimate
    part: float | None
    """The effect's share of the whole difference; None if the difference is 0."""


@dataclass(frozen=True)
class DifferenceExplanation:
    """A difference on one question, and the effect of each cause alone."""

    question: str
    difference: Estimate
    effects: tuple[CauseEffect, ...]
    rest: Estimate
    """The difference minus the effects of all single causes: their joint effect."""


def plan_ablation(questions: Iterable[LibraryQuestion], left: str, right: str) -> Ablation:
    """Return the cells that divide the difference between two libraries into its causes."""
    steps: list[AblationStep] = []
    ends: list[AblationEnds] = []
    for question in questions:
        if left not in question.cells or right not in question.cells:
            continue
        lefts, rights = question.cells[left], question.cells[right]
        for seed in sorted(lefts.keys() & rights.keys()):
            one, other = lefts[seed], rights[seed]
            first = rehearsed_in(one.cell, _dialect_of(one), left)
            last = rehearsed_in(other.cell, _dialect_of(other), right)
            ends.append(AblationEnds(question.name, seed, first, last))
            for cause, dialect in _single_causes(one, other):
                cell = rehearsed_in(one.cell, dialect, f"{left} to {right}, {cause}")
                title = DIFFERENCES[cause].title
                steps.append(AblationStep(question.name, cause, title, seed, cell))
    return Ablation(left, right, tuple(steps), tuple(ends))


def rehearsed_in(cell: Cell, dialect: Dialect, role: str) -> Cell:
    """Return the rehearsal of a declared cell in a dialect, named for its role in an ablation."""
    trainer = plugins.load_embedded("micro")
    small = trainer.rehearse(cell, dialect) if trainer else None
    if small is None:
        raise UnsupportedSetting(
            "micro", "backend.name", cell.settings.backend.name, ("any",), "It rehearses any cell."
        )
    suffix = role.replace(" ", "-").replace(",", "").replace("@", "-")
    seed = f"-s{cell.settings.seed}"
    return small.model_copy(
        update={
            "slug": f"{cell.slug.removesuffix(seed)[:70]}-{suffix}{seed}",
            "studies": ("ablation",),
            "axes": {**small.axes, "backend": role},
        }
    )


def train_missing(
    spec: Spec, ablations: Sequence[Ablation], metric: str, display: Display
) -> tuple[int, FinalValue]:
    """Train the cells of ablations that have no result yet, in a separate folder.

    Use the experiment's own micro-scale results if it has them. Return the number of failed cells,
    and the final values of a metric. Raise EnvironmentFault if training was interrupted.
    """
    cells = tuple({cell.id: cell for each in ablations for cell in each.cells}.values())
    main = RunFolder.of(spec.site.runs_dir, spec.name, "micro")
    own = RunFolder.of(spec.site.runs_dir, f"{spec.name[:54]}-ablation", "micro")
    finished = _finished(cells, main)
    rest = tuple(cell for cell in cells if cell.id not in finished)
    failed = 0
    if rest:
        pending = [cell for cell in rest if cell.id not in _finished(rest, own)]
        own.open()
        named = spec.model_copy(update={"name": own.experiment.removesuffix(".micro")})
        write_text(own.spec, named.model_dump_json(indent=1) + "\n")
        if pending:
            with display(pending, len(cells)) as show:
                done = launch(rest, own, workers=spec.site.workers, on_event=show)
            if done.interrupted:
                raise EnvironmentFault("stopped; nothing is lost. Go on with the same command.")
            failed = done.count("failed", "unknown")
    records = [*finished.values(), *(r for r in collect(rest, own) if r.state == "succeeded")]
    return failed, final_values_by_cell(measure(records, []), metric)


def trained_data(
    spec: Spec, ablations: Sequence[Ablation], metric: str, display: Display
) -> tuple[int, list[dict[str, Any]]]:
    """Train what is missing. Return the number of failed cells, and each ablation as plain data."""
    failed, value = train_missing(spec, ablations, metric, display)
    return failed, [ablation_data(one, metric, value) for one in ablations]


def explain_differences(ablation: Ablation, value: FinalValue) -> list[DifferenceExplanation]:
    """Return the difference, the effect of each cause and the rest, for each question.

    Use the seeds for which all cells of the question have a value. Leave out a question without
    such a seed.
    """
    explanations = []
    for name in dict.fromkeys(ends.question for ends in ablation.ends):
        pairs = {
            ends.seed: (value(ends.left.id), value(ends.right.id))
            for ends in ablation.ends
            if ends.question == name
        }
        ends = {s: (a, b) for s, (a, b) in pairs.items() if a is not None and b is not None}
        titles = {s.cause: s.title for s in ablation.steps if s.question == name}
        values = {
            (s.cause, s.seed): v
            for s in ablation.steps
            if s.question == name and (v := value(s.cell.id)) is not None
        }
        seeds = [s for s in ends if all((cause, s) in values for cause in titles)]
        if seeds and titles:
            explanations.append(_explanation(name, {s: ends[s] for s in seeds}, titles, values))
    return explanations


def ablation_data(ablation: Ablation, metric: str, value: FinalValue) -> dict[str, Any]:
    """Return an ablation as plain data for `orch compare --json`."""
    return {
        "left": ablation.left,
        "right": ablation.right,
        "metric": metric,
        "questions": [
            {
                "question": one.question,
                "gap": asdict(one.difference),
                "rest": asdict(one.rest),
                "told_apart": one.difference.excludes_zero,
                "causes": [
                    {"cause": e.cause, "title": e.title, "effect": asdict(e.effect), "part": e.part}
                    for e in one.effects
                ],
            }
            for one in explain_differences(ablation, value)
        ],
    }


def _single_causes(one: LibraryCell, other: LibraryCell) -> Iterator[tuple[str, Dialect]]:
    """Yield every cause that changes a cell of A by itself, with A's dialect after the change.

    A cause that has an effect only together with another (a bound on a ratio that is 1 in A) is
    left out. It is part of the rest.
    """
    for cause in differing_causes(one, other):
        dialect = with_difference(_dialect_of(one), cause, _dialect_of(other))
        if relevant(dialect, one.cell.settings) != relevant_dialect(one):
            yield cause, dialect


def _dialect_of(cell: LibraryCell) -> Dialect:
    return semantics(cell.cell.settings.backend).dialect


def _explanation(
    name: str,
    ends: Mapping[int, tuple[float, float]],
    titles: Mapping[str, str],
    values: Mapping[tuple[str, int], float],
) -> DifferenceExplanation:
    """Return the explanation of one question. `ends`: seed -> value of A, value of B."""
    difference = estimate(b - a for a, b in ends.values())
    alone = {cause: {s: values[cause, s] - ends[s][0] for s in ends} for cause in titles}
    rest = estimate(
        ends[s][1] - ends[s][0] - sum(by_seed[s] for by_seed in alone.values()) for s in ends
    )
    effects = []
    for cause, by_seed in alone.items():
        effect = estimate(by_seed.values())
        part = effect.mean / difference.mean if difference.mean else None
        effects.append(CauseEffect(name, cause, titles[cause], effect, part))
    return DifferenceExplanation(name, difference, tuple(effects), rest)


def _finished(cells: Sequence[Cell], folder: RunFolder) -> dict[str, Record]:
    if not folder.path.exists():
        return {}
    return {r.cell.id: r for r in collect(cells, folder) if r.state == "succeeded"}
