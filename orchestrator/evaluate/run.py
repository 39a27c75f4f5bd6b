"""evaluate: Record -> Scores. Finds out which scores are missing, and has them made."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal, NamedTuple

from orchestrator.errors import CheckpointError
from orchestrator.evaluate import pool
from orchestrator.evaluate.baselines import BaselineFolder
from orchestrator.evaluate.results import Job
from orchestrator.evaluate.survey import Survey
from orchestrator.launch.system import cores
from orchestrator.rundir import RunFolder
from orchestrator.types import Cell, Evaluation, Record, Score, Site


class Event(NamedTuple):
    """What `evaluate` tells as it goes on. `done` and `total` count the checkpoints to score;
    `started` comes once, and not at all if there are none."""

    kind: Literal["started", "scored", "fault"]
    done: int
    total: int
    cell: Cell | None = None
    step: int = 0
    message: str = ""


class UnscoredError(CheckpointError):
    """Some checkpoints could not be scored; `scores` has those of all the others."""

    def __init__(self, faults: Sequence[str], scores: Sequence[Score]):
        self.faults, self.scores = tuple(faults), tuple(scores)
        count = f"{len(faults)} checkpoint{'s' if len(faults) != 1 else ''} could not be scored"
        super().__init__("\n".join([count, *(f"  {fault}" for fault in faults)]))


class _Todo(NamedTuple):
    survey: Survey
    cell: Cell
    job: Job


def evaluate(
    records: Sequence[Record],
    evaluation: Evaluation,
    folder: RunFolder,
    *,
    baselines: Sequence[Record] = (),
    site: Site | None = None,
    workers: int | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> list[Score]:
    """Every score the spec asks of these records' checkpoints: what is on disk, and what is made.

    `last` asks of cells that have succeeded, `all` of every checkpoint there is. A cell's backend
    may put tasks of its own in place of the spec's (the micro skills). `baselines` are records of
    models before training (see baselines.py), which no divergence is asked of. `workers` None: a
    process per core. Scores come in the order of the records, baselines last. Raises
    EnvironmentFault before anything is done if the harness or a task file is missing, and
    UnscoredError at the end, with the scores that could be made, if a checkpoint cannot be loaded.
    """
    harness = pool.harness_version()
    plain = evaluation.model_copy(update={"divergence": None})
    parts = (
        (Survey(evaluation, folder, harness, site), records),
        (Survey(plain, BaselineFolder(folder.path), harness, site), baselines),
    )
    faults: list[str] = []
    todo: list[_Todo] = []
    for survey, of_survey in parts:
        for record in of_survey:
            for cell, checkpoint in survey.checkpoints([record]):
                try:
                    jobs = survey.jobs(cell, checkpoint, record)
                except CheckpointError as error:
                    faults.append(f"{cell.slug} at step {checkpoint.step}: {error}")
                    on_event(Event("fault", 0, 0, cell, checkpoint.step, str(error)))
                else:
                    todo += [_Todo(survey, cell, job) for job in jobs]
        faults += survey.faults
    if todo:
        on_event(Event("started", 0, len(todo)))
        _work(todo, workers or cores(), faults, on_event)
    scores = [score for survey, _ in parts for score in survey.told()]
    if faults:
        raise UnscoredError(faults, scores)
    return scores


def _work(
    todo: Sequence[_Todo], workers: int, faults: list[str], on_event: Callable[[Event], None]
) -> None:
    with closing(pool.work([each.job for each in todo], workers)) as answers:
        for done, (place, fault) in enumerate(answers, start=1):
            survey, cell, job = todo[place]
            survey.take(job)
            faults += [f"{cell.slug} at step {job.step}: {fault}"] if fault else []
            kind: Literal["fault", "scored"] = "fault" if fault else "scored"
            on_event(Event(kind, done, len(todo), cell, job.step, fault))
