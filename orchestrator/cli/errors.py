"""orch errors: every failed cell and its last words, on one screen."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json
from orchestrator.runs.logs import errors, evaluation_errors
from orchestrator.runs.plan import plan as plan_of


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
    cells = errors(chosen.rows, lines=lines)
    evaluations = evaluation_errors(experiment.folder, chosen.rows, lines=lines)
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
