"""Sections of a report on results: accuracy, curves, collapse, stability, phases, staleness, cost.

Then runs that orch did not launch, and the tables of `orch compare`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from orchestrator.analysis.claims import reason, statement, verdict_text
from orchestrator.analysis.compare import Comparison, PublishedComparison
from orchestrator.analysis.configurations import (
    AxisDifference,
    Configuration,
    differences_to_no_kl,
    task_metrics,
)
from orchestrator.analysis.imported import APART, MOST_OWN, beside, imported_data
from orchestrator.analysis.phases import (
    STATES,
    PhaseField,
    PhaseMap,
    phase_maps,
)
from orchestrator.analysis.runs import evaluated_metrics
from orchestrator.analysis.stats import Estimate, SeedSpread, estimate
from orchestrator.analysis.text import estimate_text, metric_title, number_text
from orchestrator.evaluate import ScoredBaseline
from orchestrator.imports.runs import ImportedRun, metrics_in
from orchestrator.metrics.names import BETA_EFFECTIVE
from orchestrator.metrics.outcome import RULE
from orchestrator.records import ExitRecord, Record, Score, Spec
from orchestrator.report.figures import (
    FEW_SEEDS,
    PAGE_CURVES,
    has_curve,
    rounded,
    setting_names,
    with_setting_names,
)
from orchestrator.report.front import improvement_text, percent
from orchestrator.report.model import (
    Figure,
    Map,
    MapCell,
    ReportTable,
    ReportText,
    Section,
    cell_link,
)
from orchestrator.report.provenance import is_micro


def table_of_configurations(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[tuple[Configuration, str, Sequence[str]]],
    *,
    searchable: bool = True,
    links: str = "cells",
) -> ReportTable:
    """Return a table of configurations: names, the fields of `columns`, and links to the cells.

    rows: a configuration, the name of its setting, and its fields. links: the last column's title.
    """
    body = tuple((c.study, setting, c.name, *fields, _cell_links(c)) for c, setting, fields in rows)
    titles = ("study", "setting", "configuration", *columns, links)
    return ReportTable(caption, titles, body, searchable=searchable)


def _cell_links(c: Configuration) -> ReportText:
    return tuple(cell_link(run.record.cell.id, f"s{run.seed}") for run in c.runs)


def final_text(c: Configuration, metric: str | None) -> str:
    """Return a final value with its interval over seeds, or an empty text without one."""
    return estimate_text(c.finals[metric]) if metric is not None and metric in c.finals else ""


def over_items_text(c: Configuration, metric: str | None) -> str:
    """Return a final value's interval over seeds and items; empty without scores of items."""
    final = c.finals_over_items.get(metric or "")
    return "" if final is None or final.low is None else estimate_text(final).partition(" ")[2]


STABILITY_TEXT = (
    "Drop: the best value of the curve less its last; 0 for a run that ends at its best. Noise "
    "alone makes it positive, the more so the oftener a run is evaluated: compare it between "
    "configurations, not with 0. Spread: the standard deviation between seeds of the final value, "
    "with its chi-square interval. Steps kept: train steps before a collapse, or all of them; the "
    "mean is the area under the share of runs that still train."
)


MEASURES = {
    "drop": "drop from the peak",
    "spread": "standard deviation between seeds",
    "steps": "train steps kept before a collapse",
}


def stability_section(comparison: Comparison) -> Section | None:
    """Return a section with a figure and a table of stability, or None if no run ended well."""
    measured = [
        (c, s) for c, s in with_setting_names(comparison.configurations) if c.stability.steps_kept
    ]
    if not measured:
        return None
    curves = {metric_title(c.stability.metric) for c, _ in measured if c.stability.metric}
    figure = Figure(
        "stability",
        "stability",
        "Stability",
        f"Of the curve of {' or '.join(sorted(curves)) or 'no metric'}. Lines are 95 % intervals; "
        "those of a spread from few seeds are long, and are meant to be.",
        "Dots with intervals: drop from the peak, spread between seeds and steps kept of each "
        "configuration; the table below holds the numbers.",
    )
    table = table_of_configurations(
        "Stability of every configuration, with 95 % intervals",
        ("drop from the peak", "spread between seeds", "steps kept", "collapsed at step"),
        ((c, setting, _stability_row(c)) for c, setting in measured),
    )
    return Section("stability", "Stability", (STABILITY_TEXT,), figures=(figure,), tables=(table,))


