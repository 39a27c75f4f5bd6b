"""The state of attempts that were submitted to a job server, by the run directory and the server.

Neither is believed alone. The run directory says what an attempt did: it began (its heartbeat is
there), it is alive (the heartbeat is young), it ended (exit.json). The server says what it still
has. A server that was restarted without its state knows no job, while jobs of other nodes may go
on; a job that the server lists may have ended without an exit record. This module writes nothing.
"""

import re
import time
from collections.abc import Mapping
from contextlib import suppress

from orchestrator.errors import RunFolderError
from orchestrator.launch.endings import Ending, failure_of, shortened
from orchestrator.launch.looks import Looks
from orchestrator.launch.ray.server import JobServer, RayJob, ServerRefusal, ServerUnavailable
from orchestrator.launch.slurm import scheduler
from orchestrator.launch.slurm.lease import LEASE_SECONDS, frozen, is_dead, silence_of
from orchestrator.launch.slurm.submissions import Submission
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import AttemptDir, CellDir, SchedulerReport

YOUNG_SECONDS = 90.0
"""Seconds for which an order may be on its way to the server: more than one request takes."""

_CANNOT_BEGIN = re.compile(r"exit code (66|126|127)\b|runtime_env|runtime environment")
"""What Ray says of a job that would fail again: no such program, the runs folder is not seen from
the node (scheduler.UNSEEN), or an environment that cannot be asked_at."""
_STOPPED = "stopped at the job server; `orch retry` lets it run again"
Answer = Mapping[str, RayJob] | str
"""The jobs of a server by submission id, or a sentence on why it does not answer."""


def is_ray(attempt: AttemptDir) -> bool:
    """Return True if the attempt's order is one for a job server."""
    with suppress(RunFolderError):
        return attempt.read_order().get("launcher") == "ray"
    return False


def polled_state(
    _cell_dir: CellDir, attempt: AttemptDir, ended: ExitRecord | None, *, locked: bool = False
) -> SchedulerReport | None:
    """Return the state of a cell whose last attempt has an order and no final exit record.

    ended: an exit record with state preempted or timed_out. Return None if nothing works on the
    attempt and nothing ever did: it is submitted again. locked: the caller holds the submission
    lock of the folder, so that no order is on its way.
    """
    try:
        order = attempt.read_order()
        submission, address, sent = order["submission"], order["address"], float(order["time"])
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(f"{attempt.order} lacks its submission, address or time") from None
    silence = silence_of(attempt)
    if ended is None and silence is not None and silence < LEASE_SECONDS and not is_dead(attempt):
        return SchedulerReport("running")
    answer = LOOKS.of(address)
    job = None if isinstance(answer, str) else answer.get(submission)
    if ended is not None:
        # The worker wrote that it was asked to stop. Only the server knows that a person asked it.
        if job is not None and job.status == "STOPPED":
            record = ended.model_copy(update={"state": "cancelled", "message": _STOPPED})
            return SchedulerReport("cancelled", record)
        return SchedulerReport(ended.state, ended)
    if isinstance(answer, str):
        return SchedulerReport("unknown", fault=answer)
    if job is not None and not job.is_over:
        if silence is None:
            return SchedulerReport("pending")
        return SchedulerReport("running", fault=frozen(attempt, silence, "Ray"))
    if job is None and silence is None:
        # `submit` sends it again, under a new id.
        young = time.time() - sent < YOUNG_SECONDS
        return SchedulerReport("submitted") if young and not locked else None
    return _without_record(job, sent, begun=silence is not None)


def polled_evaluation(sent: Submission) -> SchedulerReport:
    """Return the state of an evaluation's job, which wrote no ending so far."""
    answer = LOOKS.of(sent.cluster)
    if isinstance(answer, str):
        return SchedulerReport("unknown", fault=answer)
    job = answer.get(sent.id)
    if job is not None and not job.is_over:
        return SchedulerReport("pending")
    return _without_record(job, sent.time, begun=True)


def _without_record(job: RayJob | None, sent: float, *, begun: bool) -> SchedulerReport:
    """Return the report on a job that has ended, or that the server does not know, and that wrote
    no exit record."""
    state: State = "failed"
    ray_message = " ".join(job.message.split()) if job else ""
    named = failure_of(job.message) if job else "lost"
    failure = "lost" if named == "error" and begun else named
    what = "left no exit record"
    if not begun:
        what = "did not begin (site.options.python, runs_dir and env must be right on every node)"
    why = f"the job {what}; Ray says: {ray_message or (job and job.status)}"
    if job is None:
        why = (
            "its heartbeat stopped, and the job server does not know its job any more: the Ray was "
            "restarted, or the node is lost"
        )
    elif job.status == "STOPPED":
        state, failure, why = "cancelled", "", _STOPPED
    elif not begun and "failed to start within" in ray_message:
        # The cluster had no room for as long as the head lets a job wait.
        state, failure, why = "preempted", "", f"the Ray had no room for the job: {ray_message}"
    elif f"exit code {scheduler.FULL}," in ray_message:
        failure, why = "disk", scheduler.NO_ROOM_LEFT
    elif not begun and _CANNOT_BEGIN.search(ray_message):
        failure = "config"
    began, over = (job and job.started) or sent, (job and job.ended) or None
    record = Ending(state, failure=failure, message=shortened(why)).record(began, over)
    return SchedulerReport(state, record.model_copy(update={"host": ""}))


def _answer(address: str) -> Answer:
    try:
        return JobServer(address).jobs()
    except (ServerUnavailable, ServerRefusal) as error:
        return str(error)


LOOKS = Looks(_answer, 2.0)
"""The jobs of each server."""
