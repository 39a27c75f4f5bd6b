"""Remove the optimizer states of older checkpoints while a cell trains.

Some libraries keep, or rotate, whole checkpoints only: the optimizer of each is two thirds of its
bytes, and only the newest is resumed from. The policies stay until they are scored (`orch prune`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator import plugins
from orchestrator.records import Cell

LOOK_SECONDS = 30.0


@contextmanager
def removed_while_training(cell: Cell, checkpoints_dir: Path) -> Iterator[None]:
    """Remove spent states now and then while the context lasts, and at its end."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            remove_spent_states(cell, checkpoints_dir)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        remove_spent_states(cell, checkpoints_dir)


def remove_spent_states(cell: Cell, checkpoints_dir: Path) -> None:
    """Remove what no resumed run reads any more.

    A kill at any moment leaves whole files, or fewer of them. The newest complete checkpoint is not
    touched, so that the cell goes on from it. A file that cannot be removed stays.
    """
    for path in plugins.load(cell.settings.backend.name).spent_states(checkpoints_dir):
        with suppress(OSError):
            path.unlink()
