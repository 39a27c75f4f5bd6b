"""orch logs: what one cell printed."""

from pathlib import Path

import click

from orchestrator.cli import common, completing
from orchestrator.cli.common import print_json, say
from orchestrator.launch.launchers import holders
from orchestrator.launch.logs import Stream
from orchestrator.runs.experiment import find_cell
from orchestrator.runs.logs import follow


@click.command(short_help="Show the output of one cell.")
@click.argument("cell", shell_complete=completing.cells)
@click.option(
    "-f", "--follow", "following", is_flag=True, help="Follow the output until the cell has ended."
)
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1))
@click.option(
    "--stderr", "errors", is_flag=True, help="Print its standard error instead of its output."
)
@click.option("--attempt", type=click.IntRange(1), help="An earlier attempt, by number.")
@common.as_json
@common.runs_dir
def command(
    cell: str,
    following: bool,
    lines: int,
    errors: bool,
    attempt: int | None,
    as_json: bool,
    runs_dir: Path,
) -> None:
    """Show the last lines of CELL: its id, the start of it, or its slug.

    With --follow and --json, the command prints one object with all lines when the cell has
    ended.
    """

    folder, launched = find_cell(cell, runs_dir)
    cell_dir = folder.cell(launched)
    stream: Stream = "stderr" if errors else "stdout"
    ((launcher, _),) = holders([launched], folder)
    parts = (
        follow(cell_dir, stream, lines=lines)
        if following
        else iter([launcher.logs(launched, stream, lines=lines, attempt=attempt)])
    )
    if as_json:
        text = "".join(parts)
        names = {"cell": cell_dir.path.name, "experiment": folder.experiment, "stream": stream}
        print_json({**names, "attempt": attempt or len(cell_dir.attempts()), "text": text})
        return
    is_empty = True
    for text in parts:
        is_empty = is_empty and not text
        click.echo(text, nl=False)
    if is_empty:
        say(f"{cell_dir.path.name} has written nothing to {stream}")