def _stability_row(c: Configuration) -> tuple[str, ...]:
    s = c.stability
    kept = f"{s.steps_kept.mean:.4g} of {s.num_train_steps}" if s.steps_kept else ""
    return (
        estimate_text(s.drop) if s.drop else "",
        _spread_text(s.spread),
        kept,
        ", ".join(map(str, s.collapsed_at)),
    )


def _spread_text(spread: SeedSpread | None) -> str:
    if spread is None:
        return "one seed: none"
    if spread.low is None or spread.high is None:
        return number_text(spread.sd)
    return f"{number_text(spread.sd)} [{number_text(spread.low)}, {number_text(spread.high)}]"


def stability_data(comparison: Comparison) -> dict[str, Any]:
    """Return measure -> title, and [value, low, high] or None for each configuration."""
    return {
        name: {
            "title": title,
            "values": [_stability_values(c, name) for c in comparison.configurations],
        }
        for name, title in MEASURES.items()
    }


def _stability_values(c: Configuration, measure: str) -> list[Any] | None:
    s = c.stability
    if measure == "spread":
        one = s.spread
        return None if one is None else [rounded(v) for v in (one.sd, one.low, one.high)]
    estimate = s.drop if measure == "drop" else s.steps_kept
    if estimate is None:
        return None
    return [rounded(v) for v in (estimate.mean, estimate.low, estimate.high)]


COST_TEXT = (
    "Training only, every attempt counted, failed ones too; evaluation is not in it. A cell that "
    "belongs to several studies is trained once and counted in each; the total counts it once."
)


COST_COLUMNS = ("cells", "attempts", "GPU h", "CPU s", "wall clock h")


def cost_section(comparison: Comparison, records: Sequence[Record]) -> Section | None:
    """Return a section on cost, or None if no attempt has ended."""
    if not any(end for record in records for end in record.attempts):
        return None
    studies = dict.fromkeys(study for record in records for study in record.cell.studies)
    rows = [(study, *_spent(r for r in records if study in r.cell.studies)) for study in studies]
    rows.append(("all together", *_spent(records)))
    by_configuration = (
        (c, setting, _spent(run.record for run in c.runs))
        for c, setting in with_setting_names(comparison.configurations)
    )
    return Section(
        "cost",
        "Cost",
        (COST_TEXT,),
        tables=(
            ReportTable("By study", ("study", *COST_COLUMNS), tuple(rows)),
            table_of_configurations(
                "By configuration", COST_COLUMNS, by_configuration, links="where from"
            ),
        ),
    )


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
    """Return the seconds in which at least one attempt was at work: one process may train many."""
    seconds, until = 0.0, 0.0
    for end in sorted(ends, key=lambda each: each.started):
        seconds += max(0.0, end.ended - max(end.started, until))
        until = max(until, end.ended)
    return seconds


def _amount(value: float) -> str:
    return "0" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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


def baseline_table(
    baselines: Sequence[ScoredBaseline], metrics: Sequence[str]
) -> ReportTable | None:
    """Return a table of every declared baseline, or None if none is declared.

    The fields of a baseline without scores are `not evaluated`.
    """
    if not baselines:
        return None
    rows = tuple(_baseline_row(one, baseline_values(one.scores), metrics) for one in baselines)
    columns = ("model", "chat template", *map(metric_title, metrics), "note")
    return ReportTable("Before training (Baseline of Fig. 5, 6, 8 to 10)", columns, rows)


