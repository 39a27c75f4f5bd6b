"""The steps of `orch tune`: search on this machine or a cluster, cancel, and review the results."""

from collections.abc import Sequence

from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import read_scores
from orchestrator.pipeline import stages
from orchestrator.pipeline.messages import say
from orchestrator.pipeline.training import keep_spec
from orchestrator.runs import operations
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.watch import watch
from orchestrator.search.controller import Controller
from orchestrator.search.design import Search
from orchestrator.search.journal import SearchJournal
from orchestrator.search.local import LOCAL_RULES, ThreadScorer, search_locally
from orchestrator.search.results import (
    SearchOutcome,
    cells_of_all_trials,
    cells_of_open_trials,
    outcomes,
)
from orchestrator.search.slurm import JobScorer, cluster_rules, search_on_cluster, submit_controller
from orchestrator.spec.site_options import slurm_options


def search(experiment: Experiment, searches: Sequence[Search], journal: SearchJournal) -> bool:
    """Search until no trial is left, where the experiment runs. Return False after Ctrl-C."""
    if experiment.where == "ray":
        raise OrchError(
            "orch tune searches on a SLURM site or on this machine, not on a Ray: name a site with "
            "site=local or site=SLURM_SITE"
        )
    experiment.folder.open()
    with journal.controlling():
        if experiment.where == "slurm":
            return _search_on_cluster(experiment, searches, journal)
        return _search_locally(experiment, searches, journal)


def _search_locally(
    experiment: Experiment, searches: Sequence[Search], journal: SearchJournal
) -> bool:
    folder, spec = experiment.folder, experiment.spec
    if not folder.spec.exists():
        keep_spec(experiment)
    with ThreadScorer(spec.evaluation, folder, spec.site.workers) as scorer, watch([]) as display:
        controller = Controller(searches, journal, scorer, LOCAL_RULES, say)
        controller.add_grid_results()
        ended = search_locally(controller, workers=spec.site.workers, on_event=display.show)
    if not ended:
        say(
            "stopped; nothing is lost. Go on with the same command; --report-only "
            "shows what is there."
        )
    return ended


def _search_on_cluster(
    experiment: Experiment, searches: Sequence[Search], journal: SearchJournal
) -> bool:
    folder, options = experiment.folder, slurm_options(experiment.spec.site.options)
    keep_spec(experiment)  # evaluation jobs read the spec in the folder
    block = searches[0].block
    scorer = JobScorer(block, folder, options, say)
    controller = Controller(searches, journal, scorer, cluster_rules(options, say), say)
    controller.add_grid_results()
    ended = search_on_cluster(controller, options, evaluate=block.is_scored)
    if not ended:
        say(
            "stopped asking; jobs that were submitted go on. Go on with the same command; --cancel "
            "stops them, --report-only shows what is there."
        )
    return ended


def submit_search(experiment: Experiment, journal: SearchJournal, arguments: Sequence[str]) -> None:
    """Submit `orch ARGUMENTS` as a small job that controls the search.

    Raise OrchError unless the site is a SLURM cluster.
    """
    if experiment.where != "slurm":
        raise OrchError("--submit is for a SLURM site; here the command runs as it is")
    experiment.folder.open()
    job, log = submit_controller(arguments, journal, slurm_options(experiment.spec.site.options))
    say(
        f"the controller is job {job}; it says how it gets on in {log}\nWhen its time is over the "
        "same command goes on."
    )


def cancel_trials(
    experiment: Experiment, searches: Sequence[Search], journal: SearchJournal
) -> None:
    """Stop the cells of open trials. The next controller ends these trials as failed."""
    cells = cells_of_open_trials(experiment, outcomes(searches, journal))
    cancelled = operations.cancel(cells, experiment.folder) if cells else []
    for cell in cancelled:
        say(f"{cell.directory.slug}: {cell.note}")
    say(f"{sum(cell.done for cell in cancelled)} cells of trials cancelled")


def review_searches(
    experiment: Experiment, searches: Sequence[Search], journal: SearchJournal
) -> tuple[list[SearchOutcome], int]:
    """Mirror the trials to MLflow. Return the results, and 1 if a file could not be read or MLflow
    not be written, else 0.

    Raise OrchError if the journal has no search.
    """
    results = outcomes(searches, journal)
    if not results:
        raise OrchError(f"{journal.path} has no search yet; leave --report-only out to begin one")
    folder = experiment.folder
    records = collect(cells_of_all_trials(experiment, results), folder)
    code = stages.print_faults(records)
    scores = [s for record in records for s in read_scores(folder.cell(record.cell))]
    try:
        stages.mirror(experiment, records, scores)
    except EnvironmentFault as error:
        say(str(error))
        code = 1
    return results, code
