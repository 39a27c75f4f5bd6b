"""The same cells in several libraries: what they mean differently, and what came of it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.libraries import (
    CURVES,
    LibrarySide,
    curves_by_library,
    meaning_data,
    not_compared,
    not_imitated,
    side_data,
)
from orchestrator.analysis.sentences import metric_title as name_of
from orchestrator.analysis.stats import Estimate
from orchestrator.analysis.text import counted, estimate_text, number_text, p_text
from orchestrator.probes.capability import RANK, CapabilityRow, Release, matrix, releases, words
from orchestrator.report.figures import axis_label, rounded
from orchestrator.report.model import Figure, ReportTable, ReportText, Section, cell_link
from orchestrator.spec.rehearse import verdict_on

SIDE_TITLES = {"predicted": "predicted at micro scale", "observed": "observed in the libraries"}
LIBRARIES_TEXT = (
    "A question is a cell without its library and its seed. Differences are paired on seeds and "
    "corrected by Holm; one of `same mathematics` is one training run under both names, so it is 0 "
    "by identity and not by measurement."
)
PREDICTED = (
    "Predicted: the embedded trainer in each library's dialect, not the library itself. What it "
    "does not imitate is listed below."
)
POINTS = 40


def libraries_section(sides: Sequence[LibrarySide], base: str, source: str) -> Section:
    """Meanings, curves, scores, effective beta and verdicts of every library against `base`."""
    pages: dict[str, dict[str, Any]] = {side.name: side_data(side, base, source) for side in sides}
    meant = meaning_data(sides[0].questions, base)
    text = [
        LIBRARIES_TEXT,
        *([PREDICTED] if "predicted" in pages else []),
        *_overall_sentences(pages),
    ]
    missing = [sentence for page in pages.values() for sentence in page["missing"]]
    read = not_compared(sides[0].questions)
    own = [f"{base}, not imitated: {each}" for each in not_imitated(sides[0].questions, base)]
    points = tuple(dict.fromkeys([*read, *own, *_not_imitated(meant), *missing]))
    figure = Figure(
        "libraries",
        "libraries",
        "The same cell in every library",
        "Mean over seeds, over rollouts seen, at progress every run has reached; one panel a "
        "question. Libraries that share one training run lie on each other.",
        "Learning curves by library, one panel a question; the tables below hold final values.",
    )
    tables = [
        _meaning_table(meant, base),
        *(table for side in sides for table in _side_tables(side, pages[side.name])),
        _ledger_table(meant, base),
    ]
    return Section(
        "libraries",
        "Across libraries",
        tuple(text),
        points,
        figures=(figure,) if library_panels(sides) else (),
        tables=tuple(table for table in tables if table.rows),
    )


def _overall_sentences(pages: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The verdict over all questions, in one sentence a side."""
    for name, page in pages.items():
        by: dict[str, list[str]] = {}
        for gap in page["overall"]:
            by.setdefault(gap["verdict"].partition(" (")[0], []).append(
                f"{gap['left']} and {gap['right']}"
            )
        if by:
            said = "; ".join(f"{verdict}: {', '.join(pairs)}" for verdict, pairs in by.items())
            yield f"Over all questions, {SIDE_TITLES[name]}: {said}."


