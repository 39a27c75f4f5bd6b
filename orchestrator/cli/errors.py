"""orch errors: every failed cell and its last words, on one screen."""

import click

from orchestrator.cli import options
from orchestrator.cli.output import print_json


@click.command(short_help="Last lines of every failed cell.")
@options.spec
@options.overrides
@options.where
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(1))
@options.as_json
def command(
    spec: str, overrides: tuple[str, ...], where: tuple[str, ...], lines: int, as_json: bool
) -> int:
    """Show each failed cell's class of failure, message and last lines. Exits 1 if any failed."""
    from orchestrator.experiment import open_experiment
    from orchestrator.logs import errors
    from orchestrator.plan import plan

    whole = open_experiment(spec, overrides)
    made = plan(whole.cells, whole.folder).only({c.id for c in whole.chosen(where).cells})
    found = errors(made.rows, lines=lines)
    if as_json:
        print_json([
            {"cell": e.directory.path.name, "failure": e.failure, "message": e.message,
             "last_lines": e.last_lines}
            for e in found
        ])  # fmt: skip
        return int(bool(found))
    for error in found:
        click.secho(f"{error.directory.path.name}: {error.failure}", bold=True)
        click.echo(f"  {error.message}".rstrip())
        click.echo("".join(f"  | {line}\n" for line in error.last_lines.splitlines()), nl=False)
    click.echo(f"{len(found)} failed cells of {len(made.rows)}")
    return int(bool(found))
