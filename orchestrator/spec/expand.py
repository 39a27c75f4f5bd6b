"""Spec -> Cells. Pure: it reads no file, imports no backend, and works on plain data.

A study is its base (recipe, the spec's base, the study's own) and its axes:

    axes:
      model: [qwen2.5-7b, llama-3.1-8b-instruct]          two values; names of a config group
      kl:                                                  1 + 2 x 2 x 2 alternatives
        - none
        - product: {estimator: [k1, k3], placement: [reward, loss], beta: [0.1, 1.0]}
      task: {zip: {model: [a, b], data: [math, countdown]}}   coupled; any name will do
      loss.clip: [null, {low: 0.2, high: 0.28}]            any dotted field
      batch.num_minibatches: {values: [1, 4], when: {kl: k1.loss}}   elsewhere as in the base
    exclude: [{model: qwen2.5-7b, kl.beta: ">=1"}]         removes rows for which all of it holds
    include: [{kl: k2.loss, kl.beta: 0.1}]                 each entry adds a row, over the base

Axes multiply, in the order written; conditional ones come after the others (see `rows`). Then the
exclusions, the inclusions and the seeds apply. A value that is a mapping changes only the fields
that it names; `model`, `data` and `backend` are replaced whole. `none` also removes the base's
placement and beta. A cell that several studies declare is one cell, and belongs to all of them.

The parts of this file, in order: an assignment (`field = value`, and where it was written), an axis
as choices, the rows of a grid, the settings of a row, the cells of a study.
"""

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from orchestrator import estimators
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.identity import fingerprint_by_seed, flatten
from orchestrator.records import Cell, Spec, Study
from orchestrator.settings import Frozen, Kl, Placement, Resources, Settings
from orchestrator.spec.fields import DEFAULTS, FIELDS, LABELS, WHOLE, label_of, text_of, unknown
from orchestrator.spec.node_gpus import laid_out
from orchestrator.spec.select import OF_A_CELL, FilterTerm, leaf_of, term
from orchestrator.spec.sentences import sentence, shown

Pointer = tuple[str | int, ...]
"""The place of a value in the spec: keys and indices from its root. A first key `@model` stands for
the config group entry that the second key names."""

Lookup = Callable[[str, str], Mapping[str, Any]]
"""(group, entry) -> its plain data. Raises LookupError with a sentence."""

PLACEMENTS = {**{word: word for word in get_args(Placement)}, "both": "reward_and_loss"}


class Assignment(NamedTuple):
    """An assignment of a value to a leaf or to a whole section."""

    field: str
    value: Any
    pointer: Pointer

    @property
    def section(self) -> str:
        """Return the top-level field that the assignment changes."""
        return self.field.partition(".")[0]


class SpecProblem(NamedTuple):
    """A fault, before the file and line of its pointer are known."""

    message: str
    pointer: Pointer
    study: str = ""
    """The study whose cells have the fault; empty if the pointer or the sentence names it."""


class UnreadableValueError(Exception):
    """Raised for a value that cannot be read. It carries the sentence."""


def read(
    field: str, value: object, pointer: Pointer, lookup: Lookup, problems: list[SpecProblem]
) -> Iterator[Assignment]:
    """Yield the assignments of `field: value`. With an empty `field`, the value is a mapping of
    fields."""
    try:
        yield from _read(field, value, pointer, lookup, problems)
    except UnreadableValueError as error:
        problems.append(SpecProblem(str(error), pointer))


def _read(
    field: str, value: object, pointer: Pointer, lookup: Lookup, problems: list[SpecProblem]
) -> Iterator[Assignment]:
    if field == "seed":
        raise UnreadableValueError("seeds are an axis of their own: write `seeds: [...]`")
    if field == "system" and pointer[-2:-1] == ("base",):
        raise UnreadableValueError(
            "`system` has a place of its own: write it beside `base`, not in it"
        )
    if field and field not in FIELDS:
        parent = field.rpartition(".")[0]
        known = parent in FIELDS and FIELDS[parent].section is not None
        raise UnreadableValueError(
            unknown(field[len(parent) + 1 :], parent) if known else unknown(field)
        )
    if field in WHOLE:
        yield _whole(field, value, pointer, lookup)
    elif field == "kl" and isinstance(value, str):
        yield from _kl(value, pointer)
    elif isinstance(value, Mapping):
        if field and FIELDS[field].section is None:
            raise UnreadableValueError(
                f"{field} is one value, not a mapping; got {shown(dict(value))}"
            )
        for key, item in value.items():
            child = f"{field}.{key}" if field else str(key)
            yield from read(child, item, (*pointer, key), lookup, problems)
    elif not field or (
        FIELDS[field].section is not None and not (value is None and FIELDS[field].nullable)
    ):
        raise UnreadableValueError(f"{field or 'this'} is a mapping of fields; got {shown(value)}")
    else:
        yield Assignment(field, value, pointer)


