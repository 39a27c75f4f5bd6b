"""Submit cells to SLURM as job arrays, each cell exactly once; cancel them again.

Only one orch at a time submits cells of a folder: it holds the submission lock. For every array it
does, in this order:

    1  append the intent to the ledger, with the name that the job will have
    2  reserve each cell's next attempt, with the submission's id in its order.json
    3  write the manifest and the batch script
    4  call sbatch
    5  claim the submission for the array's id (submissions.claim_array)
    6  append the array's id to the ledger

A kill between any two steps leaves an intent without an outcome. The next submission first
reconciles it: it asks SLURM for a job of that name. If the kill came before step 4, SLURM has no
such job. The submission is then dropped, and its cells, whose attempts never started, are submitted
again. If the kill came after step 4, SLURM has the job, and the ledger gets its id. If SLURM does
not answer, nothing is submitted.

An sbatch that timed out may still reach a controller that was stalled. So before orch calls sbatch
again, and before it drops a submission, SLURM must have answered "no such job" for longer than its
message timeout (scheduler.settle). Even if SLURM has two jobs in the end, only one array runs. A
job starts nothing unless the claim of its submission has its array's id, and an attempt names the
one submission that may start it (lease.open_attempt). Every `orch run`, `status` and `cancel` looks
for second copies of a job and cancels them (end_twins).
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.data import prepared
from orchestrator.errors import EnvironmentFault, NoLocksError, OrchError
from orchestrator.files import read_json, take_lock, telling, write_text
from orchestrator.launch import processes
from orchestrator.launch.check import check_launchable
from orchestrator.launch.endings import Ending
from orchestrator.launch.gpu_memory import evaluation_gpus
from orchestrator.launch.launcher import CancelResult, PlannedJob
from orchestrator.launch.local import cancel_cell
from orchestrator.launch.logs import Stream, logs
from orchestrator.launch.slurm import cluster, poll, scheduler, script, submissions
from orchestrator.launch.slurm.scheduler import refusal_of
from orchestrator.launch.slurm.submissions import Submission
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import ON_CLUSTER, RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.spec.site_options import SlurmOptions, of_evaluation

ELSEWHERE_SECONDS = 900.0
"""Seconds for which an intent of another machine counts as one of a running orch."""
LOCK_SECONDS = 60.0
"""Seconds to wait for another orch that submits."""
AWAY_SECONDS = 600.0
"""Seconds that a submission waits for a controller that does not answer."""
_NODE_FAILURES: frozenset[str] = frozenset({"node", "hung"})

T = TypeVar("T")
Tell = Callable[[str], None]
"""A function that prints a sentence for the person who waits."""


class Submitted(NamedTuple):
    """The result of a submission."""

    cells: tuple[Cell, ...] = ()
    """Cells that were sent."""
    jobs: tuple[str, ...] = ()
    """Ids of the arrays."""
    no_room: tuple[Cell, ...] = ()
    """Cells for which the queue has no room at present (`max_submit_jobs`)."""


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
    take_over: bool = False,
    tell: Tell = lambda _: None,
) -> Submitted:
    """Submit the cells that need training and that the scheduler does not have.

    evaluate: also submit each cell's evaluation, as a job that waits for its training. take_over:
    also submit cells whose jobs another user submitted and this user cannot see. Raise OrchError,
    before anything is submitted, for cells that a backend cannot express. Raise EnvironmentFault if
    SLURM refuses, or does not answer for AWAY_SECONDS.
    """
    folder.open()
    sender = Sender(folder, options, tell)
    with submission_lock(folder):
        for sentence in reconcile(folder, take_over=take_over):
            tell(sentence)
        mark_drained(folder)
        poll.refresh(folder)
        # Read the states under the lock: its last holder may have submitted these cells.
        with poll.one_look(folder) as answer:
            states = [(cell, answer.state_of(folder.cell(cell))) for cell in cells]
            taken = _foreign(folder, states) if take_over else ()
            end_twins(folder, tell)
        for cell in taken:
            folder.append("take_over", cell.id, user=submissions.user_name())
        waiting = [
            (cell, state) for cell, state in states if state.state in RESUMABLE or cell in taken
        ]
        check_launchable([cell for cell, _ in waiting], folder)
        sender.missing_evaluations()
        if not waiting:
            return Submitted()
        sent, jobs = sender.send_all(waiting, evaluate)
        poll.forget()
        ids = {cell.id for cell in sent}
        no_room = tuple(cell for cell, _ in waiting if cell.id not in ids)
        return Submitted(tuple(sent), tuple(jobs), no_room)


def _foreign(folder: RunFolder, states: Iterable[tuple[Cell, CellState]]) -> list[Cell]:
    """Return the cells in an unknown state that another user submitted."""
    known = submissions.read(folder)
    foreign = []
    for cell, state in states:
        if state.state == "unknown" and (attempts := folder.cell(cell).attempts()):
            sent = known.get(attempts[-1].known_submission())
            if sent is not None and not sent.is_mine:
                foreign.append(cell)
    return foreign


def preview(
    cells: Sequence[Cell], folder: RunFolder, options: SlurmOptions, *, evaluate: bool = False
) -> list[str]:
    """Return the batch scripts that `submit` would send for these cells. Write nothing.

    They equal the real scripts, except for values that only a submission has: its id in the job's
    name, and the id of the array for which an evaluation waits.
    """
    sender = Sender(folder, options, lambda _: None)
    try:
        sender.config = scheduler.look("scontrol", scheduler.config)
    except EnvironmentFault:  # there is no cluster here, or it does not answer
        sender.config = {}
    waiting = [(cell, folder.cell(cell).state(poll=poll.polled_state)) for cell in cells]
    scripts = []
    for array, lane in sender.plan_arrays(waiting, None):
        name = sender.job_name(UNSENT, "train", [cell.slug for cell in array.cells])
        scripts.append(script.text(sender.training_job(name, array, lane), options))
        if evaluate:
            slugs = [cell.slug for cell in array.cells]
            name = sender.job_name(UNSENT, "evaluate", slugs)
            job, adapted = sender.evaluation_job(name, slugs, array.cells[:1], UNSENT)
            scripts.append(script.text(job, adapted))
    return scripts


UNSENT = "ID"
"""Placeholder for ids that only a submission has."""


def submit_evaluation(
    cells: Sequence[Cell],
    folder: RunFolder,
    options: SlurmOptions,
    tell: Tell = lambda _: None,
    *,
    exclude: tuple[str, ...] = (),
) -> str:
    """Submit the evaluation of trained cells as one array. Return its id.

    exclude: nodes not to use. The caller must know that no evaluation is submitted yet. Raise as
    `submit` does.
    """
    with submission_lock(folder):
        for sentence in reconcile(folder):
            tell(sentence)
        cell_dirs = [folder.cell(cell) for cell in cells]
        elements = [[each.path.name, each.attempts()[-1].number] for each in cell_dirs]
        array = Sender(folder, options, tell).evaluate(elements, cells, exclude=exclude)
        poll.forget()
        return array


class Lane(NamedTuple):
    """The share of `max_running` that one array has."""

    throttle: int | None = None
    """Number of its elements that run at the same time; None: no limit."""
    after: tuple[str, ...] = ()
    """Ids of arrays that must end before it starts, because they use the same share."""


class Sender:
    """A sender of the arrays of one folder. The caller holds the submission lock."""

    def __init__(self, folder: RunFolder, options: SlurmOptions, tell: Tell):
        self.folder, self.options, self.tell = folder, options, tell
        self._was_full = False

    @cached_property
    def config(self) -> Mapping[str, str]:
        """Return SLURM's configuration. Wait while its controller does not answer."""
        return retry_while_away(scheduler.config, self.tell)

    def send_all(
        self, waiting: Sequence[tuple[Cell, CellState]], evaluate: bool
    ) -> tuple[list[Cell], list[str]]:
        """Send the training of these cells, as many as the queue accepts. evaluate: also send their
        evaluation.

        Return the cells that were sent, and the ids of their arrays.
        """
        sent: list[Cell] = []
        jobs: list[str] = []
        rest = list(waiting[: self._queue_room(evaluate)])
        while rest:
            try:
                for array, lane in self.plan_arrays(rest, jobs):
                    jobs.append(self.train(array, lane, evaluate))
                    sent += array.cells
                return sent, jobs
            except QueueFull as full:
                ids = {cell.id for cell in sent}
                room = self._room_when_full(evaluate)
                unsent = [each for each in waiting if each[0].id not in ids]
                self.tell(
                    f"{full}: {len(sent)} of {len(waiting)} cells are in the queue now"
                    + ("" if room else ". Run again when some have ended, or with --wait")
                )
                rest = unsent[:room]
        return sent, jobs

    def plan_arrays(
        self, waiting: Sequence[tuple[Cell, CellState]], jobs: list[str] | None
    ) -> Iterator[tuple[ArrayCells, Lane]]:
        """Yield the arrays to send, each with its share of `max_running`.

        jobs: the ids of the arrays sent so far. The caller appends the id of each array after
        sending it. None if nothing is sent.
        """
        size = scheduler.max_array_size(self.config)
        size = min(size, self.options.max_array_size or size)
        arrays = list(_arrays(waiting, self.folder, size))
        if self.options.max_running is None:
            yield from ((array, Lane()) for array in arrays)
            return
        lanes = self._lanes(self.options.max_running)
        count = len(lanes)
        # With fewer arrays than lanes, each array gets an equal share of the lanes. With more
        # arrays, each gets one lane, in turn, and waits for the array that had this lane before.
        for number, array in enumerate(arrays):
            first = number * count // len(arrays) if len(arrays) <= count else number % count
            last = (number + 1) * count // len(arrays) if len(arrays) <= count else first + 1
            after = dict.fromkeys(job for job in lanes[first:last] if job is not None)
            yield array, Lane(last - first, tuple(after))
            lanes[first:last] = [jobs[-1] if jobs else UNSENT] * (last - first)

    def _lanes(self, max_running: int) -> list[str | None]:
        """Return one entry for each cell that may run at the same time: the array that uses this
        place.

        If free places exist, return only these, because their arrays start at once.
        """
        queue = poll.snapshot(self.folder).queued() or {}
        alive = {job for (job, _), each in queue.items() if not scheduler.is_over(each.word)}
        lanes: list[str | None] = []
        for sent in submissions.read(self.folder).values():
            if sent.kind == "train" and sent.job in alive:
                lanes += [sent.job] * (sent.running or max_running)
        free: list[str | None] = [None] * (max_running - len(lanes))
        return free or lanes[-max_running:]

    def train(self, array: ArrayCells, lane: Lane, evaluate: bool) -> str:
        """Send the training of cells; with `evaluate`, also their evaluation. Return the array's
        id."""
        submission = secrets.token_hex(8)
        evaluation = secrets.token_hex(8) if evaluate else ""
        slugs = [cell.slug for cell in array.cells]
        name = self.job_name(submission, "train", slugs)
        self._note_intent(submission, "train", name, len(slugs), running=lane.throttle)
        elements = []
        # Find all directories before the first one is made, because making one makes the folder's
        # cached listing invalid.
        cell_dirs = [(cell, self.folder.cell(cell)) for cell in array.cells]
        for index, (cell, cell_dir) in enumerate(cell_dirs):
            cell_dir.make(cell)
            # Submission and index come first, because poll._read_head reads only the start of the
            # file.
            head = f'"submission": "{submission}", "index": {index}'
            order = f'{{{head}, "cell": {cell.model_dump_json()}}}'
            elements.append([cell_dir.path.name, cell_dir.reserve(order).number])
        job = self.training_job(name, array, lane)
        # The evaluation is named before it is sent: after a kill, `missing_evaluations` sends it.
        manifest = {"elements": elements, "evaluate": evaluation}
        self._write(submission, manifest, job, self.options)
        array_id = _send(self.folder, submission, name, self.options, self.tell)
        if evaluate:
            with suppress(QueueFull):  # they go with the next submission: `missing_evaluations`
                self._following_evaluation(submission, evaluation, array_id)
        return array_id

    def training_job(self, name: str, array: ArrayCells, lane: Lane) -> script.ArrayJob:
        """Return the content of the batch script of a training array."""
        return script.ArrayJob(
            name,
            len(array.cells),
            array.resources,
            throttle=lane.throttle,
            after_any=lane.after,
            exclude=array.exclude,
            size=script.job_size(self.options, array.resources),
            comment=self._comment([cell.slug for cell in array.cells]),
        )

    def missing_evaluations(self) -> None:
        """Send evaluations that a kill prevented after the submission of their training."""
        known = submissions.read(self.folder)
        followed = {sent.follows for sent in known.values() if not sent.dropped}
        for sent in list(known.values()):
            if sent.kind != "train" or sent.job is None or sent.drained or sent.id in followed:
                continue
            evaluation = submissions.read_manifest(self.folder, sent.id).get("evaluate", "")
            if evaluation:
                # The id of a submission that was given up cannot be used again: NO_ARRAY has its
                # claim.
                new = secrets.token_hex(8) if evaluation in known else evaluation
                with suppress(QueueFull):
                    self._following_evaluation(sent.id, new, sent.job)

    def _following_evaluation(self, follows: str, submission: str, array: str) -> None:
        """Send evaluations, each of which waits for its element of the training array `follows`."""
        elements = submissions.elements(self.folder, follows)
        # all elements of one training array need the same resources, so one cell is enough
        first = [CellDir(self.folder.cells_path / name).read_cell() for name, _ in elements[:1]]
        self.evaluate(elements, first, array, submission, follows)

    def evaluate(
        self,
        elements: Sequence[Sequence[Any]],
        cells: Sequence[Cell],
        after: str | None = None,
        submission: str = "",
        follows: str = "",
        exclude: tuple[str, ...] = (),
    ) -> str:
        """Send evaluations, each one process on one node. Return the array's id."""
        submission = submission or secrets.token_hex(8)
        slugs = [str(name).rpartition("-")[0] for name, _ in elements]
        name = self.job_name(submission, "evaluate", slugs)
        self._note_intent(submission, "evaluate", name, len(slugs), follows=follows)
        job, adapted = self.evaluation_job(name, slugs, cells, after, exclude)
        gpus = job.resources.gpus_per_node
        manifest = {"elements": elements, "gpus": gpus}
        self._write(submission, manifest, job, adapted)
        return _send(self.folder, submission, name, adapted, self.tell)

    def evaluation_job(
        self,
        name: str,
        slugs: Sequence[str],
        cells: Sequence[Cell],
        after: str | None,
        exclude: tuple[str, ...] = (),
    ) -> tuple[script.ArrayJob, SlurmOptions]:
        """Return the content of the batch script of an evaluation array, and its options."""
        gpus = evaluation_gpus(cells, self.options)
        adapted = of_evaluation(self.options, gpus, small=all(c.scale == "micro" for c in cells))
        resources = script.ArrayResources(1, gpus)
        job = script.ArrayJob(
            name,
            len(slugs),
            resources,
            throttle=self.options.max_running,
            after=after,
            exclude=exclude,
            size=script.job_size(adapted, resources),
            program=script.EVALUATE,
            comment=self._comment(slugs),
        )
        return job, adapted

    def job_name(self, submission: str, kind: str, slugs: Sequence[str]) -> str:
        """Return a job's name: experiment and cell first, for a person; the submission's id last.

        After a kill or a time-out, the job is looked up by this name.
        """
        cells = slugs[0] if len(slugs) == 1 else f"{len(slugs)}cells"
        words = [self.folder.experiment[:60], *(["eval"] if kind == "evaluate" else []), cells[:80]]
        return f"{_plain('.'.join(words))}.{submission}"

    def _comment(self, slugs: Sequence[str]) -> str:
        last = f" to {_plain(slugs[-1])}" if len(slugs) > 1 else ""
        many = f"{len(slugs)} cells" if len(slugs) > 1 else "1 cell"
        text = f"{_plain(self.folder.experiment)}: {_plain(slugs[0])}{last}, {many}"
        return text[:500]

    def _note_intent(
        self, submission: str, kind: str, name: str, cells: int, **details: Any
    ) -> None:
        """Append the intent to the ledger, with the submitting user and machine."""
        submissions.note(
            self.folder,
            submissions.INTENT,
            submission,
            kind=kind,
            name=name,
            cells=cells,
            host=socket.gethostname(),
            pid=os.getpid(),
            birth=processes.birth(os.getpid()),
            user=submissions.user_name(),
            uid=os.geteuid(),
            cluster=self.config.get("ClusterName", ""),
            **details,
        )

    def _write(
        self,
        submission: str,
        manifest: Mapping[str, object],
        job: script.ArrayJob,
        options: SlurmOptions,
    ) -> None:
        """Write the manifest and the batch script."""
        # Relative paths in the options start from the folder of the person who submits.
        submitter = {"cwd": str(Path.cwd()), "data_dir": str(prepared.data_dir())}
        plain = options.model_dump(mode="json")
        content = {**manifest, **submitter, "options": plain}
        submissions.write_manifest(self.folder, submission, content)
        write_text(self.folder.submission(submission) / "job.sh", script.text(job, options))

    def _queue_room(self, evaluate: bool) -> int | None:
        """Return how many more cells the queue accepts; None if no limit is known."""
        limit = self.options.max_submit_jobs or _learned_limit.get(os.geteuid())
        if limit is None:
            return None
        return max(0, limit - self._num_queued()) // (2 if evaluate else 1)

    def _room_when_full(self, evaluate: bool) -> int:
        """Return how many more cells the queue accepts, after it refused an array."""
        answers = cluster.read_cluster()
        limits = [r.max_submit for r in answers.rights or () if r.max_submit] if answers else []
        queued = self._num_queued()
        # The queue already holds this many jobs, so the limit cannot be smaller.
        _learned_limit[os.geteuid()] = max(min(limits, default=0), queued)
        room = self._queue_room(evaluate) or 0
        # After a second refusal in one submission there is no room: otherwise `send_all` could
        # repeat for ever.
        was_full, self._was_full = self._was_full, True
        return 0 if was_full else room

    def _num_queued(self) -> int:
        question = partial(scheduler.queue, [str(os.geteuid())])
        queue = retry_while_away(question, self.tell)
        return sum(not scheduler.is_over(element.word) for element in queue.values())


