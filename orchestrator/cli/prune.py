"""orch prune: remove what left the spec."""

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.output import print_table, say
from orchestrator.errors import OrchError


@click.command(short_help="Remove cells that left the spec.")
@options.spec
@options.overrides
@options.yes
def command(spec: str, overrides: tuple[str, ...], yes: bool) -> None:
    """Remove the run directories of cells that the spec no longer has, results and all.

    Asks first; a cell that is running is left alone.
    """
    from orchestrator.experiment import open_experiment
    from orchestrator.operations import prune
    from orchestrator.plan import plan

    experiment = open_experiment(spec, overrides)
    orphans = plan(experiment.cells, experiment.folder).orphans
    if not orphans:
        click.echo("nothing left the spec")
        return
    print_table(("would be removed", "state", "why"),
                [(row.directory.path.name, row.state, row.detail) for row in orphans])  # fmt: skip
    if not yes:
        if not sys.stdin.isatty():
            raise OrchError("nothing was removed: say --yes to remove these directories")
        click.confirm(f"Remove {len(orphans)} directories?", abort=True, err=True)
    done = prune(experiment.folder, [row.directory for row in orphans])
    for left in (d for d in done if not d.done):
        say(f"{left.directory.path.name}: {left.note}")
    click.echo(f"removed {sum(d.done for d in done)} of {len(orphans)}")
