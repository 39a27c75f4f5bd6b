"""orch run: every stage, from the spec to the report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import MICRO_BANNER, say
from orchestrator.cli.plan import print_plan
from orchestrator.pipeline import run as line
from orchestrator.pipeline.training import scripts_of
from orchestrator.runs.experiment import open_experiment

if TYPE_CHECKING:
    from orchestrator.pipeline.run import Review


@click.command(short_help="Train what is missing, evaluate it, mirror it, report it.")
@common.spec
@common.overrides
@common.where
@click.option("--train-only", is_flag=True, help="Stop after training.")
@click.option(
    "--dry-run", is_flag=True, help="Show the plan, and on a cluster the job scripts, and stop."
)
@click.option(
    "--wait", is_flag=True, help="On a cluster: stay until all jobs have ended, then report."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="On a cluster: submit as yours what another user submitted and you cannot see.",
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
    take_over: bool,
    budget: float | None,
) -> int:
    """Train every cell of SPEC that is missing, then evaluate, mirror to MLflow and report.

    KEY=VALUE are Hydra overrides (seeds=[0], site.workers=2, ~studies.async10). Running again does
    only what is missing; Ctrl-C and kills leave everything resumable. On a SLURM cluster the cells
    are submitted and the command returns; run it again, or with --wait, to evaluate and report.
    """

    whole = open_experiment(spec, overrides)
    chosen = whole.chosen(where)
    if chosen.scale == "micro":
        say(MICRO_BANNER)
    plan = line.plan_of(whole, chosen, where)
    for sentence in common.counted_faults(plan):
        say(sentence)
    if dry_run:
        print_plan(chosen, plan)
        if chosen.where == "slurm":
            print_scripts(scripts_of(chosen, plan))
        return 0
    result = line.run(
        whole, chosen, plan, train_only=train_only, wait=wait, take_over=take_over, budget=budget
    )
    if result.review is not None:
        print_review(result.review, whole.spec.question)
    return result.code


def print_scripts(scripts: Sequence[str]) -> None:
    """Print batch scripts, one after the other."""
    for number, text in enumerate(scripts, start=1):
        click.echo(f"\n--- job script {number} of {len(scripts)}\n{text.rstrip()}")


def print_review(review: "Review", question: str = "") -> None:
    """Print the verdicts on claims, what they come to, and where the report lies."""
    from orchestrator.cli.compare import print_claims
    from orchestrator.report import answer

    print_claims(review.comparison)
    say(f"{question or 'The claims:'} {answer(review.comparison)}")
    say(f"report: {review.page}")