_learned_limit: dict[int, int] = {}
"""uid -> the user's limit on jobs in the queue, learned when SLURM refused a further job."""


def _plain(text: str) -> str:
    return "".join(c if (c.isascii() and c.isalnum()) or c in "._-+" else "_" for c in text)


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
        # Cancel cells of unknown state too: the scheduler may be silent for hours.
        if state.state not in ON_CLUSTER | {"unknown"} or not cell_dir.is_submitted():
            continue
        order = cell_dir.attempts()[-1].read_order()
        sent = known.get(order["submission"])
        now = time.time()
        # If the attempt runs, this makes a newer one. Its worker then ends itself (lease.Lease).
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
            f"the scheduler did not take the cancellation ({error}); jobs that run end by "
            "themselves within seconds, those that wait will end when they start"
        )
    finally:
        poll.forget()
    end_twins(folder)
    return cancelled, ""


def end_frozen(cells: Iterable[tuple[Cell, CellState]], folder: RunFolder) -> list[str]:
    """End the jobs of cells whose worker is frozen, so that other jobs continue them. Return
    sentences.

    The exit record has the class `hung` and names the node, so that the next attempt avoids it. A
    worker that wakes up later sees that its attempt was superseded, and writes nothing more.
    """
    known = submissions.read(folder)
    sentences: list[str] = []
    elements: list[str] = []
    for cell, state in cells:
        attempt = folder.cell(cell).attempts()[-1]
        order, job = attempt.read_order(), read_json(attempt.job) or {}
        sent, now = known.get(order.get("submission", "")), time.time()
        if attempt.exit.exists() or sent is None:
            continue
        host = str(job.get("host", ""))
        started = float(job.get("started", now))
        record = Ending("failed", failure="hung", message=state.fault).record(started, now)
        attempt.write_exit(record.model_copy(update={"host": host}))
        elements.append(f"{sent.job}_{order['index']}")
        sentences.append(f"{cell.slug}: {state.fault.partition('.')[0]}; its job is ended")
    with suppress(scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal):
        scheduler.cancel(elements)
    poll.forget()
    return sentences


