"""orch run: every stage, from the spec to the report."""

import click

from orchestrator.cli import common, training
from orchestrator.cli.common import MICRO_BANNER, say
from orchestrator.errors import EnvironmentFault
from orchestrator.runs.experiment import Experiment


@click.command(short_help="Train what is missing, evaluate it, mirror it, report it.")
@common.spec
@common.overrides
@common.where
@click.option("--train-only", is_flag=True, help="Stop after training.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option(
    "--wait", is_flag=True, help="On a cluster: stay until all jobs have ended, then report."
)
@click.option(
    "--budget-gpu-hours",
    "budget",
    type=click.FloatRange(min=0),
    help="Train no cell that would take the experiment beyond so many GPU-hours.",
)
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    train_only: bool,
    dry_run: bool,
    wait: bool,
    budget: float | None,
) -> int:
    """Train every cell of SPEC that is missing, then evaluate, mirror to MLflow and report.

    KEY=VALUE are Hydra overrides (seeds=[0], site.workers=2, ~studies.async10). Running again does
    only what is missing; Ctrl-C and kills leave everything resumable. On a SLURM cluster the cells
    are submitted and the command returns; run it again, or with --wait, to evaluate and report.
    """
    from orchestrator.cli.plan import print_plan
    from orchestrator.runs.completion import is_up_to_date, mark_complete
    from orchestrator.runs.experiment import open_experiment
    from orchestrator.runs.plan import plan
    from orchestrator.tracking.store import store_of

    whole = open_experiment(spec, overrides)
    experiment = whole.chosen(where)
    if experiment.scale == "micro":
        say(MICRO_BANNER)
    made = plan(whole.cells, whole.folder)
    if where:
        made = made.only({cell.id for cell in experiment.cells})
    for fault in made.faults:
        say(fault)
    if dry_run:
        print_plan(experiment, made)
        return 0
    if experiment.where == "slurm":
        code, over = training.on_cluster(whole, experiment, made, wait=wait, budget=budget)
    else:
        here = training.within(budget, whole, experiment, made)
        code, over = training.on_this_machine(here, made), True
    if train_only or code == 130 or not over:
        return code
    mirror = store_of(whole.folder, whole.spec.site.tracking_uri)
    if is_up_to_date(whole, made := plan(whole.cells, whole.folder), mirror):
        say(f"nothing to do; the report is {whole.folder.report / 'index.html'}")
        return code
    reviewed = review(whole, experiment)
    if reviewed == 0:
        mark_complete(whole, made, mirror)
    return max(code, reviewed)


def review(whole: Experiment, chosen: Experiment) -> int:
    """Do all stages after training, from disk: score the chosen cells, report all.

    Return 1 if something could not be read, scored or mirrored.
    """
    from dataclasses import replace

    from orchestrator.cli import stages

    records = stages.gather(whole)
    code = stages.tell_faults(records)
    ids = {cell.id for cell in chosen.cells}
    mine = [r for r in records if r.cell.id in ids]
    if whole.where == "slurm":  # a login node is no place for models of full size
        mine = [r for r in mine if r.cell.scale == "micro"]
        small = tuple(cell for cell in chosen.cells if cell.scale == "micro")
        chosen = replace(chosen, cells=small)  # nor for their baselines
        if len(mine) < len(ids):
            say(
                "checkpoints of full size are scored by jobs, beside their training; `orch eval` "
                "scores where it is called what those left out"
            )
    code = max(code, stages.score(chosen, mine))
    known = stages.known(whole)
    scores = known.scores
    comparison = stages.contrast(whole, records, scores, known.items)
    page = stages.write_report(whole, comparison, records, scores, faults=known.faults)
    try:
        stages.mirror(whole, records, scores)
    except EnvironmentFault as error:
        say(str(error))
        code = 1
    stages.print_claims(comparison)
    say(f"report: {page}")
    return code
