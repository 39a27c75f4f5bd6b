"""Searches in a report: a section, the data of its figure, a page of its own.

A report takes `section(outcomes)` among its sections and `panels(outcomes)` as `data["tune"]`.
`experiment_section` gives both for every search of an experiment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from orchestrator.analysis.stats import estimate
from orchestrator.analysis.text import counted, estimate_text, number_text, p_text
from orchestrator.report import BANNER, Report
from orchestrator.report.model import Figure, ReportTable, Section
from orchestrator.runs.cost import bill
from orchestrator.runs.experiment import Experiment
from orchestrator.search.design import Search, text_of_values
from orchestrator.search.optimum import Recommended
from orchestrator.search.results import (
    Bracket,
    SearchOutcome,
    TrialResult,
    brackets,
    contests,
    read_journals,
)

CHOSEN = (
    "The best trial was chosen on its own seeds, so its mean looks better than it is, the more so "
    "the more trials there are. Fresh seeds (tune.confirm_seeds), with which the recommended "
    "values are trained again, do not have this bias."
)
CURVE = (
    '"Recommended": the value at which a smooth curve through all trials (a Gaussian process over '
    "the field) is best; in brackets, the interval that contains this value with probability 0.95. "
    "The best trial is best partly by luck, the optimum of the curve less so. The curve says "
    "nothing about values outside the range that was tried."
)
BRACKET = (
    '"Lies between": the nearest tried values on both sides that are significantly worse than the '
    "best (t-test with the spread between seeds pooled over trials, level 0.95 over all trials "
    "together). On a side without such a value, the end of the range stands. This holds if the "
    "objective has one hill."
)


def section(
    outcomes: Sequence[SearchOutcome], mlflow_runs: Mapping[str, str] | None = None
) -> Section:
    """Return the best of each search, the comparison of searches, and every trial.

    mlflow_runs: cell id -> id of its MLflow run.
    """
    tables = [best_table(outcomes)]
    if len(outcomes) > 1 and (contest := _contest_table(outcomes)).rows:
        tables.append(contest)
    tables += [
        table for table in (_importance_table(outcomes), _front_table(outcomes)) if table.rows
    ]
    tables.append(_trials_table(outcomes, mlflow_runs or {}))
    figure = Figure(
        "tune",
        "trials",
        "Searches",
        "Each mark is a trial, the mean over its seeds. History: the best so far, in the order in "
        "which trials were started; trials reused from the grid come first.",
        "Objective over each searched field, and history; the tables hold the same numbers.",
    )
    return Section(
        "tune",
        "Searches with Optuna",
        text=tuple(_text(outcomes)),
        points=tuple(_points(outcomes)),
        figures=(figure,) if any(one.measured for one in outcomes) else (),
        tables=tuple(tables),
    )


def report(
    experiment: Experiment, outcomes: Sequence[SearchOutcome], mlflow_runs: Mapping[str, str]
) -> Report:
    """Return a page for the searches alone."""
    trials = [trial for one in outcomes for trial in one.trials]
    states = {
        state: sum(t.state == state for t in trials)
        for state in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")
    }
    state_facts = [(state.lower(), str(count)) for state, count in states.items() if count]
    return Report(
        name=f"{experiment.spec.name}: search",
        question=_question(outcomes),
        description="",
        banner=BANNER if experiment.scale == "micro" else "",
        answer=" ".join(_answer(outcomes)),
        facts=(("searches", str(len(outcomes))), ("trials", str(len(trials))), *state_facts),
        cards=(),
        sections=(section(outcomes, mlflow_runs),),
        data={"tune": panels(outcomes)},
    )


def panels(outcomes: Sequence[SearchOutcome]) -> list[dict[str, Any]]:
    """Return the panels of the figure: the objective over each range, the history, the front."""
    objectives = outcomes[0].search.objectives
    all_panels = [
        _slice(outcomes, field.field, field.log, i)
        for field in outcomes[0].search.space
        if field.is_range
        for i in range(len(objectives))
    ]
    if len(objectives) == 1:
        history = [
            {
                "name": one.search.name,
                "mode": "lines+markers",
                "x": list(range(1, len(one.history) + 1)),
                "y": [v for _, v in one.history],
                "text": [f"trial {n}" for n, _ in one.history],
            }
            for one in outcomes
        ]
        all_panels.append(
            {
                "title": "History",
                "xtitle": "measured trials",
                "log": False,
                "step": True,
                "ytitle": "best so far",
                "series": history,
            }
        )
    elif len(objectives) == 2:
        series = []
        for one in outcomes:
            rest = [t for t in one.measured if t not in one.front]
            series += [
                _points_of(one, rest, "markers"),
                _points_of(one, one.front, "lines+markers"),
            ]
        all_panels.append(
            {
                "title": "Pareto front",
                "xtitle": objectives[0].text,
                "log": False,
                "ytitle": objectives[1].text,
                "series": [each for each in series if each["x"]],
            }
        )
    return all_panels


def plan_table(searches: Sequence[Search]) -> ReportTable:
    """Return a table of what would be searched, and what a trial is expected to cost."""
    rows = []
    for search in searches:
        space = "; ".join(f"{dimension.field} in {dimension}" for dimension in search.space)
        cells = search.cells(search.corners()[0], search.tune.seeds)
        goals = "; ".join(map(str, search.objectives))
        rows.append((search.name, space, goals, str(search.tune.block.trials), str(bill(cells))))
    columns = ("search", "space", "objective", "trials", "a trial costs")
    return ReportTable("", columns, tuple(rows))


def best_table(outcomes: Sequence[SearchOutcome]) -> ReportTable:
    """Return a table of the best trial of each search.

    With several objectives it has the number of trials on the front.
    """
    rows = []
    for one in outcomes:
        own = [trial for trial in one.trials if not trial.reused]
        spent = sum(t.gpu_hours for t in one.trials), sum(t.cpu_hours for t in one.trials)
        cost = f"{spent[0]:.3g} GPU h" if spent[0] else f"{3600 * spent[1]:.0f} CPU s"
        rows.append(
            (one.search.name, f"{len(own)} + {len(one.trials) - len(own)}", cost, *_best_row(one))
        )
    return ReportTable(
        "Each search at its best",
        (
            "search",
            "trials + reused",
            "cost",
            "best at",
            "recommended",
            "lies between",
            "the best's objective: mean and 95 % interval",
            "what is recommended, on fresh seeds",
        ),
        tuple(rows),
    )


def as_json(
    outcomes: Sequence[SearchOutcome], mlflow_runs: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the outcomes as plain data."""
    return [
        {
            "search": one.search.name,
            "objectives": [str(each) for each in one.search.objectives],
            "best": None if one.best is None else one.best.number,
            "front": [trial.number for trial in one.front],
            "recommended": None if one.recommended is None else one.recommended._asdict(),
            "brackets": [bracket._asdict() for bracket in brackets(one)],
            "importance": dict(one.importance),
            "confirmed": {seed: list(values) for seed, values in one.confirmed.items()},
            "trials": [_trial_as_json(trial, mlflow_runs) for trial in one.trials],
        }
        for one in outcomes
    ]


