"""A search on this machine: the controller ticks a few times a second while workers train."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from orchestrator.evaluate import UnscoredError, evaluate
from orchestrator.launch import LaunchEvent, processes
from orchestrator.launch.fork_server import fork_server
from orchestrator.launch.local import LocalLaunch
from orchestrator.records import ENDED, EvaluationSpec, Record, Score
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.search.controller import Controller, DriverRules, TrainingDecision

_TICK_SECONDS = 0.1


def _decide(_: CellDir, state: CellState) -> TrainingDecision:
    # Another process of orch may run the cell already. The launcher of this machine then waits for
    # that process, so it gets the cell too.
    if state.state in RESUMABLE or state.state == "running":
        return "train"
    return "over" if state.state in ENDED or state.state == "unknown" else "wait"


LOCAL_RULES = DriverRules(_decide, once=True)


def search_locally(
    controller: Controller,
    *,
    workers: int | None = None,
    on_event: Callable[[LaunchEvent], None] = lambda _: None,
) -> bool:
    """Drive the searches to their end. Return False if a person stopped them first.

    workers: the number of cells at the same time; None: one per core. Raise OrchError as `launch`
    does.
    """
    controller.folder.open()
    with processes.Stop().listening() as stop, ExitStack() as resources:
        launch: LocalLaunch | None = None
        while not stop.asked:
            wanted = controller.tick()
            if not wanted and controller.done:
                break
            if launch is None and wanted:
                launch = _open_launch(
                    controller, workers or processes.cores(), resources, stop, on_event
                )
            if launch is None or not (wanted or launch.elsewhere):
                time.sleep(_TICK_SECONDS)  # checkpoints are being scored
                continue
            launch.waiting.extend(wanted)
            launch.work()
        return not stop.asked


def _open_launch(
    controller: Controller,
    workers: int,
    resources: ExitStack,
    stop: processes.Stop,
    on_event: Callable[[LaunchEvent], None],
) -> LocalLaunch:
    """Return workers that receive new cells from the controller while they work."""

    def handle(event: LaunchEvent) -> None:
        if event.kind == "lost" and event.cell is not None and not event.again:
            if not launch.stopping:
                controller.give_up(event.cell)
        elif event.kind == "tick" and not stop.asked:
            launch.waiting.extend(controller.tick())
        on_event(event)

    modules = {module for search in controller.searches for module in search.entry_modules()}
    server = resources.enter_context(fork_server(modules))
    launch = LocalLaunch([], [], controller.folder, workers, server, stop, handle)
    return launch


class ThreadScorer(AbstractContextManager["ThreadScorer"]):
    """A thread that waits for lm-evaluation-harness's processes, so that the controller does not
    wait.

    The value of a trial comes from its cells' last checkpoints, so only these are scored.
    """

    def __init__(self, evaluation: EvaluationSpec, folder: RunFolder, workers: int | None = None):
        self._evaluation = evaluation.model_copy(update={"checkpoints": "last"})
        self._folder, self._workers = folder, workers
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")
        self._futures: dict[str, Future[list[Score]]] = {}
        """Requested evaluations by cell id. Cells that were requested together share one."""

    def request(self, records: Sequence[Record]) -> None:
        """Request scores of these records, unless they were requested already."""
        new = [record for record in records if record.cell.id not in self._futures]
        if new:
            future = self._pool.submit(
                evaluate, new, self._evaluation, self._folder, workers=self._workers
            )
            self._futures.update((record.cell.id, future) for record in new)

    def is_done(self, records: Sequence[Record]) -> bool:
        """Return True once each of the records has a score or could not get one."""
        return all(
            (future := self._futures.get(record.cell.id)) is not None and future.done()
            for record in records
        )

    def fault(self, records: Sequence[Record]) -> str:
        """Return why some records cannot be scored; empty if all can.

        Raise EnvironmentFault if nothing can be scored.
        """
        for record in records:
            future = self._futures.get(record.cell.id)
            error = future.exception() if future is not None and future.done() else None
            if isinstance(error, UnscoredError):
                own = [fault for fault in error.faults if fault.startswith(record.cell.slug)]
                if own:
                    return own[0]
            elif error is not None:
                raise error
        return ""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """Return the scores that exist so far for these records."""
        ids = {record.cell.id for record in records}
        scored: list[Score] = []
        # Cells that were sent together share one future: each future is read once.
        for future in {id(f): f for key, f in self._futures.items() if key in ids}.values():
            if future.done():
                error = future.exception()
                scores = error.scores if isinstance(error, UnscoredError) else future.result()
                scored += [score for score in scores if score.cell_id in ids]
        return scored

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the checkpoint that is being scored. The next search scores the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)
