"""orch audit --from --to: what a new release changes for the cells of a spec, or for a script."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator import plugins
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.cli.manners import WOULD_CHANGE, set_next
from orchestrator.errors import SelectionError
from orchestrator.evidence.cells import releases
from orchestrator.lab.adopt import loss_code
from orchestrator.lab.probes.drift import (
    cells_of_library,
    code_changes,
    drift,
    drift_data,
    drift_lines,
    is_script,
    refused_by_both,
    rewritten_text,
    script_drift,
    script_drift_data,
    script_drift_lines,
)
from orchestrator.lab.probes.functions import changed_text

if TYPE_CHECKING:
    from orchestrator.evidence.cells import Release


def print_changes(before: str, after: str, choice: CellChoice, *, as_json: bool) -> int:
    """Print what a release changes for the cells of a spec, or for a script. Return the exit code:
    3 something changes, or code around the loss that orch has not run in both releases; 0 nothing.

    For cells, orch compares the launches key by key, and the mathematics by measurements in
    both releases' own code. Raise SelectionError if nothing can be compared.
    """
    of_script = is_script(choice.spec)
    old, new = (_named(each) if of_script else _release(each) for each in (before, after))
    if old[0] != new[0]:
        raise click.UsageError(
            f"--from {before} and --to {after} are two libraries: compare releases of one "
            "(orch compare compares libraries)"
        )
    if around := changed_text(old[0], old[1], new[1]):
        say(around)
    code = [] if of_script else code_changes(old, new)
    probed = {each.partition(":")[2] for each in code}
    if read := loss_code.differing_code_text(*old, new[1], probed):
        say(read)
    if of_script:
        set_next(shlex.join(["orch", "audit", choice.spec]))
        return _drift_of_script(choice.spec, old, new, as_json=as_json)
    cells, note = cells_of_library(old[0], choice.spec, choice.overrides, choice.where)
    if note:
        say(note)
    translate = plugins.load(old[0]).translate
    refused = refused_by_both(cells, old, new, translate)
    if refused:
        slug, why = next(iter(refused.items()))
        count = (
            f"{len(refused)} of {len(cells)} cells, which neither release accepts ({slug}: {why})"
        )
        if len(refused) == len(cells):
            raise SelectionError(f"nothing was compared: {count}")
        say(f"not compared: {count}")
    compared = len(cells) - len(refused)
    drifts = drift(cells, old, new, translate)
    not_run = [each for each in loss_code.unmeasured(*old, new[1]) if each not in probed]
    if as_json:
        print_json(drift_data(drifts, old, new, compared, code, not_run))
    else:
        for line in drift_lines(drifts, old, new, compared, not_run):
            click.echo(line)
        if code:
            say(rewritten_text(code))
    set_next(shlex.join(["orch", "plan", choice.spec, *choice.overrides]))
    return WOULD_CHANGE if drifts or not_run else 0


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
    result = script_drift(path, old, new)
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    not_run = loss_code.unmeasured(*old, new[1])
    other = loss_code.other_results(*old, new[1], text)
    if as_json:
        print_json(script_drift_data(result, old, new, not_run, other))
    else:
        for line in script_drift_lines(result, path, old, new, not_run, other):
            click.echo(line)
    return WOULD_CHANGE if result.changes or not_run or other else 0
