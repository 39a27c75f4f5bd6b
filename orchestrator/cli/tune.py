"""orch tune: search for the best beta of each configuration of a study, with Optuna."""

import click

from orchestrator.cli import common as options
from orchestrator.cli.common import MICRO_BANNER, print_json, print_table, say
from orchestrator.pipeline.search import cancel_trials, review_searches, search
from orchestrator.runs.cost import total
from orchestrator.runs.doubts import doubts, refuse_faults
from orchestrator.runs.experiment import open_experiment
from orchestrator.search import section
from orchestrator.search.block import FIELD
from orchestrator.search.design import chosen, design
from orchestrator.search.journal import SearchJournal


@click.command()
@options.spec
@options.overrides
@options.where
@click.option(
    "--cancel",
    is_flag=True,
    help="Stop the cells of the trials that are running. End `orch tune` first: it would "
    "start others.",
)
@click.option(
    "--report-only", is_flag=True, help="Show the results of the finished trials, and stop."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything, show the searches, and stop.",
)
@options.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    cancel: bool,
    report_only: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Search the best beta of each configuration of a study, by the `tune` block of SPEC.

    Every configuration gets the same number of trials, so they are compared at their own best
    beta. Change the block as any field: `tune.trials=20`, or `+tune={beta: [0.01, 1], maximize:
    eval/in_domain/mean}` for a spec without one. --where selects some of the searches:
    kl=k1.reward.

    Trials are normal cells: `orch logs ID`, `orch show ID` and MLflow show them. Stop with
    Ctrl-C, and continue with the same command.

    On a cluster, trials and their evaluations are jobs, and this command must run as long as
    new trials are needed: keep it in tmux or screen on a login node. After Ctrl-C, a kill or a
    lost connection the jobs of trials continue, and the same command goes on.
    """
    experiment = open_experiment(spec, overrides)
    searches = chosen(design(experiment), where)
    if not (cancel or report_only):
        refuse_faults(experiment, doubts(experiment))
    block = searches[0].block
    if experiment.scale == "micro":
        say(MICRO_BANNER)
    journal = SearchJournal(experiment.folder, block.name)
    if dry_run:
        if as_json:
            print_json(
                [{"search": one.name, **one.block.model_dump(mode="json")} for one in searches]
            )
        else:
            low, high = block.beta
            click.echo(f"{block.objective}, {FIELD} from {low:g} to {high:g}")
            rows = [
                (one.name, block.trials, total(one.cells(low, block.seeds))) for one in searches
            ]
            print_table(("search", "trials", "a trial costs"), rows)
        return 0
    if cancel:
        cancel_trials(experiment, searches, journal)
        return 0
    if not report_only and not search(experiment, searches, journal):
        return 130
    results, code = review_searches(experiment, searches, journal)
    if as_json:
        print_json(section.as_json(results))
    else:
        table = section.best_table(results)
        print_table(table.columns, table.rows)
    return code
