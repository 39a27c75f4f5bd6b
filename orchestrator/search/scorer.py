"""Has checkpoints evaluated beside the controller, so that asking and telling never wait for it."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from orchestrator.evaluate import UnscoredError, evaluate
from orchestrator.records import EvaluationSpec, Record, Score
from orchestrator.rundir import RunFolder


class TrialScorer(Protocol):
    """Who has records scored: a thread here, or jobs on a cluster."""

    def ask(self, records: Sequence[Record]) -> None:
        """Has the scores of these records made, unless that was asked for already."""

    def has(self, records: Sequence[Record]) -> bool:
        """Whether all of them have been scored, or could not be."""

    def fault(self, records: Sequence[Record]) -> str:
        """Why some of them cannot be scored; empty where they can."""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """What there is of these records' scores."""


class Scorer(AbstractContextManager["Scorer"]):
    """One thread, in which lm-evaluation-harness's processes are waited for."""

    def __init__(self, evaluation: EvaluationSpec, folder: RunFolder, workers: int | None = None):
        # a trial is told from its cells' last checkpoints
        self._evaluation = evaluation.model_copy(update={"checkpoints": "last"})
        self._folder, self._workers = folder, workers
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")
        self._asked: dict[str, Future[list[Score]]] = {}

    def ask(self, records: Sequence[Record]) -> None:
        """Has the scores of these records made, unless that was asked for already."""
        fresh = [record for record in records if record.cell.id not in self._asked]
        if fresh:
            future = self._pool.submit(self._evaluate, fresh)
            self._asked.update((record.cell.id, future) for record in fresh)

    def has(self, records: Sequence[Record]) -> bool:
        """Whether all of them have been scored, or could not be."""
        return all(
            (future := self._asked.get(record.cell.id)) is not None and future.done()
            for record in records
        )

    def fault(self, records: Sequence[Record]) -> str:
        """Why some of them cannot be scored; empty where they can. Raises EnvironmentFault where
        nothing can be."""
        for record in records:
            future = self._asked.get(record.cell.id)
            error = future.exception() if future is not None and future.done() else None
            if isinstance(error, UnscoredError):
                own = [fault for fault in error.faults if fault.startswith(record.cell.slug)]
                if own:
                    return own[0]
            elif error is not None:
                raise error
        return ""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """What there is of these records' scores."""
        ids = {record.cell.id for record in records}
        found: list[Score] = []
        for future in {id(f): f for key, f in self._asked.items() if key in ids}.values():
            if future.done():
                error = future.exception()
                made = error.scores if isinstance(error, UnscoredError) else future.result()
                found += [score for score in made if score.cell_id in ids]
        return found

    def _evaluate(self, records: Sequence[Record]) -> list[Score]:
        return evaluate(records, self._evaluation, self._folder, workers=self._workers)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Waits for the checkpoint being scored; the others are left for the next time."""
        self._pool.shutdown(wait=True, cancel_futures=True)
