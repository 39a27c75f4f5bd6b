"""Overrides that no cell would feel: told, as what is silently ignored is believed."""

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.expand.assign import Problem
from orchestrator.expand.build import OUTSIDE
from orchestrator.fields import FIELDS
from orchestrator.settings import BackendRef, Data, Model
from orchestrator.spec.compose import Override
from orchestrator.types import Cell

NAMED = ("model", "data", "backend")
"""Fields that take a name."""


def unfelt(overrides: Iterable[Override], cells: Sequence[Cell]) -> Iterator[Problem]:
    """A problem for each override of a base, or of a study's or the spec's model, data or backend,
    whose value no cell has: every study, further in, says otherwise."""
    for override in overrides:
        study, field = _of_a_base(override.key)
        if field not in (*FIELDS, *NAMED) or not _is_plain(override.value):
            continue
        mine = [cell for cell in cells if study is None or study in cell.studies]
        value = override.value
        if any(value in _values(cell, field) for cell in mine):
            continue
        studies = dict.fromkeys(name for cell in mine for name in cell.studies)
        where = ", ".join(f"studies.{name}.axes" for name in ([study] if study else studies))
        yield Problem(
            f"{field} = {value} reaches no cell: each study sets it by itself. Override "
            f"it there ({where})",
            tuple(override.key.split(".")),
        )


def _of_a_base(key: str) -> tuple[str | None, str]:
    """The study (None: all) and the field that a key sets which a study's axes may set again:
    `base.FIELD`, `studies.NAME.base.FIELD`, `backend`, `studies.NAME.backend`."""
    study: str | None = None
    if key.startswith("studies."):
        _, study, key = [*key.split(".", 2), "", ""][:3]
    return study, key.removeprefix("base.") if key.startswith("base.") or key in NAMED else ""


def _values(cell: Cell, field: str) -> tuple[object, ...]:
    """What may have been written for a cell's value of a field."""
    steps = field.split(".")
    node: object = cell if steps[0] in OUTSIDE else cell.settings
    for step in steps:
        node = getattr(node, step, None)
    if isinstance(node, BackendRef):
        return node.name, f"{node.name}@{node.version}"
    return (node.name,) if isinstance(node, Model | Data) else (node,)


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return "${" not in value
    return value is None or isinstance(value, bool | int | float)