@contextmanager
def submission_lock(folder: RunFolder) -> Iterator[None]:
    """Hold the right to submit cells of a folder. Raise OrchError if another process of orch keeps
    it."""
    path = folder.submission(".lock")
    with telling(path, passing=()):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                if take_lock(file, wait=False):
                    break
            except NoLocksError:
                # `reconcile` refuses young intents of other machines, and those of living processes
                # of this one.
                break
            if time.monotonic() > deadline:
                raise OrchError(f"another orch is submitting cells of {folder.path}; wait for it")
            time.sleep(0.2)
        yield


def reconcile(folder: RunFolder, *, take_over: bool = False) -> list[str]:
    """Append an outcome to every intent that has none. Return sentences. The caller holds the lock.

    take_over: give up submissions that another user began and this user cannot see. Raise
    EnvironmentFault if the scheduler does not answer. Raise OrchError if a process of orch on
    another machine may be submitting.
    """
    sentences = []
    for cut in [s for s in submissions.read(folder).values() if s.open]:
        _refuse_if_alive(cut)
        own_folder = folder.submission(cut.id)
        try:
            # The script is written last before sbatch is called. Without it, sbatch was not called.
            ids = _settled_jobs(cut, take_over) if (own_folder / "job.sh").exists() else []
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            raise EnvironmentFault(
                f"submission {cut.id} was cut short, and the scheduler cannot say whether it has "
                f"the job: {error}. Nothing was submitted; run again when it answers"
            ) from error
        # With NO_ARRAY claimed, no array can run it any more, even if a lost request still arrives.
        job = submissions.claim_array(own_folder, ids[0] if ids else submissions.NO_ARRAY)
        if job == submissions.NO_ARRAY:
            submissions.note(folder, submissions.DROPPED, cut.id, why="cut short before sbatch")
            sentences.append(f"submission {cut.id} was cut short; its {cut.cells} cells go again")
        else:
            submissions.note(folder, submissions.SENT, cut.id, job=job, found=True)
            sentences.append(f"submission {cut.id} was cut short after sbatch; it is job {job}")
    if sentences:
        poll.forget()
    return sentences