def _whole(field: str, value: object, pointer: Pointer, lookup: Lookup) -> Assignment:
    """Read a model, data set or backend: the name of an entry, `name@version`, or the content."""
    if not isinstance(value, str | Mapping):
        raise UnreadableValueError(f"{field} is a name or a mapping; got {shown(value)}")
    try:
        if isinstance(value, str) and field != "backend":
            return Assignment(field, {"name": value, **lookup(field, value)}, (f"@{field}", value))
        if isinstance(value, str):
            value = {"name": value}
        if field == "backend" and "name" in value:
            name, _, version = str(value["name"]).partition("@")
            if version and value.get("version") not in (None, version):
                raise UnreadableValueError(
                    f"backend has two releases: '{value['name']}' and '{value['version']}'"
                )
            value = {**value, "name": name, **({"version": version} if version else {})}
            lookup(field, f"{name}@{value.get('version') or ''}")
    except LookupError as error:
        raise UnreadableValueError(str(error.args[0])) from None
    return Assignment(field, dict(value), pointer)


def _kl(label: str, pointer: Pointer) -> Iterator[Assignment]:
    """Yield the assignments of a label: `none`, `k1.reward` or `k3.both`.

    Raise UnreadableValueError if it names no estimator or no placement.
    """
    estimator, dot, placement = label.partition(".")
    known = estimators.choices()
    if estimator not in known:
        near = did_you_mean(estimator, known) or f" (there are: {', '.join(known)})"
        raise UnreadableValueError(f"no KL estimator is called '{estimator}'{near}")
    yield Assignment("kl.estimator", estimator, pointer)
    if dot:
        if placement not in PLACEMENTS:
            raise UnreadableValueError(
                f"'{label}' names no placement{did_you_mean(placement, PLACEMENTS)} "
                "(there are: reward, loss, both)"
            )
        yield Assignment("kl.placement", PLACEMENTS[placement], pointer)


def put(tree: dict[str, Any], assignment: Assignment) -> None:
    """Apply an assignment to nested plain data."""
    *parents, leaf = assignment.field.split(".")
    node = tree
    for parent in parents:
        below = node.get(parent)
        if not isinstance(below, dict):
            below = node[parent] = {}
        node = below
    node[leaf] = assignment.value
    if assignment.field == "kl.estimator" and assignment.value == "none":
        # The base has set them for a KL term that does not exist any more.
        node.pop("placement", None)
        node.pop("beta", None)


def flat(assignments: tuple[Assignment, ...]) -> dict[str, object]:
    """Return dotted leaf -> value, for conditions."""
    leaves: dict[str, object] = {}
    for field, value, _ in assignments:
        if isinstance(value, Mapping):
            leaves |= {f"{field}.{key}": item for key, item in value.items()}
        else:
            leaves[field] = value
        if field == "kl.estimator" and value == "none":
            leaves |= {"kl.placement": None, "kl.beta": 0.0}
    return leaves


def json_path(pointer: Pointer) -> str:
    """Return a pointer as a JSON path: `$.studies.onpolicy.axes['kl.beta'][0]`."""
    text = "$"
    for key in pointer:
        plain = isinstance(key, str) and key.replace("_", "a").replace("-", "a").isalnum()
        text += f".{key}" if plain else f"[{key!r}]"
    return text


MAX_CELLS = 100_000
GRID_KEYS = frozenset({"product", "zip", "values"})


class Choice(NamedTuple):
    """One alternative of an axis: its assignments, and the conditions under which it exists."""

    assign: tuple[Assignment, ...]
    when: tuple[FilterTerm, ...] = ()


Choices = tuple[Choice, ...]


class Axis(NamedTuple):
    """An axis of a study's grid."""

    name: str
    choices: Choices

    @property
    def conditional(self) -> bool:
        """Return True if one of its choices depends on another axis."""
        return any(choice.when for choice in self.choices)


class TooLargeError(Exception):
    """Raised for an expansion with too many cells."""


