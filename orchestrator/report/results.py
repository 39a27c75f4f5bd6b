"""Sections of a report on results: accuracy, curves, collapse, phases, staleness, cost.

Then runs that orch did not launch, and the tables of `orch compare`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from orchestrator.analysis.claims import reason, statement, verdict_text
from orchestrator.analysis.compare import Comparison, PublishedComparison
from orchestrator.analysis.configurations import (
    STALENESS_MEAN,
    AxisDifference,
    Configuration,
    differences_to_no_kl,
    task_metrics,
)
from orchestrator.analysis.phases import STATES, PhaseField, PhaseMap, phase_maps
from orchestrator.analysis.runs import evaluated_metrics
from orchestrator.analysis.stats import Estimate, estimate
from orchestrator.analysis.text import estimate_text, metric_title
from orchestrator.charts.marks import ChartView, Rows, field_map
from orchestrator.evaluate import ScoredBaseline
from orchestrator.kl.shares import wilson
from orchestrator.metrics.names import BETA_EFFECTIVE
from orchestrator.metrics.outcome import RULE
from orchestrator.records import ExitRecord, Record, Score, Spec
from orchestrator.report.figures import (
    FEW_SEEDS,
    PAGE_CURVES,
    has_curve,
    rounded,
    setting_names,
)
from orchestrator.report.front import improvement_text, percent
from orchestrator.report.model import (
    MapCell,
    ReportTable,
    ReportText,
    Section,
    cell_link,
)
from orchestrator.report.plots import (
    USUAL_WIDTH,
)
from orchestrator.report.provenance import is_micro
from orchestrator.report.words import figure, section


def table_of_configurations(
    comparison: Comparison,
    caption: str,
    columns: Sequence[str],
    fields: Callable[[Configuration], Sequence[str] | None],
) -> ReportTable:
    """Return a table of configurations: names, the fields of `columns`, and links to the cells.

    fields: None leaves a configuration out.
    """
    body: list[tuple[ReportText, ...]] = []
    every = comparison.configurations
    for c, setting in zip(every, setting_names(every), strict=True):
        if (own := fields(c)) is not None:
            cells = tuple(cell_link(run.record.cell.id, f"s{run.seed}") for run in c.runs)
            body.append((c.study, setting, c.name, *own, cells))
    titles = ("study", "setting", "configuration", *columns, "cells")
    return ReportTable(caption, titles, tuple(body), searchable=True)


def final_text(c: Configuration, metric: str | None) -> str:
    """Return a final value with its interval over seeds, or an empty text without one."""
    return estimate_text(c.finals[metric]) if metric is not None and metric in c.finals else ""


def over_items_text(c: Configuration, metric: str | None) -> str:
    """Return a final value's interval over seeds and items; empty without scores of items."""
    final = c.finals_over_items.get(metric or "")
    return "" if final is None or final.low is None else estimate_text(final).partition(" ")[2]


# ---------------------------------------------------------------- accuracy


def baseline_values(scores: Sequence[Score]) -> dict[str, float]:
    """Return canonical metric name -> value before training.

    The value of a task is its mean@k. The value of a domain is the mean over its tasks, each at its
    largest k.
    """
    return {
        name: value
        for name, (value, _) in evaluated_metrics(scores).items()
        if name.endswith("_domain/mean") or ("/mean@" in name and "_domain/" not in name)
    }


def baseline_data(baselines: Sequence[ScoredBaseline]) -> list[dict[str, Any]]:
    """Return the baselines for figures: model, data, name, note and values of each scored one."""
    return [
        {
            "model": one.baseline.model,
            "data": one.data,
            "name": baseline_name(one),
            "note": one.note,
            "finals": {name: rounded(v) for name, v in baseline_values(one.scores).items()},
        }
        for one in baselines
        if one.scores
    ]


def baseline_name(one: ScoredBaseline) -> str:
    """Return the name of a baseline in figures: `base model`, or `base, no template`."""
    return "base, no template" if one.baseline.chat_template == "none" else "base model"


