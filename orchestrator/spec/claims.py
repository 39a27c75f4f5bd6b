"""Claims of a spec: each must be readable, and about cells that there are."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import did_you_mean
from orchestrator.expand import Expansion
from orchestrator.expand.assign import Pointer, Problem
from orchestrator.fields import FIELDS, LABELS
from orchestrator.select import term
from orchestrator.types import Cell


def check_claims(
    claims: Mapping[str, str], done: Expansion, studies: Sequence[str], problems: list[Problem],
    *, strict: bool,
) -> None:  # fmt: skip
    """Tells of claims that cannot be read or that speak of nothing the spec declares.

    `strict`: a claim about no cell is a fault; it is not once overrides have narrowed the grid.
    """
    from orchestrator.claims import parse

    for name, text in claims.items():
        at: Pointer = ("claims", name)
        try:
            claim = parse(text)
        except ValueError as error:
            problems.append(Problem(f"claim '{name}': {error}", at))
            continue
        for study in claim.studies:
            if study not in studies and strict:
                hint = did_you_mean(study, studies)
                problems.append(Problem(f"claim '{name}': no study is called '{study}'{hint}", at))
        for side in claim.sides:
            wheres = (*side.where, *claim.at)
            unknown = [w.axis for w in wheres if w.axis not in LABELS and w.axis not in FIELDS]
            for axis in unknown:
                hint = did_you_mean(axis, [*LABELS, *FIELDS])
                problems.append(Problem(f"claim '{name}': unknown axis '{axis}'{hint}", at))
            some = unknown or any(
                _is_meant(cell, wheres) and set(claim.studies or studies) & set(cell.studies)
                for cell in done.cells
            )
            if strict and done.cells and not some:
                problems.append(Problem(f"claim '{name}': no cell has {side}", at))


def _is_meant(cell: Cell, wheres: Sequence[Any]) -> bool:
    return all(
        term(where.axis, "=", where.values).holds((cell.axes.get(where.axis, ""),))
        for where in wheres
    )
