"""Submit cells to SLURM as job arrays, each cell exactly once; cancel them again.

Only one orch at a time submits cells of a folder: it holds the submission lock. For every array it
does, in this order:

    1  append the intent to the ledger, with the name that the job will have
    2  reserve each cell's next attempt, with the submission's id in its order.json
    3  write the manifest and the batch script
    4  call sbatch
    5  append the array's id to the ledger

A kill between any two steps leaves an intent without an outcome. The next submission reconciles it
first: it asks SLURM for a job of that name and appends the answer. If the kill came before step 4,
there is no such job. The submission is dropped, and its cells, whose attempts never started, are
submitted again. If it came after step 4, there is one, and the ledger gets its id. If SLURM cannot
be asked, nothing is submitted.

An attempt names the one submission that may start it, and a job checks that before it starts
(lease.open_attempt). So even a forgotten job that starts later trains nothing twice.
"""

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from orchestrator.data import prepared
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.files import telling, write_text
from orchestrator.launch import processes
from orchestrator.launch.check import check_launchable
from orchestrator.launch.slurm import cluster, poll, scheduler, script, submissions
from orchestrator.launch.slurm.messages import refusal_of
from orchestrator.launch.slurm.submissions import Submission
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import ON_CLUSTER, RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.spec.site_options import SlurmOptions, of_evaluation

SETTLED_SECONDS = 5.0
"""Seconds after an intent in which its sbatch may not have reached the controller yet."""
ELSEWHERE_SECONDS = 900.0
"""Seconds for which an intent of another machine counts as one of a running orch."""
LOCK_SECONDS = 60.0
"""Seconds to wait for another orch that submits."""
AWAY_SECONDS = 600.0
"""Seconds that a submission waits for a controller that does not answer."""
_NODE_FAILURES: frozenset[str] = frozenset({"node", "hung"})

T = TypeVar("T")
Tell = Callable[[str], None]
"""Gets sentences for the person who waits."""


class Submitted(NamedTuple):
    """The outcome of a submission."""

    cells: tuple[Cell, ...] = ()
    """Those that were sent."""
    jobs: tuple[str, ...] = ()
    """Ids of the arrays."""
    left: tuple[Cell, ...] = ()
    """Cells for which the queue has no room at present (`max_submit_jobs`)."""
    unpaid: tuple[Cell, ...] = ()
    """Cells that the budget does not cover."""


class ArrayCells(NamedTuple):
    """The cells of one array."""

    cells: tuple[Cell, ...]
    resources: script.ArrayResources
    exclude: tuple[str, ...]
    """Nodes not to use."""


def submit(
    cells: Iterable[Cell],
    folder: RunFolder,
    options: SlurmOptions,
    *,
    evaluate: bool = False,
    tell: Tell = lambda _: None,
) -> Submitted:
    """Submit the cells that need training and are not with the scheduler already.

    evaluate: also submit each cell's evaluation, as a job that waits for its training. Raise
    OrchError, before anything is submitted, for cells that a backend cannot express. Raise
    EnvironmentFault if SLURM refuses, or does not answer for AWAY_SECONDS.
    """
    folder.open()
    with submission_lock(folder):
        for sentence in reconcile(folder):
            tell(sentence)
        mark_drained(folder)
        poll.refresh(folder)
        # States are read under the lock: whoever held it before may have submitted these cells.
        states = [(cell, folder.cell(cell).state(poll=poll.polled_state)) for cell in cells]
        waiting = [(cell, state) for cell, state in states if state.state in RESUMABLE]
        check_launchable([cell for cell, _ in waiting], folder)
        _submit_missing_evaluations(folder, options, tell)
        if not waiting:
            return Submitted()
        room = _queue_room(options, evaluate, tell)
        sent: list[Cell] = []
        jobs: list[str] = []
        size = retry_while_away(scheduler.max_array_size, tell)
        arrays = list(_arrays(waiting[:room], folder, min(size, options.max_array_size or size)))
        throttle = _throttle(options.max_running, len(arrays))
        for array in arrays:
            jobs.append(_submit_training(array, folder, options, throttle, evaluate, tell))
            sent += array.cells
        poll.forget()
        left = () if room is None else tuple(cell for cell, _ in waiting[room:])
        return Submitted(tuple(sent), tuple(jobs), left)