@dataclass(frozen=True)
class Reader:
    """A reader of the axes of one study. It appends faults to `problems`."""

    lookup: Lookup
    problems: list[SpecProblem]

    def axis(self, name: str, items: object, pointer: Pointer) -> Axis | None:
        """Return what can be read of one entry of `axes`, or None if nothing can."""
        field = name if name in FIELDS else ""
        if name.partition(".")[0] == "system":
            self._report(
                f"{name} is no axis, because it changes no result: write it under `system` of the "
                "spec, of a study or of the site",
                pointer,
            )
        elif not field and not _couples(items):
            hint = did_you_mean(name, FIELDS)
            rule = "an axis under a name of its own is a zip, a product or a list of mappings"
            self._report(f"unknown field '{name}'{hint or f'; {rule}'}", pointer)
        else:
            choices = self._choices(field, items, pointer)
            if choices is not None:
                return Axis(name, choices)
        return None

    def _choices(self, field: str, items: object, pointer: Pointer) -> Choices | None:
        if isinstance(items, dict):
            if items.keys() & GRID_KEYS:
                return self._grid(field, items, pointer)
            if field and FIELDS[field].section is not None:
                return self._product(field, items, pointer)
        if not isinstance(items, list):
            self._report(
                f"an axis is a list of values; got {shown(items)}: write "
                f"[{text_of(items)}], or put it in `base`",
                pointer,
            )
            return None
        if not items:
            self._report("an axis needs at least one value; it is empty", pointer)
            return None
        parts = [self._item(field, item, (*pointer, i)) for i, item in enumerate(items)]
        self._report_duplicates(items, pointer)
        return tuple(choice for part in parts if part for choice in part)

    def _item(self, field: str, item: object, pointer: Pointer) -> Choices | None:
        """Return one element of a list: a value, or a sub-grid."""
        if isinstance(item, dict):
            if item.keys() & GRID_KEYS:
                return self._grid(field, item, pointer)
            if "when" in item:
                value = {key: part for key, part in item.items() if key != "when"}
                when = conditions(item["when"], (*pointer, "when"), self.problems)
                return (Choice(self._read(field, value, pointer), when),)
        if isinstance(item, list):
            self._report(
                f"a list in a list; got {shown(item)}: write its values one by one, or a zip",
                pointer,
            )
            return None
        return (Choice(self._read(field, item, pointer)),)

    def _grid(self, field: str, grid: dict[str, Any], pointer: Pointer) -> Choices | None:
        kinds = grid.keys() & GRID_KEYS
        for extra in grid.keys() - GRID_KEYS - {"when"}:
            hint = did_you_mean(str(extra), [*GRID_KEYS, "when"])
            self._report(
                f"'{extra}' beside {min(kinds)}{hint or ': only `when` can stand there'}",
                (*pointer, extra),
            )
        if len(kinds) > 1:
            self._report(f"{' and '.join(sorted(kinds))} exclude each other; nest them", pointer)
            return None
        (kind,) = kinds
        body, at = grid[kind], (*pointer, kind)
        if kind == "values":
            choices = self._choices(field, body, at)
        elif not isinstance(body, dict) or not body:
            self._report(f"{kind} holds axes (a mapping of lists); got {shown(body)}", at)
            return None
        else:
            choices = (self._product if kind == "product" else self._zip)(field, body, at)
        if choices is None or "when" not in grid:
            return choices
        when = conditions(grid["when"], (*pointer, "when"), self.problems)
        return tuple(Choice(c.assign, c.when + when) for c in choices)

    def _below(self, field: str, body: dict[str, Any], pointer: Pointer) -> list[Axis] | None:
        """Return the axes inside a product or a zip. Their names are relative to the section, or
        complete."""
        axes = []
        for name, items in body.items():
            relative = f"{field}.{name}" if field else str(name)
            full = str(name) if relative not in FIELDS and name in FIELDS else relative
            if full not in FIELDS and field:
                self._report(unknown(str(name), field), (*pointer, name))
            else:
                axes.append(self.axis(full, items, (*pointer, name)))
        complete = [axis for axis in axes if axis is not None]
        return complete if len(complete) == len(body) else None

    def _product(self, field: str, body: dict[str, Any], pointer: Pointer) -> Choices | None:
        axes = self._below(field, body, pointer)
        if axes is None:
            return None
        # The product is counted before it is built, so a large one costs neither time nor memory.
        if prod(len(axis.choices) for axis in axes) > MAX_CELLS:
            raise TooLargeError
        return tuple(map(_joined, product(*(axis.choices for axis in axes))))

    def _zip(self, field: str, body: dict[str, Any], pointer: Pointer) -> Choices | None:
        axes = self._below(field, body, pointer)
        if axes is None:
            return None
        lengths = {axis.name: len(axis.choices) for axis in axes}
        if len(set(lengths.values())) > 1:
            counted = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            self._report(f"zip couples lists of one length; {counted}", pointer)
            return None
        return tuple(map(_joined, zip(*(axis.choices for axis in axes), strict=True)))

    def _read(self, field: str, value: object, pointer: Pointer) -> tuple[Assignment, ...]:
        return tuple(read(field, value, pointer, self.lookup, self.problems))

    def _report_duplicates(self, items: Sequence[object], pointer: Pointer) -> None:
        earlier: list[object] = []
        for i, item in enumerate(items):
            if item in earlier:
                self._report(f"{shown(item)} is in this axis twice", (*pointer, i))
            earlier.append(item)

    def _report(self, message: str, pointer: Pointer) -> None:
        self.problems.append(SpecProblem(message, pointer))


