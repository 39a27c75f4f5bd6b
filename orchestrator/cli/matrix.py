"""orch matrix: what each KL term is in each library and version, as measured in its own code."""

from pathlib import Path
from typing import Any

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.probes.capability import document, matrix, releases, short
from orchestrator.probes.evidence import write
from orchestrator.probes.findings import unmeasured_differences
from orchestrator.probes.page import page

LEGEND = (
    "Measured on-policy{off}, with rloo and a mean over tokens. -: refused; ~: approximated; "
    "+: through an extension of ours; !: orch's verdict says otherwise; ?: not measured.\n"
    "noise: no gradient in expectation; mixture: a sum of divergences; surrogate: no divergence.\n"
    "Why, and the evidence: orch matrix --format json. For reading, with what could not be "
    "measured: --format md."
)


@click.command(short_help="What each KL term is in each library, measured.")
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
    measure: bool,
    python: Path | None,
    source: Path | None,
    environments: Path | None,
) -> None:
    """Which objective each KL term optimises in each library and release.

    Objectives are measured: the library's own functions are run on every sequence of an exact model
    and their expected gradient is named. What a backend makes of a term comes from its translation.
    """
    chosen = releases(wanted)
    if measure:
        _measure(chosen, python, source, environments)
        return
    if form == "md":
        click.echo(page(chosen), nl=False)
        return

    if form == "drift":
        from orchestrator.analysis import drift_page

        click.echo(drift_page.page(chosen), nl=False)
        return

    rows = matrix(chosen)
    if as_json or form == "json":
        measured = {
            f"{library}@{version}": unmeasured_differences(library, version)
            for library, version in chosen
        }
        print_json({**document(chosen, rows), "not_measured": measured})
        return
    _table(rows, chosen, off_policy)


def _table(rows: Any, chosen: Any, off_policy: bool) -> None:
    columns = [f"{library}@{version}" for library, version in chosen]
    labels = list(dict.fromkeys(row.label for row in rows))
    by = {(row.label, row.release): row for row in rows}
    print_table(
        ("KL term", *columns),
        [(label, *(short(by[label, name], off_policy) for name in columns)) for label in labels],
    )
    click.echo("\n" + LEGEND.format(off=", samples of an older policy" if off_policy else ""))


def _measure(chosen: Any, python: Path | None, source: Path | None, within: Path | None) -> None:
    from orchestrator.probes.measure import measure
    from orchestrator.probes.protocol import sources

    if source and len(chosen) != 1:
        raise click.UsageError("--source is the source of one release: name it with --library")
    for library, version in chosen:
        say(f"{library} {version}: asking its own functions")
        where = sources(library, version, python=python, source=source, within=within)
        with where as folder:
            click.echo(write(measure(library, version, folder.where, folder.commit)))