def _settled_jobs(cut: Submission, take_over: bool) -> list[str]:
    """Return the jobs of a submission that was cut short; none once SLURM has settled that."""
    if cut.is_mine:
        return scheduler.settle(cut.name, str(os.geteuid()), cut.time)
    if (ids := scheduler.find_jobs(cut.name, str(cut.uid), cut.time)) or take_over:
        return ids
    raise scheduler.SchedulerUnavailable(
        f"{cut.user or cut.uid} submitted it, whose jobs may not be visible to you. Ask for an "
        f"`orch run` by {cut.user or cut.uid}, or take the folder over with --take-over"
    )


def _refuse_if_alive(cut: Submission) -> None:
    """Raise OrchError if the process that wrote an intent may still be submitting."""
    age = time.time() - cut.time
    if cut.host == socket.gethostname():
        same = bool(cut.birth) and processes.birth(cut.pid) == cut.birth
        # An intent of this very process comes from an earlier call that an exception ended.
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
    """Mark submissions on which nothing works any more, so that SLURM is not queried for them
    again.
    """
    for sent in submissions.read(folder).values():
        if sent.job is None or sent.drained or sent.kind != "train":
            continue
        elements = submissions.elements(folder, sent.id)
        if all(_is_final(CellDir(folder.cells_path / name), sent.id) for name, _ in elements):
            submissions.note(folder, submissions.DRAINED, sent.id)


