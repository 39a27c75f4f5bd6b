"""Searches in an experiment's report, on the terminal and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.analysis.stats import estimate
from orchestrator.analysis.text import counted, estimate_text, number_text, p_text
from orchestrator.report.model import ReportTable, Section
from orchestrator.runs.experiment import Experiment
from orchestrator.search.results import (
    SearchOutcome,
    beta_text,
    contests,
    read_searches,
)

CHOSEN = (
    "The best trial was chosen on its own seeds, so its mean looks better than it is, the more so "
    "the more trials there are. Fresh seeds (tune.confirm_seeds), with which the best β of each "
    "search is trained again, do not have this bias."
)


def experiment_sections(experiment: Experiment) -> tuple[list[Section], list[str]]:
    """Return the section on searches in the experiment's report, and the reasons why some searches
    cannot be shown."""
    outcomes, faults = read_searches(experiment)
    return [section(outcomes)] if outcomes else [], faults


def section(outcomes: Sequence[SearchOutcome]) -> Section:
    """Return the best of each search of a journal, their comparison, and every trial."""
    block = outcomes[0].search.block
    tables = [best_table(outcomes), _contest_table(outcomes), _trials_table(outcomes)]
    points = [CHOSEN]
    if len(block.seeds) < 2:
        points.insert(0, "Each trial has one seed: a difference may be noise.")
    text = f"{block.objective}, the mean over {counted(len(block.seeds), 'seed')} a trial."
    return Section(
        f"tune-{block.name}",
        f"Search for β: {block.name}",
        text=(text,),
        points=tuple(points),
        tables=tuple(table for table in tables if table.rows),
    )


def best_table(outcomes: Sequence[SearchOutcome]) -> ReportTable:
    """Return a table of the best trial of each search."""
    rows = []
    for one in outcomes:
        row = [one.search.name, str(len(one.trials))]
        if one.best is None:
            row += ["nothing measured yet", "", ""]
        else:
            row += [
                beta_text(one.best.beta),
                estimate_text(estimate(one.best.seeds.values())),
                estimate_text(estimate(one.confirmed.values())) if one.confirmed else "",
            ]
        rows.append(tuple(row))
    columns = (
        "search",
        "trials",
        "best at",
        "its objective: mean and 95 % interval",
        "on fresh seeds",
    )
    return ReportTable("Each search at its best", columns, tuple(rows))


def as_json(outcomes: Sequence[SearchOutcome]) -> list[dict[str, Any]]:
    """Return the outcomes as plain data."""
    return [
        {
            "search": one.search.name,
            "objective": one.search.block.objective,
            "best": None if one.best is None else one.best.number,
            "confirmed": dict(one.confirmed),
            "trials": [asdict(trial) | {"value": trial.value} for trial in one.trials],
        }
        for one in outcomes
    ]


def _contest_table(outcomes: Sequence[SearchOutcome]) -> ReportTable:
    rows = tuple(
        (
            f"{c.one} − {c.other}",
            estimate_text(c.difference, signed=True),
            p_text(c.p),
            "fresh" if c.fresh else "those that chose",
        )
        for c in contests(outcomes)
    )
    return ReportTable(
        "Each at its own best, against each other: difference of the objective, seed by seed",
        ("searches", "difference and 95 % interval", "p (Holm)", "seeds"),
        rows,
    )


def _trials_table(outcomes: Sequence[SearchOutcome]) -> ReportTable:
    rows = tuple(
        (
            one.search.name,
            str(trial.number),
            trial.state.lower(),
            beta_text(trial.beta),
            "" if trial.value is None else number_text(trial.value),
            str(len(trial.seeds)),
            ", ".join(trial.cells),
            trial.why,
        )
        for one in outcomes
        for trial in one.trials
    )
    metric = outcomes[0].search.block.metric
    columns = ("search", "trial", "state", "at", metric, "seeds", "cells", "why")
    return ReportTable("Every trial", columns, rows, searchable=True)
