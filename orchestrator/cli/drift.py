"""orch drift: what a new release of a library changes for the cells of a spec."""

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.errors import SelectionError

if TYPE_CHECKING:
    from orchestrator.probes.capability import Release
    from orchestrator.probes.drift import Drift
    from orchestrator.records import Cell

MOST, MOST_NAMES = 12, 4
"""Changes, and new names, shown of one group."""


@click.command(short_help="What a new release of a library changes for a spec.")
@click.option("--from", "before", required=True, metavar="LIBRARY@VERSION", help="As it is now.")
@click.option("--to", "after", required=True, metavar="LIBRARY@VERSION", help="As it would be.")
@common.spec
@common.overrides
@common.where
@common.as_json
def command(
    before: str,
    after: str,
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    as_json: bool,
) -> int:
    """List the cells of SPEC whose launch or whose mathematics a release changes.

    Launches are compared key by key; the mathematics by what was measured in both releases' own
    code (orch matrix). Exits 2 when something changes, 0 when nothing does.
    """
    from orchestrator import plugins
    from orchestrator.probes.drift import code_changes, drift

    old, new = _release(before), _release(after)
    if old[0] != new[0]:
        raise click.UsageError(
            f"--from {before} and --to {after} are two libraries: compare releases of one "
            "(orch compare compares libraries)"
        )
    cells = _cells(old[0], spec, overrides, where)
    found = drift(cells, old, new, plugins.load(old[0]).translate)
    code = code_changes(old, new)
    if as_json:
        print_json(_plain(found, old, new, len(cells), code))
    else:
        _print(found, old, new, len(cells), code)
    return 2 if found else 0


def _release(text: str) -> "Release":
    from orchestrator.probes.capability import releases

    if "@" not in text:
        raise click.UsageError(f"'{text}' names no release: write LIBRARY@VERSION")
    (release,) = releases([text])
    return release


def _cells(
    library: str, spec: str, overrides: tuple[str, ...], where: tuple[str, ...]
) -> list["Cell"]:
    """Return the spec's cells of that library, as declared, or all where it has none."""
    from pathlib import Path

    from orchestrator.spec import load
    from orchestrator.spec.expand import expand
    from orchestrator.spec.select import matches, parse

    declared = expand(load(Path(spec), overrides))
    cells = [cell for cell in declared if cell.settings.backend.name == library]
    if not cells:
        say(f"no cell of {spec} asks for {library}: all {len(declared)} are taken as if they did")
        cells = declared
    selection = parse(where)
    chosen = [cell for cell in cells if matches(selection, cell)]
    if not chosen:
        raise SelectionError(f"--where {' '.join(where)} selects none of {len(cells)} cells")
    return chosen


def _print(
    found: list["Drift"], old: "Release", new: "Release", total: int, code: list[str]
) -> None:
    name, other = "@".join(old), "@".join(new)
    for group in found:
        labels = dict.fromkeys(cell.settings.kl.label for cell in group.cells)
        click.echo(f"{len(group.cells)} of {total} cells ({', '.join(labels)}):")
        renamed = [change.what for change in group.changes if change.kind == "renamed"]
        rest = [change for change in group.changes if change.kind != "renamed"]
        if renamed:
            shown = ", ".join(renamed[:MOST_NAMES]) + (", ..." if renamed[MOST_NAMES:] else "")
            have = "1 argument has" if len(renamed) == 1 else f"{len(renamed)} arguments have"
            click.echo(f"  {have} another name, and the same value: {shown}")
        for change in rest[:MOST]:
            click.echo(f"  {change.kind}: {change.what}")
            click.echo(f"    {name}: {change.before}\n    {other}: {change.after}")
        if len(rest) > MOST:
            click.echo(f"  and {len(rest) - MOST} more (--json lists them)")
    changed = sum(len(group.cells) for group in found)
    meant = _changing(found, "objective")
    of_it = f"; what was measured of the mathematics changes for {meant or 'none'} of them"
    click.echo(
        f"{changed} of {total} cells change from {name} to {other}{of_it}"
        if changed
        else f"nothing changes for {total} cells from {name} to {other}"
    )
    if code:
        were = "1 function was" if len(code) == 1 else f"{len(code)} functions were"
        say(
            f"{were} rewritten between the releases, and measure the same unless told above: "
            + ", ".join(code)
        )


def _changing(found: list["Drift"], kind: str) -> int:
    """Return the number of cells with a change of that kind."""
    return sum(
        len(group.cells) for group in found if any(each.kind == kind for each in group.changes)
    )


def _plain(
    found: list["Drift"], old: "Release", new: "Release", total: int, code: list[str]
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "from": "@".join(old),
        "to": "@".join(new),
        "cells": total,
        "changed": sum(len(group.cells) for group in found),
        "objective_changed": _changing(found, "objective"),
        "rewritten": code,
        "groups": [
            {
                "cells": [{"id": cell.id, "slug": cell.slug} for cell in group.cells],
                "changes": [asdict(change) for change in group.changes],
            }
            for group in found
        ],
    }