def _joined(choices: Sequence[Choice]) -> Choice:
    """Return one choice that makes all assignments of these."""
    return Choice(
        tuple(a for choice in choices for a in choice.assign),
        tuple(w for choice in choices for w in choice.when),
    )


def _couples(items: object) -> bool:
    """Return True if these can be alternatives of an axis whose name is no field."""
    if isinstance(items, dict):
        return bool(items.keys() & GRID_KEYS)
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def conditions(
    written: object, pointer: Pointer, problems: list[SpecProblem]
) -> tuple[FilterTerm, ...]:
    """Read `{field: value | [values] | "!value" | ">=number"}`. Append faults to `problems`."""
    if not isinstance(written, Mapping) or not written:
        message = f"a condition is a mapping of fields; got {shown(written)}"
        problems.append(SpecProblem(message, pointer))
        return ()
    terms = []
    for field, value in written.items():
        try:
            if field in OF_A_CELL:
                raise ValueError(f"a condition of a spec cannot ask for '{field}'")
            terms.append(_condition(str(field), value))
        except ValueError as error:
            problems.append(SpecProblem(str(error), (*pointer, field)))
    return tuple(terms)


def _condition(field: str, value: object) -> FilterTerm:
    if isinstance(value, list):
        return term(field, "=", [text_of(item) for item in value] or [""])
    if isinstance(value, Mapping):
        raise ValueError(f"{field} is compared with a value or a list; got {shown(dict(value))}")
    text = text_of(value)
    for op in (">=", "<=", "!=", ">", "<", "!"):
        if isinstance(value, str) and text.startswith(op):
            return term(field, "!=" if op == "!" else op, [text.removeprefix(op)])
    return term(field, "=", [text])


GridRow = tuple[Choice, ...]


class GridRows(NamedTuple):
    """The rows that exclusions leave, and the included rows."""

    product: tuple[GridRow, ...]
    included: tuple[GridRow, ...]
    axes: tuple[Axis, ...]
    broken: bool = False
    """True if a part could not be read. Then no rows exist, and `axes` has the axes that could be
    read."""


def rows(study: Study, reader: Reader, *, strict: bool) -> GridRows:
    """Read and multiply the axes of a study. If that fails, return broken rows, with the problems.

    First, the axes without conditions are multiplied, in the order written. Then each conditional
    axis, in the order written, multiplies each row by the alternatives whose conditions hold in it.
    If no alternative holds, the row keeps the base's value.

    strict: an exclusion or a condition that never holds is a fault. It is no fault once overrides
    have reduced the grid.
    """
    at: Pointer = ("studies", study.name)
    before = len(reader.problems)
    axes = _axes(study, reader, at)
    excluded = [
        (conditions(written, (*at, "exclude", i), reader.problems), (*at, "exclude", i))
        for i, written in enumerate(study.exclude)
    ]
    included = tuple(
        _included(written, (*at, "include", i), reader) for i, written in enumerate(study.include)
    )
    if len(reader.problems) > before:
        return GridRows((), (), tuple(axes), broken=True)
    if prod(len(a.choices) for a in axes) * len(study.seeds) > MAX_CELLS:
        raise TooLargeError
    base = dict(flatten(study.base))
    grid = _multiplied(axes, base, reader, at)
    known = [_known(base, row) for row in grid] if excluded else []
    dropped: set[int] = set()
    for terms, pointer in excluded:
        hit = {i for i, leaves in enumerate(known) if _holds(terms, leaves)}
        dropped |= hit
        if strict and not hit:  # most are mistakes, which would cost GPU-hours
            reader.problems.append(SpecProblem("this exclusion matches no cell", pointer))
    used = {id(choice) for row in grid for choice in row}
    for axis in axes if strict else ():
        if axis.conditional and not any(id(c) in used for c in axis.choices):
            message = f"the conditions of '{axis.name}' hold for no cell"
            reader.problems.append(SpecProblem(message, (*at, "axes", axis.name)))
    kept = tuple(row for i, row in enumerate(grid) if i not in dropped)
    return GridRows(kept, included, tuple(axes))


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
                    SpecProblem(
                        f"the axes '{other.name}' and '{one.name}' both set {field}",
                        (*at, "axes", one.name),
                    )
                )
    return axes


def _fields(axis: Axis) -> set[str]:
    """Return the fields that some choice of an axis sets."""
    return {a.field for choice in axis.choices for a in choice.assign}