def _baseline_row(
    one: ScoredBaseline, known: Mapping[str, float], metrics: Sequence[str]
) -> tuple[str, ...]:
    template = "none" if one.baseline.chat_template == "none" else "its own"
    texts = [number_text(known[m]) if m in known else "not evaluated" for m in metrics]
    return (one.baseline.model, template, *texts, one.note)


FINALS_TITLE = "Final accuracy"
COLLAPSE_TEXT = (
    "Runs that collapsed, of those whose curve tells it. A collapse is a result, not a failed job."
)


DISTANCE = ("eval/kl_forward", "eval/kl_reverse", "eval/entropy")


def finals_section(comparison: Comparison, baselines: Sequence[ScoredBaseline] = ()) -> Section:
    """Return a section on final accuracy in and out of domain, with intervals.

    It also shows the models before training (Fig. 5, 6, 8, 9, 10).
    """
    metrics = tuple(m for m in (comparison.in_domain, comparison.out_of_domain) if m)
    before = baseline_table(baselines, metrics)
    if not metrics:
        return Section(
            "finals",
            FINALS_TITLE,
            ("No cell has finished yet.",),
            tables=(before,) if before else (),
        )
    configurations = comparison.configurations
    tasks = sorted({m for c in configurations for m in c.finals if _is_task(m)})
    over_items = any(c.finals_over_items.get(m) for c in configurations for m in metrics)
    caption = (
        "Mean over seeds with its 95 % interval (Student's t); small marks are single seeds. "
        "A configuration without a bar has one seed."
    )
    if over_items:
        caption += " The thick light bar is the interval over seeds and items."
    if any(one.scores for one in baselines):
        caption += " Stars, and the dotted lines through them: the model before training."
    figure = Figure(
        "finals",
        "finals",
        "Final accuracy in and out of domain",
        caption,
        f"Dots with intervals: {' and '.join(map(metric_title, metrics))} of each configuration; "
        "the table below holds the numbers.",
        (*metrics, *tasks),
    )
    tables = (
        *results_tables(comparison, baselines),
        before,
        _finals_table(comparison, over_items=over_items),
    )
    return Section("finals", FINALS_TITLE, figures=(figure,), tables=tuple(t for t in tables if t))


def results_tables(
    comparison: Comparison, baselines: Sequence[ScoredBaseline]
) -> Iterator[ReportTable]:
    """Yield the table of each study and setting: a row a KL term and beta, a column a task.

    Accuracies are of the runs that trained, mean and half width of the interval. Before them come
    the models before training.
    """
    main = [m for m in (comparison.in_domain, comparison.out_of_domain) if m]
    groups: dict[tuple[str, str], list[Configuration]] = {}
    for c, setting in with_setting_names(comparison.configurations):
        groups.setdefault((c.study, setting), []).append(c)
    for (study, setting), own in groups.items():
        runs = [run for c in own for run in c.runs]
        tasks = [name for domain in main for name in task_metrics(runs, domain)]
        metrics = [m for m in dict.fromkeys((*tasks, *main)) if any(m in c.finals for c in own)]
        if not metrics:
            continue
        before = [
            (baseline_name(one), "", *(_plain_number(values.get(m)) for m in metrics))
            for one in baselines
            if one.scores and one.baseline.model == own[0].traits.get("model")
            for values in [baseline_values(one.scores)]
        ]
        rows = [
            (
                c.name,
                f"{c.collapse.n - c.collapse.count} of {c.collapse.n}",
                *(_final_with_width(c.finals.get(m)) for m in metrics),
            )
            for c in own
        ]
        titles = [m.split("/")[1] if m in tasks else metric_title(m) for m in metrics]
        yield ReportTable(
            " · ".join(filter(None, (study, setting))),
            ("KL", "trained", *titles),
            (*before, *rows),
            exported=True,
        )


def _plain_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _is_task(metric: str) -> bool:
    parts = metric.split("/")
    return (
        len(parts) == 3
        and parts[1] not in ("in_domain", "out_of_domain")
        and (parts[2].startswith("mean@") or parts[1] == "accuracy")
    )


