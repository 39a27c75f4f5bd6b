"""Sections about libraries and gradients: the same cells in several libraries, Fig. 1."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.libraries import (
    LibrarySide,
    limits_of_base,
    meaning_data,
    side_data,
)
from orchestrator.analysis.stats import Estimate
from orchestrator.analysis.text import (
    counted,
    estimate_text,
    metric_title,
    p_text,
)
from orchestrator.charts.gradients import gradient_views
from orchestrator.errors import EnvironmentFault
from orchestrator.report.laboratory import PARAMETERS
from orchestrator.report.model import Figure, ReportTable, ReportText, Section, cell_link
from orchestrator.report.words import figure, section
from orchestrator.spec.rehearse import verdict_on

SIDE_TITLES = {"predicted": "predicted at micro scale", "observed": "observed in the libraries"}
PREDICTED = (
    "Predicted: the embedded trainer in each library's dialect, not the library itself. What it "
    "does not imitate is listed below."
)


# ---------------------------------------------------------------- the same cells in every library


def libraries_section(sides: Sequence[LibrarySide], base: str, source: str) -> Section:
    """Return a section with meanings, scores and verdicts of the libraries.

    base: the library that the others are compared with. source: the path of the spec.
    """
    pages: dict[str, dict[str, Any]] = {side.name: side_data(side, base, source) for side in sides}
    meaning = meaning_data(sides[0].questions, base)
    text = [
        *([PREDICTED] if "predicted" in pages else []),
        *_overall_sentences(pages),
    ]
    missing = [sentence for page in pages.values() for sentence in page["missing"]]
    limits = [*limits_of_base(sides[0].questions, base), *limit_sentences(meaning)]
    points = tuple(dict.fromkeys([*limits, *missing]))
    tables = [
        _meaning_table(meaning, base),
        *(table for side in sides for table in _side_tables(side, pages[side.name])),
        _ledger_table(meaning, base),
    ]
    return section(
        "libraries",
        text=tuple(text),
        points=points,
        tables=tuple(table for table in tables if table.rows),
    )


_OVERVIEW_LEGEND = (
    "Effect: the largest difference among these cells, as {metric}, with its 95 % interval and "
    "cell. Causes that share a cell share its effect."
)


def overview_table(page: Mapping[str, Any], name: str) -> ReportTable:
    """Return one table of all differences, their relevance for these cells, and their effects.

    `name`: the side that gives the effects, `predicted` or `observed`.
    """
    side = page[name]
    every = side["differences"]
    rows: list[tuple[str, ...]] = []
    for each in page["meaning"]:
        library = each["library"]
        total = sum(d["right"] == each["library"] for d in every)
        own = {d["question"]: d for d in every if d["right"] == library}
        causes: dict[str, list[str]] = {}
        for one in each["differs"]:
            questions = causes.setdefault(one["title"], [])
            questions += [q for q in one["questions"] if q not in questions]
        lines = []
        for title, questions in causes.items():
            effect = _largest([own[q] for q in questions if q in own])
            lines.append((title, f"in {len(questions)} of {total} cells", *effect))
        same = [q for q, d in own.items() if d["verdict"] == "same mathematics"]
        if same:
            where = f"{len(same)} of {total} cells"
            lines.append(("nothing", where, "0, one training run", "by construction"))
        rows += [(library if not i else "", *row) for i, row in enumerate(lines)]
    columns = ("library", f"differs from {page['base']} in", "matters here", "effect", "verdict")
    title = f"{SIDE_TITLES[name][0].upper()}{SIDE_TITLES[name][1:]}"
    return ReportTable(title, columns, tuple(rows))


def _largest(differences: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    measured = [d for d in differences if d["difference"] is not None]
    if not measured:
        return "not measured yet", ""
    one = max(measured, key=lambda d: abs(d["difference"]["mean"]))
    text = f"{_estimate_text(one['difference'], signed=True)} {one['question']}"
    return text, one["verdict"]


def overview_legend(side: LibrarySide) -> str:
    """Return the legend of the overview's columns, with the metric of its effects."""
    metric = metric_title(side.metric) if side.metric else "nothing measured yet"
    return _OVERVIEW_LEGEND.format(metric=metric)


def plain_terms(sides: Sequence[LibrarySide], base: str) -> Iterator[str]:
    """Yield one sentence for each question on the pull of its KL term in the base library."""
    for question in sides[0].questions:
        if base in question.cells:
            settings = question.any_seed(base).cell.settings
            if settings.kl.placement:
                plain = verdict_on(settings).plain
                yield f"{question.name}: {plain[:1].lower()}{plain[1:]}"


