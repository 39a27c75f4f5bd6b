"""orch collect: run directories into MLflow."""

import click

from orchestrator.cli import options, stages


@click.command(short_help="Read the run directories into MLflow.")
@options.spec
@options.overrides
@options.where
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...]) -> int:
    """Mirror what is on disk into MLflow. Doing it twice changes nothing.

    Exits 1 if some file could not be read; what could be read is mirrored all the same.
    """
    from orchestrator.experiment import open_experiment

    whole = open_experiment(spec, overrides)
    only = {cell.id for cell in whole.chosen(where).cells}
    records = stages.gather(whole)
    stages.mirror(whole, records, stages.known_scores(whole), only if where else None)
    return stages.tell_faults([r for r in records if r.cell.id in only])
