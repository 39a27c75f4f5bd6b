"""orch run: the line, from the spec to the report."""

from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import MICRO_BANNER, counted, say
from orchestrator.errors import EnvironmentFault
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.runs.plan import Plan


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
        from orchestrator.cli.cluster import train_on_cluster

        code, over = train_on_cluster(whole, experiment, made, wait=wait, budget=budget)
    else:
        code, over = train(within(budget, whole, experiment, made), made), True
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


def train(experiment: Experiment, made: "Plan") -> int:
    """Launches and waits. 130 after Ctrl-C, 1 if cells failed, else 0."""
    from orchestrator.launch.local import launch
    from orchestrator.runs.watch import watch

    folder, spec = experiment.folder, experiment.spec
    keep_spec(experiment)
    ids = {cell.id for cell in experiment.cells}
    pending = [r.cell for r in made.pending if r.cell is not None and r.cell.id in ids]
    with watch(pending) as display:
        done = launch(experiment.cells, folder, workers=spec.site.workers, on_event=display.show)
    if done.interrupted:
        say("stopped; nothing is lost. Go on with the same command.")
        return 130
    return tell_left_alone(experiment, done.count("failed", "unknown"), done.count("cancelled"))


def review(whole: Experiment, chosen: Experiment) -> int:
    """Everything after training, from disk: the chosen cells are scored, all are reported.

    1 if something could not be read, scored or mirrored.
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


def keep_spec(experiment: Experiment) -> None:
    """The spec as it is launched, beside its cells."""
    from orchestrator.files import write_text
    from orchestrator.tracking.secrets import hide_userinfo

    experiment.folder.open()
    plain = experiment.spec.model_dump_json(indent=1)
    write_text(experiment.folder.spec, hide_userinfo(plain) + "\n")


def within(
    budget: float | None, whole: Experiment, experiment: Experiment, made: "Plan"
) -> Experiment:
    """The experiment without the pending cells that the budget does not pay; tells which."""
    from dataclasses import replace

    from orchestrator.runs.cost import afford, evaluation_spending
    from orchestrator.runs.plan import plan

    if budget is None:
        return experiment
    wanted = {row.cell.id for row in made.pending if row.cell is not None}
    every = plan(whole.cells, whole.folder)
    afforded = afford(made.only(wanted), budget, every, evaluation_spending(whole.folder))
    say(afforded.told)
    unpaid = {cell.id for cell in afforded.unpaid}
    return replace(experiment, cells=tuple(c for c in experiment.cells if c.id not in unpaid))


def tell_left_alone(experiment: Experiment, failed: int, cancelled: int) -> int:
    source = experiment.spec.source or experiment.spec.name
    if failed:
        say(
            f"{counted(failed, 'cell')} failed: `orch errors {source}` says why, "
            f"`orch retry {source}` makes them run again"
        )
    if cancelled:
        say(f"cancelled, and left alone until `orch retry {source}`: {counted(cancelled, 'cell')}")
    return int(bool(failed))