def submit_evaluation(
    cells: Sequence[Cell], folder: RunFolder, options: SlurmOptions, tell: Tell = lambda _: None
) -> str:
    """Submit the evaluation of trained cells as one array. Return its id.

    The caller must know that no evaluation is submitted yet. Raise as `submit` does.
    """
    with submission_lock(folder):
        for sentence in reconcile(folder):
            tell(sentence)
        submission = secrets.token_hex(8)
        cell_dirs = [folder.cell(cell) for cell in cells]
        elements = [[each.path.name, each.attempts()[-1].number] for each in cell_dirs]
        name = _append_intent(folder, submission, "evaluate", len(elements))
        array = _send_evaluation(folder, submission, name, elements, cells, None, options, tell)
        poll.forget()
        return array


def cancel_submitted(
    cells: Iterable[Cell], folder: RunFolder, why: str
) -> tuple[list[tuple[Cell, CellState]], str]:
    """Cancel cells that are with the scheduler.

    Return the cancelled cells, with their state before, and a sentence about what went wrong.

    Write the exit record first, then call scancel. A job that starts, or continues, then finds its
    cell cancelled, even if the scheduler does not answer.
    """
    cancelled: list[tuple[Cell, CellState]] = []
    elements: list[str] = []
    known = submissions.read(folder)
    evaluations = {s.follows: s.job for s in known.values() if s.follows and s.job}
    for cell in cells:
        cell_dir = folder.cell(cell)
        state = cell_dir.state(poll=poll.polled_state)
        # a scheduler that does not answer is no reason to let a cell go on
        if state.state not in ON_CLUSTER | {"unknown"} or not cell_dir.is_submitted():
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
        jobs = (sent and sent.job, evaluations.get(order["submission"]))
        elements += [f"{job}_{order['index']}" for job in jobs if job]
        cancelled.append((cell, state))
    try:
        scheduler.cancel(elements)
    except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
        return cancelled, (
            f"the scheduler could not be told ({error}); jobs that run end by themselves within "
            "seconds, those that wait will end when they start"
        )
    finally:
        poll.forget()
    return cancelled, ""


@contextmanager
def submission_lock(folder: RunFolder) -> Iterator[None]:
    """Hold the right to submit cells of a folder. Raise OrchError if another orch keeps it."""
    lock = folder.submission(".lock")
    with telling(lock, passing=()):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OrchError(
                        f"another orch is submitting cells of {folder.path}; wait for it"
                    ) from None
                time.sleep(0.2)
            except OSError:
                # This file system has no locks. `reconcile` refuses young intents of other
                # machines, and those of living processes of this one.
                break
        yield


def reconcile(folder: RunFolder) -> list[str]:
    """Append an outcome to every intent that has none. Return sentences. The caller holds the lock.

    Raise EnvironmentFault if the scheduler does not answer. Raise OrchError if an orch on another
    machine may be submitting.
    """
    sentences = []
    for cut in [s for s in submissions.read(folder).values() if s.open]:
        _refuse_if_alive(cut)
        # sbatch may have been started by a process that was then killed: SLURM would not know yet
        time.sleep(max(0.0, min(SETTLED_SECONDS, cut.time + SETTLED_SECONDS - time.time())))
        try:
            job = scheduler.find_job(cut.name, cut.time)
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            raise EnvironmentFault(
                f"submission {cut.id} was cut short, and the scheduler cannot say whether it has "
                f"the job: {error}. Nothing was submitted; run again when it answers"
            ) from error
        if job is None:
            submissions.note(folder, submissions.DROPPED, cut.id, why="cut short before sbatch")
            sentences.append(f"submission {cut.id} was cut short; its {cut.cells} cells go again")
        else:
            submissions.note(folder, submissions.SENT, cut.id, job=job, found=True)
            sentences.append(f"submission {cut.id} was cut short after sbatch; it is job {job}")
    if sentences:
        poll.forget()
    return sentences


def _refuse_if_alive(cut: Submission) -> None:
    """Raise OrchError if the process that wrote an intent may still be submitting."""
    age = time.time() - cut.time
    if cut.host == socket.gethostname():
        same = bool(cut.birth) and processes.birth(cut.pid) == cut.birth
        alive = same and cut.pid != os.getpid()
    else:
        alive = age < ELSEWHERE_SECONDS
    if alive:
        raise OrchError(
            f"an orch on {cut.host} (process {cut.pid}) began to submit {cut.cells} cells "
            f"{age:.0f} s ago and has not said how that ended; wait for it, or until "
            f"{ELSEWHERE_SECONDS / 60:.0f} minutes have passed"
        )


