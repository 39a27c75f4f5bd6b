"""Results that the spec's grid has already given, as the first trials of a search."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from orchestrator.collect import collect
from orchestrator.evaluate import read_scores
from orchestrator.experiment import Experiment
from orchestrator.state import look
from orchestrator.tune.design import Search
from orchestrator.tune.early import intermediate
from orchestrator.tune.journal import Journal
from orchestrator.tune.space import distributions
from orchestrator.tune.trial import measured_values
from orchestrator.types import Cell


def reuse(search: Search, journal: Journal, study: Any) -> int:
    """Adds the grid's finished configurations that lie in the space and have every seed of a
    trial; each once. Tells how many were added. Trains and evaluates nothing."""
    import optuna

    added = 0
    with journal.locked():
        known = [trial.user_attrs.get("cells") for trial in study.get_trials(deepcopy=False)]
        for params, cells in _configurations(search):
            ids = [cell.id for cell in cells]
            if ids in known:
                continue
            folder = search.experiment.folder
            scores = [score for cell in cells for score in read_scores(folder.cell(cell))]
            records = collect(cells, folder)
            values, seeds, why = measured_values(search, records, scores)
            if why:
                continue
            known.append(ids)
            study.add_trial(optuna.trial.create_trial(
                params=params, distributions=distributions(search.space), values=values,
                intermediate_values=intermediate(search, records, scores, folder),
                user_attrs={"reused": True, "cells": ids, "seeds": seeds},
            ))  # fmt: skip
            added += 1
    return added


def _configurations(search: Search) -> Iterator[tuple[dict[str, Any], list[Cell]]]:
    """Parameters and cells, of the grid, all of whose cells have succeeded."""
    experiment = search.experiment
    grid = {cell.id: cell for cell in experiment.cells}
    tried: list[dict[str, Any]] = []
    for cell in experiment.cells:
        params = _params(search, cell)
        if params is None or params in tried:
            continue
        tried.append(params)
        cells = [grid.get(c.id) for c in search.cells(params, search.tune.seeds)]
        if all(c is not None and _has_succeeded(c, experiment) for c in cells):
            yield params, [c for c in cells if c is not None]


def _params(search: Search, cell: Cell) -> dict[str, Any] | None:
    """Where a cell lies in the space; None if outside, or if rounding would move it."""
    settings = cell.declared or cell.settings
    params = {}
    for each in search.space:
        try:
            value = attrgetter(each.field)(settings)
            params[each.field] = each.param(value)
        except (AttributeError, LookupError):
            return None
    return params


def _has_succeeded(cell: Cell, experiment: Experiment) -> bool:
    return look(experiment.folder.cell(cell)).state == "succeeded"
