"""The rows of a study's grid: one choice from each axis, before seeds and before validation.

Axes without conditions are multiplied in the order written. Then each conditional axis, in the
order written, adds the alternatives whose conditions hold for what is assigned so far; where none
holds, the axis is not there and the base keeps its value.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from orchestrator.expand.assign import Pointer, Problem, flat, leaf_in, read
from orchestrator.expand.axes import (
    MAX_CELLS,
    Axis,
    Choice,
    Reader,
    TooLargeError,
    formula,
)
from orchestrator.fields import WHOLE, label_of
from orchestrator.select import Term
from orchestrator.types import Study

Row = tuple[Choice, ...]


class Rows(NamedTuple):
    """The rows left after exclusions, those included by hand, and how their number comes about."""

    product: tuple[Row, ...]
    included: tuple[tuple[Row, tuple[int, ...] | None], ...]
    """With the seeds of their own, where they name one."""
    formula: str
    axes: tuple[Axis, ...]
    broken: bool = False
    """Something could not be read: there are no rows, and `axes` has those that could."""


def rows(study: Study, reader: Reader, *, strict: bool) -> Rows:
    """Reads and multiplies the axes of a study; broken, with problems told, if it cannot.

    `strict`: an exclusion or a condition that never holds is a fault. It is not once overrides
    have narrowed the grid.
    """
    at: Pointer = ("studies", study.name)
    before = len(reader.problems)
    axes = _axes(study, reader, at)
    excluded = [
        (reader.conditions(written, (*at, "exclude", i)), (*at, "exclude", i))
        for i, written in enumerate(study.exclude)
    ]
    included = tuple(
        _included(written, (*at, "include", i), reader) for i, written in enumerate(study.include)
    )
    if len(reader.problems) > before:
        return Rows((), (), "", tuple(axes), broken=True)
    if prod(len(a.alternatives.choices) for a in axes) * len(study.seeds) > MAX_CELLS:
        raise TooLargeError
    base = dict(_leaves(study.base))
    found = list(_multiplied(axes, base, reader, at))
    kept, dropped = _without(found, base, [terms for terms, _ in excluded])
    if strict:
        _tell_idle(excluded, dropped, axes, found, reader, at)
    text = _told(axes, len(found) - len(kept), len(included), len(kept), study.seeds)
    return Rows(tuple(kept), included, text, tuple(axes))


def _axes(study: Study, reader: Reader, at: Pointer) -> list[Axis]:
    axes = []
    for name, items in study.axes.items():
        axis = reader.axis(name, items, (*at, "axes", name))
        if axis is not None:
            axes.append(axis)
    free = [(axis, _fields(axis)) for axis in axes if not axis.conditional]
    for i, (one, ones) in enumerate(free):
        for other, others in free[:i]:
            for field in sorted(f for f in ones if any(_clash(f, g) for g in others)):
                reader.problems.append(
                    Problem(f"the axes '{other.name}' and '{one.name}' both set {field}",
                            (*at, "axes", one.name))
                )  # fmt: skip
    return axes


def _fields(axis: Axis) -> set[str]:
    return {a.field for choice in axis.alternatives.choices for a in choice.assign}


def _clash(one: str, other: str) -> bool:
    if one in WHOLE or other in WHOLE:
        return one == other
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _multiplied(
    axes: Sequence[Axis], base: dict[str, object], reader: Reader, at: Pointer
) -> Iterator[Row]:
    free = [axis.alternatives.choices for axis in axes if not axis.conditional]
    bound = [axis for axis in axes if axis.conditional]
    leaves = {
        id(choice): flat(choice.assign) for axis in axes for choice in axis.alternatives.choices
    }
    clashes: set[str] = set()

    def extended(row: Row, rest: Sequence[Axis], known: dict[str, object]) -> Iterator[Row]:
        if not rest:
            yield row
            return
        axis, left = rest[0], rest[1:]
        there = [c for c in axis.alternatives.choices if _holds(c.when, known)]
        if not there:
            yield from extended(row, left, known)
        for choice in there:
            news = leaves[id(choice)]
            clashes.update(
                f"{field} is set by '{axis.name}' and by another axis for the same cells"
                for earlier in row
                for field in news.keys() & leaves[id(earlier)].keys()
            )
            yield from extended((*row, choice), left, known | news)

    for combination in product(*free):
        if not bound:
            yield combination
            continue
        known = dict(base)
        for choice in combination:
            known |= leaves[id(choice)]
        yield from extended(combination, bound, known)
    reader.problems.extend(Problem(message, (*at, "axes")) for message in sorted(clashes))


def _holds(terms: Sequence[Term], leaves: Mapping[str, object]) -> bool:
    leaf = leaf_in(leaves)
    return all(term.holds((label_of(term.field, leaf),)) for term in terms)


def _without(
    found: list[Row], base: dict[str, object], exclusions: list[tuple[Term, ...]]
) -> tuple[list[Row], set[int]]:
    """The rows that no exclusion names, and which exclusions named one."""
    if not exclusions:
        return found, set()
    kept, used = [], set()
    for row in found:
        known = dict(base)
        for choice in row:
            known |= flat(choice.assign)
        hits = {i for i, terms in enumerate(exclusions) if _holds(terms, known)}
        used |= hits
        if not hits:
            kept.append(row)
    return kept, used


def _tell_idle(
    excluded: list[tuple[tuple[Term, ...], Pointer]], dropped: set[int], axes: Sequence[Axis],
    found: list[Row], reader: Reader, at: Pointer,
) -> None:  # fmt: skip
    """A condition that never holds is most likely a slip, and would cost GPU-hours."""
    for i, (_, pointer) in enumerate(excluded):
        if i not in dropped:
            reader.problems.append(Problem("this exclusion matches no cell", pointer))
    used = {id(choice) for row in found for choice in row}
    for axis in axes:
        if axis.conditional and not any(id(c) in used for c in axis.alternatives.choices):
            reader.problems.append(
                Problem(f"the conditions of '{axis.name}' hold for no cell",
                        (*at, "axes", axis.name))
            )  # fmt: skip


def _included(
    written: Mapping[str, Any], pointer: Pointer, reader: Reader
) -> tuple[Row, tuple[int, ...] | None]:
    settings = {key: value for key, value in written.items() if key != "seed"}
    assigned = tuple(read("", settings, pointer, reader.lookup, reader.problems))
    if not written:
        reader.problems.append(Problem("an included cell names at least one field", pointer))
    if "seed" not in written:
        return (Choice(assigned),), None
    seed = written["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        reader.problems.append(
            Problem(f"seed must be a whole number >= 0, got {seed!r}", (*pointer, "seed"))
        )
        return (), None
    return (Choice(assigned),), (seed,)


def _leaves(base: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in base.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _told(
    axes: Sequence[Axis], excluded: int, included: int, left: int, seeds: Sequence[int]
) -> str:
    """`2 model x (1 + 2 estimator x 4 beta) kl x 3 seeds = 54`."""
    parts = [formula([a for a in axes if not a.conditional])]
    parts += [f"up to {len(a.alternatives.choices)} {a.name}" for a in axes if a.conditional]
    text = " x ".join(part for part in parts if part != "1") or "1"
    text += f" - {excluded} excluded" if excluded else ""
    text += f" + {included} included" if included else ""
    count = left + included
    plain = not excluded and not included and not any(a.conditional for a in axes)
    if not plain:
        text += f" = {count}"
    return f"{text} x {len(seeds)} seed{'s' if len(seeds) != 1 else ''}"
