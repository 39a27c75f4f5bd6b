"""Axes as written, read into choices: lists, `product`, `zip`, `values` and `when`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

from orchestrator.errors import did_you_mean
from orchestrator.expand.assign import Assignment, Lookup, Pointer, Problem, read
from orchestrator.fields import FIELDS, text_of, unknown
from orchestrator.select import OF_A_CELL, Term, term
from orchestrator.sentences import shown

MAX_CELLS = 100_000
GRID_KEYS = frozenset({"product", "zip", "values"})


class Choice(NamedTuple):
    """One alternative of an axis: what it assigns, and on what condition it is there."""

    assign: tuple[Assignment, ...]
    when: tuple[Term, ...] = ()


class Alternatives(NamedTuple):
    """The choices of an axis, and how their number comes about: `1 + 2 estimator x 4 beta`."""

    choices: tuple[Choice, ...]
    formula: str


class Axis(NamedTuple):
    name: str
    alternatives: Alternatives

    @property
    def conditional(self) -> bool:
        return any(choice.when for choice in self.alternatives.choices)


class TooLargeError(Exception):
    """An expansion that would not fit."""


@dataclass(frozen=True)
class Reader:
    """Reads axes and conditions of one study; what is wrong goes to `problems`."""

    lookup: Lookup
    problems: list[Problem]

    def axis(self, name: str, items: object, pointer: Pointer) -> Axis | None:
        """One entry of `axes`. None if it cannot be read."""
        before = len(self.problems)
        field = name if name in FIELDS else ""
        if name == "seed":
            self._tell("seeds are an axis of their own: write `seeds: [...]`", pointer)
        elif not field and not _couples(items):
            hint = did_you_mean(name, FIELDS)
            rule = "an axis under a name of its own is a zip, a product or a list of mappings"
            self._tell(f"unknown field '{name}'{hint or f'; {rule}'}", pointer)
        else:
            found = self._alternatives(field, items, pointer)
            if len(self.problems) == before and found is not None:
                return Axis(name, found)
        return None

    def conditions(self, written: object, pointer: Pointer) -> tuple[Term, ...]:
        """`{field: value | [values] | "!value" | ">=number"}`."""
        if not isinstance(written, Mapping) or not written:
            self._tell(f"a condition is a mapping of fields; got {shown(written)}", pointer)
            return ()
        terms = []
        for field, value in written.items():
            try:
                if field in OF_A_CELL:
                    raise ValueError(f"a condition of a spec cannot ask for '{field}'")
                terms.append(_condition(str(field), value))
            except ValueError as error:
                self._tell(str(error), (*pointer, field))
        return tuple(terms)

    def _alternatives(self, field: str, items: object, pointer: Pointer) -> Alternatives | None:
        if isinstance(items, dict):
            if items.keys() & GRID_KEYS:
                return self._grid(field, items, pointer)
            if field and FIELDS[field].section is not None:
                return self._product(field, items, pointer)
        if not isinstance(items, list):
            self._tell(f"an axis is a list of values; got {shown(items)}: write "
                       f"[{text_of(items)}], or put it in `base`", pointer)  # fmt: skip
            return None
        if not items:
            self._tell("an axis needs at least one value; it is empty", pointer)
            return None
        parts = [self._item(field, item, (*pointer, i)) for i, item in enumerate(items)]
        self._tell_twins(items, pointer)
        choices = tuple(choice for part in parts if part for choice in part.choices)
        single = sum(1 for part in parts if part and not part.formula)
        sums = [str(single)] if single else []
        sums += [part.formula for part in parts if part and part.formula]
        return Alternatives(choices, " + ".join(sums))

    def _item(self, field: str, item: object, pointer: Pointer) -> Alternatives | None:
        """One element of a list: a value, or a sub-grid."""
        if isinstance(item, dict):
            if item.keys() & GRID_KEYS:
                return self._grid(field, item, pointer)
            if "when" in item:
                value = {key: part for key, part in item.items() if key != "when"}
                when = self.conditions(item["when"], (*pointer, "when"))
                return Alternatives((Choice(self._read(field, value, pointer), when),), "")
        if isinstance(item, list):
            self._tell(f"a list in a list; got {shown(item)}: write its values one by one, or "
                       "a zip", pointer)  # fmt: skip
            return None
        return Alternatives((Choice(self._read(field, item, pointer)),), "")

    def _grid(self, field: str, grid: dict[str, Any], pointer: Pointer) -> Alternatives | None:
        kinds = grid.keys() & GRID_KEYS
        for extra in grid.keys() - GRID_KEYS - {"when"}:
            hint = did_you_mean(str(extra), [*GRID_KEYS, "when"])
            self._tell(f"'{extra}' beside {min(kinds)}{hint or ': only `when` can stand there'}",
                       (*pointer, extra))  # fmt: skip
        if len(kinds) > 1:
            self._tell(f"{' and '.join(sorted(kinds))} exclude each other; nest them", pointer)
            return None
        (kind,) = kinds
        body, at = grid[kind], (*pointer, kind)
        if kind == "values":
            found = self._alternatives(field, body, at)
        elif not isinstance(body, dict) or not body:
            self._tell(f"{kind} holds axes (a mapping of lists); got {shown(body)}", at)
            return None
        else:
            found = (self._product if kind == "product" else self._zip)(field, body, at)
        if found is None or "when" not in grid:
            return found
        when = self.conditions(grid["when"], (*pointer, "when"))
        return Alternatives(
            tuple(Choice(c.assign, c.when + when) for c in found.choices), found.formula
        )

    def _below(self, field: str, body: dict[str, Any], pointer: Pointer) -> list[Axis] | None:
        """The axes inside a product or a zip, named within the axis' own section or in full."""
        axes = []
        for name, items in body.items():
            relative = f"{field}.{name}" if field else str(name)
            full = str(name) if relative not in FIELDS and name in FIELDS else relative
            if full not in FIELDS and field:
                self._tell(unknown(str(name), field), (*pointer, name))
            else:
                axes.append(self.axis(full, items, (*pointer, name)))
        whole = [axis for axis in axes if axis is not None]
        return whole if len(whole) == len(body) else None

    def _product(self, field: str, body: dict[str, Any], pointer: Pointer) -> Alternatives | None:
        axes = self._below(field, body, pointer)
        if axes is None:
            return None
        if prod(len(axis.alternatives.choices) for axis in axes) > MAX_CELLS:
            raise TooLargeError
        choices = [
            Choice(tuple(a for c in combination for a in c.assign),
                   tuple(w for c in combination for w in c.when))
            for combination in product(*(axis.alternatives.choices for axis in axes))
        ]  # fmt: skip
        return Alternatives(tuple(choices), formula(axes))

    def _zip(self, field: str, body: dict[str, Any], pointer: Pointer) -> Alternatives | None:
        axes = self._below(field, body, pointer)
        if axes is None:
            return None
        lengths = {axis.name: len(axis.alternatives.choices) for axis in axes}
        if len(set(lengths.values())) > 1:
            counted = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            self._tell(f"zip couples lists of one length; {counted}", pointer)
            return None
        choices = [
            Choice(tuple(a for c in row for a in c.assign), tuple(w for c in row for w in c.when))
            for row in zip(*(axis.alternatives.choices for axis in axes), strict=True)
        ]
        return Alternatives(tuple(choices), f"{len(choices)} zipped")

    def _read(self, field: str, value: object, pointer: Pointer) -> tuple[Assignment, ...]:
        return tuple(read(field, value, pointer, self.lookup, self.problems))

    def _tell_twins(self, items: Sequence[object], pointer: Pointer) -> None:
        seen: list[object] = []
        for i, item in enumerate(items):
            if item in seen:
                self._tell(f"{shown(item)} is in this axis twice", (*pointer, i))
            seen.append(item)

    def _tell(self, message: str, pointer: Pointer) -> None:
        self.problems.append(Problem(message, pointer))


def formula(axes: Sequence[Axis]) -> str:
    """`2 model x (1 + 2 estimator x 4 beta) kl`; axes of one value go without saying."""
    parts = []
    for axis in axes:
        inner = axis.alternatives.formula
        if inner != "1":
            inner = inner if inner.replace(" zipped", "").isdigit() else f"({inner})"
            parts.append(f"{inner} {axis.name.rpartition('.')[2]}")
    return " x ".join(parts) or "1"


def _couples(items: object) -> bool:
    """Whether these can be alternatives of an axis that is no field itself."""
    if isinstance(items, dict):
        return bool(items.keys() & GRID_KEYS)
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def _condition(field: str, value: object) -> Term:
    if isinstance(value, list):
        return term(field, "=", [text_of(item) for item in value] or [""])
    if isinstance(value, Mapping):
        raise ValueError(f"{field} is compared with a value or a list; got {shown(dict(value))}")
    text = text_of(value)
    for op in (">=", "<=", "!=", ">", "<", "!"):
        if isinstance(value, str) and text.startswith(op):
            return term(field, "!=" if op == "!" else op, [text.removeprefix(op)])
    return term(field, "=", [text])
