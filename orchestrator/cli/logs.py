"""orch logs: what one cell printed, or the last words of all that failed."""

import shlex
from pathlib import Path

import click
from click.core import ParameterSource

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, one_cell, print_json, say
from orchestrator.cli.conventions import in_folder, set_next
from orchestrator.errors import SelectionError
from orchestrator.launch.logs import Stream, logs
from orchestrator.runs.experiment import cell_named, launched_cells
from orchestrator.runs.logs import errors as failed_cells
from orchestrator.runs.logs import evaluation_errors, follow
from orchestrator.runs.plan import plan as plan_of


@click.command()
@click.argument(
    "target",
    nargs=-1,
    required=True,
    metavar="CELL | SPEC [CELL] | --failed SPEC [KEY=VALUE]...",
)
@click.option(
    "--failed",
    is_flag=True,
    help="Show the kind of failure, the message and the last lines of each failed cell of SPEC, "
    "and on a cluster also of failed evaluation jobs. Exit code 1: something failed.",
)
@common.where
@click.option(
    "-f", "--follow", "following", is_flag=True, help="Follow the output until the cell has ended."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1),
    help="Number of lines.  [default: 50; with --failed 10]",
)
@click.option(
    "--stderr", "errors", is_flag=True, help="Print its standard error instead of its output."
)
@click.option("--attempt", type=click.IntRange(1), help="An earlier attempt, by number.")
@common.pilot
@common.as_json
@common.runs_dir
def command(
    target: tuple[str, ...],
    failed: bool,
    where: tuple[str, ...],
    following: bool,
    lines: int | None,
    errors: bool,
    attempt: int | None,
    pilot: bool,
    as_json: bool,
    runs_dir: Path,
) -> int:
    """Show the last lines of CELL: its id, the start of it, its name, or a SPEC with -w.

    With --follow and --json, the command prints one object with all lines when the cell has
    ended.
    """

    if failed:
        source = click.get_current_context().get_parameter_source("runs_dir")
        named = source is not ParameterSource.DEFAULT
        overrides = (*target[1:], *([in_folder(runs_dir)] if named else []))
        choice = CellChoice(target[0], overrides, where, pilot)
        return _failed(choice, lines or 10, as_json)
    if pilot:
        raise click.UsageError("--pilot goes with --failed SPEC; a pilot's CELL is named by its id")
    cell_name, overrides = one_cell(target)
    found = launched_cells(target[0], overrides, where, runs_dir)
    if cell_name is not None:
        found = [(found[0][0], cell_named(cell_name, [cell for _, cell in found]))]
    if len(found) > 1:
        some = ", ".join(f"{cell.slug} ({cell.id})" for _, cell in found[:5])
        raise SelectionError(f"{len(found)} cells of {target[0]} have begun: give one ({some})")
    ((folder, launched),) = found
    cell_dir = folder.cell(launched)
    stream: Stream = "stderr" if errors else "stdout"
    parts = (
        follow(cell_dir, stream, lines=lines or 50)
        if following
        else iter([logs(cell_dir, stream, lines=lines or 50, attempt=attempt)])
    )
    if as_json:
        text = "".join(parts)
        names = {"cell": cell_dir.path.name, "experiment": folder.experiment, "stream": stream}
        print_json({**names, "attempt": attempt or len(cell_dir.attempts()), "text": text})
        return 0
    is_empty = True
    for text in parts:
        is_empty = is_empty and not text
        click.echo(text, nl=False)
    if is_empty:
        say(f"{cell_dir.path.name} has written nothing to {stream}")
    return 0


def _failed(choice: CellChoice, lines: int, as_json: bool) -> int:
    """Print each failed cell and evaluation. Return the exit code."""
    own = [choice.spec, *choice.overrides, *(["--pilot"] if choice.pilot else [])]
    set_next(shlex.join(["orch", "retry", *own]))
    experiment = choice.experiment()
    ids = {c.id for c in choice.chosen().cells}
    chosen = plan_of(experiment.cells, experiment.folder).only(ids)
    cells = failed_cells(chosen.rows, lines=lines)
    evaluations = evaluation_errors(experiment.folder, chosen.rows, lines=lines)
    failures = [*cells, *evaluations]
    if as_json:
        print_json([error._asdict() for error in failures])
        return int(bool(failures))
    for error in failures:
        click.secho(f"{error.cell}: {error.failure}", bold=True)
        click.echo(f"  {error.message}".rstrip())
        click.echo("".join(f"  | {line}\n" for line in error.last_lines.splitlines()), nl=False)
    more = f", {len(evaluations)} failed evaluations" if evaluations else ""
    click.echo(f"{len(cells)} failed cells of {len(chosen.rows)}{more}")
    if not failures:
        set_next(shlex.join(["orch", "status", *own]))
    return int(bool(failures))
