"""orch errors: every failed cell and its last words, on one screen."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json
from orchestrator.files import read_tail
from orchestrator.runs.evaluation_jobs import last_evaluations
from orchestrator.runs.logs import CellError, errors
from orchestrator.runs.plan import plan as plan_of

if TYPE_CHECKING:
    from orchestrator.runs.experiment import Experiment
    from orchestrator.runs.plan import Plan


@click.command(short_help="Show the last lines of every failed cell.")
@common.cells
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(1))
@common.as_json
def command(choice: CellChoice, lines: int, as_json: bool) -> int:
    """Show the kind of failure, the message and the last lines of each failed cell, and on a
    cluster also of failed evaluation jobs. Exit code 1: something failed.
    """
    experiment = choice.experiment()
    chosen = plan_of(experiment.cells, experiment.folder).only(
        {c.id for c in experiment.chosen(choice.where).cells}
    )
    cells, evaluations = (
        errors(chosen.rows, lines=lines),
        list(_unscored(experiment, chosen, lines)),
    )
    failures = [*cells, *evaluations]
    if as_json:
        print_json(
            [
                {
                    "cell": e.directory.path.name,
                    "failure": e.failure,
                    "message": e.message,
                    "last_lines": e.last_lines,
                }
                for e in failures
            ]
        )
        return int(bool(failures))
    for error in failures:
        click.secho(f"{error.directory.path.name}: {error.failure}", bold=True)
        click.echo(f"  {error.message}".rstrip())
        click.echo("".join(f"  | {line}\n" for line in error.last_lines.splitlines()), nl=False)
    more = f", {len(evaluations)} failed evaluations" if evaluations else ""
    click.echo(f"{len(cells)} failed cells of {len(chosen.rows)}{more}")
    return int(bool(failures))


def _unscored(experiment: "Experiment", plan: "Plan", lines: int) -> "Iterator[CellError]":
    """Return failed evaluation jobs, each as an error of its own beside the cell's."""

    states = {row.directory.path.name: row.state for row in plan.rows}
    places = {row.directory.path.name: row.directory for row in plan.rows}
    for name, each in last_evaluations(experiment.folder, states).items():
        if each.exit is None:
            continue
        tail = ""
        if Path(each.log).exists():
            printed = read_tail(Path(each.log), 400 * lines).decode(errors="replace")
            tail = "\n".join(printed.splitlines()[-lines:])
        yield CellError(places[name], f"evaluation: {each.exit.failure}", each.exit.message, tail)