def _is_final(cell_dir: CellDir, submission: str) -> bool:
    last = cell_dir.attempts()[-1:]
    if not last or last[0].known_submission() != submission:
        return True
    ended = last[0].known_exit()
    return ended is not None and ended.state not in ("preempted", "timed_out")


def _send(folder: RunFolder, submission: str, name: str, options: SlurmOptions, tell: Tell) -> str:
    """Call sbatch. Append the outcome to the ledger. Return the array's id.

    If the controller does not answer, try again. An sbatch that timed out may have reached the
    controller, and a controller that stood still handles it after it has answered other questions.
    So before another try the job is looked up by its name, for as long as that may take. Raise
    EnvironmentFault if SLURM refuses, or if the fate of the request stays unknown; QueueFull if the
    user's limit on jobs is reached.
    """
    own_folder, started = folder.submission(submission), time.time()
    tries = 0

    def settled() -> str | None:
        ids = scheduler.settle(name, str(os.geteuid()), started)
        return ids[0] if ids else None

    def send() -> str:
        nonlocal tries
        if tries and (job := settled()) is not None:
            return job
        tries += 1
        return scheduler.sbatch(script.argv(own_folder), cwd=own_folder)

    refused: EnvironmentFault | None = None
    try:
        job: str | None = retry_while_away(send, tell)
    except (scheduler.SchedulerRefusal, scheduler.UnclearAnswer) as error:
        refused = error
        # If the first call was refused, there is no job. After an earlier time-out, or an answer
        # without an id, an earlier request may still have made one.
        unsure = tries > 1 or isinstance(error, scheduler.UnclearAnswer)
        job = retry_while_away(settled, tell) if unsure else None
    # A job of this script may have started and claimed the submission first: then its id counts.
    holder = submissions.claim_array(own_folder, job or submissions.NO_ARRAY)
    if holder == submissions.NO_ARRAY:
        submissions.note(folder, submissions.DROPPED, submission, why=str(refused)[:500])
        raise _refusal(refused, options) from refused
    submissions.note(folder, submissions.SENT, submission, job=holder)
    if tries > 1:
        poll.forget()
        end_twins(folder, tell)
    return holder


