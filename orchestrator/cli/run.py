"""orch run: every stage, from the spec to the report."""

import shlex
from collections.abc import Sequence

import click

from orchestrator.cli import common
from orchestrator.cli.common import MICRO_BANNER, CellChoice, print_json, say
from orchestrator.cli.compare import print_review
from orchestrator.cli.conventions import set_next
from orchestrator.cli.plan import print_plan, print_unprepared
from orchestrator.environments.extras import lacking
from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline import stages
from orchestrator.pipeline.training import refuse_over_budget, scripts_of
from orchestrator.runs.collect import collect
from orchestrator.runs.doubts import Doubt, doubts, refuse_faults
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.logs import unsent_runs
from orchestrator.runs.pilot import pilot_lines
from orchestrator.runs.plan import Plan
from orchestrator.runs.planned import plan_data, refuse
from orchestrator.runs.status import counted_faults
from orchestrator.spec.sentences import counted


@click.command()
@common.cells
@click.option("--train-only", is_flag=True, help="Only train: no evaluation, no MLflow, no report.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the plan, and on SLURM the job scripts, and stop.",
)
@click.option(
    "--wait", is_flag=True, help="On a cluster: wait until all jobs have ended, then report."
)
@click.option(
    "--budget-gpu-hours",
    "budget",
    type=click.FloatRange(min=0),
    help="Start nothing if the whole experiment would use more GPU-hours than this.",
)
@common.pilot
@common.as_json
def command(
    choice: CellChoice,
    train_only: bool,
    dry_run: bool,
    wait: bool,
    budget: float | None,
    pilot: bool,
    as_json: bool,
) -> int:
    """Train every cell of SPEC that is not trained yet, then evaluate, copy to MLflow and report.

    KEY=VALUE are Hydra overrides (seeds=[0], site.workers=2, ~studies.async10). Run the command
    again to do only what is missing, also after Ctrl-C or a kill. On a SLURM cluster the
    command submits the cells and returns. Run it again, or with --wait, to evaluate and report.
    """
    choice = choice._replace(pilot=pilot)
    everything = choice.experiment()
    chosen = everything if pilot else everything.chosen(choice.where)
    if chosen.scale == "micro":
        say(MICRO_BANNER)
        if (sentence := lacking()) is not None and not dry_run:
            raise EnvironmentFault(f"{sentence}. Nothing was started")
    plan = stages.plan_of(everything, chosen, () if pilot else choice.where)
    all_doubts = doubts(everything, chosen)
    refuse(plan, chosen, all_doubts)
    refuse_faults(everything, all_doubts)
    for sentence in counted_faults(plan):
        say(sentence)
    if dry_run:
        if budget is not None:
            whole = stages.plan_of(everything, everything, ())
            say(refuse_over_budget(budget, plan, whole, chosen.folder))
        return _show(choice, chosen, plan, all_doubts, as_json=as_json)
    result = stages.run(
        everything,
        chosen,
        plan,
        train_only=train_only or pilot,
        wait=wait,
        budget=budget,
    )
    if unsent := unsent_runs(plan.rows):
        folders = " ".join(shlex.quote(str(folder)) for folder in unsent)
        say(f"W&B kept {counted(len(unsent), 'run')} offline; with a network: wandb sync {folders}")
    if pilot:
        return _end_pilot(choice, chosen, result, as_json=as_json)
    if as_json:
        print_json(stages.run_data(everything, chosen, choice.where, result))
    elif result.review is not None:
        print_review(result.review, everything.spec.question)
    return result.code


def _show(
    choice: CellChoice,
    chosen: Experiment,
    plan: Plan,
    all_doubts: Sequence[Doubt],
    *,
    as_json: bool,
) -> int:
    """Print what a run would do, and the scripts that it would submit. Return the exit code: 1 if
    the run would be refused."""
    scripts = scripts_of(chosen, plan) if chosen.where != "local" else []
    if as_json:
        common.print_json(plan_data(chosen, plan, all_doubts) | {"scripts": scripts})
        return 0
    print_plan(chosen, plan)
    for number, text in enumerate(scripts, start=1):
        click.echo(f"\n--- job script {number} of {len(scripts)}\n{text.rstrip()}")
    if print_unprepared(chosen, plan):
        set_next(shlex.join(["orch", "data", "prepare", choice.spec]))
        return 1
    return 0


def _end_pilot(
    choice: CellChoice, pilot: Experiment, result: stages.PipelineResult, *, as_json: bool
) -> int:
    """Score a pilot that ran on this machine, and print what pilots have measured. Return the exit
    code."""
    code = result.code
    if pilot.where == "local" and code == 0:
        code = stages.evaluate_missing(pilot, collect(pilot.cells, pilot.folder))
    if code:
        set_next("orch logs --failed {spec} --pilot")
    lines = pilot_lines(pilot.folder)
    if as_json:
        print_json({"directory": str(pilot.folder.path), "code": code, "measured": lines})
    for line in () if as_json else lines:
        click.echo(line)
    if lines and not code:
        set_next(shlex.join(["orch", "plan", choice.spec, *choice.overrides]))
    return code
