"""One submitter at a time, and what is done about submissions that were cut short.

An intent without an outcome was left by an orch that was killed: the scheduler is asked whether it
has the job, by its name, and the answer is written down. An intent of another machine that is
still young may be of an orch at work there.
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
from orchestrator.launch.slurm import poll, scheduler, script, submissions
from orchestrator.launch.slurm import scheduler as words
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import ON_CLUSTER, RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.spec.site_options import SlurmOptions, of_evaluation

SETTLED_SECONDS = 5.0
"""How long after an intent its sbatch may still be on the way to the controller."""
ELSEWHERE_SECONDS = 900.0
PATIENCE_SECONDS = 60.0


@contextmanager
def submission_lock(folder: RunFolder) -> Iterator[None]:
    """The right to submit cells of a folder. Raises OrchError if another orch keeps it."""
    lock = folder.submission(".lock")
    with telling(lock, passing=()):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        deadline = time.monotonic() + PATIENCE_SECONDS
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
                break  # no locks here: intents of other machines are respected by their age
        yield


def reconcile(folder: RunFolder) -> list[str]:
    """Gives every intent its outcome; what was found, in sentences. The lock is held.

    Raises EnvironmentFault where the scheduler cannot tell, OrchError where an orch on another
    machine may be at it.
    """
    told = []
    for left in [s for s in submissions.read(folder).values() if s.open]:
        _respect(left)
        time.sleep(max(0.0, min(SETTLED_SECONDS, left.time + SETTLED_SECONDS - time.time())))
        try:
            job = scheduler.find(left.name, left.time)
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            raise EnvironmentFault(
                f"submission {left.id} was cut short, and the scheduler cannot say whether it has "
                f"the job: {error}. Nothing was submitted; run again when it answers"
            ) from error
        if job is None:
            submissions.note(folder, submissions.DROPPED, left.id, why="cut short before sbatch")
            told.append(f"submission {left.id} was cut short; its {left.cells} cells go again")
        else:
            submissions.note(folder, submissions.SENT, left.id, job=job, found=True)
            told.append(f"submission {left.id} was cut short after sbatch; it is job {job}")
    if told:
        poll.forget()
    return told


def _respect(left: submissions.Submission) -> None:
    age = time.time() - left.time
    if left.host == socket.gethostname():
        same = bool(left.birth) and processes.birth(left.pid) == left.birth
        alive = same and left.pid != os.getpid()
    else:
        alive = age < ELSEWHERE_SECONDS
    if alive:
        raise OrchError(
            f"an orch on {left.host} (process {left.pid}) began to submit {left.cells} cells "
            f"{age:.0f} s ago and has not said how that ended; wait for it, or until "
            f"{ELSEWHERE_SECONDS / 60:.0f} minutes have passed"
        )


def mark_drained(folder: RunFolder) -> None:
    """Notes which submissions have nothing at work any more, so that they are not asked about."""
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


# Cells to the cluster, as job arrays, each cell exactly once.
#
# For every array, in this order, so that a kill between any two is mended by the next run:
#
#     1  the intent goes into the ledger, with the name that the job will have
#     2  each cell gets its next attempt, with the submission's id in it
#     3  manifest and script are written
#     4  sbatch
#     5  the array's id goes into the ledger


T = TypeVar("T")

AWAY_SECONDS = 600.0
"""How long a submission waits for a controller that does not answer."""
_BAD_NODE: frozenset[str] = frozenset({"node", "hung"})


class Submitted(NamedTuple):
    """What was sent."""

    cells: tuple[Cell, ...] = ()
    jobs: tuple[str, ...] = ()
    left: tuple[Cell, ...] = ()
    """Cells for which the queue has no room at present (`max_submit_jobs`)."""
    unpaid: tuple[Cell, ...] = ()
    """Cells that a budget does not pay."""


class Chunk(NamedTuple):
    """The elements of one array."""

    cells: tuple[Cell, ...]
    shape: script.ArrayResources
    exclude: tuple[str, ...]


def submit(
    cells: Iterable[Cell],
    folder: RunFolder,
    options: SlurmOptions,
    *,
    evaluate: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Submitted:
    """Submits those of the cells that are to be trained and are not with the scheduler already.

    evaluate: each cell's evaluation becomes a job that waits for it. tell: sentences on the way.
    Raises OrchError, before anything is submitted, for cells that a backend cannot express;
    EnvironmentFault where SLURM refuses, or does not answer for AWAY_SECONDS.
    """
    folder.open()
    with submission_lock(folder):
        for line in reconcile(folder):
            tell(line)
        mark_drained(folder)
        poll.refresh(folder)
        looks = [(cell, folder.cell(cell).state(poll=poll.polled_state)) for cell in cells]
        todo = [(cell, seen) for cell, seen in looks if seen.state in RESUMABLE]
        check_launchable([cell for cell, _ in todo], folder)
        _follow_up(folder, options, tell)
        if not todo:
            return Submitted()
        room = _room(options, evaluate, tell)
        sent: list[Cell] = []
        jobs: list[str] = []
        size = patiently(scheduler.max_array_size, tell)
        chunks = list(_chunks(todo[:room], folder, min(size, options.max_array_size or size)))
        throttle = _throttle(options.max_running, len(chunks))
        for chunk in chunks:
            job = _send(chunk, folder, options, throttle, evaluate, tell)
            jobs.append(job)
            sent += chunk.cells
        poll.forget()
        return Submitted(tuple(sent), tuple(jobs), _rest(todo, room))


def _rest(todo: Sequence[tuple[Cell, CellState]], room: int | None) -> tuple[Cell, ...]:
    return () if room is None else tuple(cell for cell, _ in todo[room:])


def _send(
    chunk: Chunk,
    folder: RunFolder,
    options: SlurmOptions,
    throttle: int | None,
    evaluate: bool,
    tell: Callable[[str], None],
) -> str:
    submission = secrets.token_hex(8)
    follower = secrets.token_hex(8) if evaluate else ""
    name = _intend(folder, submission, "train", len(chunk.cells))
    elements = []
    # all found before any is made: making one has the folder read again
    places = [(cell, folder.cell(cell)) for cell in chunk.cells]
    for index, (cell, cell_dir) in enumerate(places):
        cell_dir.make(cell)
        head = f'"submission": "{submission}", "index": {index}'
        order = f'{{{head}, "cell": {cell.model_dump_json()}}}'
        elements.append([cell_dir.path.name, cell_dir.reserve(order).number])
    job = script.ArrayJob(name, len(elements), chunk.shape, throttle, exclude=chunk.exclude)
    _write(
        folder,
        submission,
        {"kind": "train", "elements": elements, "evaluate": follower},
        job,
        options,
    )
    array = _sbatch(folder, submission, name, options, tell)
    if evaluate:
        _send_evaluation(folder, submission, follower, array, options, tell)
    return array


def _send_evaluation(
    folder: RunFolder,
    follows: str,
    submission: str,
    array: str,
    options: SlurmOptions,
    tell: Callable[[str], None],
) -> None:
    elements = submissions.read_manifest(folder, follows).get("elements", [])
    name = _intend(folder, submission, "evaluate", len(elements), follows)
    # the elements of one training array are of one shape
    first = [CellDir(folder.cells_path / str(each)).read_cell() for each, _ in elements[:1]]
    _send_scoring(folder, submission, name, elements, first, array, options, tell)


def _send_scoring(
    folder: RunFolder,
    submission: str,
    name: str,
    elements: Sequence[object],
    cells: Sequence[Cell],
    after: str | None,
    options: SlurmOptions,
    tell: Callable[[str], None],
) -> str:
    """Sends evaluations of such cells: each is one process of one node."""
    gpus = options.evaluation.gpus
    if gpus is None:
        gpus = max((script.array_resources(cell).gpus_per_node for cell in cells), default=0)
    adapted = of_evaluation(options, gpus, small=all(c.scale == "micro" for c in cells))
    job = script.ArrayJob(
        name, len(elements), script.ArrayResources(1, gpus), after=after, program=script.EVALUATE
    )
    manifest = {"kind": "evaluate", "elements": elements, "gpus": gpus}
    _write(folder, submission, manifest, job, adapted)
    return _sbatch(folder, submission, name, adapted, tell)


def submit_evaluation(
    cells: Sequence[Cell],
    folder: RunFolder,
    options: SlurmOptions,
    tell: Callable[[str], None] = lambda _: None,
) -> str:
    """Submits the evaluation of cells that are trained already, as one array; its id.

    Asks not whether there is one already. Raises as `submit` does.
    """
    with submission_lock(folder):
        for line in reconcile(folder):
            tell(line)
        submission = secrets.token_hex(8)
        places = [folder.cell(cell) for cell in cells]
        elements = [[place.path.name, place.attempts()[-1].number] for place in places]
        name = _intend(folder, submission, "evaluate", len(elements))
        array = _send_scoring(folder, submission, name, elements, cells, None, options, tell)
        poll.forget()
        return array


def _follow_up(folder: RunFolder, options: SlurmOptions, tell: Callable[[str], None]) -> None:
    """Submits evaluations that a kill kept from being submitted after their training."""
    known = submissions.read(folder)
    for sent in list(known.values()):
        if sent.kind != "train" or sent.job is None or sent.drained:
            continue
        follower = submissions.read_manifest(folder, sent.id).get("evaluate", "")
        if follower and (follower not in known or known[follower].dropped):
            _send_evaluation(folder, sent.id, follower, sent.job, options, tell)


def _intend(folder: RunFolder, submission: str, kind: str, cells: int, follows: str = "") -> str:
    """Writes the intent; the job's name."""
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
    plain = options.model_dump(mode="json")
    here = {"cwd": str(Path.cwd()), "data_dir": str(prepared.data_dir())}
    submissions.write_manifest(folder, submission, {**manifest, **here, "options": plain})
    write_text(folder.submission(submission) / "job.sh", script.text(job, options))


