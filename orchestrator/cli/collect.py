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

    experiment = open_experiment(spec, overrides).chosen(where)
    records = stages.gather(experiment)
    stages.mirror(experiment, records, stages.known_scores(experiment))
    return stages.tell_faults(records)