def mark_drained(folder: RunFolder) -> None:
    """Mark submissions on which nothing works any more, so that SLURM is not asked about them."""
    for sent in submissions.read(folder).values():
        if sent.job is None or sent.drained or sent.kind != "train":
            continue
        elements = submissions.read_manifest(folder, sent.id).get("elements", ())
        if all(_is_final(CellDir(folder.cells_path / name), sent.id) for name, _ in elements):
            submissions.note(folder, submissions.DRAINED, sent.id)


def _is_final(cell_dir: CellDir, submission: str) -> bool:
    last = cell_dir.attempts()[-1:]
    if not last or last[0].read_order().get("submission") != submission:
        return True
    ended = last[0].read_exit()
    return ended is not None and ended.state not in ("preempted", "timed_out")


def _submit_training(
    array: ArrayCells,
    folder: RunFolder,
    options: SlurmOptions,
    throttle: int | None,
    evaluate: bool,
    tell: Tell,
) -> str:
    submission = secrets.token_hex(8)
    evaluation = secrets.token_hex(8) if evaluate else ""
    name = _append_intent(folder, submission, "train", len(array.cells))
    elements = []
    # look all directories up before any is made: making one invalidates the listing
    cell_dirs = [(cell, folder.cell(cell)) for cell in array.cells]
    for index, (cell, cell_dir) in enumerate(cell_dirs):
        cell_dir.make(cell)
        head = f'"submission": "{submission}", "index": {index}'
        order = f'{{{head}, "cell": {cell.model_dump_json()}}}'
        elements.append([cell_dir.path.name, cell_dir.reserve(order).number])
    job = script.ArrayJob(name, len(elements), array.resources, throttle, exclude=array.exclude)
    manifest: dict[str, object] = {"kind": "train", "elements": elements, "evaluate": evaluation}
    _write(folder, submission, manifest, job, options)
    array_id = _sbatch(folder, submission, name, options, tell)
    if evaluate:
        _submit_following_evaluation(folder, submission, evaluation, array_id, options, tell)
    return array_id


def _submit_missing_evaluations(folder: RunFolder, options: SlurmOptions, tell: Tell) -> None:
    """Submit evaluations that a kill prevented after the submission of their training."""
    known = submissions.read(folder)
    for sent in list(known.values()):
        if sent.kind != "train" or sent.job is None or sent.drained:
            continue
        evaluation = submissions.read_manifest(folder, sent.id).get("evaluate", "")
        if evaluation and (evaluation not in known or known[evaluation].dropped):
            _submit_following_evaluation(folder, sent.id, evaluation, sent.job, options, tell)


def _submit_following_evaluation(
    folder: RunFolder,
    follows: str,
    submission: str,
    array: str,
    options: SlurmOptions,
    tell: Tell,
) -> None:
    """Submit evaluations, each of which waits for its element of the training array `follows`."""
    elements = submissions.read_manifest(folder, follows).get("elements", [])
    name = _append_intent(folder, submission, "evaluate", len(elements), follows)
    # the elements of one training array need the same resources, so one cell stands for all
    first = [CellDir(folder.cells_path / str(each)).read_cell() for each, _ in elements[:1]]
    _send_evaluation(folder, submission, name, elements, first, array, options, tell)


def _send_evaluation(
    folder: RunFolder,
    submission: str,
    name: str,
    elements: Sequence[object],
    cells: Sequence[Cell],
    after: str | None,
    options: SlurmOptions,
    tell: Tell,
) -> str:
    """Send evaluations, each one process on one node. Return the array's id."""
    gpus = options.evaluation.gpus
    if gpus is None:
        gpus = max((script.array_resources(cell).gpus_per_node for cell in cells), default=0)
    adapted = of_evaluation(options, gpus, small=all(c.scale == "micro" for c in cells))
    job = script.ArrayJob(
        name,
        len(elements),
        script.ArrayResources(1, gpus),
        after=after,
        program=script.EVALUATE,
    )
    manifest: dict[str, object] = {"kind": "evaluate", "elements": elements, "gpus": gpus}
    _write(folder, submission, manifest, job, adapted)
    return _sbatch(folder, submission, name, adapted, tell)


