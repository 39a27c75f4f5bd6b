"""orch matrix: what each KL term is in each library and version, as measured in its own code."""

from collections.abc import Sequence
from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.evidence.capabilities import CapabilityRow, matrix
from orchestrator.evidence.cells import Release, releases
from orchestrator.lab.probes import drift, undriven
from orchestrator.lab.probes.matrix import (
    CORRECTION_COLUMNS,
    correction_rows,
    document,
    own_launches,
    page,
    table,
    unmeasured_differences,
)

LEGEND = (
    "Measured on-policy{off}, with rloo and a mean over tokens, or the sum over a response where a "
    "release trains that KL with no other loss. -: refused; ~: approximated; +: through an "
    "extension of ours; !: orch's verdict says otherwise; ?: not measured.\n"
    "noise: no gradient in expectation; mixture: a sum of divergences; surrogate: no divergence.\n"
    "Why, and the evidence: orch matrix --format json. For reading, with what could not be "
    "measured: --format md."
)


@click.command(short_help="Show what each KL term is in each library, measured.")
@click.option(
    "--library",
    "wanted",
    multiple=True,
    metavar="LIBRARY[@VERSION]",
    help="Only this library, or this release. May be given several times.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "md", "drift", "json"]),
    default="table",
    show_default=True,
    help="md: the page docs/kl_in_libraries.md; drift: the page docs/drift.md.",
)
@common.as_json
@click.option("--off-policy", is_flag=True, help="On samples of an older policy.")
@click.option(
    "--corrections",
    "of_corrections",
    is_flag=True,
    help="Print the corrections of the engine's mismatch (TIS, MIS, IcePop, rejection) instead.",
)
@click.option("--measure", is_flag=True, help="Measure again, in each library's own functions.")
@click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --measure: a Python that has torch (default: orch's own).",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --measure of one release: the folder of its package, instead of its "
    "environment (orch env create LIBRARY@VERSION --contract).",
)
@click.option(
    "--environments",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --measure: the folder of the environments.",
)
def command(
    wanted: tuple[str, ...],
    form: str,
    as_json: bool,
    off_policy: bool,
    of_corrections: bool,
    measure: bool,
    python: Path | None,
    source: Path | None,
    environments: Path | None,
) -> None:
    """Print which objective each KL term optimises in each library and release.

    Objectives are measured: orch runs the library's own functions on every sequence of an exact
    model, and names their expected gradient. How a term is passed to the library comes from the
    translation of its backend.
    """
    alone_wanted = [each for each in wanted if each.partition("@")[0] in undriven.libraries()]
    driven = [each for each in wanted if each not in alone_wanted]
    chosen = releases(driven) if driven or not wanted else []
    read_only = undriven.chosen(alone_wanted) if alone_wanted or not wanted else []
    if measure:
        if source and len(chosen) + len(read_only) != 1:
            raise click.UsageError("--source is the source of one release: name it with --library")
        from orchestrator.lab.probes.measure import measure_again  # NumPy

        for file in measure_again(chosen, python, source, environments, say):
            click.echo(file)
        named = bool(alone_wanted)
        for file in undriven.measure_again(read_only, python, source, say, named=named):
            click.echo(file)
        return
    if form == "md":
        click.echo(page(chosen, read_only), nl=False)
        return

    if form == "drift":
        click.echo(drift.page(chosen), nl=False)
        return

    if of_corrections and form == "table" and not as_json:
        plain = [tuple(cell.replace("`", "") for cell in row) for row in correction_rows(chosen)]
        print_table(tuple(name.replace("`", "") for name in CORRECTION_COLUMNS), plain)
        return

    rows = matrix(chosen)
    if as_json or form == "json":
        print_json(
            {
                **document(chosen, rows),
                "not_measured": {"@".join(each): unmeasured_differences(*each) for each in chosen},
                "only_read": {
                    "@".join(each): undriven.read(each[0]).get(each[1]) for each in read_only
                },
            }
        )
        return
    if chosen:
        _table(rows, chosen, off_policy)
    if read_only:
        _table_alone(read_only, off_policy)


def _table(rows: Sequence[CapabilityRow], chosen: Sequence[Release], off_policy: bool) -> None:
    print_table(*table(rows, chosen, off_policy))
    click.echo("\n" + LEGEND.format(off=", samples of an older policy" if off_policy else ""))
    own = own_launches(chosen, off_policy=off_policy)
    if own:
        click.echo("\nLaunches in a library's own words, measured alike.")
        print_table(("library", "launch", "objective"), own)


def _table_alone(read_only: Sequence[Release], off_policy: bool) -> None:
    """Print what libraries that are only read make of a KL, in their own functions."""
    click.echo("\nLibraries that are only read: their own functions, asked alone.")
    at = 5 if off_policy else 4
    rows = [(*row[:4], row[at]) for row in undriven.table(read_only)]
    objective = "objective on old samples" if off_policy else "objective on-policy"
    print_table(("library", "name", "KL in the", "computes", objective), rows)
