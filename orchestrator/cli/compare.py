"""orch compare: what the numbers support."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from orchestrator.analysis.ablation import EXACT, ablation_data, plan_ablation, train_missing
from orchestrator.analysis.compare import comparison_data
from orchestrator.analysis.configurations import axis_differences
from orchestrator.analysis.imported import imported_data
from orchestrator.analysis.libraries import choose_base, library_data, read_sides
from orchestrator.analysis.scripts import RECIPE, SEEDS, read_pair, script_ablation, scripts_data
from orchestrator.analysis.sentences import metric_title, reason, statement
from orchestrator.analysis.text import counted
from orchestrator.cli import common, foreign
from orchestrator.cli.common import MICRO_BANNER, CellChoice, number, print_json, print_table, say
from orchestrator.cli.manners import set_next
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.imports.runs import metrics_in, read_imported
from orchestrator.pipeline import stages
from orchestrator.records import Cell, Spec
from orchestrator.report.libraries import (
    NO_PART,
    OVERVIEW_LEGEND,
    ablation_table,
    library_tables,
    limit_sentences,
    overview_table,
    plain_terms,
)
from orchestrator.report.model import text_of
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.watch import watch
from orchestrator.spec.select import matches, parse

if TYPE_CHECKING:
    from orchestrator.analysis.ablation import Ablation
    from orchestrator.analysis.compare import Comparison
    from orchestrator.analysis.libraries import LibrarySide
    from orchestrator.analysis.stats import Estimate
    from orchestrator.launch import LaunchEvent
    from orchestrator.report.model import ReportTable

LONG = 100
"""A table with a longer field is printed row by row."""


@click.command(short_help="Compare configurations, with intervals.")
@common.cells
@click.option(
    "--by",
    "axis",
    metavar="AXIS",
    help="Compare the values of this axis with each other: kl, beta, backend, ...",
)
@click.option(
    "--metric",
    help="A metric, by its canonical name. Default: the main accuracy.",
)
@click.option(
    "--effect",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SIZE",
    help="With --by: print how many seeds would show a difference of this size (power 0.8).",
)
@click.option(
    "--against",
    metavar="LIBRARY",
    help="With --by backend: the library that the others are compared with.",
)
@click.option(
    "--ablate", is_flag=True, help="Train at micro scale with one of the differences at a time."
)
@click.option(
    "--details",
    is_flag=True,
    help="With --by backend: print also meanings, ledgers, scores and curves.",
)
@click.option(
    "--configs",
    is_flag=True,
    help="Compare two launch scripts, given as SPEC and the next argument.",
)
@click.option(
    "--library",
    "pinned",
    multiple=True,
    metavar="NAME@VERSION",
    help="With --configs: the release that the scripts run on, if the files do not show it.",
)
@common.as_json
def command(
    choice: CellChoice,
    axis: str | None,
    metric: str | None,
    effect: float | None,
    against: str | None,
    ablate: bool,
    details: bool,
    configs: bool,
    pinned: tuple[str, ...],
    as_json: bool,
) -> int:
    """Print means with intervals over seeds, and the verdict on every claim.

    --by AXIS prints paired differences between the values of the axis, everything else equal,
    with Holm's correction. Intervals are 95 % and come from seeds only. --by backend compares
    the same cells in several libraries: what differs, whether it matters for these cells, and
    the effect. --details adds ledgers, curves, scores and the effective beta; --ablate adds how
    much of a gap each difference explains.

    --configs compares two launch scripts: orch compare --configs a.sh b.sh
    """
    if configs:
        return _compare_scripts((choice.spec, *choice.overrides), pinned, ablate, as_json)
    if axis == "backend":
        experiment = choice.experiment()
        return _compare_libraries(
            experiment, choice.where, metric, against, ablate, details, as_json
        )
    if pinned:
        raise SelectionError("--library needs --configs")
    if ablate or against:
        raise SelectionError("--ablate and --against need --by backend (or --configs)")
    experiment = choice.chosen()
    records = stages.collect_records(experiment)
    comparison = stages.compare_records(experiment, records, stages.read_scores(experiment))
    imported = read_imported(experiment.folder)
    if metric is not None and metric not in metrics_in(imported):
        check_metric(comparison, metric)
    if axis is not None:
        _compare_axis(comparison, axis, metric, effect, as_json)
    elif as_json:
        print_json({**comparison_data(comparison), "imported": imported_data(imported)})
    else:
        print_configurations(comparison, metric)
        click.echo()
        print_claims(comparison)
        if imported:
            click.echo()
            foreign.print_imported(imported, metric)
    return 0


def _compare_axis(
    comparison: "Comparison",
    axis: str,
    metric: str | None,
    effect: float | None,
    as_json: bool,
) -> None:
    chosen = metric or comparison.in_domain
    if chosen is None:
        raise SelectionError("no cell has finished yet: there is nothing to compare")
    try:
        differences = axis_differences(comparison.configurations, axis, chosen)
    except KeyError:
        axes = sorted({name for c in comparison.configurations for name in c.traits})
        raise SelectionError(
            f"no configuration has an axis '{axis}' (there are: kl, beta, {', '.join(axes)})"
        ) from None
    if as_json:
        print_json([difference.data(effect) for difference in differences])
        return
    columns = ("difference", "over seeds", "over seeds and items", "relative")
    rows = [
        (
            d.left,
            d.right,
            f"{d.effect.mean:+.3f}",
            _bounds(d.effect),
            _bounds(d.over_items),
            "-" if d.relative is None else f"{d.relative.value:+.1%}",
            d.effect.n,
            len(d.settings),
            f"{d.p_corrected:.2g}",
            d.verdict,
            *([] if effect is None else [d.seeds_for(effect) or "unknown"]),
        )
        for d in differences
    ]
    click.echo(f"difference in {chosen}, 95 % intervals")
    more = [] if effect is None else [f"seeds for {effect:g}"]
    print_table(
        (axis, "against", *columns, "seeds", "settings", "p (Holm)", "verdict", *more), rows
    )


def _bounds(estimate: "Estimate | None") -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"[{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _compare_libraries(
    experiment: Experiment,
    where: Sequence[str],
    metric: str | None,
    against: str | None,
    ablate: bool,
    details: bool,
    as_json: bool,
) -> int:
    """Print one cell in several libraries. Return 1 if cells of an ablation failed."""
    sides = list(read_sides(experiment, _declared(experiment, where), metric))
    if not sides:
        raise SelectionError("no cell of this spec is asked of a library")
    base = choose_base(sides[0], against)
    page = library_data(experiment, sides, base)
    code = 0
    if ablate:
        others = [name for name in sides[0].libraries if name != base]
        ablations = [plan_ablation(sides[0].questions, base, other) for other in others]
        chosen = metric if metric and not metric.startswith("eval/in_domain") else EXACT
        code, page["ablation"] = _train_ablations(experiment.spec, ablations, chosen)
    if as_json:
        print_json(page)
        return code
    if details:
        for table in library_tables(page):
            _print_report_table(table)
    else:
        _print_overview(page, sides, base)
    _print_ablations(page)
    if details:
        for sentence in (*page["not_compared"], *limit_sentences(page["meaning"])):
            click.echo(sentence)
        for side in sides:
            for sentence in page[side.name]["missing"]:
                click.echo(sentence)
    if len(sides) == 1:
        other = "site=local" if sides[0].name == "observed" else "site=<a cluster>"
        spec = experiment.spec.source or experiment.spec.name
        say(f"only {sides[0].name} here: `orch run {spec} {other}` gives the other side")
    return code


def _print_overview(page: Mapping[str, Any], sides: "Sequence[LibrarySide]", base: str) -> None:
    """Print what differs, whether it matters and the effect; the rest where to find it."""
    for side in sides:
        table = overview_table(page, side.name)
        if table.rows:
            click.echo(f"\n{table.caption}")
            print_table(table.columns, [[text_of(f) for f in row] for row in table.rows])
    metric = metric_title(sides[0].metric) if sides[0].metric else "nothing measured yet"
    click.echo("\n" + textwrap.fill(OVERVIEW_LEGEND.format(metric=metric), 99))
    click.echo(f"The KL term in {base}, in plain words:")
    for sentence in plain_terms(sides, base):
        click.echo(f"  {sentence}")
    missing = sum(len(page[side.name]["missing"]) for side in sides)
    limits = len(page["not_compared"]) + sum(1 for _ in limit_sentences(page["meaning"]))
    more = f", what {counted(missing, 'comparison')} lacks" if missing else ""
    click.echo(f"--details: both sides' words, ledgers, scores, curves, {limits} limits{more}.")


def _declared(experiment: Experiment, terms: Sequence[str]) -> list[Cell]:
    """Return the declared cells that `--where` selects, before any is rehearsed."""
    selection = parse(terms)
    if any("state" in term for term in terms):
        raise SelectionError(
            "--by backend sets whole questions against each other: filter by study, kl, beta, "
            "backend or seed, not by state"
        )
    chosen = [cell for cell in experiment.declared if matches(selection, cell)]
    if not chosen:
        raise SelectionError(f"--where {' '.join(terms)} selects no cell")
    return chosen


def _compare_scripts(
    paths: Sequence[str], pinned: Sequence[str], ablate: bool, as_json: bool
) -> int:
    """Print how two launch scripts differ. Return 1 if cells of an ablation failed."""
    if len(paths) != 2:
        raise SelectionError(
            f"--configs takes two launch scripts, got {len(paths)}: "
            "orch compare --configs a.sh b.sh"
        )
    left, right = read_pair(paths[0], paths[1], foreign.pinned_releases(pinned))
    set_next(f"orch audit {paths[0]} {paths[1]}")
    page = scripts_data(left, right)
    code = 0
    if ablate:
        plan = script_ablation(left, right, RECIPE, SEEDS)
        code, page["ablation"] = _train_ablations(Spec(name="scripts", studies=()), [plan], EXACT)
    if as_json:
        print_json(page)
        return code
    rows = [(row["what"], row["left"], row["right"]) for row in page["differences"]]
    print_table(("what", left.name, right.name), rows)
    if not rows:
        click.echo("Both ask for the same KL, of libraries that mean the same by it.")
    for name, why in page["why"].items():
        click.echo(f"{name}: {why}")
    for note in page["notes"]:
        say(note)
    _print_ablations(page)
    return code


def _train_ablations(
    spec: Spec, ablations: "Sequence[Ablation]", metric: str
) -> tuple[int, list[dict[str, Any]]]:
    """Train the missing cells. Return 1 if some failed, and each ablation as plain data."""
    failed, value = train_missing(spec, ablations, metric, _display)
    return int(failed > 0), [ablation_data(one, metric, value) for one in ablations]


@contextmanager
def _display(pending: Sequence[Cell], total: int) -> "Iterator[Callable[[LaunchEvent], None]]":
    say(MICRO_BANNER)
    say(f"ablation: {len(pending)} cells to train, {total - len(pending)} are there")
    with watch(pending) as display:
        yield display.show


def _print_ablations(page: Mapping[str, Any]) -> None:
    ablations = page.get("ablation", ())
    for ablation in ablations:
        _print_report_table(ablation_table(ablation))
    if any(not question["told_apart"] for one in ablations for question in one["questions"]):
        click.echo(NO_PART)


def _print_report_table(table: "ReportTable") -> None:
    """Print a table with its caption; row by row where a field is too long for a column."""
    if not table.rows:
        return
    rows = [[text_of(field) for field in row] for row in table.rows]
    click.echo(f"\n{table.caption}")
    if max(len(text) for row in rows for text in row) <= LONG:
        print_table(table.columns, rows)
        return
    for row in rows:
        for name, text in zip(table.columns, row, strict=True):
            click.echo(f"  {name}: {text}")
        click.echo()


def print_claims(comparison: "Comparison") -> None:
    """Print verdict and reason of every claim."""
    rows = [(f.verdict, statement(f.claim), reason(f)) for f in comparison.claims]
    if rows:
        print_table(("verdict", "claim", "why"), rows)


def check_metric(comparison: "Comparison", metric: str) -> None:
    """Raise SelectionError for a metric that no finished run has."""
    measured = sorted({name for c in comparison.configurations for name in c.finals})
    if metric not in measured:
        listed = f" (there are: {', '.join(measured)})" if measured else ""
        hint = did_you_mean(metric, measured) or listed
        raise SelectionError(f"no finished run measured '{metric}'{hint}")


def print_configurations(comparison: "Comparison", metric: str | None = None) -> None:
    """Print final values of every configuration with their intervals.

    They are of one metric, or of the main accuracies in and out of domain.
    """
    main = (comparison.in_domain, comparison.out_of_domain)
    metrics = [metric] if metric is not None else [name for name in main if name]
    rows = []
    lags = {row.traits.get("async") for row in comparison.configurations}
    for row in comparison.configurations:
        intervals = (_interval(row.finals.get(metric)) for metric in metrics)
        where = " ".join(
            value if name in ("model", "data", "backend") else f"{name}={value}"
            for name, value in row.traits.items()
            if name != "async" or len(lags) > 1
        )
        rate = row.collapse
        rows.append(
            (
                row.study,
                where,
                row.name,
                f"{row.num_finished}/{len(row.runs)}",
                *intervals,
                f"{rate.count}/{rate.n}",
            )
        )
    print_table(("study", "where", "configuration", "seeds", *metrics, "collapsed"), rows)


def _interval(estimate: "Estimate | None") -> str:
    if estimate is None or estimate.half_width is None:
        return number(None if estimate is None else estimate.mean)
    return f"{estimate.mean:.3f} ± {estimate.half_width:.3f}"
