"""What a person does to cells that are on a cluster: cancel them."""

import socket
import time
from collections.abc import Iterable

from orchestrator.launch.slurm import poll, scheduler, submissions
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import RunFolder
from orchestrator.runs.operations import ON_CLUSTER, is_submitted
from orchestrator.runs.state import CellState, look


def cancel(
    cells: Iterable[Cell], folder: RunFolder, why: str
) -> tuple[list[tuple[Cell, CellState]], str]:
    """Cancels cells that are with the scheduler: those it did, as they were, and what went wrong.

    The last attempt's word comes first: a job that starts, or runs on, after it finds itself
    cancelled, also when the scheduler does not answer.
    """
    done: list[tuple[Cell, CellState]] = []
    elements: list[str] = []
    known = submissions.read(folder)
    follower = {s.follows: s.job for s in known.values() if s.follows and s.job}
    for cell in cells:
        cell_dir = folder.cell(cell)
        seen = look(cell_dir)
        # a scheduler that does not answer is no reason to let a cell go on
        if seen.state not in ON_CLUSTER | {"unknown"} or not is_submitted(cell_dir):
            continue
        order = cell_dir.attempts()[-1].read_order()
        sent = known.get(order["submission"])
        now = time.time()
        cell_dir.open_attempt().write_exit(
            ExitRecord(
                state="cancelled", message=why, started=now, ended=now, host=socket.gethostname()
            )
        )
        folder.append("cancel", cell.id)
        jobs = (sent and sent.job, follower.get(order["submission"]))
        elements += [f"{job}_{order['index']}" for job in jobs if job]
        done.append((cell, seen))
    try:
        scheduler.cancel(elements)
    except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
        return done, (
            f"the scheduler could not be told ({error}); jobs that run end by themselves within "
            "seconds, those that wait will end when they start"
        )
    finally:
        poll.forget()
    return done, ""