def _append_intent(
    folder: RunFolder, submission: str, kind: str, cells: int, follows: str = ""
) -> str:
    """Append the intent to the ledger.

    Return the job's name, which contains the submission's id.
    """
    plain = "".join(
        c if (c.isascii() and c.isalnum()) or c in "._-" else "_" for c in folder.experiment
    )
    name = f"orch-{plain[:60]}-{submission}"
    submissions.note(
        folder,
        submissions.INTENT,
        submission,
        kind=kind,
        name=name,
        cells=cells,
        follows=follows,
        host=socket.gethostname(),
        pid=os.getpid(),
        birth=processes.birth(os.getpid()),
    )
    return name


def _write(
    folder: RunFolder,
    submission: str,
    manifest: dict[str, object],
    job: script.ArrayJob,
    options: SlurmOptions,
) -> None:
    """Write the manifest and the batch script."""
    # relative paths of the options mean what they meant to the person who submits
    submitter = {"cwd": str(Path.cwd()), "data_dir": str(prepared.data_dir())}
    plain = options.model_dump(mode="json")
    submissions.write_manifest(folder, submission, {**manifest, **submitter, "options": plain})
    write_text(folder.submission(submission) / "job.sh", script.text(job, options))


def _sbatch(
    folder: RunFolder, submission: str, name: str, options: SlurmOptions, tell: Tell
) -> str:
    """Call sbatch. Append the outcome to the ledger. Return the array's id.

    If the controller does not answer, try again. An sbatch that timed out may have reached the
    controller, so from the second try on, first look the job up by its name.
    """
    started = time.time()
    tries = 0

    def send() -> str:
        nonlocal tries
        job = scheduler.find_job(name, started) if tries else None
        tries += 1
        place = folder.submission(submission)
        return job or scheduler.sbatch(script.argv(str(place)), cwd=place)

    try:
        job = retry_while_away(send, tell)
    except scheduler.SchedulerRefusal as error:
        submissions.note(folder, submissions.DROPPED, submission, why=str(error)[:500])
        answers = cluster.read_cluster()
        names = answers.names() if answers else None
        message = refusal_of(str(error), options.model_dump(mode="json"), names)
        raise EnvironmentFault(
            f"the cluster refuses the job: {message.sentence.rstrip('.')}. Nothing of it was "
            "submitted"
        ) from error
    submissions.note(folder, submissions.SENT, submission, job=job)
    return job


def retry_while_away(question: Callable[[], T], tell: Tell) -> T:
    """Return the answer of the scheduler. Ask again while it does not answer.

    Raise EnvironmentFault after AWAY_SECONDS.
    """
    deadline, pause = time.monotonic() + AWAY_SECONDS, 1.0
    while True:
        try:
            return question()
        except scheduler.SchedulerUnavailable as error:
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"the scheduler has not answered for {AWAY_SECONDS / 60:.0f} minutes ({error})"
                    "; nothing is lost, run again when it does"
                ) from error
            tell(f"the scheduler does not answer; asking again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(pause * 2, 30.0)


def _arrays(
    waiting: Sequence[tuple[Cell, CellState]], folder: RunFolder, size: int
) -> Iterator[ArrayCells]:
    """Yield groups of at most `size` cells with the same resources and the same nodes to avoid."""
    groups: dict[tuple[script.ArrayResources, tuple[str, ...]], list[Cell]] = {}
    for cell, state in waiting:
        key = script.array_resources(cell), _bad_nodes(folder.cell(cell), state)
        groups.setdefault(key, []).append(cell)
    for (resources, exclude), cells in groups.items():
        for start in range(0, len(cells), size):
            yield ArrayCells(tuple(cells[start : start + size]), resources, exclude)


def _bad_nodes(cell_dir: CellDir, state: CellState) -> tuple[str, ...]:
    """Return the node on which the last attempt failed. The next attempt avoids it."""
    ended = state.exit or next(
        (record for a in reversed(cell_dir.attempts()) if (record := a.read_exit())), None
    )
    if ended is None or ended.failure not in _NODE_FAILURES or not ended.host:
        return ()
    return (ended.host,)


def _throttle(max_running: int | None, arrays: int) -> int | None:
    return None if max_running is None else max(1, max_running // max(1, arrays))


def _queue_room(options: SlurmOptions, evaluate: bool, tell: Tell) -> int | None:
    """Return how many more cells the queue accepts; None if the site names no limit."""
    if options.max_submit_jobs is None:
        return None
    queue = retry_while_away(scheduler.queue, tell)
    queued = sum(not scheduler.is_over(element.word) for element in queue.values())
    return max(0, options.max_submit_jobs - queued) // (2 if evaluate else 1)