def _trial_as_json(trial: TrialResult, mlflow_runs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "params": dict(trial.params),
        "values": trial.values,
        "seeds": {s: list(v) for s, v in trial.seeds.items()},
        "cells": trial.cells,
        "mlflow": [mlflow_runs.get(cell) for cell in trial.cells],
        "reused": trial.reused,
        "why": trial.why,
        "gpu_hours": trial.gpu_hours,
        "cpu_hours": trial.cpu_hours,
    }


def _best_row(one: SearchOutcome) -> tuple[str, str, str, str, str]:
    if len(one.search.objectives) > 1:
        return f"{len(one.front)} on the front", "", "", "", ""
    if one.best is None:
        return "nothing measured yet", "", "", "", ""
    value = estimate_text(estimate(values[0] for values in one.best.seeds.values()))
    fresh = estimate_text(estimate(v[0] for v in one.confirmed.values())) if one.confirmed else ""
    between = "; ".join(map(_bracket, brackets(one)))
    return text_of_values(one.best.params), _recommended(one.recommended), between, value, fresh


def _recommended(one: Recommended | None) -> str:
    return "" if one is None else f"{one.field} = {one.value:g} [{one.low:g}, {one.high:g}]"


def _bracket(one: Bracket) -> str:
    ends = [
        f"{end:g}{' (end of the range)' if is_open else ''}"
        for end, is_open in zip((one.low, one.high), one.is_open, strict=True)
    ]
    return f"{one.field}: {ends[0]} and {ends[1]}"


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


def _importance_table(outcomes: Sequence[SearchOutcome]) -> ReportTable:
    rows = tuple(
        (one.search.name, field, f"{share:.2f}")
        for one in outcomes
        for field, share in one.importance.items()
    )
    return ReportTable(
        "Importance: a field's share in what sets the best trials apart (PED-ANOVA)",
        ("search", "field", "share"),
        rows,
    )


def _front_table(outcomes: Sequence[SearchOutcome]) -> ReportTable:
    objectives = outcomes[0].search.objectives
    if len(objectives) == 1:
        return ReportTable("", (), ())
    rows = tuple(
        (
            one.search.name,
            str(trial.number),
            text_of_values(trial.params),
            *map(number_text, trial.values or ()),
        )
        for one in outcomes
        for trial in one.front
    )
    return ReportTable(
        "Pareto front: no other trial of the search is better in one objective and as "
        "good in the others",
        ("search", "trial", "at", *map(str, objectives)),
        rows,
    )


