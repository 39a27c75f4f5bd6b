"""What a gap between two libraries is made of: their differing semantics, switched on one by one.

From library A towards B: each cause is trained alone, on A's dialect with that one cause as B has
it, on A's seeds and random numbers. What the causes do alone need not add up to what they do
together; the rest is told as such. Steps are ordinary cells of the embedded trainer, whose ids name
the partial dialect.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator import plugins
from orchestrator.analysis.libraries import (
    FinalValue,
    LibraryCell,
    LibraryQuestion,
    differing_causes,
    relevant_dialect,
)
from orchestrator.analysis.stats import Estimate, estimate
from orchestrator.errors import UnsupportedSetting
from orchestrator.kl.differences import DIFFERENCES, with_difference
from orchestrator.kl.library_semantics import Dialect, relevant
from orchestrator.records import Cell
from orchestrator.spec.rehearse import semantics


@dataclass(frozen=True)
class AblationStep:
    """One seed of A with one cause as B has it."""

    question: str
    cause: str
    title: str
    seed: int
    cell: Cell


@dataclass(frozen=True)
class Ablation:
    """The steps between two libraries, and the ends."""

    left: str
    right: str
    steps: tuple[AblationStep, ...]
    ends: tuple[tuple[str, int, Cell, Cell], ...]
    """Question, seed, A's cell, B's cell; both at micro scale."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell once."""
        every = [step.cell for step in self.steps]
        every += [cell for _, _, left, right in self.ends for cell in (left, right)]
        return tuple({cell.id: cell for cell in every}.values())


def plan_ablation(found: Iterable[LibraryQuestion], left: str, right: str) -> Ablation:
    """The cells that tell what makes the gap between two libraries."""
    steps: list[AblationStep] = []
    ends: list[tuple[str, int, Cell, Cell]] = []
    for question in found:
        if left not in question.asked or right not in question.asked:
            continue
        one, other = question.asked[left], question.asked[right]
        for seed in sorted(one.keys() & other.keys()):
            a, b = (_dialect_of(x) for x in (one[seed], other[seed]))
            name = f"{left} to {right}"
            ends.append(
                (
                    question.name,
                    seed,
                    rehearsed_in(one[seed].cell, a, f"{left}"),
                    rehearsed_in(other[seed].cell, b, f"{right}"),
                )
            )
            for cause, taken in _single_causes(one[seed], other[seed]):
                cell = rehearsed_in(one[seed].cell, taken, f"{name}, {cause}")
                steps.append(
                    AblationStep(question.name, cause, DIFFERENCES[cause].title, seed, cell)
                )
    return Ablation(left, right, tuple(steps), tuple(ends))


def _single_causes(one: LibraryCell, other: LibraryCell) -> Iterator[tuple[str, Dialect]]:
    """Every cause that changes a cell of A when it alone is taken from B, with A's dialect then.
    One that matters only beside another (a bound of a ratio that is 1 in A) is part of the rest."""
    a, b = _dialect_of(one), _dialect_of(other)
    for cause in differing_causes(one, other):
        taken = with_difference(a, cause, b)
        if relevant(taken, one.cell.settings) != relevant_dialect(one):
            yield cause, taken


def _dialect_of(asked: LibraryCell) -> Dialect:
    return semantics(asked.cell.settings.backend).dialect


def rehearsed_in(cell: Cell, dialect: Dialect, what: str) -> Cell:
    """The rehearsal of a declared cell in a dialect, named for what it is there for."""
    small = plugins.load("micro").rehearse(cell, dialect)
    if small is None:
        raise UnsupportedSetting(
            "micro", "backend.name", cell.settings.backend.name, ("any",), "It rehearses any cell."
        )
    words = what.replace(" ", "-").replace(",", "").replace("@", "-")
    seed = f"-s{cell.settings.seed}"
    return small.model_copy(
        update={
            "slug": f"{cell.slug.removesuffix(seed)[:70]}-{words}{seed}",
            "studies": ("ablation",),
            "axes": {**small.axes, "backend": what},
        }
    )


@dataclass(frozen=True)
class CauseEffect:
    """What one cause does alone. `part` is of the gap's mean; None where the gap has no sign."""

    question: str
    cause: str
    title: str
    effect: Estimate
    part: float | None


@dataclass(frozen=True)
class DifferenceExplanation:
    """A gap on one question, and what its causes do alone."""

    question: str
    gap: Estimate
    shares: tuple[CauseEffect, ...]
    rest: Estimate
    """Gap less all causes alone: what they do together only."""

    @property
    def is_told_apart(self) -> bool:
        """Whether the gap's interval excludes 0, so that parts of it mean something."""
        low, high = self.gap.low, self.gap.high
        return low is not None and high is not None and (low > 0 or high < 0)


def explain_differences(made: Ablation, value: FinalValue) -> list[DifferenceExplanation]:
    """Per question: the gap, each cause's effect and part of it, and the rest. A question with one
    seed or more missing anywhere is explained over the seeds that are left."""
    found = []
    for name in dict.fromkeys(question for question, _, _, _ in made.ends):
        ends = {
            seed: (value(a.id), value(b.id))
            for question, seed, a, b in made.ends
            if question == name
        }
        known = {s: (a, b) for s, (a, b) in ends.items() if a is not None and b is not None}
        causes = {s.cause: s.title for s in made.steps if s.question == name}
        at = {
            (s.cause, s.seed): v
            for s in made.steps
            if s.question == name and (v := value(s.cell.id)) is not None
        }
        seeds = [s for s in known if all((cause, s) in at for cause in causes)]
        if seeds and causes:
            found.append(_explanation(name, {s: known[s] for s in seeds}, causes, at))
    return found


def _explanation(
    name: str,
    ends: dict[int, tuple[float, float]],
    causes: Mapping[str, str],
    at: dict[tuple[str, int], float],
) -> DifferenceExplanation:
    gap = estimate(b - a for a, b in ends.values())
    alone = {cause: {s: at[cause, s] - ends[s][0] for s in ends} for cause in causes}
    rest = estimate(
        ends[s][1] - ends[s][0] - sum(by_seed[s] for by_seed in alone.values()) for s in ends
    )
    shares = []
    for cause, by_seed in alone.items():
        effect = estimate(by_seed.values())
        part = effect.mean / gap.mean if gap.mean else None
        shares.append(CauseEffect(name, cause, causes[cause], effect, part))
    return DifferenceExplanation(name, gap, tuple(shares), rest)