def finals_section(comparison: Comparison, baselines: Sequence[ScoredBaseline]) -> Section:
    """Return a section on final accuracy in and out of domain, with intervals.

    It also shows the models before training (Fig. 5, 6, 8, 9, 10).
    """
    metrics = tuple(m for m in (comparison.in_domain, comparison.out_of_domain) if m)
    if not metrics:
        return section("finals", text=("No cell has finished yet.",))
    tasks = sorted({m for c in comparison.configurations for m in c.finals if _is_task(m)})
    over_items = any(c.finals_over_items.get(m) for c in comparison.configurations for m in metrics)
    more = " The thick light bar is the interval over seeds and items." if over_items else ""
    if any(one.scores for one in baselines):
        more += " Stars, and the dotted lines through them: the model before training."
    fill = {"more": more, "metrics": " and ".join(map(metric_title, metrics))}
    drawn = figure("finals", "finals", fill, metrics=(*metrics, *tasks))
    every = _finals_table(comparison, over_items=over_items)
    tables = (*results_tables(comparison, baselines), every)
    return section("finals", figures=(drawn,), tables=tables)


def results_tables(
    comparison: Comparison,
    baselines: Sequence[ScoredBaseline] = (),
    metric: str | None = None,
) -> Iterator[ReportTable]:
    """Yield the table of each study and setting: a row a KL term and beta, a column a task.

    With `metric`, its column is the only one. Accuracies are of the runs that trained, mean and
    half width of the interval. Before them come the models before training.
    """
    main = [m for m in (comparison.in_domain, comparison.out_of_domain) if m]
    for title, own in by_setting(comparison.configurations).items():
        runs = [run for c in own for run in c.runs]
        tasks = [] if metric else [name for domain in main for name in task_metrics(runs, domain)]
        wanted = [metric] if metric else [*tasks, *main]
        metrics = [m for m in dict.fromkeys(wanted) if any(m in c.finals for c in own)]
        if not metrics:
            continue
        before = [
            (baseline_name(one), "", *("-" if m not in v else f"{v[m]:.3f}" for m in metrics))
            for one in baselines
            if one.scores and one.baseline.model == own[0].traits.get("model")
            for v in [baseline_values(one.scores)]
        ]
        rows = [
            (
                c.name,
                str(_counted(c, c.collapse.n - c.collapse.count)),
                *(_final_with_width(c.finals.get(m)) for m in metrics),
            )
            for c in own
        ]
        titles = [m.split("/")[1] if m in tasks else metric or metric_title(m) for m in metrics]
        yield ReportTable(title, ("KL", "trained", *titles), (*before, *rows), exported=True)


def _final_with_width(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.half_width is None:
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3f} ± {estimate.half_width:.3f}"


