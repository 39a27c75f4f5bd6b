"""The same cells in several libraries: what they mean differently, and what came of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.compare.estimates import Estimate
from orchestrator.compare.libraries import curve_at
from orchestrator.compare.phrases import counted, number, p_value, told
from orchestrator.compare.semantics import not_compared, omitted
from orchestrator.compare.side import CURVES, Side, meaning, plain
from orchestrator.compare.words import metric as name_of
from orchestrator.report.data import label, rounded
from orchestrator.report.model import Figure, Section, Table, Text, cell_link

TITLES = {"predicted": "predicted at micro scale", "observed": "observed in the libraries"}
TEXT = (
    "A question is a cell without its library and its seed. Differences are paired on seeds and "
    "corrected by Holm; one of `same mathematics` is one training run under both names, so it is 0 "
    "by identity and not by measurement."
)
PREDICTED = (
    "Predicted: the embedded trainer in each library's dialect, not the library itself. What it "
    "does not imitate is listed below."
)
POINTS = 40


def libraries(sides: Sequence[Side], base: str, source: str) -> Section:
    """Meanings, curves, scores, effective beta and verdicts of every library against `base`."""
    pages: dict[str, dict[str, Any]] = {side.name: plain(side, base, source) for side in sides}
    meant = meaning(sides[0].questions, base)
    text = [TEXT, *([PREDICTED] if "predicted" in pages else []), *_overall(pages)]
    missing = [sentence for page in pages.values() for sentence in page["missing"]]
    read = not_compared(sides[0].questions)
    own = [f"{base}, not imitated: {each}" for each in omitted(sides[0].questions, base)]
    points = tuple(dict.fromkeys([*read, *own, *_omitted(meant), *missing]))
    figure = Figure(
        "libraries", "libraries", "The same cell in every library",
        "Mean over seeds, over rollouts seen, at progress every run has reached; one panel a "
        "question. Libraries that share one training run lie on each other.",
        "Learning curves by library, one panel a question; the tables below hold final values.",
    )  # fmt: skip
    tables = [
        _meanings(meant, base),
        *(table for side in sides for table in _of_side(side, pages[side.name])),
        _ledger(meant, base),
    ]
    return Section(
        "libraries", "Across libraries", tuple(text), points,
        figures=(figure,) if data(sides) else (),
        tables=tuple(table for table in tables if table.rows),
    )  # fmt: skip


def _overall(pages: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The verdict over all questions, in one sentence a side."""
    for name, page in pages.items():
        by: dict[str, list[str]] = {}
        for gap in page["overall"]:
            by.setdefault(gap["verdict"].partition(" (")[0], []).append(
                f"{gap['left']} and {gap['right']}"
            )
        if by:
            said = "; ".join(f"{verdict}: {', '.join(pairs)}" for verdict, pairs in by.items())
            yield f"Over all questions, {TITLES[name]}: {said}."


def _omitted(meant: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in meant:
        for sentence in each["omits"]:
            yield f"{each['library']}, not imitated: {sentence}"
        for question, sentence in each["refused"].items():
            yield f"{each['library']} would refuse {question}: {sentence}"


def _meanings(meant: Sequence[Mapping[str, Any]], base: str) -> Table:
    rows = tuple(
        (each["library"], m["title"], m["base"], m["other"], counted(len(m["questions"]), "cell"))
        for each in meant for m in each["differs"]
    )  # fmt: skip
    return Table("What equal settings mean differently", ("library", "what", base, "there", "in"),
                 rows)  # fmt: skip


def _ledger(meant: Sequence[Mapping[str, Any]], base: str) -> Table:
    rows = tuple(
        (each["library"], g["field"], g["base"], g["other"])
        for each in meant for g in each["ledger"]
    )  # fmt: skip
    return Table("What the ledgers say differently", ("library", "field", base, "there"), rows,
                 searchable=True)  # fmt: skip


def _of_side(side: Side, page: Mapping[str, Any]) -> Iterator[Table]:
    title = TITLES[side.name]
    metric = name_of(page["metric"]) if page["metric"] else "nothing has finished yet"
    rows = tuple(
        (s["question"], s["library"], _told(s["in_domain"]), _told(s["out_of_domain"]),
         "" if s["beta"] is None else f"{s['beta']:g}",
         number(s["beta_effective"]["mean"]) if s["beta_effective"] else "",
         f"one run with {', '.join(s['one_run_with'])}" if s["one_run_with"] else "",
         _cells(side, s["question"], s["library"]))
        for s in page["scores"]
    )  # fmt: skip
    yield Table(f"Scores, {title}: {metric}",
                ("cell", "library", "in domain", "out of domain", "β", "effective β", "shared",
                 "cells"), rows, searchable=True)  # fmt: skip
    yield Table(f"Difference to {page['base']}, {title}",
                ("cell", "library", "difference", "p (Holm)", "verdict"),
                tuple((d["question"], d["right"], *_verdict(d)) for d in page["differences"]),
                searchable=True)  # fmt: skip
    yield Table(f"Over all cells, {title}",
                ("library", "less", "difference", "p (Holm)", "verdict"),
                tuple((d["right"], d["left"], *_verdict(d)) for d in page["overall"]))  # fmt: skip


def _verdict(found: Mapping[str, Any]) -> tuple[str, str, str]:
    measured = found["difference"] is not None
    p = p_value(found["p_corrected"]).removeprefix("p = ") if measured else ""
    return _told(found["difference"], signed=True), p, found["verdict"]


def _told(found: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return "" if found is None else told(Estimate(**found), signed=signed)


def _cells(side: Side, question: str, library: str) -> Text:
    asked = next(q for q in side.questions if q.name == question).asked[library]
    return tuple(cell_link(one.id, f"s{seed}") for seed, one in sorted(asked.items()))


def data(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """One panel a question and side: {"title", "metric", "libraries": {name: {"x", "y"}}}."""
    panels = []
    for side in sides:
        for question in side.questions:
            for metric in CURVES:
                at, curves = curve_at(side.runs, question, metric, POINTS)
                if len(at) > 1:
                    panels.append({
                        "title": question.name + (f", {side.name}" if len(sides) > 1 else ""),
                        "metric": metric, "label": label(metric), "x": list(at),
                        "libraries": {name: [rounded(v) for v in values]
                                      for name, values in curves.items()},
                    })  # fmt: skip
                    break
    return panels
