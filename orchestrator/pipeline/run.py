"""The whole pipeline for one experiment: train the missing cells, then do the later stages from
disk."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline import stages, training
from orchestrator.pipeline.messages import say
from orchestrator.pipeline.notify import RunEnd, notify
from orchestrator.runs.completion import is_up_to_date, mark_complete
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import plan as plan_cells
from orchestrator.tracking.store import store_of

if TYPE_CHECKING:
    from orchestrator.analysis.compare import Comparison
    from orchestrator.runs.plan import Plan


class Review(NamedTuple):
    """The results of the stages after training."""

    comparison: "Comparison"
    page: Path
    """The report's index.html."""
    code: int
    """1 if something could not be read, scored or mirrored; else 0."""


class LineResult(NamedTuple):
    """The result of the pipeline: the stages that ran, and what they returned."""

    code: int
    """The exit code: 130 after Ctrl-C, 1 if something failed, else 0."""
    review: Review | None = None
    """None if training is not over, only training was requested, or nothing had changed."""
    ended: bool = False
    """True if something was done and no chosen cell is with a scheduler any more."""


def plan_of(experiment: Experiment, chosen: Experiment, where: Sequence[str]) -> "Plan":
    """Return the plan of the chosen cells; of all cells if `where` is empty."""
    every = plan_cells(experiment.cells, experiment.folder)
    return every.only({cell.id for cell in chosen.cells}) if where else every


def run(
    experiment: Experiment,
    chosen: Experiment,
    plan: "Plan",
    *,
    train_only: bool = False,
    wait: bool = False,
    take_over: bool = False,
    budget: float | None = None,
) -> LineResult:
    """Train the chosen cells that are missing, then evaluate, mirror, report, and notify.

    experiment: every cell of the spec; the report shows all of them. plan: the plan of the chosen
    cells. wait: on a cluster, return only when all jobs have ended. take_over: also submit cells
    whose jobs another user submitted and this user cannot see. budget: the limit of GPU-hours of
    training.

    `site.options.on_end` gets a message once the scheduler has no chosen cell and none is left to
    submit, if this run did anything.
    """
    with _failure_notified(chosen):
        code, over = training.train(
            experiment, chosen, plan, wait=wait, take_over=take_over, budget=budget
        )
        if train_only or code == 130 or not over:
            result = LineResult(code, ended=bool(plan.pending) and over)
        else:
            result = _after_training(experiment, chosen, plan, code)
    if result.ended:
        page = None if result.review is None else result.review.page
        notify(chosen, _ENDS.get(result.code), page)
    return result


_ENDS: Mapping[int, RunEnd] = {130: "interrupted", 1: "failed"}
"""Exit code -> the end of a run; for other codes the states of its cells decide."""


@contextmanager
def _failure_notified(chosen: Experiment) -> Iterator[None]:
    """Notify of an interruption or of a failure, and raise it again."""
    try:
        yield
    except KeyboardInterrupt:
        notify(chosen, "interrupted")
        raise
    except Exception:
        notify(chosen, "failed")
        raise


def _after_training(
    experiment: Experiment, chosen: Experiment, plan: "Plan", code: int
) -> LineResult:
    """Do the later stages, unless nothing has changed since they were done. code: of training."""
    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    is_everything = len(chosen.cells) == len(experiment.cells)
    begun = any(training.may_run(row) for row in plan.rows if row.cell is not None)
    after = plan if is_everything and not begun else plan_of(experiment, experiment, ())
    if is_up_to_date(experiment, after, store):
        say(f"nothing to do; the report is {experiment.folder.report / 'index.html'}")
        return LineResult(code, ended=bool(plan.pending))
    reviewed = review(experiment, chosen)
    if reviewed.code == 0:
        mark_complete(experiment, after, store)
    return LineResult(max(code, reviewed.code), reviewed, ended=True)


def review(experiment: Experiment, chosen: Experiment) -> Review:
    """Do all stages after training, from disk: score the chosen cells, then mirror and report all
    cells."""
    records = stages.collect_records(experiment)
    code = stages.print_faults(records)
    ids = {cell.id for cell in chosen.cells}
    of_cells = [record for record in records if record.cell.id in ids]
    if experiment.where == "slurm":  # a login node is no place for models of full size
        of_cells = [record for record in of_cells if record.cell.scale == "micro"]
        small = tuple(cell for cell in chosen.cells if cell.scale == "micro")
        chosen = replace(chosen, cells=small)  # nor for their baselines
        if len(of_cells) < len(ids):
            say(
                "checkpoints of full size are scored by jobs, beside their training; `orch eval` "
                "scores where it is called what those left out"
            )
    code = max(code, stages.evaluate_missing(chosen, of_cells))
    index = stages.scores_and_faults(experiment)
    comparison = stages.compare_records(experiment, records, index.scores, index.items)
    page = stages.write_report(experiment, comparison, records, index.scores, faults=index.faults)
    try:
        stages.mirror(experiment, records, index.scores)
    except EnvironmentFault as fault:
        say(str(fault))
        code = 1
    return Review(comparison, page, code)
