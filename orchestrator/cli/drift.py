"""orch drift: what a new release of a library changes for the cells of a spec, or for a script."""

from typing import TYPE_CHECKING

import click

from orchestrator import plugins
from orchestrator.audit import releases as around
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.cli.manners import WOULD_CHANGE, set_next
from orchestrator.errors import SelectionError
from orchestrator.probes.cells import releases
from orchestrator.probes.drift import (
    code_changes,
    drift,
    drift_data,
    drift_lines,
    is_script,
    rewritten_text,
    script_changes,
)
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.select import matches, parse

if TYPE_CHECKING:
    from orchestrator.probes.cells import Release
    from orchestrator.records import Cell


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
    of_script = is_script(choice.spec)
    old, new = (_named(each) if of_script else _release(each) for each in (before, after))
    if old[0] != new[0]:
        raise click.UsageError(
            f"--from {before} and --to {after} are two libraries: compare releases of one "
            "(orch compare compares libraries)"
        )
    if of_script:
        set_next("orch audit {spec}")
        return _drift_of_script(choice.spec, old, new, as_json=as_json)
    cells = _cells(old[0], choice.spec, choice.overrides, choice.where)
    drifts = drift(cells, old, new, plugins.load(old[0]).translate)
    code = code_changes(old, new)
    if as_json:
        print_json(drift_data(drifts, old, new, len(cells), code))
    else:
        for line in drift_lines(drifts, old, new, len(cells)):
            click.echo(line)
        if code:
            say(rewritten_text(code))
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