def _not_imitated(meant: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in meant:
        for sentence in each["omits"]:
            yield f"{each['library']}, not imitated: {sentence}"
        for question, sentence in each["refused"].items():
            yield f"{each['library']} would refuse {question}: {sentence}"


def _meaning_table(meant: Sequence[Mapping[str, Any]], base: str) -> ReportTable:
    rows = tuple(
        (each["library"], m["title"], m["base"], m["other"], counted(len(m["questions"]), "cell"))
        for each in meant
        for m in each["differs"]
    )
    return ReportTable(
        "What equal settings mean differently", ("library", "what", base, "there", "in"), rows
    )


def _ledger_table(meant: Sequence[Mapping[str, Any]], base: str) -> ReportTable:
    rows = tuple(
        (each["library"], g["field"], g["base"], g["other"])
        for each in meant
        for g in each["ledger"]
    )
    return ReportTable(
        "What the ledgers say differently",
        ("library", "field", base, "there"),
        rows,
        searchable=True,
    )


def _side_tables(side: LibrarySide, page: Mapping[str, Any]) -> Iterator[ReportTable]:
    title = SIDE_TITLES[side.name]
    metric = name_of(page["metric"]) if page["metric"] else "nothing has finished yet"
    rows = tuple(
        (
            s["question"],
            s["library"],
            _estimate_text(s["in_domain"]),
            _estimate_text(s["out_of_domain"]),
            "" if s["beta"] is None else f"{s['beta']:g}",
            number_text(s["beta_effective"]["mean"]) if s["beta_effective"] else "",
            f"one run with {', '.join(s['one_run_with'])}" if s["one_run_with"] else "",
            _library_links(side, s["question"], s["library"]),
        )
        for s in page["scores"]
    )
    yield ReportTable(
        f"Scores, {title}: {metric}",
        ("cell", "library", "in domain", "out of domain", "β", "effective β", "shared", "cells"),
        rows,
        searchable=True,
    )
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


def _difference_columns(found: Mapping[str, Any]) -> tuple[str, str, str]:
    measured = found["difference"] is not None
    p = p_text(found["p_corrected"]).removeprefix("p = ") if measured else ""
    return _estimate_text(found["difference"], signed=True), p, found["verdict"]


def _estimate_text(found: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return "" if found is None else estimate_text(Estimate(**found), signed=signed)


def _library_links(side: LibrarySide, question: str, library: str) -> ReportText:
    asked = next(q for q in side.questions if q.name == question).asked[library]
    return tuple(cell_link(one.id, f"s{seed}") for seed, one in sorted(asked.items()))


def library_panels(sides: Sequence[LibrarySide]) -> list[dict[str, Any]]:
    """One panel a question and side: {"title", "metric", "libraries": {name: {"x", "y"}}}."""
    panels = []
    for side in sides:
        for question in side.questions:
            for metric in CURVES:
                at, curves = curves_by_library(side.runs, question, metric, POINTS)
                if len(at) > 1:
                    panels.append(
                        {
                            "title": question.name + (f", {side.name}" if len(sides) > 1 else ""),
                            "metric": metric,
                            "label": axis_label(metric),
                            "x": list(at),
                            "libraries": {
                                name: [rounded(v) for v in values]
                                for name, values in curves.items()
                            },
                        }
                    )
                    break
    return panels


# What this experiment's KL terms are in its libraries, as measured in their own code.


CAPABILITY_TEXT = (
    "Measured in each library's own functions, on every sequence of a model whose gradients are "
    "known exactly, with rloo and a mean over tokens: the objective whose gradient the KL term has "
    "in expectation. The same estimator, place and β are different regularisers in different "
    "columns. `orch matrix --format json` gives the evidence."
)
LEGEND = (
    "≈ approximated, † through an extension of orch's, – refused, ! the verdict of `orch explain` "
    "says otherwise."
)
OWN = "The KL terms of this experiment, on samples of the policy itself"
OLDER = "... and on samples of an older policy (minibatches, staleness)"
STATUS_MARKS = dict(zip(RANK, ("", " ≈", " †"), strict=True))


def capability_section(comparison: Comparison) -> Section | None:
    """The terms of this experiment first, then every other one; nothing where none of its
    libraries was measured."""
    chosen = _declared_releases(comparison)
    if not chosen:
        return None
    rows = matrix(chosen)
    if not any(row.on_policy for row in rows):
        return None
    own = {c.kl for c in comparison.configurations}
    labels = list(dict.fromkeys(row.label for row in rows))
    off = any(
        run.declared.batch.num_minibatches > 1 or run.declared.max_staleness_steps
        for run in comparison.runs
    )
    mine = [label for label in labels if label in own]
    rest = [label for label in labels if label not in own]
    tables = (
        _capability_table(OWN, rows, chosen, mine, False),
        _capability_table(OLDER, rows, chosen, mine if off else [], True),
        _capability_table("Every other KL term", rows, chosen, rest, False, searchable=True),
    )
    return Section(
        "capability",
        "What each library makes of it",
        (CAPABILITY_TEXT, LEGEND),
        tables=tuple(table for table in tables if table.rows),
    )


def _declared_releases(comparison: Comparison) -> list[Release]:
    """The releases the cells were declared for; one without a version stands for the newest."""
    known = releases()
    found: dict[Release, None] = {}
    for run in comparison.runs:
        backend = run.declared.backend
        match = [r for r in known if r[0] == backend.name and backend.version in (None, "", r[1])]
        if match:
            found[match[0]] = None
    return list(found)


def _capability_table(
    caption: str,
    rows: Sequence[CapabilityRow],
    chosen: Sequence[Release],
    labels: Sequence[str],
    off_policy: bool,
    *,
    searchable: bool = False,
) -> ReportTable:
    by = {(row.label, row.library, row.version): row for row in rows}
    body = tuple(
        (
            label,
            *(
                _measured_text(by[label, library, version], off_policy)
                for library, version in chosen
            ),
        )
        for label in labels
    )
    columns = ("KL term", *(f"{library} {version}" for library, version in chosen))
    return ReportTable(caption, columns, body, searchable=searchable)


def _measured_text(row: CapabilityRow, off_policy: bool) -> str:
    found = row.off_policy if off_policy else row.on_policy
    if row.status == "refused" or (found is not None and "refused" in found):
        return "–"
    mark = STATUS_MARKS[row.status]
    return words(found) + mark + ("" if found is None or found.get("agrees") else " !")


# What the KL terms of this experiment optimise, and the paper's Fig. 1 from the laboratory.


GRADIENTS_TITLE = "What the KL terms optimise"
PARAMETERS = ("a", "b")


@cache
def laboratory_data() -> Mapping[str, Any]:
    """Fig. 1 as the page draws it: per configuration and parameter, exact and sampled. The same in
    every report, and a second of work: made once a process."""
    from orchestrator.kl.figures import figure1

    found = figure1()
    keys = ("bias", "sampled_bias", "variance", "sampled_variance")
    rows = [
        {"label": row["label"], "paper": row["in_paper"]}
        | {p: {key: rounded(row[p][key]) for key in keys} for p in PARAMETERS}
        for row in found["configurations"]
        if row["ratio"] == "token"
    ]
    return {key: found[key] for key in ("caveat", "setting", "trials", "sequences", "seed")} | {
        "rows": rows
    }


def gradients_section(comparison: Comparison, lab: Mapping[str, Any]) -> Section:
    """The verdict on every configuration, and bias and variance of the gradients (Fig. 1)."""
    setting = lab["setting"]
    policy, reference = setting["policy"], setting["reference"]
    figure = Figure(
        "gradients",
        "gradients",
        "Bias and variance of the gradient (Fig. 1)",
        "On the paper's autoregressive model (eq. 17, 18), not on a language model: the expected "
        "gradient's distance from that of the sequence-level reverse KL, and its variance. Filled: "
        f"exact. Open: {lab['trials']} trials of {lab['sequences']} sequences, seed {lab['seed']}. "
        f"Policy a={policy['a']}, b={policy['b']}; reference a={reference['a']}, "
        f"b={reference['b']}; T={setting['num_tokens']}. A bias of exactly zero has no filled mark "
        f"on a log axis. {lab['caveat']}",
        "Dots on a log axis: bias and variance of each KL configuration's gradient; the table "
        "holds the numbers.",
    )
    return Section(
        "gradients",
        GRADIENTS_TITLE,
        ("Derived from exact gradients of the paper's autoregressive model (orch explain).",),
        figures=(figure,),
        tables=(_verdict_table(comparison), _gradient_table(lab)),
    )


def _verdict_table(comparison: Comparison) -> ReportTable:
    rows: dict[tuple[str, ...], None] = {}
    for found in comparison.configurations:
        told = verdict_on(found.runs[0].declared)
        rows[found.study, found.kl, told.summary, told.advice.text] = None
    return ReportTable(
        "The KL terms of this experiment", ("study", "KL", "its gradient", "advice"), tuple(rows)
    )


def _gradient_table(lab: Mapping[str, Any]) -> ReportTable:
    columns = (
        "configuration",
        *(f"{name} d/d{p}" for p in PARAMETERS for name in ("bias", "sampled bias", "variance")),
    )
    rows = [
        (
            row["label"],
            *(
                f"{row[p][key]:.3g}"
                for p in PARAMETERS
                for key in ("bias", "sampled_bias", "variance")
            ),
        )
        for row in lab["rows"]
    ]
    return ReportTable(
        "Gradients on the autoregressive model", columns, tuple(rows), searchable=True
    )