def by_setting(configurations: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """Return `study · setting` -> its configurations."""
    groups: dict[str, list[Configuration]] = {}
    for c, setting in zip(configurations, setting_names(configurations), strict=True):
        groups.setdefault(" · ".join(filter(None, (c.study, setting))), []).append(c)
    return groups


def _is_task(metric: str) -> bool:
    parts = metric.split("/")
    return (
        len(parts) == 3
        and parts[1] not in ("in_domain", "out_of_domain")
        and (parts[2].startswith("mean@") or parts[1] == "accuracy")
    )


def _finals_table(comparison: Comparison, *, over_items: bool) -> ReportTable:
    inside, outside = comparison.in_domain, comparison.out_of_domain
    differences = differences_to_no_kl(comparison.configurations, inside) if inside else {}
    place = {id(c): i for i, c in enumerate(comparison.configurations)}

    def fields(c: Configuration) -> tuple[str, ...]:
        difference = differences.get(place[id(c)])
        return (
            f"{c.num_finished} of {len(c.runs)}",
            final_text(c, inside),
            *([over_items_text(c, inside)] if over_items else []),
            estimate_text(difference, signed=True) if difference else "",
            final_text(c, outside),
            *([over_items_text(c, outside)] if over_items else []),
            str(_counted(c, c.collapse.count)),
        )

    more = ("... over seeds and items",) if over_items else ()
    columns = (
        "seeds finished",
        metric_title(inside) if inside else "",
        *more,
        "difference to no KL, same seeds",
        metric_title(outside) if outside else "out of domain",
        *more,
        "collapsed",
    )
    caption = "Every configuration: mean and 95 % interval over seeds"
    return table_of_configurations(comparison, caption, columns, fields)


# ---------------------------------------------------------------- during training


MEANS = (
    "Mean over seeds: with its 95 % interval as a band, or beside each seed up to "
    f"{FEW_SEEDS} seeds."
)


def _drawn(comparison: Comparison, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics of which a configuration has a curve."""
    return tuple(m for m in metrics if any(has_curve(c, m) for c in comparison.configurations))


def curves_section(comparison: Comparison) -> Section | None:
    """Return a section with learning curves by KL term and beta, or None without a curve.

    The paper's figures of this kind are Fig. 2-4, 7 and 11.
    """
    metrics = _drawn(comparison, PAGE_CURVES)
    if not metrics:
        return None
    drawn = figure("curves", "curves", {"means": MEANS}, metrics=metrics)
    return section("curves", figures=(drawn,))


def collapse_section(comparison: Comparison) -> Section | None:
    """Return a section with maps of the collapsed runs, or None without a configuration."""
    groups = by_setting(comparison.configurations)
    if not groups:
        return None
    maps = tuple(_collapse_map(title, group) for title, group in groups.items())
    return section("collapse", maps=maps)


def _counted(c: Configuration, count: int) -> MapCell:
    """Return a count of the runs of which the curve tells, beside the others."""
    return MapCell(count, c.collapse.n, len(c.runs), c.num_finished - c.collapse.n)


def _collapse_map(title: str, group: Sequence[Configuration]) -> ReportTable:
    betas = sorted({c.beta for c in group if c.beta is not None})
    columns = [None, *betas] if any(c.beta is None for c in group) else list(betas)
    rows: dict[str, dict[float | None, MapCell]] = {}
    for c in group:
        rows.setdefault(c.kl, {})[c.beta] = _counted(c, c.collapse.count)
    names = tuple("no KL" if beta is None else f"β {beta:g}" for beta in columns)
    fields = ((kl, *(cells.get(beta, "") for beta in columns)) for kl, cells in rows.items())
    return ReportTable(title, ("KL", *names), tuple(fields))


def reference_section(comparison: Comparison) -> Section | None:
    """Return a section on the distance from the reference policy, or None without its curves.

    It shows forward KL, reverse KL and entropy during training (Fig. 12).
    """
    metrics = _drawn(comparison, ("eval/kl_forward", "eval/kl_reverse", "eval/entropy"))
    if not metrics:
        return None

    def fields(c: Configuration) -> list[str] | None:
        texts = [final_text(c, m) for m in metrics]
        return texts if any(texts) else None

    caption = "Final values: mean and 95 % interval over seeds"
    columns = [*map(metric_title, metrics)]
    return _measured_section(comparison, "reference", metrics, caption, columns, fields)


def staleness_section(comparison: Comparison) -> Section | None:
    """Return a section on allowed and observed staleness, or None if no configuration has any."""
    if not any(
        c.max_staleness or c.traits.get("async", "0") != "0" for c in comparison.configurations
    ):
        return None

    def fields(c: Configuration) -> tuple[str, ...] | None:
        if c.staleness is None:
            return None
        most = "" if c.max_staleness is None else f"{c.max_staleness:g}"
        return c.traits.get("async", ""), estimate_text(c.staleness), most

    columns = ("largest allowed", "observed mean", "observed largest")
    metrics = (STALENESS_MEAN,)
    caption = "Staleness in train steps"
    return _measured_section(comparison, "staleness", metrics, caption, columns, fields)


def beta_section(comparison: Comparison) -> Section | None:
    """Return a section on declared and effective beta, or None if none was measured."""

    def fields(c: Configuration) -> tuple[str, ...] | None:
        series = (run.series.get(BETA_EFFECTIVE) for run in c.runs)
        means = [fmean(values.values()) for values in series if values]
        if not means or c.beta is None:
            return None
        mean = estimate(means)
        return f"{c.beta:g}", estimate_text(mean), f"{mean.mean / c.beta:.3g}" if c.beta else ""

    columns = ("β asked for", "effective β: mean over training", "ratio")
    caption = "Effective β of every configuration"
    return _measured_section(comparison, "beta", (BETA_EFFECTIVE,), caption, columns, fields)


def _measured_section(
    comparison: Comparison,
    name: str,
    metrics: Sequence[str],
    caption: str,
    columns: Sequence[str],
    fields: Callable[[Configuration], Sequence[str] | None],
) -> Section | None:
    """Return a section with curves of the metrics and a table of configurations, or None without
    either."""
    table = table_of_configurations(comparison, caption, columns, fields)
    drawn = _drawn(comparison, metrics)
    fill = {"means": MEANS, "metric": metrics[0]}
    figures = (figure(name, "measures", fill, metrics=drawn),) if drawn else ()
    tables = (table,) if table.rows else ()
    return section(name, figures=figures, tables=tables) if figures or tables else None


# ---------------------------------------------------------------- cost

COST_COLUMNS = ("runs", "attempts", "GPU h", "CPU s", "wall clock h")


def cost_section(comparison: Comparison, records: Sequence[Record]) -> Section | None:
    """Return a section on cost, or None if no attempt has ended."""
    if not any(end for record in records for end in record.attempts):
        return None
    studies = dict.fromkeys(study for record in records for study in record.cell.studies)
    rows = [(study, *_spent(r for r in records if study in r.cell.studies)) for study in studies]
    rows.append(("all together", *_spent(records)))
    by_configuration = table_of_configurations(
        comparison,
        "By configuration",
        COST_COLUMNS,
        lambda c: _spent(run.record for run in c.runs),
    )
    by_study = ReportTable("By study", ("study", *COST_COLUMNS), tuple(rows))
    return section("cost", tables=(by_study, by_configuration))


def _spent(records: Iterable[Record]) -> tuple[str, ...]:
    every = list(records)
    ends: list[ExitRecord] = [end for record in every for end in record.attempts if end]
    return (
        str(len(every)),
        str(sum(len(record.attempts) for record in every)),
        _amount(sum(end.gpu_hours for end in ends)),
        _amount(sum(end.cpu_seconds for end in ends)),
        _amount(wall_seconds(ends) / 3600),
    )


def wall_seconds(ends: Iterable[ExitRecord]) -> float:
    """Return the seconds in which at least one attempt was at work."""
    seconds, until = 0.0, 0.0
    for end in sorted(ends, key=lambda each: each.started):
        seconds += max(0.0, end.ended - max(end.started, until))
        until = max(until, end.ended)
    return seconds


def _amount(value: float) -> str:
    return "0" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ---------------------------------------------------------------- beside the paper's numbers

MICRO_NOTE = (
    "NOT COMPARABLE: the published numbers are of models of 7 and 8 billion parameters on "
    "mathematics; ours are of the embedded trainer, tens of thousands of parameters on strings of "
    "digits. They stand side by side to show which way each goes, and nothing else."
)


def published_section(comparison: Comparison, spec: Spec) -> Section | None:
    """Return a section on published numbers and ours, or None if the spec has none."""
    if not comparison.published:
        return None
    micro = is_micro(comparison.runs)
    source = f"Published in: {spec.published.source}." if spec.published.source else ""
    rows = tuple(_published_row(one, micro) for one in comparison.published)
    columns = ("claim", "where", "published", "ours", "seeds", "published lies")
    return section(
        "published",
        text=(source,) if source else (),
        tables=(ReportTable("Relative improvement", columns, rows),),
        note=MICRO_NOTE if micro else "",
    )


def _published_row(one: PublishedComparison, micro: bool) -> tuple[str, ...]:
    ours = one.ours
    return (
        statement(one.claim),
        one.published.where,
        percent(one.published.relative_improvement),
        f"none: {one.missing}" if ours is None else improvement_text(ours),
        str(ours.n) if ours else "",
        "not comparable (micro scale)" if micro else one.verdict,
    )


# ---------------------------------------------------------------- maps over two settings

AXIS_TITLES = {
    "async": "staleness (updates)",
    "max_staleness_steps": "staleness (updates)",
    "optimizer.learning_rate": "learning rate",
}


def axis_title(axis: str) -> str:
    """Return the title of an axis of a map."""
    return AXIS_TITLES.get(axis, axis)


def phase_section(comparison: Comparison) -> Section | None:
    """Return a section with the phase maps and their numbers, or None without a map."""
    maps = phase_maps(comparison.configurations)
    if not maps:
        return None
    terms = [(one.study, one.kl, one.axis) for one in maps]
    views = tuple(
        _phase_view(one, several=terms.count(term) > 1)
        for one, term in zip(maps, terms, strict=True)
    )
    drawn = figure("phases", "drawn", views=views)
    table = ReportTable(
        "Shares of the seeds of each field, with Wilson's 95 % intervals",
        ("study", "setting", "KL", "β", "beside it", "seeds", *STATES, "shown by"),
        tuple(row for one in maps for row in _phase_rows(one)),
        searchable=True,
    )
    largest = ReportTable(
        "Up to which value at most half of the seeds are unstable or collapsed, and what Wilson's "
        "95 % interval leaves",
        ("study", "setting", "KL", "β", "over", "trains up to"),
        tuple(
            (*_phase_row_of(one, beta), axis_title(one.axis), one.trains_up_to(beta))
            for one in maps
            for beta in one.betas
        ),
        searchable=True,
    )
    return section("phases", text=RULE, figures=(drawn,), tables=(largest, table))


def _phase_view(one: PhaseMap, *, several: bool) -> ChartView:
    rows: Rows = [
        {
            "column": column,
            "row": row,
            "z": _severity(field),
            "text": "" if field is None else " / ".join(str(field.counts[s]) for s in STATES),
            "says": _state_shares(field),
        }
        for row, beta in enumerate(one.betas)
        for column, x in enumerate(one.xs)
        for field in [one.fields.get((beta, x))]
    ]
    title = f"{one.kl} · {one.study}" + (f" · {one.setting}" if several else "")
    betas = ["no KL" if beta is None else f"{beta:g}" for beta in one.betas]
    spec = field_map([f"{float(x):g}" for x in one.xs], betas, axis_title(one.axis), "β")
    return {"title": title, "spec": spec, "least": USUAL_WIDTH, "rows": rows}


def _severity(field: PhaseField | None) -> float | None:
    """Return the mean severity of a field's seeds: stable 0, unstable 0.5, collapsed 1.

    Return None if no seed has a known state.
    """
    known = 0 if field is None else field.ended - field.counts["cannot tell"]
    if field is None or not known:
        return None
    return rounded((field.counts["unstable"] + 2 * field.counts["collapsed"]) / (2 * known))


def _state_shares(field: PhaseField | None) -> str:
    if field is None:
        return ""
    shares = (f"{state} {_state_share(field, state)}" for state in STATES)
    return f"{field.ended} of {field.declared} seeds ended: {', '.join(shares)}"


def _state_share(field: PhaseField, state: Any) -> str:
    low, high = wilson(field.counts[state], field.ended)
    return f"{field.counts[state]} of {field.ended} [{low:.0%}, {high:.0%}]"


def _phase_row_of(one: PhaseMap, beta: float | None) -> tuple[str, ...]:
    term = ("none", "") if beta is None else (one.kl, f"{beta:g}")
    return one.study, one.setting, *term


def _phase_rows(one: PhaseMap) -> Iterator[tuple[str, ...]]:
    for x in one.xs:
        for beta in one.betas:
            field = one.fields.get((beta, x))
            if field is None or not field.ended:
                continue
            yield (
                *_phase_row_of(one, beta),
                f"{axis_title(one.axis)} {float(x):g}",
                f"{field.ended} of {field.declared}",
                *(_state_share(field, state) for state in STATES),
                ", ".join(f"{name} {n}" for name, n in field.shown_by.items()),
            )


# ---------------------------------------------------------------- tables of `orch compare`


def claim_table(comparison: Comparison) -> ReportTable:
    """Return verdict and reason of every claim."""
    rows = [(verdict_text(c), statement(c.claim), reason(c)) for c in comparison.claims]
    return ReportTable("", ("verdict", "claim", "why"), tuple(rows))


def difference_table(differences: Sequence[AxisDifference], axis: str, metric: str) -> ReportTable:
    """Return the difference of every pair of values of an axis."""
    rows = [
        (
            d.left,
            d.right,
            f"{d.difference.mean:+.3f}",
            _bounds(d.difference),
            _bounds(d.over_items),
            "-" if d.relative is None else f"{d.relative.mean:+.1%}",
            str(d.difference.n),
            str(len(d.settings)),
            f"{d.p_corrected:.2g}",
            d.verdict,
        )
        for d in differences
    ]
    columns = (
        *(axis, "against", "difference", "over seeds", "over seeds and items", "relative"),
        *("seeds", "settings", "p (Holm)", "verdict"),
    )
    caption = f"difference in {metric}: 95 % intervals and p are of one look"
    return ReportTable(caption, columns, tuple(rows))


def _bounds(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"[{estimate.low:+.3f}, {estimate.high:+.3f}]"
