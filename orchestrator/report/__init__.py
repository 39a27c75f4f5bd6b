"""The report of an experiment: the answer first, then the evidence, then its sources.

`report` is pure and returns plain data (model.py). `markdown` writes it as text, dashboards/ as a
page. Its parts:

front.py        the first screen: the finding, what is missing, claims, redrawn figures
results.py      sections on results; the tables of `orch compare`
libraries.py    sections on libraries; the tables of `orch compare --by backend`
provenance.py   what the numbers rest on: read from disk, and shown
figures.py      the data of figures, and their views as charts
words.yaml      titles, texts and captions, read by words.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.text import listed
from orchestrator.metrics.outcome import RULE
from orchestrator.metrics.zero_gradient import zero_gradient_stretch
from orchestrator.records import ExitRecord, Record, Score, Spec
from orchestrator.report.figures import figure_data
from orchestrator.report.front import answer as answer
from orchestrator.report.front import cards, distance_figure, missing, plates, worst_first
from orchestrator.report.front import findings as findings
from orchestrator.report.laboratory import laboratory_data
from orchestrator.report.libraries import (
    gradients_section,
    laboratory_figure,
    libraries_section,
)
from orchestrator.report.markdown import markdown as markdown
from orchestrator.report.model import MapCell, Plate, ReportTable, Section
from orchestrator.report.model import Report as Report
from orchestrator.report.provenance import Context as Context
from orchestrator.report.provenance import Origin as Origin
from orchestrator.report.provenance import (
    failures_section,
    is_micro,
    limits_section,
    methods_section,
    provenance_section,
)
from orchestrator.report.results import (
    baseline_data,
    beta_section,
    collapse_section,
    cost_section,
    curves_section,
    finals_section,
    phase_section,
    published_section,
    reference_section,
    staleness_section,
)
from orchestrator.report.words import section

AGGREGATES = ("in_domain", "out_of_domain")
"""Names in score files that are means over tasks, not tasks."""
BANNER = (
    "Micro scale: embedded trainer, not the paper's numbers. The grid is the spec's; the models "
    "and tasks are tiny stand-ins."
)

MOST_CELLS = 2000
"""Maximum number of cells that the page draws; beyond it, the page has the claims."""
MOST_STILL = 20
"""Maximum number of cells without a gradient that the page lists by name."""


def report(
    comparison: Comparison,
    records: Sequence[Record],
    scores: Sequence[Score],
    spec: Spec,
    *,
    last_lines: Mapping[str, str] | None = None,
    created: str = "",
    context: Context | None = None,
    sections: Sequence[Section] = (),
) -> Report:
    """Return the report that the page and the Markdown show.

    last_lines: cell id -> the end of a failed cell's stderr. created: the time, as text. sections:
    further sections, placed before the section on failures.
    Beyond MOST_CELLS records, the report has the claims, and says how to choose cells.
    """
    scores = [score for score in scores if score.task not in AGGREGATES]
    other = context or Context()
    lab = laboratory_data()
    many = len(records) > MOST_CELLS
    redrawn = () if many else tuple(plates(comparison, spec, laboratory_figure(lab), lab["rows"]))
    micro = is_micro(comparison.runs)
    settings = worst_first(comparison)
    limits = limits_section(comparison, scores, spec, other.baselines)
    faulty = section("incomplete", points=tuple(other.faults)) if other.faults else None
    own_sections: tuple[Section | None, ...] = (
        faulty,
        section("cells", {"most": f"{MOST_CELLS:,}", "count": f"{len(records):,}"}),
        limits,
        *sections,
        methods_section(),
    )
    if not many:
        source = spec.source or spec.name
        own_sections = (
            faulty,
            finals_section(comparison, other.baselines),
            curves_section(comparison),
            collapse_section(comparison),
            phase_section(comparison),
            published_section(comparison, spec),
            limits,
            outcome_section(records),
            zero_gradient_section(records),
            reference_section(comparison),
            libraries_section(other.sides, source) if other.sides else None,
            gradients_section(comparison, lab, spec.published.terms),
            staleness_section(comparison),
            beta_section(comparison),
            *sections,
            cost_section(comparison, records),
            failures_section(records, last_lines or {}),
            methods_section(),
            provenance_section(records, scores, other.origins, other.home),
        )
    return Report(
        name=spec.name,
        question=spec.question,
        description=spec.description,
        banner=BANNER if micro else "",
        findings=findings(comparison),
        first=None if many else distance_figure(comparison, micro=micro),
        missing=missing(comparison, records),
        settings=tuple((" · ".join(filter(None, of)), text) for of, text in settings.items())
        if len(settings) > 1
        else (),
        facts=_facts(comparison, records),
        cards=tuple(replace(card, cells=()) if many else card for card in cards(comparison, spec)),
        sections=tuple(each for each in own_sections if each is not None),
        source=spec.published.source,
        plates=redrawn,
        data={}
        if many
        else _data(comparison, spec, other, redrawn)
        | {"worst": next(iter(settings), None), "mark": _scale_mark(comparison) if micro else ""},
        created=created,
        written=other.written,
    )


def _scale_mark(comparison: Comparison) -> str:
    """Return what stands in each figure at micro scale, also where it is cut out of the page."""
    models = list(dict.fromkeys(run.traits.get("model", "") for run in comparison.runs))
    return f"micro policy for {listed(models) if len(models) < 4 else 'the models'}"


def _data(
    comparison: Comparison, spec: Spec, other: Context, redrawn: Sequence[Plate]
) -> dict[str, Any]:
    panels = [p for plate in redrawn if plate.figure is not None for p in plate.figure.panels]
    studies = {s.name: {"title": s.title, "figure": s.figure} for s in spec.studies}
    main = (comparison.in_domain, comparison.out_of_domain)
    more = [panel.metric for panel in panels if panel.draws == "curves"]
    return figure_data(comparison.configurations, main, studies, more) | {
        "baselines": baseline_data(other.baselines),
    }


def outcome_section(records: Sequence[Record]) -> Section | None:
    """Return a section with the reason of each run that was not stable; None if there is none."""
    rows = [
        (
            record.cell.slug,
            record.cell.id,
            outcome.word,
            outcome.cause,
            "" if outcome.step is None else str(outcome.step),
            outcome.reason,
        )
        for record in records
        if (outcome := record.outcome) is not None and outcome.kind != "trained"
    ]
    if not rows:
        return None
    columns = ("run", "cell", "outcome", "cause", "from step", "what was measured")
    table = ReportTable("Runs that were not stable", columns, tuple(rows), searchable=True)
    return section("outcomes", text=RULE, tables=(table,))


def zero_gradient_section(records: Sequence[Record]) -> Section | None:
    """Return a section on runs whose gradient was exactly 0 for a while, or None without any."""
    sentences = [
        stretch.sentence(f"{record.cell.slug} ({record.cell.id})")
        for record in records
        if (stretch := zero_gradient_stretch(record.metrics)) is not None
    ]
    if not sentences:
        return None
    more = [f"And {len(sentences) - MOST_STILL} more cells."] if len(sentences) > MOST_STILL else []
    points = (*sentences[:MOST_STILL], *more)
    return section("unlearnt", points=points)


def _facts(comparison: Comparison, records: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    finished = sum(record.state == "succeeded" for record in records)
    failed = sum(record.state in ("failed", "timed_out") for record in records)
    collapsed = sum(r.outcome is not None and r.outcome.kind == "collapsed" for r in records)
    told = sum(r.outcome is not None and r.outcome.collapsed is not None for r in records)
    seeds = sorted({c.num_finished for c in comparison.configurations}) or [0]
    most_seeds = max((len(c.runs) for c in comparison.configurations), default=0)
    exits = [end for record in records for end in record.attempts if end is not None]
    claims = comparison.claims
    num_held = sum(f.verdict in ("holds", "holds by construction") for f in claims)
    spread = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        ("runs finished", f"{finished} of {len(records)}"),
        ("runs collapsed", str(MapCell(collapsed, told, finished, finished - told))),
        ("claims that hold", f"{num_held} of {len(claims)}")
        if claims
        else ("configurations", str(len(comparison.configurations))),
        ("seeds finished, of each configuration", f"{spread} of {most_seeds}"),
        ("failed", str(failed)),
        ("cost", _cost(exits)),
    )


def _cost(exits: Sequence[ExitRecord]) -> str:
    gpu_hours = sum(end.gpu_hours for end in exits)
    if gpu_hours:
        return f"{gpu_hours:,.1f} GPU h"
    seconds = sum(end.cpu_seconds for end in exits)
    return f"{seconds:.0f} CPU s" if seconds < 600 else f"{seconds / 3600:.1f} CPU h"
