"""Searches told to a reviewer: a section of the report, the data of its figure, a page of its own.

`section(found)` and `panels(found)` are what a report of the whole experiment takes: the first
among its sections, the second as `data["tune"]`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from orchestrator.analysis.text import counted, estimate_text, number_text, p_text
from orchestrator.errors import OrchError
from orchestrator.files import read_json, write_text
from orchestrator.report import BANNER, Report
from orchestrator.report.model import Figure, ReportTable, Section
from orchestrator.runs.experiment import Experiment
from orchestrator.search import optimum
from orchestrator.search.design import read_back
from orchestrator.search.journal import SearchJournal
from orchestrator.search.results import Bracket, SearchOutcome, Tried, brackets, contests, found

CHOSEN = (
    "The seeds that chose a best trial flatter it: the more trials, the more. Fresh seeds "
    "(tune.confirm_seeds), on which what is recommended is trained again, do not have this bias."
)
CURVE = (
    '"Recommended": where a smooth curve through all trials (a Gaussian process over the field) is '
    "best; in brackets, between which values its top lies with probability 0.95. The best trial is "
    "best partly by luck, the curve less so; of what was tried, it says nothing beyond the ends."
)
BRACKET = (
    '"Lies between": the nearest tried values on both sides that are worse than the best beyond '
    "chance (t-test with the spread between seeds pooled over trials, level 0.95 over all of them "
    "together); an end of the range where no such value was tried. It holds if the objective has "
    "one hill."
)


def section(found: Sequence[SearchOutcome], links: Mapping[str, str] | None = None) -> Section:
    """The best of each search, the searches against each other, and every trial.

    `links`: cell id -> MLflow run.
    """
    tables = [best_table(found)]
    if len(found) > 1 and (contest := _contest_table(found)).rows:
        tables.append(contest)
    tables += [table for table in (_importance_table(found), _front_table(found)) if table.rows]
    tables.append(_trials_table(found, links or {}))
    figure = Figure(
        "tune",
        "trials",
        "Searches",
        "Each mark is a trial, the mean over its seeds. History: the best so far, in the order in "
        "which trials were asked; those taken from the grid come first.",
        "Objective over each searched field, and history; the tables hold the same numbers.",
    )
    return Section(
        "tune",
        "Searches with Optuna",
        text=tuple(_text(found)),
        points=tuple(_points(found)),
        figures=(figure,) if any(one.measured for one in found) else (),
        tables=tuple(tables),
    )


def report(
    experiment: Experiment, found: Sequence[SearchOutcome], links: Mapping[str, str]
) -> Report:
    """A page for the searches alone."""
    trials = [trial for one in found for trial in one.trials]
    states = {
        state: sum(t.state == state for t in trials)
        for state in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")
    }
    told_states = [(state.lower(), str(count)) for state, count in states.items() if count]
    return Report(
        name=f"{experiment.spec.name}: search",
        question=_question(found),
        description="",
        banner=BANNER if experiment.scale == "micro" else "",
        answer=" ".join(_answer(found)),
        facts=(("searches", str(len(found))), ("trials", str(len(trials))), *told_states),
        cards=(),
        sections=(section(found, links),),
        data={"tune": panels(found)},
    )


def panels(found: Sequence[SearchOutcome]) -> list[dict[str, Any]]:
    """What the figure draws: the objective over each range, the history, the front."""
    objectives = found[0].search.objectives
    drawn = [
        _slice(found, field.field, field.log, i)
        for field in found[0].search.space
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
            for one in found
        ]
        drawn.append(
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
        for one in found:
            rest = [t for t in one.measured if t not in one.front]
            series += [
                _points_of(one, rest, "markers"),
                _points_of(one, one.front, "lines+markers"),
            ]
        drawn.append(
            {
                "title": "Pareto front",
                "xtitle": objectives[0].text,
                "log": False,
                "ytitle": objectives[1].text,
                "series": [each for each in series if each["x"]],
            }
        )
    return drawn


def best_table(found: Sequence[SearchOutcome]) -> ReportTable:
    """Each search's best trial; of several objectives, the number on the front."""
    rows = []
    for one in found:
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


def plain(found: Sequence[SearchOutcome], links: Mapping[str, str]) -> list[dict[str, Any]]:
    """All of it as JSON."""
    return [
        {
            "search": one.search.name,
            "objectives": [str(each) for each in one.search.objectives],
            "best": None if one.best is None else one.best.number,
            "front": [trial.number for trial in one.front],
            "recommended": optimum.plain(one.recommended),
            "brackets": [bracket._asdict() for bracket in brackets(one)],
            "importance": dict(one.importance),
            "confirmed": {seed: list(values) for seed, values in one.confirmed.items()},
            "trials": [_plain_trial(trial, links) for trial in one.trials],
        }
        for one in found
    ]


