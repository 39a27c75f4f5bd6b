"""orch tune: search over beta, or over any other field, with Optuna."""

import shlex
import sys
from typing import Any

import click

from orchestrator.cli import common as options
from orchestrator.cli.common import MICRO_BANNER, print_json, print_table, say
from orchestrator.pipeline.search import cancel_trials, review_searches, search, submit_search
from orchestrator.runs.experiment import open_experiment
from orchestrator.search import section
from orchestrator.search.block import block_of_flags
from orchestrator.search.design import chosen, design
from orchestrator.search.journal import SearchJournal
from orchestrator.search.results import num_trials_left


@click.command(short_help="Search over beta, or any other field, with Optuna.")
@options.spec
@options.overrides
@options.where
@click.option("--name", help="The name of the search. Each search has its own journal.")
@click.option(
    "--space",
    multiple=True,
    metavar="FIELD=RANGE",
    help="A field to vary, with its range: 'kl.beta=log(0.001, 1)', 'kl.estimator=[k1, k3]'.",
)
@click.option(
    "--each",
    multiple=True,
    metavar="FIELD=[VALUES]",
    help="Run one search for each of these values: 'kl=[k1.reward, k3.loss]'.",
)
@click.option(
    "--maximize",
    multiple=True,
    metavar="FORMULA",
    help="The metric to maximise, or a sum of metrics: 'eval/in_domain/mean - 0.5 * "
    "eval/kl_reverse'.",
)
@click.option("--minimize", multiple=True, metavar="FORMULA")
@click.option("--seeds", metavar="[SEEDS]", help="The seeds of each trial: '[0, 1, 2]'.")
@click.option("--trials", type=int, help="The number of trials of each search.")
@click.option("--parallel", type=int, help="The number of trials that run at the same time.")
@click.option("--max-gpu-hours", type=float, help="The GPU-hours that each search may use.")
@click.option("--sampler", help="tpe, gp (needs PyTorch), random or qmc.")
@click.option("--pruner", help="none, hyperband, median or wilcoxon.")
@click.option("--submit", is_flag=True, help="On a cluster: run this command as a small job.")
@click.option(
    "--cancel",
    is_flag=True,
    help="Stop the cells of the trials that are running. End `orch tune` first: it would "
    "start others.",
)
@click.option(
    "--report-only", is_flag=True, help="Write the report of the finished trials, and stop."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything, show the searches, and stop. Exit code 3: trials are left.",
)
@options.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    submit: bool,
    cancel: bool,
    report_only: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Run the search of the `tune` block of SPEC; flags replace its entries.

    Trials are normal cells: `orch logs ID`, `orch show ID` and MLflow show them. Stop with
    Ctrl-C, and continue with the same command. Several such commands may use one folder at the
    same time. With several objectives there is no pruning: Optuna prunes for one objective
    only. --where selects some of the searches of --each, by the fields of their trials:
    kl=k1.reward.

    On a SLURM cluster, trials and their evaluations are jobs. This command must run as long as
    new trials are needed: keep it in tmux or screen on a login node, or use --submit to run it
    as a small job. After Ctrl-C, a kill or its time limit the jobs of trials continue. The same
    command continues the search, on this login node or another.
    """
    experiment = open_experiment(spec, overrides)
    searches = chosen(design(experiment, block_of_flags(flags)), where)
    block = searches[0].tune.block
    if experiment.scale == "micro":
        say(MICRO_BANNER)
    journal = SearchJournal(experiment.folder, block.name)
    if dry_run:
        if as_json:
            print_json([one.as_json() | {"name": one.name} for one in searches])
        else:
            table = section.plan_table(searches)
            print_table(table.columns, table.rows)
        return options.foreseen(num_trials_left(searches, journal) > 0)
    if cancel:
        cancel_trials(experiment, searches, journal)
        return 0
    if submit:
        arguments = [word for word in sys.argv[1:] if word != "--submit"]
        submit_search(experiment, journal, arguments)
        return 0
    if not report_only and not search(experiment, searches, journal):
        return 130
    review = review_searches(experiment, searches, journal)
    if as_json:
        print_json(section.as_json(review.outcomes, review.mlflow_runs))
    else:
        table = section.best_table(review.outcomes)
        print_table(table.columns, table.rows)
    say(f"report: {review.page}\nlive: optuna-dashboard {shlex.quote(str(journal.log))}")
    return review.code