def _trials_table(outcomes: Sequence[SearchOutcome], mlflow_runs: Mapping[str, str]) -> ReportTable:
    objectives = outcomes[0].search.objectives
    rows = []
    for one in outcomes:
        for trial in one.trials:
            values = (
                [number_text(v) for v in trial.values] if trial.values else ["" for _ in objectives]
            )
            state = "from the grid" if trial.reused else trial.state.lower()
            runs = ", ".join(filter(None, (mlflow_runs.get(cell, "") for cell in trial.cells)))
            rows.append(
                (
                    one.search.name,
                    str(trial.number),
                    state,
                    text_of_values(trial.params),
                    *values,
                    str(len(trial.seeds)),
                    ", ".join(trial.cells),
                    runs,
                    trial.why,
                )
            )
    columns = (
        "search",
        "trial",
        "state",
        "at",
        *(each.text for each in objectives),
        "seeds",
        "cells",
        "MLflow runs",
        "why",
    )
    return ReportTable("Every trial", columns, tuple(rows), searchable=True)


def _text(outcomes: Sequence[SearchOutcome]) -> Iterator[str]:
    search = outcomes[0].search
    seeds = counted(len(search.tune.seeds), "seed")
    yield (
        f"{' and '.join(str(each) for each in search.objectives)}, the mean over {seeds} a trial; "
        f"sampler {search.tune.block.sampler}, pruner {search.tune.block.pruner}."
    )


def _points(outcomes: Sequence[SearchOutcome]) -> Iterator[str]:
    if len(outcomes[0].search.objectives) > 1:
        yield "With several objectives nothing was pruned: Optuna prunes for one only."
        return
    if len(outcomes[0].search.tune.seeds) < 2:
        yield "Each trial has one seed: a difference may be noise, so no interval is given."
    else:
        yield BRACKET
    if any(one.recommended for one in outcomes):
        yield CURVE
    yield CHOSEN


def _question(outcomes: Sequence[SearchOutcome]) -> str:
    fields = ", ".join(each.field for each in outcomes[0].search.space)
    goals = " and ".join(str(each) for each in outcomes[0].search.objectives)
    return f"Which {fields}, to {goals}?"


def _answer(outcomes: Sequence[SearchOutcome]) -> Iterator[str]:
    for one in outcomes:
        if len(one.search.objectives) > 1:
            yield f"{one.search.name}: {counted(len(one.front), 'trial')} on the front."
        elif one.best is None or one.best.values is None:
            yield f"{one.search.name}: nothing measured yet."
        else:
            answer = f"{text_of_values(one.best.params)} ({number_text(one.best.values[0])})"
            if one.recommended is not None:
                curve = _recommended(one.recommended)
                answer = f"{curve} is recommended; the best trial has {answer}"
            yield f"{one.search.name}: {answer}."


def _slice(outcomes: Sequence[SearchOutcome], field: str, log: bool, i: int) -> dict[str, Any]:
    objective = outcomes[0].search.objectives[i]
    series = [
        {
            "name": one.search.name,
            "mode": "markers",
            "x": [t.params[field] for t in one.measured],
            "y": [(t.values or ())[i] for t in one.measured],
            "text": [f"trial {t.number}, {text_of_values(t.params)}" for t in one.measured],
        }
        for one in outcomes
        if one.measured
    ]
    return {
        "title": f"{objective.text} over {field}",
        "xtitle": field,
        "ytitle": objective.text,
        "log": log,
        "series": series,
    }


def _points_of(one: SearchOutcome, trials: Sequence[TrialResult], mode: str) -> dict[str, Any]:
    values = [trial.values or () for trial in trials]
    return {
        "name": one.search.name,
        "mode": mode,
        "x": [v[0] for v in values],
        "y": [v[1] for v in values],
        "text": [f"trial {t.number}, {text_of_values(t.params)}" for t in trials],
    }


def experiment_section(
    experiment: Experiment,
) -> tuple[Section | None, dict[str, Any], list[str]]:
    """Return the searches in the experiment's report: a section, its data, and sentences.

    The sentences are the reasons why some searches cannot be shown.
    """
    journals, faults = read_journals(experiment)
    if not journals:
        return None, {}, faults
    sections = [section(journal.outcomes, journal.mlflow_runs) for journal in journals]
    if len(sections) == 1:
        return sections[0], {"tune": panels(journals[0].outcomes)}, faults
    merged = replace(
        sections[0],
        text=tuple(
            f"{journal.name}: {text}"
            for journal, own in zip(journals, sections, strict=True)
            for text in own.text
        ),
        points=tuple(dict.fromkeys(chain.from_iterable(own.points for own in sections))),
        figures=next((own.figures for own in sections if own.figures), ()),
        tables=tuple(
            replace(table, caption=f"{journal.name}. {table.caption}")
            for journal, own in zip(journals, sections, strict=True)
            for table in own.tables
        ),
    )
    all_panels = [
        {**panel, "title": f"{journal.name}: {panel['title']}"}
        for journal in journals
        for panel in panels(journal.outcomes)
    ]
    return merged, {"tune": all_panels}, faults