class QueueFull(EnvironmentFault):
    """Raised if this user may have no more jobs in the queue."""


def _refusal(error: EnvironmentFault | None, options: SlurmOptions) -> EnvironmentFault:
    """Return the refusal of sbatch as a sentence for the person who submits."""
    if isinstance(error, scheduler.UnclearAnswer):
        return EnvironmentFault(
            f"{error}, and SLURM has no job of that name. Nothing was submitted; ask the "
            "administrator what sbatch prints here, and run again"
        )
    answers = cluster.read_cluster()
    names = answers.names() if answers else None
    message = refusal_of(str(error), options.model_dump(mode="json"), names)
    kind = QueueFull if message.field == "site.options.max_submit_jobs" else EnvironmentFault
    return kind(f"the cluster refuses the job: {message.sentence.rstrip('.')}")


def end_twins(folder: RunFolder, tell: Tell = lambda _: None) -> list[str]:
    """Cancel second copies of this folder's submissions. Return, and print, a sentence for each."""
    sentences = []
    for twin in poll.twins(folder):
        try:
            scheduler.cancel([twin.job])
            sentences.append(f"{twin}; it is cancelled, and had started nothing")
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            sentences.append(
                f"{twin}; it could not be cancelled ({error}). It starts nothing: `scancel "
                f"{twin.job}` takes it out of the queue"
            )
    for sentence in sentences:
        tell(sentence)
    return sentences