def _finals_table(comparison: Comparison, *, over_items: bool) -> ReportTable:
    configurations, inside, outside = (
        comparison.configurations,
        comparison.in_domain,
        comparison.out_of_domain,
    )
    differences = differences_to_no_kl(configurations, inside) if inside else {}
    rows = (
        (
            c,
            setting,
            (
                f"{c.num_finished} of {len(c.runs)}",
                final_text(c, inside),
                *([over_items_text(c, inside)] if over_items else []),
                estimate_text(differences[i], signed=True) if i in differences else "",
                final_text(c, outside),
                *([over_items_text(c, outside)] if over_items else []),
                f"{c.collapse.count} of {c.collapse.n}",
            ),
        )
        for i, (c, setting) in enumerate(with_setting_names(configurations))
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
    return table_of_configurations(
        "Every configuration: mean and 95 % interval over seeds", columns, rows
    )


def curves_section(comparison: Comparison) -> Section | None:
    """Return a section with learning curves by KL term and beta, or None without a curve.

    The paper's figures of this kind are Fig. 2-4, 7 and 11.
    """
    metrics = tuple(
        m for m in PAGE_CURVES if any(has_curve(c, m) for c in comparison.configurations)
    )
    if not metrics:
        return None
    figure = Figure(
        "curves",
        "curves",
        "Learning curves",
        "Mean over seeds: with its 95 % interval as a band, or beside each seed up to "
        f"{FEW_SEEDS} seeds. Nothing is smoothed unless the box is ticked; then the figure says "
        "so. Curves of a configuration are cut to the train steps that all of its seeds reached; a "
        "ring at the end marks one that a stopped or running seed has cut short. A cross marks "
        "configurations of which a seed collapsed. They do not set the axis: where one leaves it, "
        "a triangle says so, and a text how far.",
        "Learning curves, one panel a KL configuration; the final values are in the table of the "
        "section before.",
        metrics,
    )
    return Section("curves", "Learning curves", figures=(figure,))


def collapse_section(comparison: Comparison) -> Section | None:
    """Return a section with maps of the collapsed runs, or None without a configuration."""
    configurations = comparison.configurations
    if not configurations:
        return None
    groups: dict[tuple[str, str], list[Configuration]] = {}
    for c, setting in zip(configurations, setting_names(configurations), strict=True):
        groups.setdefault((c.study, setting), []).append(c)
    maps = tuple(
        _collapse_map(" · ".join(filter(None, key)), group) for key, group in groups.items()
    )
    return Section(
        "collapse",
        "Collapse map",
        (COLLAPSE_TEXT,),
        maps=maps,
    )


def _collapse_map(title: str, group: Sequence[Configuration]) -> Map:
    betas = sorted({c.beta for c in group if c.beta is not None})
    columns = [None, *betas] if any(c.beta is None for c in group) else list(betas)
    rows = []
    for kl in dict.fromkeys(c.kl for c in group):
        cells = {
            c.beta: MapCell(c.collapse.count, c.collapse.n, len(c.runs))
            for c in group
            if c.kl == kl
        }
        rows.append((kl, tuple(cells.get(beta) for beta in columns)))
    names = tuple("no KL" if beta is None else f"β {beta:g}" for beta in columns)
    return Map(title, names, tuple(rows))


def reference_section(comparison: Comparison) -> Section | None:
    """Return a section on the distance from the reference policy, or None without its curves.

    It shows forward KL, reverse KL and entropy during training (Fig. 12).
    """
    metrics = tuple(m for m in DISTANCE if any(has_curve(c, m) for c in comparison.configurations))
    if not metrics:
        return None
    figure = Figure(
        "reference",
        "measures",
        "Distance from the reference policy",
        "On held-out prompts, over whole sequences. Forward KL is large where the policy has lost "
        "what the reference policy does; reverse KL is what the penalty is meant to bound. "
        "One panel a measure and KL term; a ring marks a curve that an unfinished seed cuts short.",
        "Curves of forward KL, reverse KL and entropy, one panel for each KL term.",
        metrics,
    )
    rows = (
        (c, setting, [final_text(c, m) for m in metrics])
        for c, setting in with_setting_names(comparison.configurations)
        if any(m in c.finals for m in metrics)
    )
    table = table_of_configurations(
        "Final values: mean and 95 % interval over seeds", [*map(metric_title, metrics)], rows
    )
    return Section(
        "reference", "Distance from the reference policy", figures=(figure,), tables=(table,)
    )


def predicted_section(comparison: Comparison) -> Section | None:
    """Return a section on observed and predicted accuracy, or None if no configuration has both.

    The prediction is the closed form of the KL-regularised optimum.
    """
    accuracy = "eval/accuracy_in_domain"
    pairs = [
        (c, setting)
        for c, setting in with_setting_names(comparison.configurations)
        if c.predicted is not None and accuracy in c.finals
    ]
    if not pairs:
        return None
    figure = Figure(
        "predicted",
        "predicted",
        "Observed against predicted accuracy",
        "The optimum of reward minus β times the sequence's reverse KL is known in closed form for "
        "these tasks: a configuration whose gradient is that of the reverse KL should end on the "
        "line, if it trained long enough. Bars are 95 % intervals over seeds.",
        "Observed final accuracy over the predicted one, with the diagonal.",
        (accuracy,),
    )
    rows = (
        (
            c,
            setting,
            (
                f"{c.predicted:.3f}",
                final_text(c, accuracy),
                f"{c.finals[accuracy].mean - (c.predicted or 0.0):+.3f}".replace("-", "−"),
            ),
        )
        for c, setting in pairs
    )
    table = table_of_configurations(
        "Predicted and observed final accuracy",
        ("predicted", "observed", "difference"),
        rows,
        searchable=len(pairs) > 12,
    )
    return Section("predicted", "Observed against predicted", figures=(figure,), tables=(table,))


MICRO_NOTE = (
    "NOT COMPARABLE: the published numbers are of models of 7 and 8 billion parameters on "
    "mathematics; ours are of the embedded trainer, tens of thousands of parameters on strings of "
    "digits. They stand side by side to show which way each goes, and nothing else."
)


PUBLISHED_TEXT = (
    "Relative improvement: how much higher left is than right, in shares of right, averaged over "
    "tasks. A published number has no interval; ours is a 95 % interval over seeds."
)


def published_section(comparison: Comparison, spec: Spec) -> Section | None:
    """Return a section on published numbers and ours, or None if the spec has none."""
    if not comparison.published:
        return None
    micro = is_micro(comparison.runs)
    source = f"Published in: {spec.published.source}." if spec.published.source else ""
    figure = Figure(
        "published",
        "published",
        "Published numbers beside ours",
        "Circles: ours, with 95 % intervals over seeds. Diamonds: published. "
        + ("Not comparable: the scales differ." if micro else ""),
        "Our relative improvement with its interval and the published number, a row a claim.",
    )
    rows = tuple(_published_row(one, micro) for one in comparison.published)
    columns = ("claim", "where", "published", "ours", "seeds", "published lies")
    return Section(
        "published",
        "Beside the paper's numbers",
        tuple(filter(None, (PUBLISHED_TEXT, source))),
        figures=(figure,) if any(one.ours for one in comparison.published) else (),
        tables=(ReportTable("Relative improvement", columns, rows),),
        note=MICRO_NOTE if micro else "",
    )


def _published_row(one: PublishedComparison, micro: bool) -> tuple[str, ...]:
    ours = one.ours
    text = f"none: {one.missing}" if ours is None else improvement_text(ours)
    verdict = "not comparable (micro scale)" if micro else one.verdict
    return (
        statement(one.claim),
        one.published.where,
        percent(one.published.relative_improvement),
        text,
        str(ours.n) if ours else "",
        verdict,
    )


def published_data(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the published numbers for figures, as shares.

    Each has its name, its place in the publication, its claim, its value, and our value as
    [value, low, high] or None.
    """
    return [
        {
            "name": one.published.name,
            "where": one.published.where,
            "statement": statement(one.claim),
            "published": rounded(one.published.relative_improvement),
            "ours": None
            if one.ours is None
            else [rounded(v) for v in (one.ours.value, one.ours.low, one.ours.high)],
        }
        for one in comparison.published
    ]


BETA_TEXT = (
    "The β that would pull as hard under the objective the spec names. It parts from the β asked "
    "for where a library averages, scales or bounds the KL term otherwise."
)


STALENESS_TEXT = (
    "Policy versions between sampling and use, in train steps, averaged over training. What was "
    "asked for is a bound; what counts is what was observed."
)


def staleness_section(comparison: Comparison) -> Section | None:
    """Return a section on allowed and observed staleness, or None if no configuration has any."""
    rows = [
        (
            c,
            setting,
            (
                c.traits.get("async", ""),
                estimate_text(c.staleness),
                "" if c.max_staleness is None else f"{c.max_staleness:g}",
            ),
        )
        for c, setting in with_setting_names(comparison.configurations)
        if c.staleness is not None
    ]
    if not any(
        c.max_staleness or c.traits.get("async", "0") != "0" for c in comparison.configurations
    ):
        return None
    table = table_of_configurations(
        "Staleness in train steps",
        ("largest allowed", "observed mean", "observed largest"),
        rows,
        searchable=len(rows) > 12,
    )
    return Section(
        "staleness",
        "Observed staleness",
        (STALENESS_TEXT,),
        figures=_metric_figure(
            comparison,
            "staleness",
            "rollout/staleness_mean",
            "Staleness of the rollouts that were trained on",
        ),
        tables=(table,) if rows else (),
    )


def beta_section(comparison: Comparison) -> Section | None:
    """Return a section on declared and effective beta, or None if none was measured."""
    rows = []
    for c, setting in with_setting_names(comparison.configurations):
        means = [
            fmean(values)
            for run in c.runs
            if (values := [*run.series.get(BETA_EFFECTIVE, {}).values()])
        ]
        if means and c.beta is not None:
            mean = estimate(means)
            ratio = f"{mean.mean / c.beta:.3g}" if c.beta else ""
            rows.append((c, setting, (f"{c.beta:g}", estimate_text(mean), ratio)))
    if not rows:
        return None
    columns = ("β asked for", "effective β: mean over training", "ratio")
    table = table_of_configurations("Effective β of every configuration", columns, rows)
    return Section(
        "beta",
        "Effective β",
        (BETA_TEXT,),
        figures=_metric_figure(comparison, "beta", BETA_EFFECTIVE, "Effective β"),
        tables=(table,),
    )


def _metric_figure(
    comparison: Comparison, name: str, metric: str, title: str
) -> tuple[Figure, ...]:
    if not any(has_curve(c, metric) for c in comparison.configurations):
        return ()
    return (
        Figure(
            name,
            "measures",
            title,
            "Mean over seeds with its 95 % interval as a band.",
            f"Curves of {metric} over train steps; the table holds their means.",
            (metric,),
        ),
    )


AXIS_TITLES = {
    "async": "staleness (updates)",
    "max_staleness_steps": "staleness (updates)",
    "optimizer.learning_rate": "learning rate",
}
PHASE_COLUMNS = (
    "study",
    "setting",
    "KL",
    "β",
    "beside it",
    "seeds",
    *STATES,
    "shown by",
)


def axis_title(axis: str) -> str:
    """Return the title of an axis of a map."""
    return AXIS_TITLES.get(axis, axis)


def phase_section(comparison: Comparison) -> Section | None:
    """Return a section with the phase maps and their numbers, or None without a map."""
    maps = phase_maps(comparison.configurations)
    if not maps:
        return None
    figure = Figure(
        "phases",
        "phases",
        "Phase maps",
        "In each field the seeds that were stable / unstable / collapsed / of which the curve "
        "cannot tell; the colour is the mean of the others, from all stable to all collapsed.",
        "Heat maps of stable, unstable and collapsed seeds over β and another setting, one for "
        "each KL term; the table below holds the numbers.",
    )
    rows = tuple(row for one in maps for row in _phase_rows(one))
    table = ReportTable(
        "Shares of the seeds of each field, with Wilson's 95 % intervals",
        PHASE_COLUMNS,
        rows,
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
    return Section("phases", "Phase maps", RULE, figures=(figure,), tables=(largest, table))


def phase_panels(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the panels of the figure: labels, colour and text of each field."""
    maps = phase_maps(comparison.configurations)
    return [
        _phase_panel(one, several=len({m.setting for m in maps if _same_term(m, one)}) > 1)
        for one in maps
    ]


def _same_term(one: PhaseMap, other: PhaseMap) -> bool:
    return (one.study, one.kl, one.axis) == (other.study, other.kl, other.axis)


def _phase_panel(one: PhaseMap, *, several: bool) -> dict[str, Any]:
    fields = [[one.fields.get((beta, x)) for x in one.xs] for beta in one.betas]
    return {
        "title": f"{one.kl} · {one.study}" + (f" · {one.setting}" if several else ""),
        "xtitle": axis_title(one.axis),
        "x": [f"{float(x):g}" for x in one.xs],
        "y": ["no KL" if beta is None else f"{beta:g}" for beta in one.betas],
        "z": [[_severity(field) for field in row] for row in fields],
        "text": [[_state_counts(field) for field in row] for row in fields],
        "hover": [[_state_shares(field) for field in row] for row in fields],
    }


def _severity(field: PhaseField | None) -> float | None:
    """Return the mean severity of a field's seeds: stable 0, unstable 0.5, collapsed 1.

    Return None if no seed has a known state.
    """
    known = 0 if field is None else field.ended - field.counts["cannot tell"]
    if field is None or not known:
        return None
    return rounded((field.counts["unstable"] + 2 * field.counts["collapsed"]) / (2 * known))


def _state_counts(field: PhaseField | None) -> str:
    return "" if field is None else " / ".join(str(field.counts[state]) for state in STATES)


def _state_shares(field: PhaseField | None) -> str:
    if field is None:
        return ""
    shares = (f"{state} {_state_share(field, state)}" for state in STATES)
    return f"{field.ended} of {field.declared} seeds ended: {', '.join(shares)}"


def _state_share(field: PhaseField, state: Any) -> str:
    low, high = field.interval(state)
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


IMPORTED_TITLE = "Runs that orch did not launch"
IMPORTED_CAPTION = (
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
        IMPORTED_CAPTION,
        "Learning curves of imported runs and of this experiment's configurations.",
    )
    return Section(
        "imported",
        IMPORTED_TITLE,
        (APART,),
        points=tuple(_imported_points(data)),
        figures=(figure,) if panels else (),
        tables=(_imported_origins(data), _imported_values(runs), _kl_meanings(data)),
    ), {"imported": panels}


def _imported_points(data: Sequence[Mapping[str, Any]]) -> list[str]:
    unknown = [f"{one['name']}: not known is {each}" for one in data for each in one["unknown"]]
    assumed = [f"{one['name']}: assumed is that {each}" for one in data for each in one["assumes"]]
    wrong = [f"{one['name']}: {each}" for one in data for each in one["problems"]]
    return [
        *wrong,
        *unknown,
        *assumed,
        *(f"{o['name']}: {each}" for o in data for each in o["notes"]),
    ]


def _imported_origins(data: Sequence[Mapping[str, Any]]) -> ReportTable:
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


def _imported_values(runs: Sequence[ImportedRun]) -> ReportTable:
    metrics = metrics_in(runs)
    rows = tuple(
        (
            metric,
            *(number_text(r.finals[metric]) if metric in r.finals else "–" for r in runs),
        )
        for metric in metrics
    )
    return ReportTable("Their last values", ("metric", *(run.name for run in runs)), rows)


def _kl_meanings(data: Sequence[Mapping[str, Any]]) -> ReportTable:
    rows = dict.fromkeys(
        (f"{name} of {one['library']}", meaning)
        for one in data
        for name, meaning in one["kl_metrics"].items()
    )
    return ReportTable("What each logged KL means", ("logged", "meaning"), tuple(rows))


# The tables of `orch compare`: configurations, claims, and the differences along an axis.


def configuration_tables(comparison: Comparison, metric: str | None = None) -> list[ReportTable]:
    """Return the final values of every configuration with their intervals, a table a setting.

    They are of one metric, or of the main accuracies in and out of domain. What never varies is in
    the caption of the first table alone.
    """
    main = (comparison.in_domain, comparison.out_of_domain)
    metrics = [metric] if metric is not None else [name for name in main if name]
    every = comparison.configurations
    values_of: dict[str, set[str]] = {}
    for one in every:
        for name, value in one.traits.items():
            values_of.setdefault(name, set()).add(value)
    constant = {name: min(values) for name, values in values_of.items() if len(values) == 1}
    groups: dict[str, list[Configuration]] = {}
    for one in every:
        varied = [t for t in one.traits.items() if t[0] not in constant]
        groups.setdefault(", ".join([one.study, *map(_trait_text, varied)]), []).append(one)
    tables = [
        ReportTable(where, ("configuration", "seeds", *metrics, "collapsed"), tuple(rows))
        for where, own in groups.items()
        if (rows := [_configuration_row(one, metrics) for one in own])
    ]
    if tables and constant:
        always = ", ".join(map(_trait_text, constant.items()))
        tables[0] = replace(tables[0], caption=f"In all of them: {always}\n\n{tables[0].caption}")
    return tables


def _configuration_row(one: Configuration, metrics: Sequence[str]) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.num_finished}/{len(one.runs)}",
        *(_final_with_width(one.finals.get(metric)) for metric in metrics),
        f"{one.collapse.count}/{one.collapse.n}",
    )


