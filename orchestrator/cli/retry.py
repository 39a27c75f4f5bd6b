"""orch retry: let failed and cancelled cells run again."""

import click

from orchestrator.cli import options
from orchestrator.cli.output import print_json, print_table


@click.command(short_help="Make failed and cancelled cells run again.")
@options.spec
@options.overrides
@options.where
@options.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> None:
    """Make failed and cancelled cells eligible again: the next `orch run` goes on with them, from
    their last checkpoint if they have one.
    """
    from orchestrator.experiment import open_experiment
    from orchestrator.operations import retry

    experiment = open_experiment(spec, overrides).chosen(where)
    done = retry(experiment.cells, experiment.folder)
    if as_json:
        print_json([
            {"cell": d.directory.path.name, "done": d.done, "note": d.note} for d in done
        ])  # fmt: skip
        return
    changed = [d for d in done if d.done]
    print_table(("cell", ""), [(d.directory.path.name, d.note) for d in changed])
    click.echo(f"{len(changed)} of {len(done)} cells will run again")