def end_waiting_evaluations(folder: RunFolder, cancelled: Sequence[str]) -> int:
    """Cancel evaluations in the queue whose cell was cancelled. Return how many.

    cancelled: directories of cells.
    """
    elements = poll.waiting_evaluations(folder, cancelled)
    with suppress(scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal):
        scheduler.cancel(elements)
        return len(elements)
    return 0


def retry_while_away(question: Callable[[], T], tell: Tell) -> T:
    """Return the answer of the scheduler. Repeat the question while it does not answer.

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
        (record for a in reversed(cell_dir.attempts()) if (record := a.known_exit())), None
    )
    return () if ended is None else bad_node(ended)


def bad_node(ended: ExitRecord) -> tuple[str, ...]:
    """Return the node that caused the failure, by an exit record; empty if no node did."""
    return (ended.host,) if ended.failure in _NODE_FAILURES and ended.host else ()


def _stopped(before: CellState) -> str:
    return "stopped" if before.state == "running" else "will not start"


@dataclass(frozen=True)
class SlurmLauncher:
    """A SLURM cluster as a launcher: `submit` returns when the cells are in the queue."""

    folder: RunFolder
    options: SlurmOptions = field(default_factory=SlurmOptions)
    """The options of a submission. Only `submit` needs them."""

    def submit(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Send job arrays. Return the cells that were sent."""
        return submit(cells, self.folder, self.options).cells

    def ask(self, cells: Sequence[Cell]) -> Sequence[CellState]:
        """Return the state of each cell: one squeue and one sacct at most."""
        poll.refresh(self.folder)
        with poll.one_look(self.folder) as answer:
            return [answer.state_of(self.folder.cell(cell)) for cell in cells]

    def cancel(self, cells: Sequence[Cell], why: str) -> Sequence[CancelResult]:
        """Write exit records that cancel the cells, then call scancel."""
        self.folder.open()
        sent = [cell for cell in cells if self.folder.cell(cell).is_submitted()]
        cancelled, fault = cancel_submitted(sent, self.folder, why)
        done = {
            cell.id: CancelResult(True, fault or _stopped(before)) for cell, before in cancelled
        }
        return [
            done.get(cell.id) or cancel_cell(cell, self.folder, why, self._read) for cell in cells
        ]

    @staticmethod
    def _read(cell_dir: CellDir, *, claimed: bool = False) -> CellState:
        return cell_dir.state(claimed=claimed, poll=poll.polled_state)

    def logs(
        self, cell: Cell, stream: Stream = "stdout", *, lines: int = 50, attempt: int | None = None
    ) -> str:
        """Return the last lines of an attempt's stdout or stderr."""
        return logs(self.folder.cell(cell), stream, lines=lines, attempt=attempt)

    def resources(self, cells: Sequence[Cell]) -> Sequence[PlannedJob]:
        """Return the resources that the job arrays request."""
        return script.planned_jobs(cells, self.options)
