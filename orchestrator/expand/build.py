"""Rows become settings. Each distinct section is validated once and shared by its cells."""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.expand.assign import Assignment, Pointer, Problem, put
from orchestrator.expand.axes import Choice
from orchestrator.expand.rows import Row
from orchestrator.fields import FIELDS, WHOLE
from orchestrator.sentences import sentence
from orchestrator.settings import Frozen, Kl, Settings

SECTIONS: dict[str, type[Frozen]] = {
    name: field.section
    for name, field in FIELDS.items()
    if field.section is not None and "." not in name
}
OUTSIDE = ("resources", "cadence")
"""Sections that are no part of the settings."""
SCALARS = tuple(name for name in Settings.model_fields if name not in SECTIONS)


class Builder:
    """Builds the settings of one study's rows, and tells each fault once."""

    def __init__(
        self, name: str, base: Mapping[str, Any], origins: Mapping[str, Pointer],
        problems: list[Problem],
    ) -> None:  # fmt: skip
        self.at: Pointer = ("studies", name)
        self.base, self.origins, self.problems = base, origins, problems
        self._sections: dict[tuple[object, ...], Frozen | None] = {}
        self._told: set[tuple[str, Pointer]] = set()

    def parts(self, row: Row) -> dict[str, Any]:
        """Validated sections and raw scalars of a row. A section at fault is left out."""
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
                parts[name] = section
        for name in SCALARS:
            if name in scalars or name in self.base:
                parts[name] = scalars.get(name, self.base.get(name))
        return parts

    def settings(self, parts: Mapping[str, Any], seed: int, row: Row) -> Settings | None:
        """The settings of a row and a seed; None, with its problems told, if they cannot be."""
        inside = {name: part for name, part in parts.items() if name not in OUTSIDE}
        if any(name not in parts for name in SECTIONS):
            self._scalars(parts, row)
            return None
        try:
            return Settings.model_validate({**inside, "seed": seed})
        except ValidationError as error:
            self._tell(error, "", row)
            return None

    def alone(self, choices: Iterable[Choice]) -> None:
        """Checks the base, and each choice by itself, for a study whose axes cannot be read."""
        for name in self.base.keys() & SECTIONS.keys() - {"kl"}:
            self._section(name, ())
        self._scalars(self.base, ())
        for choice in choices:
            own = {assignment.field for assignment in choice.assign}
            for name in {a.section for a in choice.assign} & SECTIONS.keys():
                self._section(name, (choice,), own)
            scalars = {a.field: a.value for a in choice.assign if a.field in SCALARS}
            self._scalars(scalars, (choice,))

    def _scalars(self, parts: Mapping[str, Any], row: Row) -> None:
        """Checks the scalars of settings whose sections are at fault already."""
        for name in SCALARS:
            if name in parts:
                try:
                    TypeAdapter(FIELDS[name].annotation).validate_python(parts[name], strict=True)
                except ValidationError as error:
                    self._tell(error, name, row)

    def _section(self, name: str, row: Row, own: Set[str] = frozenset()) -> Frozen | None:
        """A validated section; None, with its problems told. `own`: tell only of these fields,
        for the rest may have been meant to come from an axis that cannot be read."""
        tree: dict[str, Any] = {name: deepcopy(self.base[name])} if name in self.base else {}
        assigned = [a for choice in row for a in choice.assign if a.section == name]
        for assignment in sorted(assigned, key=lambda a: a.field not in WHOLE):
            put(tree, assignment)
        if name in OUTSIDE:
            tree.setdefault(name, {})
        if name not in tree:
            if own:
                return None
            self._add(f"{name} is missing: give it in the recipe, in `base` or as an axis", self.at)
            return None
        try:
            section = SECTIONS[name].model_validate(tree[name])
        except ValidationError as error:
            self._tell(error, name, row, own)
            return None
        if own:
            return section
        if isinstance(section, Kl) and section.estimator != "none":
            if "beta" in section.model_fields_set:
                return section
            self._add(f"kl.beta is missing: estimator '{section.estimator}' needs one "
                      "(write 0 for a control without KL)", self._origin("kl", row))  # fmt: skip
            return None
        return section

    def _tell(
        self, error: ValidationError, within: str, row: Row, own: Set[str] = frozenset()
    ) -> None:
        for detail in error.errors():
            field = ".".join(str(key) for key in (within, *detail["loc"]) if key != "")
            if own and (detail["type"] == "missing" or own.isdisjoint(_widening(field))):
                continue
            parent = field.rpartition(".")[0]
            known = [
                other.removeprefix(f"{parent}.")
                for other in FIELDS
                if other.rpartition(".")[0] == parent
            ]
            message = sentence(detail, field, known)
            if detail["type"] == "missing":
                message += ": give it in the recipe, in `base` or as an axis"
            self._add(message, self._origin(field or self._mentioned(message, row), row))

    def _origin(self, field: str, row: Row) -> Pointer:
        """Where the value of a field was written: by the last axis that set it, else the base."""
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

    def _mentioned(self, message: str, row: Row) -> str:
        """The field that a rule between fields is about: one that an axis sets, else the first."""
        words = [word.strip(".") for word in re.findall(r"[a-z_.]+", message)]
        fields = [word for word in words if word in FIELDS]
        assigned = {a.field for choice in row for a in choice.assign}
        return next((f for f in fields if f in assigned), fields[0] if fields else "")

    def _add(self, message: str, pointer: Pointer) -> None:
        if (message, pointer) not in self._told:
            self._told.add((message, pointer))
            self.problems.append(Problem(message, pointer))


def layered(assignments: list[Assignment]) -> tuple[dict[str, Any], dict[str, Pointer]]:
    """Assignments, later ones over earlier ones, as nested data and where each field came from."""
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
    """`loss.clip.low`, `loss.clip`, `loss`."""
    while field:
        yield field
        field = field.rpartition(".")[0]


def _rest(field: str, near: str) -> Pointer:
    return tuple(key for key in field.removeprefix(near).split(".") if key)
