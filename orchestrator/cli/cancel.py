"""orch cancel: stop cells, and keep the others from starting."""

import click

from orchestrator.cli import options
from orchestrator.cli.output import print_json, print_table


@click.command(short_help="Stop cells, and leave them alone until a retry.")
@options.spec
@options.overrides
@options.where
@options.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> None:
    """Stop the chosen cells. What they trained is kept; `orch retry` lets them run again.

    Cells that have succeeded or failed are left as they are.
    """
    from orchestrator.experiment import open_experiment
    from orchestrator.operations import cancel

    experiment = open_experiment(spec, overrides).chosen(where)
    done = cancel(experiment.cells, experiment.folder)
    if as_json:
        print_json([
            {"cell": d.directory.path.name, "done": d.done, "note": d.note} for d in done
        ])  # fmt: skip
        return
    changed = [d for d in done if d.done]
    print_table(("cell", ""), [(d.directory.path.name, d.note) for d in changed])
    click.echo(f"{len(changed)} of {len(done)} cells cancelled")
