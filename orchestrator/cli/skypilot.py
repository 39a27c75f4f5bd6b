"""orch skypilot: a SkyPilot task for each cell."""

from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import say
from orchestrator.launch.skypilot import tasks
from orchestrator.pipeline.messages import counted
from orchestrator.runs.experiment import open_experiment


@click.command(short_help="Write a SkyPilot task for each cell.")
@common.spec
@click.argument("cloud", type=click.Path(dir_okay=False, path_type=Path))
@common.overrides
@common.where
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("skypilot"),
    show_default=True,
    help="The folder that the tasks are written to.",
)
@common.as_json
def command(
    spec: str,
    cloud: Path,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    folder: Path,
    as_json: bool,
) -> None:
    """Write a SkyPilot task for each cell of SPEC, for the machines that the file CLOUD describes.

    The command launches nothing: `sky jobs launch` does that, and SkyPilot restarts a job whose
    machine is taken away. These tasks were never launched on a real cloud.
    """
    options = tasks.read_options(cloud)
    # a cloud trains the declared cells, as a cluster does, and not this machine's rehearsals
    experiment = open_experiment(spec, (*overrides, "site.kind=slurm")).chosen(where)
    cells = experiment.cells
    task_files = tasks.tasks(cells, experiment.spec.name, options)
    written = tasks.write(folder, task_files)
    secrets = [name for name, source in options.secrets.items() if source is None]
    if as_json:
        common.print_json(
            {
                "written": list(map(str, written)),
                "jobs": [job._asdict() for job in tasks.planned_jobs(cells, options)],
                "secrets": secrets,
            }
        )
        return
    for job in tasks.planned_jobs(cells, options):
        click.echo(f"tasks of {counted(job.cells, 'cell')}: {job}")
    if secrets:
        click.echo(f"`sky jobs launch` takes --secret {' --secret '.join(secrets)} besides")
    say("written, not launched; no task of orch's was ever run on a cloud")
