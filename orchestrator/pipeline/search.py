"""The steps of `orch tune`: search, cancel, and review the results."""

from collections.abc import Sequence

from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import UnscoredError, evaluate, read_scores
from orchestrator.launch.local import launch
from orchestrator.pipeline import stages
from orchestrator.pipeline.messages import say
from orchestrator.pipeline.training import keep_spec
from orchestrator.records import Cell
from orchestrator.runs import operations
from orchestrator.runs import wait as cluster
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.watch import watch
from orchestrator.search.design import Search
from orchestrator.search.journal import SearchJournal
from orchestrator.search.loop import drive
from orchestrator.search.results import (
    SearchOutcome,
    cells_of_trials,
    outcomes,
)
from orchestrator.spec.site_options import cluster_options


def search(experiment: Experiment, searches: Sequence[Search], journal: SearchJournal) -> bool:
    """Search until no trial is left, where the experiment runs. Return False after Ctrl-C."""
    experiment.folder.open()
    if not experiment.folder.spec.exists():
        keep_spec(experiment)  # evaluation jobs read the spec in the folder
    scored = searches[0].block.is_scored
    with journal.controlling():
        ended = drive(searches, journal, lambda cells: _run(experiment, cells, scored), say)
    if not ended:
        say(
            "stopped; nothing is lost. Go on with the same command; --report-only shows what is "
            "there" + ("." if experiment.where == "local" else ", --cancel stops the jobs.")
        )
    return ended


def _run(experiment: Experiment, cells: Sequence[Cell], scored: bool) -> bool:
    """Train cells to their end, and score them. Return False after Ctrl-C."""
    folder, spec = experiment.folder, experiment.spec
    with watch(cells, folder, local=experiment.where == "local") as show:
        if experiment.where == "local":
            site = spec.site
            done = launch(cells, folder, workers=site.workers, options=site.options, on_event=show)
        else:
            options = cluster_options(spec.site)
            request = cluster.SubmitRequest(cells, folder, options, scored, say, on_event=show)
            done = cluster.wait(request)
    if done.interrupted:
        return False
    # On a cluster, jobs have scored the checkpoints of full size.
    rest = [c for c in cells if scored and (experiment.where == "local" or c.scale == "micro")]
    # The value of a trial comes from its cells' last checkpoints.
    evaluation = spec.evaluation.model_copy(update={"checkpoints": "last"})
    try:
        records, workers = collect(rest, folder), spec.site.workers
        evaluate(records, evaluation, folder, site=spec.site, workers=workers)
    except UnscoredError as error:
        say(str(error))
    return True


def cancel_trials(
    experiment: Experiment, searches: Sequence[Search], journal: SearchJournal
) -> None:
    """Stop the cells of open trials. The next search ends these trials as failed."""
    trials = cells_of_trials(experiment, outcomes(searches, journal))
    cells = {cell.id: cell for state, cell in trials if state == "RUNNING"}.values()
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
    cells = {cell.id: cell for cell in experiment.cells}
    for _, cell in cells_of_trials(experiment, results):
        cells.setdefault(cell.id, cell)
    records = collect(cells.values(), folder)
    code = stages.print_faults(records)
    scores = [s for record in records for s in read_scores(folder.cell(record.cell))]
    try:
        stages.mirror(experiment, records, scores)
    except EnvironmentFault as error:
        say(str(error))
        code = 1
    return results, code