def _plain_trial(trial: Tried, links: Mapping[str, str]) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "params": dict(trial.params),
        "values": trial.values,
        "seeds": {s: list(v) for s, v in trial.seeds.items()},
        "cells": trial.cells,
        "mlflow": [links.get(cell) for cell in trial.cells],
        "reused": trial.reused,
        "why": trial.why,
        "gpu_hours": trial.gpu_hours,
        "cpu_hours": trial.cpu_hours,
    }


def _best_row(one: SearchOutcome) -> tuple[str, str, str, str, str]:
    from orchestrator.analysis.stats import estimate

    if len(one.search.objectives) > 1:
        return f"{len(one.front)} on the front", "", "", "", ""
    if one.best is None:
        return "nothing measured yet", "", "", "", ""
    value = estimate_text(estimate(values[0] for values in one.best.seeds.values()))
    fresh = estimate_text(estimate(v[0] for v in one.confirmed.values())) if one.confirmed else ""
    between = "; ".join(map(_bracket, brackets(one)))
    return _params(one.best), _recommended(one.recommended), between, value, fresh


def _recommended(one: optimum.Recommended | None) -> str:
    return "" if one is None else f"{one.field} = {one.value:g} [{one.low:g}, {one.high:g}]"


def _bracket(one: Bracket) -> str:
    ends = [
        f"{end:g}{' (end of the range)' if is_open else ''}"
        for end, is_open in zip((one.low, one.high), one.is_open, strict=True)
    ]
    return f"{one.field}: {ends[0]} and {ends[1]}"


def _contest_table(found: Sequence[SearchOutcome]) -> ReportTable:
    rows = tuple(
        (
            f"{c.one} − {c.other}",
            estimate_text(c.difference, signed=True),
            p_text(c.p),
            "fresh" if c.fresh else "those that chose",
        )
        for c in contests(found)
    )
    return ReportTable(
        "Each at its own best, against each other: difference of the objective, seed by seed",
        ("searches", "difference and 95 % interval", "p (Holm)", "seeds"),
        rows,
    )


def _importance_table(found: Sequence[SearchOutcome]) -> ReportTable:
    rows = tuple(
        (one.search.name, field, f"{share:.2f}")
        for one in found
        for field, share in one.importance.items()
    )
    return ReportTable(
        "Importance: a field's share in what sets the best trials apart (PED-ANOVA)",
        ("search", "field", "share"),
        rows,
    )


def _front_table(found: Sequence[SearchOutcome]) -> ReportTable:
    objectives = found[0].search.objectives
    if len(objectives) == 1:
        return ReportTable("", (), ())
    rows = tuple(
        (one.search.name, str(trial.number), _params(trial), *map(number_text, trial.values or ()))
        for one in found
        for trial in one.front
    )
    return ReportTable(
        "Pareto front: no other trial of the search is better in one objective and as "
        "good in the others",
        ("search", "trial", "at", *map(str, objectives)),
        rows,
    )