def _clash(one: str, other: str) -> bool:
    """Return True if two fields cannot both be set by axes: one is the other or a part of it.

    A whole section is set before its fields, so it clashes only with itself.
    """
    if one in WHOLE or other in WHOLE:
        return one == other
    return f"{one}.".startswith(f"{other}.") or other.startswith(f"{one}.")


def _multiplied(
    axes: Sequence[Axis], base: Mapping[str, object], reader: Reader, at: Pointer
) -> list[GridRow]:
    grid: list[GridRow] = list(product(*(axis.choices for axis in axes if not axis.conditional)))
    for axis in (axis for axis in axes if axis.conditional):
        wider: list[GridRow] = []
        clashes: set[str] = set()
        for row in grid:
            own = _known({}, row)
            holding = [c for c in axis.choices if _holds(c.when, {**base, **own})]
            clashes |= {field for c in holding for field in flat(c.assign).keys() & own.keys()}
            wider += [(*row, choice) for choice in holding] or [row]
        grid = wider
        reader.problems.extend(
            SpecProblem(
                f"{field} is set by '{axis.name}' and by another axis for the same cells",
                (*at, "axes"),
            )
            for field in sorted(clashes)
        )
    return grid


def _known(base: Mapping[str, object], row: GridRow) -> dict[str, object]:
    """Return dotted leaf -> value of a row over the base."""
    known = dict(base)
    for choice in row:
        known |= flat(choice.assign)
    return known


def _holds(terms: Sequence[FilterTerm], leaves: Mapping[str, object]) -> bool:
    def leaf(name: str) -> object:
        return leaves.get(name, DEFAULTS.get(name))

    return all(term.holds((label_of(term.field, leaf),)) for term in terms)


def _included(written: Mapping[str, Any], pointer: Pointer, reader: Reader) -> GridRow:
    if not written:
        reader.problems.append(SpecProblem("an included cell names at least one field", pointer))
    return (Choice(tuple(read("", written, pointer, reader.lookup, reader.problems))),)


SECTIONS: dict[str, type[Frozen]] = {
    name: field.section
    for name, field in FIELDS.items()
    if field.section is not None and "." not in name
}
OUTSIDE = ("resources", "cadence", "system")
"""Sections of a cell outside the settings."""
SCALARS = tuple(name for name in Settings.model_fields if name not in SECTIONS)


class _Null(Frozen):
    """The content of a section that a cell does not have."""


_NULL = _Null()
MISSING = " is missing: give it in the recipe, in `base` or as an axis"


def _fields_to_give(section: str) -> list[str]:
    """Return the names that a sentence on an absent section lists: its fields without a default, or
    its first field. For a section that is replaced as a whole, return the section."""
    if section in WHOLE:
        return [section]
    fields = SECTIONS[section].model_fields
    needed = [name for name, field in fields.items() if field.is_required()]
    return [f"{section}.{name}" for name in needed or [*fields][:1]]


