"""orch explain --libraries: what each KL term is in each library and version, measured in its own
code; python -m orchestrator.lab measure measures it.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from orchestrator import plugins
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.evidence.capabilities import CapabilityRow, matrix
from orchestrator.evidence.cells import Release, releases
from orchestrator.lab.adopt import loss_code
from orchestrator.lab.probes import functions, read_only_releases
from orchestrator.lab.probes.matrix import (
    CORRECTION_COLUMNS,
    correction_rows,
    document,
    own_launches,
    table,
    unmeasured_differences,
)

LEGEND = (
    "Measured on-policy{off}, with rloo and a mean over tokens, or the sum over a response where a "
    "release trains that KL with no other loss. -: refused; ~: approximated; +: through an "
    "extension of ours; !: orch's verdict says otherwise; ?: not measured.\n"
    "noise: no gradient in expectation; mixture: a sum of divergences; surrogate: no divergence.\n"
    "Why, the evidence, and what could not be measured: orch explain --libraries --json."
)


def measure_libraries(
    wanted: Sequence[str], python: Path | None, source: Path | None, environments: Path | None
) -> None:
    """Measure the chosen releases, or all, and print the files of evidence that are written."""
    from orchestrator.lab.probes.measure import measure_again  # NumPy

    if source and len(wanted) == 1:
        library, _, version = wanted[0].partition("@")
        if version and library in loss_code.libraries():
            click.echo(loss_code.keep(library, version, source))
        if version and library in functions.libraries():
            click.echo(functions.measure_again(library, version, source))
            if version not in plugins.load(library).versions:
                return
    chosen, read_only = _chosen(wanted)
    if source and len(chosen) + len(read_only) != 1:
        raise click.UsageError("--source is the source of one release: name it with --library")
    for file in measure_again(chosen, python, source, environments, say):
        click.echo(file)
    named = any(each.partition("@")[0] in read_only_releases.libraries() for each in wanted)
    for file in read_only_releases.measure_again(read_only, python, source, say, named=named):
        click.echo(file)


def print_libraries(
    wanted: Sequence[str], *, as_json: bool, off_policy: bool, of_corrections: bool
) -> None:
    """Print which objective each KL term optimises in each library and release."""
    chosen, read_only = _chosen(wanted)
    if of_corrections and not as_json:
        plain = [tuple(cell.replace("`", "") for cell in row) for row in correction_rows(chosen)]
        print_table(tuple(name.replace("`", "") for name in CORRECTION_COLUMNS), plain)
        return

    rows = matrix(chosen)
    if as_json:
        print_json(
            {
                **document(chosen, rows),
                "not_measured": {"@".join(each): unmeasured_differences(*each) for each in chosen},
                "only_read": {
                    "@".join(each): read_only_releases.read(each[0]).get(each[1])
                    for each in read_only
                },
            }
        )
        return
    if chosen:
        _table(rows, chosen, off_policy)
    if read_only:
        _table_alone(read_only, off_policy)


def _chosen(wanted: Sequence[str]) -> tuple[list[Release], list[Release]]:
    """Return the releases that orch drives and those that it only reads; all if none is named."""
    alone_wanted = [
        each for each in wanted if each.partition("@")[0] in read_only_releases.libraries()
    ]
    driven = [each for each in wanted if each not in alone_wanted]
    chosen = releases(driven) if driven or not wanted else []
    return chosen, read_only_releases.chosen(alone_wanted) if alone_wanted or not wanted else []


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
    rows = [(*row[:4], row[at]) for row in read_only_releases.table(read_only)]
    objective = "objective on old samples" if off_policy else "objective on-policy"
    print_table(("library", "name", "KL in the", "computes", objective), rows)
