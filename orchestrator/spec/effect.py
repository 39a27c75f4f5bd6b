"""Overrides that no cell would feel: told, as what is silently ignored is believed."""

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.expand.assign import Problem
from orchestrator.expand.build import OUTSIDE
from orchestrator.fields import FIELDS
from orchestrator.spec.compose import Override
from orchestrator.types import Cell


def unfelt(overrides: Iterable[Override], cells: Sequence[Cell]) -> Iterator[Problem]:
    """A problem for each override of a base whose value no cell has: every study, by its own base
    or its axes, says otherwise."""
    for override in overrides:
        study, field = _of_a_base(override.key)
        if field not in FIELDS or FIELDS[field].section or not _is_plain(override.value):
            continue
        mine = [cell for cell in cells if study is None or study in cell.studies]
        if any(_value(cell, field) == override.value for cell in mine):
            continue
        studies = dict.fromkeys(name for cell in mine for name in cell.studies)
        where = ", ".join(f"studies.{name}.axes" for name in ([study] if study else studies))
        yield Problem(
            f"{field} = {override.value} reaches no cell: each study sets it by itself. Override "
            f"it there ({where})",
            tuple(override.key.split(".")),
        )


def _of_a_base(key: str) -> tuple[str | None, str]:
    """The study (None: all) and the field that `base.FIELD` or `studies.NAME.base.FIELD` sets."""
    if key.startswith("base."):
        return None, key.removeprefix("base.")
    head, found, field = key.partition(".base.")
    return (head.removeprefix("studies."), field) if found else (None, "")


def _value(cell: Cell, field: str) -> object:
    steps = field.split(".")
    node: object = cell if steps[0] in OUTSIDE else cell.settings
    for step in steps:
        node = getattr(node, step, None)
    return node


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return "${" not in value
    return value is None or isinstance(value, bool | int | float)