def _trait_text(trait: tuple[str, str]) -> str:
    name, value = trait
    return value if name in ("model", "data", "backend") else f"{name} {value}"


def _final_with_width(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.half_width is None:
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3f} ± {estimate.half_width:.3f}"


def claim_table(comparison: Comparison) -> ReportTable:
    """Return verdict and reason of every claim."""
    rows = [(verdict_text(c), statement(c.claim), reason(c)) for c in comparison.claims]
    return ReportTable("", ("verdict", "claim", "why"), tuple(rows))


def difference_table(
    differences: Sequence[AxisDifference], axis: str, metric: str, effect: float | None
) -> ReportTable:
    """Return the difference of every pair of values of an axis.

    effect: if given, a column has the seeds that would show a difference of this size.
    """
    rows = [
        (
            d.left,
            d.right,
            f"{d.effect.mean:+.3f}",
            _bounds(d.effect),
            _bounds(d.over_items),
            "-" if d.relative is None else f"{d.relative.value:+.1%}",
            str(d.effect.n),
            str(len(d.settings)),
            f"{d.p_corrected:.2g}",
            d.verdict,
            *([] if effect is None else [str(d.seeds_for(effect) or "unknown")]),
        )
        for d in differences
    ]
    columns = (
        axis,
        "against",
        "difference",
        "over seeds",
        "over seeds and items",
        "relative",
        "seeds",
        "settings",
        "p (Holm)",
        "verdict",
        *([] if effect is None else [f"seeds for {effect:g}"]),
    )
    caption = f"difference in {metric}: 95 % intervals and p are of one look"
    return ReportTable(caption, columns, tuple(rows))


def _bounds(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"[{estimate.low:+.3f}, {estimate.high:+.3f}]"
