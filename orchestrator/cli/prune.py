"""orch prune: remove what left the spec, or checkpoints that have been evaluated."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, print_table, say
from orchestrator.errors import OrchError, SelectionError
from orchestrator.launch.disk_use import shown
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.operations import prune
from orchestrator.runs.plan import plan
from orchestrator.runs.retention import RetentionDecision, free_checkpoints, retention_decisions


class _Offer(NamedTuple):
    """What may go, and how it is removed."""

    what: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    data: Sequence[object]
    """The rows as JSON."""
    remove: Callable[[], tuple[list[object], dict[str, str]]]
    """Returns what was removed, as in `data`, and why the others were not."""


@click.command()
@click.option(
    "--checkpoints",
    is_flag=True,
    help="Remove instead the checkpoints that have all their scores and are not the last of "
    "their cell.",
)
@common.cells
@click.option(
    "-n",
    "--dry-run",
    is_flag=True,
    help="Print what would be removed, and stop.",
)
@common.yes
@common.as_json
def command(
    choice: CellChoice,
    checkpoints: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove the run directories of cells that are no longer in the spec, with their results; or,
    with --checkpoints, remove evaluated checkpoints.

    The command first shows what it would remove, and asks. It never removes a cell that is
    running. It removes a checkpoint only if all tasks of the spec have scores for it, and it is
    not the last of its cell. Scores and curves stay. A task that is added to the spec later
    cannot be scored on a removed checkpoint.
    """
    if choice.where and not checkpoints:
        raise SelectionError(
            "--where selects cells of the spec, and prune removes those that left it: "
            "--where goes with --checkpoints"
        )
    offer = (_checkpoints if checkpoints else _cells)(choice.chosen())
    count = len(offer.rows)
    if offer.rows and not as_json:
        print_table(offer.columns, offer.rows)
    if dry_run or not offer.rows:
        if as_json:
            print_json({"would_remove" if dry_run else "removed": offer.data})
        else:
            click.echo(f"{count} {offer.what} would be removed" if count else "nothing to remove")
        return 0
    if not yes and not sys.stdin.isatty():
        raise OrchError(f"nothing was removed: say --yes to remove these {offer.what}")
    removed, left = list[object](), dict[str, str]()
    if yes or click.confirm(f"Remove {count} {offer.what}?", err=True):
        removed, left = offer.remove()
    if as_json:
        print_json({"removed": removed, "left": left})
        return 0
    for name, note in left.items():
        say(f"{name}: {note}")
    click.echo(f"removed {len(removed)} of {count}")
    return 0


def _cells(experiment: Experiment) -> _Offer:
    orphans = plan(experiment.cells, experiment.folder).orphans

    def remove() -> tuple[list[object], dict[str, str]]:
        done = prune(experiment.folder, [row.directory for row in orphans])
        removed: list[object] = [each.directory.path.name for each in done if each.done]
        return removed, {e.directory.path.name: e.note for e in done if not e.done}

    rows = [(row.directory.path.name, row.state, row.detail) for row in orphans]
    columns = ("would be removed", "state", "why")
    return _Offer("directories", columns, rows, [name for name, *_ in rows], remove)


def _checkpoints(experiment: Experiment) -> _Offer:
    evaluation = experiment.spec.evaluation
    decisions = list(retention_decisions(experiment.cells, evaluation, experiment.folder))
    sizes = {each.paths: each.num_bytes for each in decisions if not each.kept}
    spare = [each for each in decisions if not each.kept]
    for why, count in Counter(each.kept for each in decisions if each.kept).most_common():
        say(f"kept, {why}: {count}")
    if evaluation.checkpoints == "last" and any(e.kept.startswith("no") for e in decisions):
        say(
            "only each cell's last is evaluated: `orch eval SPEC evaluation.checkpoints=all` "
            "scores the others"
        )

    def row(each: RetentionDecision) -> object:
        name = each.directory.path.name
        return {"cell": name, "step": each.step, "bytes": sizes[each.paths]}

    def remove() -> tuple[list[object], dict[str, str]]:
        return [row(e) for e in free_checkpoints(spare, evaluation, experiment.folder)], {}

    rows = [(each.directory.path.name, each.step, shown(sizes[each.paths])) for each in spare]
    columns = ("may go", "step", f"size, {shown(sum(sizes.values()))} in all")
    return _Offer("checkpoints", columns, rows, list(map(row, spare)), remove)
