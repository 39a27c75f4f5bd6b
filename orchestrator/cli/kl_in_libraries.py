"""orch explain --libraries: what each KL term is in each library and version, measured in its own
code (the lab measures it)."""

from collections.abc import Sequence

import click

from orchestrator.cli.common import print_json, print_table
from orchestrator.evidence import only_read
from orchestrator.evidence.cells import Release, releases
from orchestrator.evidence.matrix import (
    CapabilityRow,
    document,
    matrix,
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


def print_libraries(wanted: Sequence[str], *, as_json: bool, off_policy: bool) -> None:
    """Print which objective each KL term optimises in each library and release."""
    chosen, read_only = _chosen(wanted)
    rows = matrix(chosen)
    if as_json:
        print_json(
            {
                **document(chosen, rows),
                "not_measured": {"@".join(each): unmeasured_differences(*each) for each in chosen},
                "only_read": {
                    "@".join(each): only_read.read(each[0]).get(each[1]) for each in read_only
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
    known = only_read.libraries()
    alone = [each for each in wanted if each.partition("@")[0] in known]
    driven = [each for each in wanted if each not in alone]
    return (
        releases(driven) if driven or not wanted else [],
        releases(alone, known) if alone or not wanted else [],
    )


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
    rows = only_read.table(read_only, "off_policy" if off_policy else "on_policy")
    objective = "objective on old samples" if off_policy else "objective on-policy"
    print_table(("library", "name", "KL in the", "computes", objective), rows)
