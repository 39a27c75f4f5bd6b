"""orch tune: search over beta, or over any other field, with Optuna."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import dashboards
from orchestrator.cli import common as options
from orchestrator.cli.common import MICRO_BANNER, print_json, print_table, say
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import read_scores
from orchestrator.files import write_text
from orchestrator.pipeline import stages
from orchestrator.pipeline.training import keep_spec
from orchestrator.report import markdown
from orchestrator.runs import operations
from orchestrator.runs.collect import collect
from orchestrator.runs.cost import bill
from orchestrator.runs.experiment import Experiment, open_experiment
from orchestrator.runs.watch import watch
from orchestrator.search import section
from orchestrator.search.controller import Controller
from orchestrator.search.design import chosen, design
from orchestrator.search.journal import SearchJournal
from orchestrator.search.local import LOCAL_RULES, ThreadScorer, search_locally
from orchestrator.search.results import cells_of_all_trials, cells_of_open_trials, outcomes
from orchestrator.search.slurm import JobScorer, cluster_rules, search_on_cluster, submit_controller
from orchestrator.spec.site_options import slurm_options
from orchestrator.tracking.links import cell_runs

if TYPE_CHECKING:
    from orchestrator.search.design import Search


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
    searches = chosen(design(experiment, _block(flags)), where)
    block = searches[0].tune.block
    if experiment.scale == "micro":
        say(MICRO_BANNER)
    journal = SearchJournal(experiment.folder, block.name)
    if dry_run:
        if as_json:
            print_json([search.as_json() | {"name": search.name} for search in searches])
        else:
            _print_searches(searches)
        return options.foreseen(_num_left(searches, journal) > 0)
    if cancel:
        return _cancel(experiment, searches, journal)
    if submit:
        return _submit(experiment, journal)
    if not report_only:
        search = _search_on_cluster if experiment.where == "slurm" else _search_locally
        if not search(experiment, searches, journal):
            return 130
    return _review(experiment, searches, journal, as_json)


def _num_left(searches: "Sequence[Search]", journal: SearchJournal) -> int:
    """Return how many trials of these searches have not ended."""
    wanted = sum(search.tune.block.trials for search in searches)
    if not journal.log.exists():
        return wanted
    ended = [
        trial
        for search in outcomes(searches, journal)
        for trial in search.trials
        if trial.state != "RUNNING" and not trial.reused
    ]
    return max(0, wanted - len(ended))


def _block(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, as entries of the block."""
    block = {name: value for name, value in flags.items() if value not in (None, ())}
    for name in ("space", "each"):
        if name in block:
            block[name] = dict(_pair(f"--{name}", text) for text in block[name])
    if "seeds" in block:
        block["seeds"] = _yaml("--seeds", block["seeds"])
    objectives = dict.fromkeys(block.pop("maximize", ()), "maximize")
    objectives |= dict.fromkeys(block.pop("minimize", ()), "minimize")
    return block | ({"objectives": objectives} if objectives else {})


def _pair(flag: str, text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise OrchError(f"{flag} is FIELD=...; got {text!r}")
    return field.strip(), _yaml(flag, value)


def _yaml(flag: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OrchError(f"{flag} cannot be read: {text!r} is no YAML value") from error


def _print_searches(searches: "Sequence[Search]") -> None:
    """Print what would be searched, and what a trial is expected to cost."""
    rows = []
    for search in searches:
        space = "; ".join(f"{dimension.field} in {dimension}" for dimension in search.space)
        cells = search.cells(search.corners()[0], search.tune.seeds)
        goals = "; ".join(map(str, search.objectives))
        rows.append((search.name, space, goals, search.tune.block.trials, bill(cells)))
    print_table(("search", "space", "objective", "trials", "a trial costs"), rows)


def _search_locally(
    experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal"
) -> bool:
    """Search on this machine; return False after Ctrl-C."""
    folder, spec = experiment.folder, experiment.spec
    if not folder.spec.exists():
        keep_spec(experiment)
    with ThreadScorer(spec.evaluation, folder, spec.site.workers) as scorer, watch([]) as display:
        controller = Controller(searches, journal, scorer, LOCAL_RULES, say)
        controller.add_grid_results()
        ended = search_locally(controller, workers=spec.site.workers, on_event=display.show)
    if not ended:
        say(
            "stopped; nothing is lost. Go on with the same command; --report-only writes the "
            "report of what is there."
        )
    return ended


def _search_on_cluster(
    experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal"
) -> bool:
    """Search with jobs; return False after Ctrl-C."""
    folder, options = experiment.folder, slurm_options(experiment.spec.site.options)
    keep_spec(experiment)  # evaluation jobs read what is asked there
    objectives = searches[0].objectives
    scorer = JobScorer(objectives, folder, options, say)
    controller = Controller(searches, journal, scorer, cluster_rules(options, say), say)
    controller.add_grid_results()
    ended = search_on_cluster(controller, options, evaluate=any(o.is_scored for o in objectives))
    if not ended:
        say(
            "stopped asking; jobs that were submitted go on. Go on with the same command; --cancel "
            "stops them, --report-only writes the report of what is there."
        )
    return ended


def _submit(experiment: Experiment, journal: "SearchJournal") -> int:
    """Submit this command, without --submit, as a job."""
    if experiment.where != "slurm":
        raise OrchError("--submit is for a SLURM site; here the command runs as it is")
    experiment.folder.open()
    arguments = [word for word in sys.argv[1:] if word != "--submit"]
    job, log = submit_controller(arguments, journal, slurm_options(experiment.spec.site.options))
    say(
        f"the controller is job {job}; it says how it gets on in {log}\nWhen its time is over the "
        "same command goes on."
    )
    return 0


def _cancel(experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal") -> int:
    """Stop the cells of open trials; whoever searches next ends those trials as failed."""
    cells = cells_of_open_trials(experiment, outcomes(searches, journal))
    cancelled = operations.cancel(cells, experiment.folder) if cells else []
    for cell in cancelled:
        say(f"{cell.directory.slug}: {cell.note}")
    say(f"{sum(cell.done for cell in cancelled)} cells of trials cancelled")
    return 0


def _review(
    experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal", as_json: bool
) -> int:
    """Read what was found, mirror it, write the page, and print the best."""
    results = outcomes(searches, journal)
    if not results:
        raise OrchError(f"{journal.path} has no search yet; leave --report-only out to begin one")
    folder = experiment.folder
    records = collect(cells_of_all_trials(experiment, results), folder)
    code, mlflow_runs = stages.print_faults(records), {}
    try:
        scores = [s for record in records for s in read_scores(folder.cell(record.cell))]
        stages.mirror(experiment, records, scores)
        ids = {record.cell.id for record in records}
        mlflow_runs = cell_runs(folder, experiment.spec.site.tracking_uri, ids).runs
        journal.write_mlflow_runs(mlflow_runs)
    except EnvironmentFault as error:
        say(str(error))
        code = 1
    report = section.report(experiment, results, mlflow_runs)
    page = journal.path / "report" / "index.html"
    write_text(page, dashboards.html(report))
    write_text(page.with_name("report.md"), markdown(report))
    if as_json:
        print_json(section.as_json(results, mlflow_runs))
    else:
        table = section.best_table(results)
        print_table(table.columns, table.rows)
    say(f"report: {page}\nlive: optuna-dashboard {shlex.quote(str(journal.log))}")
    return code
