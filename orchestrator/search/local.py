"""A search on this machine: the controller turns a few times a second while workers train."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from orchestrator.launch import LaunchEvent, processes
from orchestrator.launch.fork_server import fork_server
from orchestrator.launch.local import LocalLaunch
from orchestrator.search.controller import Controller

_TICK_SECONDS = 0.1


def search_here(
    controller: Controller,
    *,
    workers: int | None = None,
    on_event: Callable[[LaunchEvent], None] = lambda _: None,
) -> bool:
    """Drives the searches to their end; False if a person stopped it first.

    workers: cells at the same time; None: one per core. Raises OrchError as `launch` does.
    """
    controller.folder.open()
    with (
        processes.Stop().listening() as stop,
        ExitStack() as held,
        controller.journal.controlling(),
    ):
        crew: LocalLaunch | None = None
        while not stop.asked:
            wanted = controller.turn()
            if not wanted and controller.done:
                break
            if crew is None and wanted:
                crew = _crew(controller, workers or processes.cores(), held, stop, on_event)
            if crew is None or not (wanted or crew.elsewhere):
                time.sleep(_TICK_SECONDS)  # checkpoints are being scored
                continue
            crew.waiting.extend(wanted)
            crew.work()
        return not stop.asked


def _crew(
    controller: Controller,
    workers: int,
    held: ExitStack,
    stop: processes.Stop,
    on_event: Callable[[LaunchEvent], None],
) -> LocalLaunch:
    """Workers that are handed new cells as the controller asks for them."""

    def hear(event: LaunchEvent) -> None:
        if event.kind == "lost" and event.cell is not None and not event.again:
            if not crew.stopping:
                controller.lose(event.cell)
        elif event.kind == "tick" and not stop.asked:
            crew.waiting.extend(controller.turn())
        on_event(event)

    entries = {entry for search in controller.searches for entry in search.entries()}
    house = held.enter_context(fork_server(entries))
    crew = LocalLaunch([], [], controller.folder, workers, house, stop, hear)
    return crew
