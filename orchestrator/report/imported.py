"""The section on runs that orch did not launch."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.imported import APART, MOST_OWN, beside, imported_data
from orchestrator.analysis.text import number_text
from orchestrator.imports.runs import ImportedRun, metrics_in
from orchestrator.report.model import Figure, ReportTable, Section

TITLE = "Runs that orch did not launch"
CAPTION = (
    "One panel a metric: imported runs in bold lines, and the means over seeds of the first "
    f"{MOST_OWN} configurations that have it. Steps are those that each log counts."
)


def imported_section(
    runs: Sequence[ImportedRun], own: Sequence[Configuration]
) -> tuple[Section | None, Mapping[str, Any]]:
    """Return the section and the data of its figure, or (None, {}) without imported runs."""
    if not runs:
        return None, {}
    data, panels = imported_data(runs), beside(runs, own)
    figure = Figure(
        "imported",
        "imported",
        "Imported runs beside the cells",
        CAPTION,
        "Learning curves of imported runs and of this experiment's configurations.",
    )
    return Section(
        "imported",
        TITLE,
        (APART,),
        points=tuple(_points(data)),
        figures=(figure,) if panels else (),
        tables=(_origins(data), _values(runs), _meanings(data)),
    ), {"imported": panels}


def _points(data: Sequence[Mapping[str, Any]]) -> list[str]:
    unknown = [f"{one['name']}: not known is {each}" for one in data for each in one["unknown"]]
    assumed = [f"{one['name']}: assumed is that {each}" for one in data for each in one["assumes"]]
    wrong = [f"{one['name']}: {each}" for one in data for each in one["problems"]]
    return [
        *wrong,
        *unknown,
        *assumed,
        *(f"{o['name']}: {each}" for o in data for each in o["notes"]),
    ]


def _origins(data: Sequence[Mapping[str, Any]]) -> ReportTable:
    rows = []
    for one in data:
        release = f"@{one['release']}" if one["release"] else ""
        rows.append(
            (
                one["name"],
                f"{one['library']}{release}" if one["library"] else "unknown",
                one["kl"] or "unknown",
                "–" if one["beta"] is None else f"{one['beta']:g}",
                one["objective"] or "unknown",
                f"{one['ended']}, step {one['last_step']}",
                one["format"],
                one["origin"],
                one["digest"][:12],
            )
        )
    columns = ("run", "library", "KL", "β", "optimises", "ended", "read from", "origin", "sha256")
    return ReportTable("What they are, as their logs and settings say", columns, tuple(rows))


def _values(runs: Sequence[ImportedRun]) -> ReportTable:
    metrics = metrics_in(runs)
    rows = tuple(
        (
            metric,
            *(number_text(r.finals[metric]) if metric in r.finals else "–" for r in runs),
        )
        for metric in metrics
    )
    return ReportTable("Their last values", ("metric", *(run.name for run in runs)), rows)


def _meanings(data: Sequence[Mapping[str, Any]]) -> ReportTable:
    rows = dict.fromkeys(
        (f"{name} of {one['library']}", meaning)
        for one in data
        for name, meaning in one["kl_metrics"].items()
    )
    return ReportTable("What each logged KL means", ("logged", "meaning"), tuple(rows))
