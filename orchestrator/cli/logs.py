"""orch logs: what one cell printed."""

from pathlib import Path

import click

from orchestrator.cli import common, completing
from orchestrator.cli.common import say
from orchestrator.launch.logs import Stream, logs
from orchestrator.runs.experiment import find_cell
from orchestrator.runs.logs import follow


@click.command(short_help="Output of one cell.")
@click.argument("cell", shell_complete=completing.cells)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the cell has ended.")
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1))
@click.option("--stderr", "errors", is_flag=True, help="Its errors instead of its output.")
@click.option("--attempt", type=click.IntRange(1), help="An earlier attempt, by number.")
@common.runs_dir
def command(
    cell: str, following: bool, lines: int, errors: bool, attempt: int | None, runs_dir: Path
) -> None:
    """Show the last lines of CELL: its id, the start of it, or its slug."""

    folder, directory = find_cell(cell, runs_dir)
    cell_dir = folder.cell(directory)
    stream: Stream = "stderr" if errors else "stdout"
    if not following:
        text = logs(cell_dir, stream, lines=lines, attempt=attempt)
        click.echo(text, nl=False)
        if not text:
            say(f"{cell_dir.path.name} has written nothing to {stream}")
        return
    for text in follow(cell_dir, stream, lines=lines):
        click.echo(text, nl=False)