def limit_sentences(meaning: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences on behaviour that is not imitated, and refused cells."""
    for each in meaning:
        for sentence in each["omits"]:
            yield f"{each['library']}, not imitated: {sentence}"
        for question, sentence in each["refused"].items():
            yield f"{each['library']} would refuse {question}: {sentence}"


def _overall_sentences(pages: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one sentence per side with the verdicts over all questions."""
    for name, page in pages.items():
        pairs: dict[str, list[str]] = {}
        for one in page["overall"]:
            verdict = one["verdict"].partition(" (")[0]
            pairs.setdefault(verdict, []).append(f"{one['left']} and {one['right']}")
        if pairs:
            verdicts = "; ".join(f"{verdict}: {', '.join(of)}" for verdict, of in pairs.items())
            yield f"Over all questions, {SIDE_TITLES[name]}: {verdicts}."


def _meaning_table(meaning: Sequence[Mapping[str, Any]], base: str) -> ReportTable:
    rows = tuple(
        (
            each["library"],
            one["title"],
            one["base"],
            one["other"],
            counted(len(one["questions"]), "cell"),
        )
        for each in meaning
        for one in each["differs"]
    )
    return ReportTable(
        "What equal settings mean differently", ("library", "what", base, "there", "in"), rows
    )


def _ledger_table(meaning: Sequence[Mapping[str, Any]], base: str) -> ReportTable:
    rows = tuple(
        (each["library"], one["field"], one["base"], one["other"])
        for each in meaning
        for one in each["ledger"]
    )
    return ReportTable(
        "What the ledgers say differently",
        ("library", "field", base, "there"),
        rows,
        searchable=True,
    )


def _side_tables(side: LibrarySide, page: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yield the tables of scores, of differences to the base, and of differences over all cells."""
    title = SIDE_TITLES[side.name]
    metric = metric_title(page["metric"]) if page["metric"] else "nothing has finished yet"
    rows = tuple(
        (
            s["question"],
            s["library"],
            _estimate_text(s["in_domain"]),
            _estimate_text(s["out_of_domain"]),
            "" if s["beta"] is None else f"{s['beta']:g}",
            _library_links(side, s["question"], s["library"]),
        )
        for s in page["scores"]
    )
    columns = ("cell", "library", "in domain", "out of domain", "β")
    caption = f"Scores, {title}: {metric}"
    yield ReportTable(caption, (*columns, "cells"), rows, searchable=True)
    yield ReportTable(
        f"Difference to {page['base']}, {title}",
        ("cell", "library", "difference", "p (Holm)", "verdict"),
        tuple((d["question"], d["right"], *_difference_columns(d)) for d in page["differences"]),
        searchable=True,
    )
    yield ReportTable(
        f"Over all cells, {title}",
        ("library", "less", "difference", "p (Holm)", "verdict"),
        tuple((d["right"], d["left"], *_difference_columns(d)) for d in page["overall"]),
    )


def _difference_columns(difference: Mapping[str, Any]) -> tuple[str, str, str]:
    measured = difference["difference"] is not None
    p = p_text(difference["p_corrected"]).removeprefix("p = ") if measured else ""
    return _estimate_text(difference["difference"], signed=True), p, difference["verdict"]


def _estimate_text(value: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return "" if value is None else estimate_text(Estimate(**value), signed=signed)


def _library_links(side: LibrarySide, question: str, library: str) -> ReportText:
    cells = next(q for q in side.questions if q.name == question).cells[library]
    return tuple(cell_link(cell.id, f"s{seed}") for seed, cell in sorted(cells.items()))


# ---------------------------------------------------------------- gradients


def gradients_section(comparison: Comparison, lab: Mapping[str, Any]) -> Section:
    """Return a section with a verdict on every configuration, and bias and variance (Fig. 1)."""
    return section(
        "gradients",
        figures=(laboratory_figure(lab),),
        tables=(_verdict_table(comparison), _gradient_table(lab)),
    )


def laboratory_figure(lab: Mapping[str, Any]) -> Figure:
    """Return the figure of bias and variance of gradients (Fig. 1)."""
    views = tuple(gradient_views(lab["rows"]))
    return figure("gradients", "drawn", {**lab, **lab["setting"]}, views=views)


def _verdict_table(comparison: Comparison) -> ReportTable:
    rows: dict[tuple[str, ...], None] = {}
    for c in comparison.configurations:
        try:
            verdict = verdict_on(c.runs[0].declared)
        except EnvironmentFault as fault:  # its library is not part of this orch
            rows[c.study, c.kl, "not known", str(fault), ""] = None
            continue
        rows[c.study, c.kl, verdict.plain, verdict.summary, verdict.advice.text] = None
    return ReportTable(
        "The KL terms of this experiment",
        ("study", "KL", "in plain words", "its gradient", "advice"),
        tuple(rows),
    )


def _gradient_table(lab: Mapping[str, Any]) -> ReportTable:
    columns = (
        "configuration",
        *(f"{name} d/d{p}" for p in PARAMETERS for name in ("bias", "variance")),
    )
    rows = [
        (
            row["label"],
            *(f"{row[p][key]:.3g}" for p in PARAMETERS for key in ("bias", "variance")),
        )
        for row in lab["rows"]
    ]
    return ReportTable(
        "Gradients on the autoregressive model", columns, tuple(rows), searchable=True
    )
