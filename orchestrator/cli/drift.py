"""orch drift: what a new release of a library changes for the cells of a spec, or for a script."""

from typing import TYPE_CHECKING, Any

import click

from orchestrator import plugins
from orchestrator.analysis.drift import script_changes
from orchestrator.audit import releases as around
from orchestrator.audit.documents import yaml_document, yaml_node
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.cli.manners import WOULD_CHANGE, set_next
from orchestrator.errors import SelectionError
from orchestrator.library.launches import UnreadableScript
from orchestrator.probes.capability import releases
from orchestrator.probes.drift import code_changes, drift
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.select import matches, parse

if TYPE_CHECKING:
    from orchestrator.probes.capability import Release
    from orchestrator.probes.drift import Drift
    from orchestrator.records import Cell

MOST, MOST_NAMES = 12, 4
"""Changes, and new names, shown of one group."""


@click.command(short_help="Show what a new release of a library changes for a spec or a script.")
@click.option(
    "--from",
    "before",
    required=True,
    metavar="LIBRARY@VERSION",
    help="The release that is used now.",
)
@click.option(
    "--to", "after", required=True, metavar="LIBRARY@VERSION", help="The release to change to."
)
@common.cells
@common.as_json
def command(
    before: str,
    after: str,
    choice: CellChoice,
    as_json: bool,
) -> int:
    """List the cells of SPEC whose launch or whose mathematics a release changes.

    SPEC may also be a launch script, a recipe, or a Python file that starts the library. orch
    then reads it as the audit does, by the rules of both releases, and names the change of its
    objective and the default that changed.

    For cells, orch compares the launches key by key, and the mathematics by measurements in
    both releases' own code (orch matrix). Exit code 3: something changes; 0: nothing changes.
    """
    is_script = _is_script(choice.spec)
    old, new = (_named(each) if is_script else _release(each) for each in (before, after))
    if old[0] != new[0]:
        raise click.UsageError(
            f"--from {before} and --to {after} are two libraries: compare releases of one "
            "(orch compare compares libraries)"
        )
    if is_script:
        set_next("orch audit {spec}")
        return _drift_of_script(choice.spec, old, new, as_json=as_json)
    cells = _cells(old[0], choice.spec, choice.overrides, choice.where)
    drifts = drift(cells, old, new, plugins.load(old[0]).translate)
    code = code_changes(old, new)
    if as_json:
        print_json(_plain(drifts, old, new, len(cells), code))
    else:
        _print(drifts, old, new, len(cells), code)
    return WOULD_CHANGE if drifts else 0


def _named(text: str) -> "Release":
    """Return library and release of a text."""
    library, at, version = text.partition("@")
    if not at or not version:
        raise click.UsageError(f"'{text}' names no release: write LIBRARY@VERSION")
    return library, version


def _release(text: str) -> "Release":
    """Return a release that orch drives."""
    _named(text)
    (release,) = releases([text])
    return release


def _is_script(path: str) -> bool:
    """Return True if a file is no spec: by its suffix, or as YAML without a spec's keys."""
    from pathlib import Path

    file = Path(path)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return file.suffix in (".sh", ".bash", ".slurm", ".sbatch", ".py", ".toml")
    try:
        node = yaml_node(file.read_text(encoding="utf-8", errors="replace"))
        keys = {key.partition(".")[0] for key in yaml_document(node, path).values}
    except UnreadableScript:
        return False
    return not keys & {"studies", "study", "question", "recipe", "defaults"}


def _drift_of_script(path: str, old: "Release", new: "Release", *, as_json: bool) -> int:
    from dataclasses import asdict
    from pathlib import Path

    library, script = old[0], Path(path)
    if library not in plugins.readers():
        known = ", ".join(plugins.readers())
        raise SelectionError(f"orch reads no scripts of '{library}' (it reads: {known})")
    if not script.is_file():
        raise SelectionError(f"there is no file {path}")
    text = script.read_text(encoding="utf-8", errors="replace")
    files, versions = around.NeighbourFiles(script), around.versions(script)
    changed, total, taken = script_changes(text, path, files, versions, (old, new))
    if not total:
        raise SelectionError(f"{path} starts nothing of {library}")
    if as_json:
        plain = [asdict(each) for each in changed]
        print_json(
            {
                "from": "@".join(old),
                "to": "@".join(new),
                "launches": total,
                "changed": plain,
                "assumes": taken,
            }
        )
        return WOULD_CHANGE if changed else 0
    for each in changed:
        where = f"{path}:{each.line}{f' ({each.case})' if each.case else ''}"
        what = "the objective of this launch" if each.objective else "what surrounds the KL"
        click.echo(f"{where}: {what} changed")
        click.echo(f"  from {each.before}\n  to   {each.after}")
        for why in each.because:
            click.echo(f"  because {why}")
        for refused in each.refused:
            click.echo(f"  {new[1]}: {refused}")
    for each_taken in taken:
        click.echo(f"taken for granted: {each_taken}")
    if not changed:
        launches = "1 launch" if total == 1 else f"{total} launches"
        click.echo(f"nothing changes for {launches} from {'@'.join(old)} to {'@'.join(new)}")
    return WOULD_CHANGE if changed else 0


def _cells(
    library: str, spec: str, overrides: tuple[str, ...], where: tuple[str, ...]
) -> list["Cell"]:
    """Return the spec's cells of that library, as declared, or all where it has none."""
    from pathlib import Path

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
    drifts: list["Drift"], old: "Release", new: "Release", total: int, code: list[str]
) -> None:
    name, other = "@".join(old), "@".join(new)
    for group in drifts:
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
    changed = sum(len(group.cells) for group in drifts)
    meant = _changing(drifts, "objective")
    of_it = f"; what was measured of the mathematics changes for {meant or 'none'} of them"
    click.echo(
        f"{changed} of {total} cells change from {name} to {other}{of_it}"
        if changed
        else f"nothing changes for {total} cells from {name} to {other}"
    )
    if code:
        were = "1 function was" if len(code) == 1 else f"{len(code)} functions were"
        say(
            f"{were} rewritten between the releases, and measure the same unless "
            "a line above says otherwise: " + ", ".join(code)
        )


def _changing(drifts: list["Drift"], kind: str) -> int:
    """Return the number of cells with a change of that kind."""
    return sum(
        len(group.cells) for group in drifts if any(each.kind == kind for each in group.changes)
    )


def _plain(
    drifts: list["Drift"], old: "Release", new: "Release", total: int, code: list[str]
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "from": "@".join(old),
        "to": "@".join(new),
        "cells": total,
        "changed": sum(len(group.cells) for group in drifts),
        "objective_changed": _changing(drifts, "objective"),
        "rewritten": code,
        "groups": [
            {
                "cells": [{"id": cell.id, "slug": cell.slug} for cell in group.cells],
                "changes": [asdict(change) for change in group.changes],
            }
            for group in drifts
        ],
    }