def _sbatch(
    folder: RunFolder,
    submission: str,
    name: str,
    options: SlurmOptions,
    tell: Callable[[str], None],
) -> str:
    """Sends a script; the array's id. Asked again while the controller is away, each time after
    asking whether the last try reached it."""
    started = time.time()
    tried: list[float] = []

    def send() -> str:
        job = scheduler.find(name, started) if tried else None
        tried.append(time.time())
        return job or scheduler.send(folder.submission(submission))

    try:
        job = patiently(send, tell)
    except scheduler.SchedulerRefusal as error:
        from orchestrator.launch.slurm.cluster import read_cluster
        from orchestrator.launch.slurm.scheduler import refusal_of

        submissions.note(folder, submissions.DROPPED, submission, why=str(error)[:500])
        cluster = read_cluster()
        known = cluster.names() if cluster else None
        said = refusal_of(str(error), options.model_dump(mode="json"), known)
        raise EnvironmentFault(
            f"the cluster refuses the job: {said.sentence.rstrip('.')}. Nothing of it was submitted"
        ) from error
    submissions.note(folder, submissions.SENT, submission, job=job)
    return job


def patiently(asked: Callable[[], T], tell: Callable[[str], None]) -> T:
    """The answer of a scheduler that may be away for a while. Raises EnvironmentFault after
    AWAY_SECONDS."""
    deadline, pause = time.monotonic() + AWAY_SECONDS, 1.0
    while True:
        try:
            return asked()
        except scheduler.SchedulerUnavailable as error:
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"the scheduler has not answered for {AWAY_SECONDS / 60:.0f} minutes ({error})"
                    "; nothing is lost, run again when it does"
                ) from error
            tell(f"the scheduler does not answer; asking again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(pause * 2, 30.0)


def _chunks(
    todo: Sequence[tuple[Cell, CellState]], folder: RunFolder, size: int
) -> Iterator[Chunk]:
    groups: dict[tuple[script.ArrayResources, tuple[str, ...]], list[Cell]] = {}
    for cell, seen in todo:
        key = script.array_resources(cell), _bad_nodes(folder.cell(cell), seen)
        groups.setdefault(key, []).append(cell)
    for (shape, exclude), cells in groups.items():
        for start in range(0, len(cells), size):
            yield Chunk(tuple(cells[start : start + size]), shape, exclude)


def _bad_nodes(cell_dir: CellDir, seen: CellState) -> tuple[str, ...]:
    """The node that the last attempt died of: the next is made elsewhere."""
    ended = seen.exit or next(
        (found for a in reversed(cell_dir.attempts()) if (found := a.read_exit())), None
    )
    if ended is None or ended.failure not in _BAD_NODE or not ended.host:
        return ()
    return (ended.host,)


def _throttle(max_running: int | None, chunks: int) -> int | None:
    return None if max_running is None else max(1, max_running // max(1, chunks))


def _room(options: SlurmOptions, evaluate: bool, tell: Callable[[str], None]) -> int | None:
    """How many more elements the queue takes; None: as many as there are."""
    if options.max_submit_jobs is None:
        return None
    queued = sum(not words.is_over(e.word) for e in patiently(scheduler.queue, tell).values())
    return max(0, options.max_submit_jobs - queued) // (2 if evaluate else 1)


# What a person does to cells that are on a cluster: cancel them.


def cancel_submitted(
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
        seen = cell_dir.state(poll=poll.polled_state)
        # a scheduler that does not answer is no reason to let a cell go on
        if seen.state not in ON_CLUSTER | {"unknown"} or not cell_dir.is_submitted():
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
