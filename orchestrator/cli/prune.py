"""orch prune: remove what left the spec, or checkpoints that have been evaluated."""

import sys

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, print_table, say
from orchestrator.errors import OrchError, SelectionError
from orchestrator.launch.disk_use import shown
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.operations import OperationResult, prune
from orchestrator.runs.plan import plan
from orchestrator.runs.retention import RetentionDecision, free_checkpoints, retention_decisions


@click.command(short_help="Remove cells that left the spec, or evaluated checkpoints.")
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
    experiment = choice.experiment()
    if checkpoints:
        return _checkpoints(
            experiment.chosen(choice.where), dry_run=dry_run, yes=yes, as_json=as_json
        )
    if choice.where:
        raise SelectionError(
            "--where selects cells of the spec, and prune removes those that left it: "
            "--where goes with --checkpoints"
        )
    return _cells(experiment, dry_run=dry_run, yes=yes, as_json=as_json)


def _cells(experiment: Experiment, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    orphans = plan(experiment.cells, experiment.folder).orphans
    if not as_json:
        if not orphans:
            click.echo("no cell has left the spec: there is nothing to remove")
            return 0
        print_table(
            ("would be removed", "state", "why"),
            [(row.directory.path.name, row.state, row.detail) for row in orphans],
        )
    names = [row.directory.path.name for row in orphans]
    if dry_run:
        if as_json:
            print_json({"would_remove": names})
        return 0
    done: list[OperationResult] = []
    if orphans and _agreed(f"Remove {len(orphans)} directories?", yes, "these directories"):
        done = prune(experiment.folder, [row.directory for row in orphans])
    note_by_name = {each.directory.path.name: each.note for each in done if not each.done}
    if as_json:
        removed = [each.directory.path.name for each in done if each.done]
        print_json({"removed": removed, "left": note_by_name})
        return 0
    for name, note in note_by_name.items():
        say(f"{name}: {note}")
    click.echo(f"removed {len(done) - len(note_by_name)} of {len(orphans)}")
    return 0


def _checkpoints(experiment: Experiment, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    from collections import Counter

    evaluation = experiment.spec.evaluation
    decisions = list(retention_decisions(experiment.cells, evaluation, experiment.folder))
    spare = [(each, each.num_bytes) for each in decisions if not each.kept]
    if spare and not as_json:
        print_table(
            ("may go", "step", "size"),
            [
                (each.directory.path.name, each.step or "a removal cut short", shown(num_bytes))
                for each, num_bytes in spare
            ],
        )
    for why, count in Counter(each.kept for each in decisions if each.kept).most_common():
        say(f"kept, {why}: {count}")
    if as_json and (dry_run or not spare):
        rows = [_row(each, num_bytes) for each, num_bytes in spare]
        print_json({"would_remove" if dry_run else "removed": rows})
        return 0
    if not spare:
        click.echo("no checkpoint may go" if decisions else "there are no checkpoints")
        if (
            any(each.kept.startswith("no") for each in decisions)
            and evaluation.checkpoints == "last"
        ):
            say(
                "only each cell's last is evaluated: `orch eval SPEC evaluation.checkpoints=all` "
                "scores the others"
            )
        return 0
    total = shown(sum(num_bytes for _, num_bytes in spare))
    if not as_json:
        click.echo(f"{len(spare)} of {len(decisions)} checkpoints may go: {total}")
    if dry_run or not _agreed(f"Remove {len(spare)} checkpoints?", yes, "these checkpoints"):
        return 0
    bytes_of = {each.paths: num_bytes for each, num_bytes in spare}
    done = free_checkpoints([each for each, _ in spare], evaluation, experiment.folder)
    freed = shown(sum(bytes_of[each.paths] for each in done))
    if as_json:
        print_json({"removed": [_row(each, bytes_of[each.paths]) for each in done]})
    else:
        click.echo(f"removed {len(done)} of {len(spare)}, {freed} freed")
    return 0


def _row(each: RetentionDecision, num_bytes: int) -> dict[str, object]:
    return {"cell": each.directory.path.name, "step": each.step, "bytes": num_bytes}


def _agreed(question: str, yes: bool, what: str) -> bool:
    if not yes and not sys.stdin.isatty():
        raise OrchError(f"nothing was removed: say --yes to remove {what}")
    return yes or click.confirm(question, err=True)
