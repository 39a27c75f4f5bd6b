"""orch compare: what the numbers support."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from orchestrator.analysis.claims import verdict_text
from orchestrator.analysis.compare import check_metric, comparison_data
from orchestrator.analysis.configurations import axis_differences
from orchestrator.analysis.libraries import (
    library_data,
    read_sides,
    whole_questions,
)
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, print_table, say
from orchestrator.errors import SelectionError
from orchestrator.pipeline import stages
from orchestrator.pipeline.messages import is_verbose
from orchestrator.report import findings
from orchestrator.report.front import in_short
from orchestrator.report.libraries import library_tables
from orchestrator.report.markdown import MARKS
from orchestrator.report.model import text_of
from orchestrator.report.results import claim_table, difference_table, results_tables
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.analysis.compare import Comparison
    from orchestrator.report.model import ReportTable

MOST_LINES = 22
"""Lines of the answer and of the claims at the end of a run, before their number is cut."""
WIDEST = 100
_wrapped = partial(
    textwrap.wrap, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
)


@click.command()
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
@common.as_json
def command(
    choice: CellChoice,
    axis: str | None,
    metric: str | None,
    as_json: bool,
) -> int:
    """Print means with intervals over seeds, and the verdict on every claim.

    --by AXIS prints paired differences between the values of the axis, everything else equal,
    with Holm's correction. Intervals are 95 %: over seeds, and for evaluated tasks also over
    seeds and items. --by backend compares the same cells in several libraries: their scores, the
    effect with its interval, and what their ledgers say differently.
    """
    if axis == "backend":
        experiment = choice.experiment()
        _compare_libraries(experiment, choice.where, metric, as_json)
        return 0
    comparison = stages.read_results(choice.chosen()).comparison
    if metric is not None:
        check_metric(comparison, metric)
    if axis is not None:
        _compare_axis(comparison, axis, metric, as_json)
    elif as_json:
        print_json(comparison_data(comparison))
    else:
        for table in results_tables(comparison, metric=metric):
            _print(table)
            click.echo()
        if comparison.in_domain is None:
            click.echo("No cell has finished yet.")
        print_claims(comparison)
    return 0


def _compare_axis(
    comparison: "Comparison",
    axis: str,
    metric: str | None,
    as_json: bool,
) -> None:
    chosen = metric or comparison.in_domain
    if chosen is None:
        raise SelectionError("no cell has finished yet: there is nothing to compare")
    differences = axis_differences(comparison.configurations, axis, chosen)
    if as_json:
        print_json([asdict(one) | {"verdict": one.verdict} for one in differences])
        return
    if not differences:
        raise SelectionError(
            f"no two values of '{axis}' have finished cells that are else alike: there is nothing "
            "to compare"
        )
    _print(difference_table(differences, axis, chosen))


def _compare_libraries(
    experiment: Experiment,
    where: Sequence[str],
    metric: str | None,
    as_json: bool,
) -> None:
    """Print one cell in several libraries."""
    sides = list(read_sides(experiment, whole_questions(experiment, where), metric))
    if not sides:
        raise SelectionError("no cell of this spec is asked of a library")
    source = experiment.spec.source or experiment.spec.name
    page = library_data(sides, source)
    if as_json:
        print_json(page)
        return
    for table in library_tables(page):
        click.echo()
        _print(table)
    for sentence in [each for side in sides for each in page[side.name]["missing"]]:
        say(sentence)
    if len(sides) == 1:
        other = "site=local" if sides[0].name == "observed" else "site=<a cluster>"
        say(f"only {sides[0].name} here: `orch run {source} {other}` gives the other side")


def _print(table: "ReportTable") -> None:
    click.echo(table.caption)
    print_table(table.columns, [[text_of(field) for field in row] for row in table.rows])


def print_claims(comparison: "Comparison") -> None:
    """Print verdict and reason of every claim."""
    table = claim_table(comparison)
    if table.rows:
        print_table(table.columns, table.rows)


def print_review(review: stages.Review, question: str) -> None:
    """Print the answer, a line a claim, and where the report lies; with -v the reasons first."""
    if is_verbose():
        print_claims(review.comparison)
    width = min(shutil.get_terminal_size().columns, WIDEST)
    lines = _wrapped(question, width)
    for label, text in findings(review.comparison):
        said = f"{label}: {text}." if label else f"{text[:1].upper()}{text[1:]}."
        lines += _wrapped(said, width)
    claims = list(claim_lines(review.comparison, width))
    room = max(1, MOST_LINES - len(lines))
    lines += claims[:room]
    if len(claims) > room:
        lines.append(f"and {len(claims) - room} more claims: -v, and the report")
    click.echo("\n".join(lines))
    say(f"report: {review.page}")


def claim_lines(comparison: "Comparison", width: int) -> Iterator[str]:
    """Yield what the marks mean, then a line for each claim: its mark, its name and its result."""
    claims = comparison.claims
    if not claims:
        return
    legend = dict.fromkeys(f"{MARKS[each.verdict]} {verdict_text(each)}" for each in claims)
    if comparison.claims_changed:
        yield from _wrapped(comparison.claims_changed, width)
    yield ", ".join(legend)
    longest = max(len(each.name) for each in claims)
    for each in claims:
        result = in_short(each)
        name = each.name.ljust(min(longest, max(12, width - len(result) - 4)))
        yield f"{MARKS[each.verdict]} {name}  {result}"