def _trials_table(found: Sequence[SearchOutcome], links: Mapping[str, str]) -> ReportTable:
    objectives = found[0].search.objectives
    rows = []
    for one in found:
        for trial in one.trials:
            values = (
                [number_text(v) for v in trial.values] if trial.values else ["" for _ in objectives]
            )
            state = "from the grid" if trial.reused else trial.state.lower()
            runs = ", ".join(filter(None, (links.get(cell, "") for cell in trial.cells)))
            rows.append(
                (
                    one.search.name,
                    str(trial.number),
                    state,
                    _params(trial),
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


def _text(found: Sequence[SearchOutcome]) -> Iterator[str]:
    search = found[0].search
    seeds = counted(len(search.tune.seeds), "seed")
    yield (
        f"{' and '.join(str(each) for each in search.objectives)}, the mean over {seeds} a trial; "
        f"sampler {search.tune.block.sampler}, pruner {search.tune.block.pruner}."
    )


def _points(found: Sequence[SearchOutcome]) -> Iterator[str]:
    if len(found[0].search.objectives) > 1:
        yield "With several objectives nothing was pruned: Optuna prunes for one only."
        return
    if len(found[0].search.tune.seeds) < 2:
        yield "One seed a trial: what differs may be noise, and nothing is bracketed."
    else:
        yield BRACKET
    if any(one.recommended for one in found):
        yield CURVE
    yield CHOSEN


def _question(found: Sequence[SearchOutcome]) -> str:
    fields = ", ".join(each.field for each in found[0].search.space)
    goals = " and ".join(str(each) for each in found[0].search.objectives)
    return f"Which {fields}, to {goals}?"


def _answer(found: Sequence[SearchOutcome]) -> Iterator[str]:
    for one in found:
        if len(one.search.objectives) > 1:
            yield f"{one.search.name}: {counted(len(one.front), 'trial')} on the front."
        elif one.best is None or one.best.values is None:
            yield f"{one.search.name}: nothing measured yet."
        else:
            told = f"{_params(one.best)} ({number_text(one.best.values[0])})"
            if one.recommended is not None:
                told = f"{_recommended(one.recommended)} is recommended; the best trial has {told}"
            yield f"{one.search.name}: {told}."


def _slice(found: Sequence[SearchOutcome], field: str, log: bool, i: int) -> dict[str, Any]:
    objective = found[0].search.objectives[i]
    series = [
        {
            "name": one.search.name,
            "mode": "markers",
            "x": [t.params[field] for t in one.measured],
            "y": [(t.values or ())[i] for t in one.measured],
            "text": [f"trial {t.number}, {_params(t)}" for t in one.measured],
        }
        for one in found
        if one.measured
    ]
    return {
        "title": f"{objective.text} over {field}",
        "xtitle": field,
        "ytitle": objective.text,
        "log": log,
        "series": series,
    }


def _points_of(one: SearchOutcome, trials: Sequence[Tried], mode: str) -> dict[str, Any]:
    values = [trial.values or () for trial in trials]
    return {
        "name": one.search.name,
        "mode": mode,
        "x": [v[0] for v in values],
        "y": [v[1] for v in values],
        "text": [f"trial {t.number}, {_params(t)}" for t in trials],
    }


def _params(trial: Tried) -> str:
    return ", ".join(
        f"{field} = {value:g}" if isinstance(value, float) else f"{field} = {value}"
        for field, value in trial.params.items()
    )


# Every search of an experiment, read back from its folder: for a report of the whole.
#
# A search is found whoever began it, from the spec's block or from flags alone: beside its journal
# lies the block it was last driven with. Nothing is written.


_LINKS = "links.json"


class JournalSearches(NamedTuple):
    """The searches of one journal."""

    name: str
    found: tuple[SearchOutcome, ...]
    links: Mapping[str, str]
    """Cell id -> MLflow run."""


def known(experiment: Experiment) -> tuple[list[JournalSearches], list[str]]:
    """Journal by journal, by name, and why some search cannot be shown."""
    told: list[JournalSearches] = []
    faults: list[str] = []
    for log in sorted((experiment.folder.path / "tune").glob("*/journal.log")):
        journal = SearchJournal(experiment.folder, log.parent.name)
        try:
            ours = tuple(_read(experiment, journal, faults))
        except OrchError as error:
            faults.append(str(error))
            continue
        if ours:
            told.append(JournalSearches(log.parent.name, ours, read_links(journal)))
    return told, faults


def searched(experiment: Experiment) -> tuple[Section | None, dict[str, Any], list[str]]:
    """What the experiment's report shows of its searches: a section, its data, and faults."""
    told, faults = known(experiment)
    if not told:
        return None, {}, faults
    parts = [section(one.found, one.links) for one in told]
    if len(parts) == 1:
        return parts[0], {"tune": panels(told[0].found)}, faults
    whole = replace(
        parts[0],
        text=tuple(
            f"{one.name}: {text}"
            for one, part in zip(told, parts, strict=True)
            for text in part.text
        ),
        points=tuple(dict.fromkeys(chain.from_iterable(part.points for part in parts))),
        figures=next((part.figures for part in parts if part.figures), ()),
        tables=tuple(
            replace(table, caption=f"{one.name}. {table.caption}")
            for one, part in zip(told, parts, strict=True)
            for table in part.tables
        ),
    )
    drawn = [
        {**panel, "title": f"{one.name}: {panel['title']}"}
        for one in told
        for panel in panels(one.found)
    ]
    return whole, {"tune": drawn}, faults


def keep_links(journal: SearchJournal, links: Mapping[str, str]) -> None:
    """Notes the MLflow runs of trials beside their journal."""
    write_text(journal.path / _LINKS, json.dumps(dict(links), indent=1) + "\n")


def read_links(journal: SearchJournal) -> dict[str, str]:
    """Cell id -> MLflow run, as of the last mirror."""
    return dict(read_json(journal.path / _LINKS) or {})


def _read(experiment: Experiment, journal: SearchJournal, faults: list[str]) -> list[SearchOutcome]:
    shown = []
    for name, study in journal.studies().items():
        plain = read_json(journal.block_of(name))
        again = "run `orch tune` with what began it once more, or remove the folder"
        if plain is None:
            faults.append(f"{journal.path}: nothing says what search {name} was; {again}")
            continue
        try:
            search = read_back(experiment, name, plain)
        except OrchError as error:
            faults.append(f"{journal.path}: search {name} does not fit the spec any more: {error}")
            continue
        if journal.is_of(search):
            shown.append(found(search, study))
        else:
            faults.append(
                f"{journal.path}: search {name} is of another wording of the spec, so it "
                "is not shown; `orch tune` with another --name searches anew"
            )
    return shown