class Builder:
    """Builds the settings of one study's rows, and reports each fault once.

    Each distinct section is validated once and shared by the cells that have it.
    """

    def __init__(
        self,
        name: str,
        base: Mapping[str, Any],
        origins: Mapping[str, Pointer],
        problems: list[SpecProblem],
        site_options: Mapping[str, object],
    ) -> None:
        self.site_options = site_options
        self.at: Pointer = ("studies", name)
        self.base, self.origins, self.problems = base, origins, problems
        self._sections: dict[tuple[object, ...], Frozen | None] = {}
        self._reported: set[tuple[str, Pointer]] = set()
        self.in_parts = False

    def parts(self, row: GridRow) -> dict[str, Any]:
        """Return validated sections and raw scalars of a row, without the sections that have a
        fault."""
        touched: dict[str, list[int]] = {}
        scalars: dict[str, object] = {}
        for choice in row:
            for assignment in choice.assign:
                if assignment.field in SCALARS:
                    scalars[assignment.field] = assignment.value
                else:
                    touched.setdefault(assignment.section, []).append(id(choice))
        parts: dict[str, Any] = {}
        for name in SECTIONS:
            key = (name, *touched.get(name, ()))
            if key not in self._sections:
                self._sections[key] = self._section(name, row)
            section = self._sections[key]
            if section is not None:
                parts[name] = None if section is _NULL else section
        for name in SCALARS:
            if name in scalars or name in self.base:
                parts[name] = scalars.get(name, self.base.get(name))
        return parts

    def settings(self, parts: Mapping[str, Any], row: GridRow) -> Settings | None:
        """Return the settings of a row with seed 0. If they have a fault, report it and return
        None."""
        inside = {name: part for name, part in parts.items() if name not in OUTSIDE}
        is_whole = parts.keys() >= SECTIONS.keys()
        try:
            settings = Settings.model_validate({**inside, "seed": 0})
        except ValidationError as error:
            self._report(error, "", row, rules=is_whole)
            return None
        return settings if is_whole else None

    def check_parts(self, choices: Iterable[Choice]) -> None:
        """Check the base and each choice separately, for a study whose axes cannot be read.

        What is missing, or breaks a rule between fields, is no fault: such an axis may set it.
        """
        self.in_parts = True
        for row in ((), *((choice,) for choice in choices)):
            self.settings(self.parts(row), row)

    def _section(self, name: str, row: GridRow) -> Frozen | None:
        """Return a validated section. If it has a fault, report it and return None."""
        tree: dict[str, Any] = {name: deepcopy(self.base[name])} if name in self.base else {}
        assigned = [a for choice in row for a in choice.assign if a.section == name]
        for assignment in sorted(assigned, key=lambda a: a.field not in WHOLE):
            put(tree, assignment)
        if FIELDS[name].nullable and tree.get(name) is None:
            return _NULL
        if name in OUTSIDE or not Settings.model_fields[name].is_required():
            tree.setdefault(name, {})
        if name not in tree:
            for field in _fields_to_give(name):
                self._add(f"{field}{MISSING}", self.at)
            return None
        try:
            section = SECTIONS[name].model_validate(tree[name])
        except ValidationError as error:
            self._report(error, name, row)
            return None
        if isinstance(section, Resources):
            return self._laid_out(section, row)
        if isinstance(section, Kl) and section.estimator != "none":
            if "beta" in section.model_fields_set:
                return section
            self._add(
                f"kl.beta is missing: estimator '{section.estimator}' needs one "
                "(write 0 for a control without KL)",
                self.origin("kl", row),
            )
            return None
        return section

    def _laid_out(self, resources: Resources, row: GridRow) -> Resources | None:
        """Return resources on the site's nodes. If they do not fit, report it and return None."""
        try:
            return laid_out(resources, self.site_options)
        except ValueError as error:
            self._add(str(error), self.origin("resources.gpus_per_node", row))
            return None

    def _report(
        self, error: ValidationError, within: str, row: GridRow, *, rules: bool = True
    ) -> None:
        for detail in error.errors():
            field = ".".join(str(key) for key in (within, *detail["loc"]) if key != "")
            is_absent = detail["type"] == "missing" and field in SECTIONS
            if is_absent or (detail["type"] == "value_error" and (self.in_parts or not rules)):
                continue
            parent = field.rpartition(".")[0]
            known = [
                other.removeprefix(f"{parent}.")
                for other in FIELDS
                if other.rpartition(".")[0] == parent
            ]
            message = sentence(detail, field, known)
            if detail["type"] == "missing":
                message = f"{field}{MISSING}"
            self._add(message, self.origin(field or self._mentioned(message, row), row))

    def origin(self, field: str, row: GridRow) -> Pointer:
        """Return the place where a field's value was written: in the last axis that set it, or in
        the base."""
        assigned = [a for choice in row for a in choice.assign]
        for near in _widening(field):
            for assignment in reversed(assigned):
                if assignment.field == near or (
                    near == field and assignment.field.startswith(f"{field}.")
                ):
                    return (*assignment.pointer, *_rest(field, near))
            if near in self.origins:
                return self.origins[near] + _rest(field, near)
        inside = [at for other, at in self.origins.items() if other.startswith(f"{field}.")]
        return inside[-1] if inside and field else self.at

    def _mentioned(self, message: str, row: GridRow) -> str:
        """Return the field that a rule between fields concerns: the first one of an axis, or the
        first one."""
        words = [word.strip(".") for word in re.findall(r"[a-z_.]+", message)]
        fields = [word for word in words if word in FIELDS]
        assigned = {a.field for choice in row for a in choice.assign}
        return next((f for f in fields if f in assigned), fields[0] if fields else "")

    def _add(self, message: str, pointer: Pointer) -> None:
        if (message, pointer) not in self._reported and not (
            self.in_parts and " is missing" in message
        ):
            self._reported.add((message, pointer))
            self.problems.append(SpecProblem(message, pointer, str(self.at[1])))


def layered(assignments: Iterable[Assignment]) -> tuple[dict[str, Any], dict[str, Pointer]]:
    """Return assignments, later ones over earlier ones, as nested data and the origin of each
    field."""
    tree: dict[str, Any] = {}
    origins: dict[str, Pointer] = {}
    for assignment in assignments:
        put(tree, assignment)
        if assignment.field in WHOLE:
            for field in [f for f in origins if f.startswith(f"{assignment.field}.")]:
                del origins[field]
        origins[assignment.field] = assignment.pointer
    return tree, origins


def _widening(field: str) -> Iterator[str]:
    """Yield `loss.clip.low`, `loss.clip`, `loss`."""
    while field:
        yield field
        field = field.rpartition(".")[0]


def _rest(field: str, near: str) -> Pointer:
    return tuple(key for key in field.removeprefix(near).split(".") if key)


MAX_SLUG = 96
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LABELLED = ("model", "data", "kl.estimator", "kl.placement", "kl.beta", "max_staleness_steps")
"""Fields that a standard label shows."""


class Variant(NamedTuple):
    """A row without its seed. It is checked, named and encoded once, for all its seeds."""

    row: GridRow
    cell: Cell
    """The cell of seed 0, without the seed at the end of its slug."""
    id_of: Callable[[int], str]

    def with_seed(self, seed: int, slugs: dict[str, str]) -> Cell:
        """Return the cell of a seed. `slugs`: slug -> id of every cell so far."""
        name, slug = self.id_of(seed), f"{self.cell.slug}-s{seed}"
        if slugs.setdefault(slug, name) != name:
            slug = f"{slug}-{name[:6]}"
        return self.cell.but(
            id=name,
            slug=slug,
            axes={**self.cell.axes, "seed": str(seed)},
            settings=self.cell.settings.but(seed=seed),
        )


def variants_of(study: Study, grid: GridRows, builder: Builder) -> list[Variant]:
    """Return the rows of a study that have no fault. Report the faults of the others."""
    extras = _extra_labels(grid)
    variants: dict[str, Variant] = {}
    for row in (*grid.product, *grid.included):
        parts = builder.parts(row)
        settings = builder.settings(parts, row)
        if settings is None:
            continue
        cell = _cell(study, settings, parts, extras)
        variant = Variant(row, cell, fingerprint_by_seed(settings))
        twin = variants.setdefault(variant.id_of(0), variant)
        if twin is not variant:
            _report_duplicate(variant, f"{twin.cell.slug}-s{min(study.seeds)}", builder)
    return [*variants.values()]


def _report_duplicate(variant: Variant, twin: str, builder: Builder) -> None:
    row = variant.row
    last = row[-1].assign[-1].pointer if row and row[-1].assign else builder.at
    builder.problems.append(
        SpecProblem(
            f"two rows of study '{variant.cell.studies[0]}' are the same cell, {twin}: drop one "
            "with `exclude`, or keep an axis away from it with `when`",
            last,
        )
    )


def _extra_labels(grid: GridRows) -> list[str]:
    """Return the fields that this study varies and that no standard label shows."""
    choices = [c for axis in grid.axes for c in axis.choices]
    choices += [c for row in grid.included for c in row]
    fields: dict[str, None] = {}
    for a in (a for choice in choices for a in choice.assign):
        if a.field == "backend":
            own = (f"backend.{key}" for key in ("version", "extra") if a.value.get(key))
            fields |= dict.fromkeys(own)
        elif a.field not in _LABELLED and a.section not in OUTSIDE:
            fields[a.field] = None
    return [f for f in fields if not any(f.startswith(f"{other}.") for other in fields)]


def _cell(
    study: Study,
    settings: Settings,
    parts: Mapping[str, Any],
    extras: list[str],
) -> Cell:
    cell = Cell(
        id="",
        slug="",
        studies=(study.name,),
        axes={},
        settings=settings,
        resources=parts["resources"],
        cadence=parts["cadence"],
        system=parts["system"],
    )
    axes = {name: label_of(name, leaf_of(cell)) for name in (*LABELS, *extras)}
    if "backend.extra" in axes:
        axes["backend.extra"] = text_of(settings.backend.passed or None)
    return cell.but(axes=axes, slug=_slug(settings, axes, extras))


def _slug(settings: Settings, axes: Mapping[str, str], extras: list[str]) -> str:
    """Return a readable name without the seed. It is safe as a file name, and does not depend on
    the rest of the spec."""
    words = [axes["model"], axes["data"], axes["kl"]]
    if settings.kl.estimator != "none":
        words.append(f"b{axes['beta']}")
    if settings.batch.num_minibatches > 1 and "batch.num_minibatches" not in extras:
        words.append(f"m{settings.batch.num_minibatches}")
    if settings.max_staleness_steps:
        words.append(f"a{axes['async']}")
    words.append(axes["backend"])
    words += [f"{field.rpartition('.')[2]}{axes[field]}" for field in extras]
    return _UNSAFE.sub("_", "-".join(words))[:MAX_SLUG]


def merged(one: Cell, other: Cell) -> Cell:
    """Return a cell that two studies declare, with the studies and axes of both."""
    return one.but(studies=one.studies + other.studies, axes={**other.axes, **one.axes})


class Expansion(NamedTuple):
    """The cells of a spec, and the faults."""

    cells: tuple[Cell, ...]
    """If the spec has a problem, only the cells of the first seed, of the rows without a fault."""
    problems: tuple[SpecProblem, ...]
    rows: tuple[tuple[Builder, tuple[Variant, ...]], ...] = ()
    """The rows of each study, from which a field's place in the spec is found."""

    def origin(self, cell: Cell, field: str) -> Pointer:
        """Return the place where a field of a cell, or of its rehearsal, was written."""
        name = cell.slug.rpartition("-s")[0]
        for builder, variants in self.rows:
            for variant in variants:
                if variant.cell.slug == name and variant.cell.studies[0] in cell.studies:
                    return builder.origin(field, variant.row)
        return ()


class _Latest(NamedTuple):
    spec: weakref.ref[Spec]
    expansion: Expansion
    fault: Callable[[str, Pointer], Fault] | None
    """Gives a pointer its file and line; None for a spec that was not read here."""


_latest: list[_Latest] = []
"""The last expansion. `load` checks every cell, and the caller of `load` expands the same spec
next."""


def expand(spec: Spec) -> list[Cell]:
    """Return the declared cells, each once, by study and seed, in the order written.

    Raise SpecError with every cell that has a fault.
    """
    cells = _expansion_of(spec).cells
    if not spec.rewards and not spec.loggers:
        return list(cells)
    return [
        cell.model_copy(
            update={
                "loggers": spec.loggers,
                "reward_code": spec.rewards.get(cell.settings.data.reward, ""),
            }
        )
        for cell in cells
    ]


def _expansion_of(spec: Spec) -> Expansion:
    cached = next((each.expansion for each in _latest if each.spec() is spec), None)
    if cached is None:
        cached = expansion(spec.studies, _entries(spec), site_options=spec.site.options)
        remember(spec, cached)
    if cached.problems:
        source = Path(spec.source) if spec.source else None
        faults = [Fault(p.message, json_path(p.pointer), source) for p in cached.problems]
        raise SpecError(spec.source or spec.name, faults)
    return cached


def remember(
    spec: Spec, done: Expansion, fault: Callable[[str, Pointer], Fault] | None = None
) -> None:
    """Remember the expansion of a spec until another is kept."""
    _latest[:] = [_Latest(weakref.ref(spec), done, fault)]


def place_of(cell: Cell, field: str) -> str:
    """Return `study s, $.studies.s.axes.kl[1] (x.yaml line 7)`: where a field of a cell was set.

    The cell is one of the last spec that was loaded; of another, the study alone is returned.
    """
    study = f"study {', '.join(cell.studies)}"
    for latest in _latest:
        pointer = latest.expansion.origin(cell, field)
        if pointer and latest.fault is not None:
            return f"{study}{str(latest.fault('', pointer)).replace('  @', ',')}"
    return study


def expansion(
    studies: Sequence[Study],
    lookup: Lookup,
    origins: Mapping[str, Mapping[str, Pointer]] | None = None,
    *,
    strict: bool = False,
    site_options: Mapping[str, object] | None = None,
) -> Expansion:
    """Expand studies and collect all problems.

    `origins`: study -> field -> where it was written. `strict`: see `rows`. site_options:
    of the site, on whose nodes `resources` are laid out.
    """
    problems: list[SpecProblem] = []
    checked: list[tuple[Study, Builder, tuple[Variant, ...]]] = []
    for study in studies:
        own: Mapping[str, Pointer] = (origins or {}).get(study.name, {})
        try:
            read = rows(study, Reader(lookup, problems), strict=strict)
        except TooLargeError:
            problems.append(
                SpecProblem(
                    f"study '{study.name}' expands to more than {MAX_CELLS:,} cells; split it into "
                    "studies or files that are run one by one",
                    ("studies", study.name),
                )
            )
            continue
        builder = Builder(study.name, study.base, own, problems, site_options or {})
        if read.broken:
            builder.check_parts(c for axis in read.axes for c in axis.choices)
            continue
        checked.append((study, builder, tuple(variants_of(study, read, builder))))
    cells: dict[str, Cell] = {}
    slugs: dict[str, str] = {}
    for study, _, variants in checked:
        for seed in study.seeds[:1] if problems else study.seeds:
            for cell in (variant.with_seed(seed, slugs) for variant in variants):
                twin = cells.get(cell.id)
                cells[cell.id] = cell if twin is None else merged(twin, cell)
    found = tuple((builder, variants) for _, builder, variants in checked)
    return Expansion(tuple(cells.values()), tuple(problems), found)


def _entries(spec: Spec) -> Lookup:
    def lookup(group: str, name: str) -> Mapping[str, Any]:
        entries = spec.groups.get(group, {})
        if group == "backend":
            return {}  # `load` has checked it
        if name not in entries:
            raise LookupError(f"no {group} is called '{name}'{did_you_mean(name, entries)}")
        entry: Mapping[str, Any] = entries[name]
        return entry

    return lookup
