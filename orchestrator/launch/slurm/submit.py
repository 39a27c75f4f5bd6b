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
reconciles it: it asks SLURM for a job of that name. If SLURM has one, the ledger gets its id. If
not, the submission is dropped, and its cells, whose attempts never started, are submitted again. If
SLURM does not answer, nothing is submitted.

An sbatch that timed out may still reach a controller that was stalled, even after it has said that
it has no such job. So SLURM may have two jobs of one submission. Only one array runs: a job starts
nothing unless the claim of its submission has its array's id, and an attempt names the one
submission that may start it (lease.open_attempt).
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.data import prepared
from orchestrator.errors import EnvironmentFault, NoLocksError, OrchError
from orchestrator.files import take_lock, telling, write_text
from orchestrator.launch import processes
from orchestrator.launch.check import check_launchable
from orchestrator.launch.cluster_launcher import ClusterLauncher, Order, order_text
from orchestrator.launch.gpu_memory import evaluation_gpus
from orchestrator.launch.slurm import cluster, poll, scheduler, script, submissions
from orchestrator.launch.slurm.scheduler import refusal_of
from orchestrator.launch.slurm.submissions import Submission
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
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


def submit(
    cells: Iterable[Cell],
    folder: RunFolder,
    options: SlurmOptions,
    *,
    evaluate: bool = False,
    tell: Tell = lambda _: None,
) -> Submitted:
    """Submit the cells that need training and that the scheduler does not have.

    evaluate: also submit each cell's evaluation, as a job that waits for its training. Raise
    OrchError, before anything is submitted, for cells that a backend cannot express. Raise
    EnvironmentFault if SLURM refuses, or does not answer for AWAY_SECONDS.
    """
    folder.open()
    sender = Sender(folder, options, tell)
    with submission_lock(folder):
        for sentence in reconcile(folder):
            tell(sentence)
        mark_drained(folder)
        # Read the states under the lock: its last holder may have submitted these cells.
        poll.LOOKS.forget()
        with poll.one_look(folder):
            states = [(c, folder.cell(c).state(poll=poll.polled_state)) for c in cells]
        waiting = [(cell, state) for cell, state in states if state.state in RESUMABLE]
        check_launchable([cell for cell, _ in waiting], folder)
        if not waiting:
            return Submitted()
        sent, jobs = sender.send_all(waiting, evaluate)
        poll.LOOKS.forget()
        ids = {cell.id for cell in sent}
        no_room = tuple(cell for cell, _ in waiting if cell.id not in ids)
        return Submitted(tuple(sent), tuple(jobs), no_room)


def preview(
    cells: Sequence[Cell], folder: RunFolder, options: SlurmOptions, *, evaluate: bool = False
) -> list[str]:
    """Return the batch scripts that `submit` would send for these cells. Write nothing.

    They equal the real scripts, except for values that only a submission has: its id in the job's
    name, and the id of the array for which an evaluation waits.
    """
    sender = Sender(folder, options, lambda _: None)
    try:
        sender.config = scheduler.config()
    except EnvironmentFault:  # there is no cluster here, or it does not answer
        sender.config = {}
    waiting = [(cell, folder.cell(cell).state(poll=poll.polled_state)) for cell in cells]
    jobs = []
    for part, exclude in sender.plan_arrays(waiting):
        slugs = [cell.slug for cell in part]
        jobs.append(sender.training_job(UNSENT, part, exclude))
        if evaluate:
            jobs.append(sender.evaluation_job(UNSENT, slugs, part[:1], UNSENT))
    return [script.text(job) for job in jobs]


UNSENT = "ID"
"""Placeholder for ids that only a submission has."""


def submit_evaluation(
    cells: Sequence[Cell],
    folder: RunFolder,
    options: SlurmOptions,
    tell: Tell,
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
        poll.LOOKS.forget()
        return array


class Sender:
    """A sender of the arrays of one folder. The caller holds the submission lock."""

    def __init__(self, folder: RunFolder, options: SlurmOptions, tell: Tell):
        self.folder, self.options, self.tell = folder, options, tell

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
        for part, exclude in self.plan_arrays(waiting[: self._queue_room(evaluate)]):
            full = None
            while part:
                try:
                    jobs.append(self.train(part, exclude, evaluate))
                    sent += part
                    break
                except QueueFull as refusal:
                    full, part = refusal, part[: len(part) // 2]  # it may have room for fewer
            if full is not None:
                self.tell(
                    f"{full}: {len(sent)} of {len(waiting)} cells are in the queue now. Run "
                    "again when some have ended, or with --wait"
                )
                break
        return sent, jobs

    def plan_arrays(
        self, waiting: Sequence[tuple[Cell, CellState]]
    ) -> Iterator[tuple[Sequence[Cell], tuple[str, ...]]]:
        """Yield groups of at most an array's cells, of the same resources, and nodes to avoid."""
        size = scheduler.max_array_size(self.config)
        size = min(size, self.options.max_array_size or size)
        groups: dict[tuple[script.ArrayResources, tuple[str, ...]], list[Cell]] = {}
        for cell, state in waiting:
            key = script.array_resources(cell), _bad_nodes(self.folder.cell(cell), state)
            groups.setdefault(key, []).append(cell)
        for (_, exclude), cells in groups.items():
            for start in range(0, len(cells), size):
                yield cells[start : start + size], exclude

    def train(self, cells: Sequence[Cell], exclude: tuple[str, ...], evaluate: bool) -> str:
        """Send the training of cells; with `evaluate`, also their evaluation. Return the array's
        id."""
        submission = secrets.token_hex(8)
        job = self.training_job(submission, cells, exclude)
        self._note_intent(submission, "train", job)
        elements = []
        # Find all directories before the first one is made, because making one makes the folder's
        # cached listing invalid.
        cell_dirs = [(cell, self.folder.cell(cell)) for cell in cells]
        for index, (cell, cell_dir) in enumerate(cell_dirs):
            cell_dir.make(cell)
            order = order_text({"submission": submission, "index": index}, cell)
            elements.append([cell_dir.path.name, cell_dir.reserve(order).number])
        array_id = self._send(submission, job, elements)
        if evaluate:
            # All elements need the same resources, so one cell is enough. What a full queue, or a
            # kill, leaves out is submitted once its cell is trained.
            with suppress(QueueFull):
                self.evaluate(elements, cells[:1], array_id, submission)
        return array_id

    def training_job(
        self, submission: str, cells: Sequence[Cell], exclude: tuple[str, ...]
    ) -> script.ArrayJob:
        """Return the content of the batch script of a training array."""
        name = self._job_name(submission, "", [cell.slug for cell in cells])
        resources = script.array_resources(cells[0])
        size = script.job_size(self.options, resources)
        return script.ArrayJob(name, len(cells), resources, size, self.options, exclude)

    def evaluate(
        self,
        elements: Sequence[Sequence[Any]],
        cells: Sequence[Cell],
        after: str | None = None,
        follows: str = "",
        exclude: tuple[str, ...] = (),
    ) -> str:
        """Send evaluations, each one process on one node. Return the array's id.

        after: the array of their training, which is the submission `follows`: each evaluation waits
        for its own element.
        """
        submission = secrets.token_hex(8)
        slugs = [str(name).rpartition("-")[0] for name, _ in elements]
        job = self.evaluation_job(submission, slugs, cells, after, exclude)
        self._note_intent(submission, "evaluate", job, follows=follows)
        return self._send(submission, job, elements)

    def evaluation_job(
        self,
        submission: str,
        slugs: Sequence[str],
        cells: Sequence[Cell],
        after: str | None,
        exclude: tuple[str, ...] = (),
    ) -> script.ArrayJob:
        """Return the content of the batch script of an evaluation array."""
        gpus = evaluation_gpus(cells, self.options)
        options = of_evaluation(self.options, gpus, small=all(c.scale == "micro" for c in cells))
        resources = script.ArrayResources(1, gpus)
        size = script.job_size(options, resources)
        name = self._job_name(submission, "eval.", slugs)
        return script.ArrayJob(
            name, len(slugs), resources, size, options, exclude, after, script.EVALUATE
        )

    def _job_name(self, submission: str, kind: str, slugs: Sequence[str]) -> str:
        """Return a job's name: experiment and cell first, for a person; the submission's id last.

        After a kill or a time-out, the job is looked up by this name.
        """
        cells = slugs[0] if len(slugs) == 1 else f"{len(slugs)}cells"
        return f"{_plain(f'{self.folder.experiment[:60]}.{kind}{cells[:80]}')}.{submission}"

    def _note_intent(
        self, submission: str, kind: str, job: script.ArrayJob, **details: Any
    ) -> None:
        cluster_name = self.config.get("ClusterName", "")
        submissions.note_intent(
            self.folder, submission, kind, job.name, job.elements, cluster=cluster_name, **details
        )

    def _send(
        self, submission: str, job: script.ArrayJob, elements: Sequence[Sequence[Any]]
    ) -> str:
        """Write the manifest and the batch script, and call sbatch. Append the outcome to the
        ledger. Return the array's id.

        If the controller does not answer, try again. An sbatch that timed out may have reached it:
        so before another try the job is looked up by its name. Raise EnvironmentFault if SLURM
        refuses, or if it does not answer; QueueFull if the user's limit on jobs is reached.
        """
        own_folder = self.folder.submission(submission)
        manifest = {
            "elements": elements,
            "gpus": job.resources.gpus_per_node,
            # Relative paths in the options start from the folder of the person who submits.
            "cwd": str(Path.cwd()),
            "data_dir": str(prepared.data_dir()),
            "options": job.options.model_dump(mode="json"),
        }
        submissions.write_manifest(self.folder, submission, manifest)
        write_text(own_folder / "job.sh", script.text(job))
        find = partial(scheduler.queued_ids, job.name)
        tries = 0

        def send() -> str:
            nonlocal tries
            tries += 1
            if tries > 1 and (ids := find()):
                return ids[0]
            return scheduler.sbatch(script.argv(own_folder), cwd=own_folder)

        refused: EnvironmentFault | None = None
        array: str = submissions.NO_ARRAY
        try:
            array = retry_while_away(send, self.tell)
        except scheduler.UnclearAnswer as error:
            refused = error
            array = next(iter(retry_while_away(find, self.tell)), array)
        except scheduler.SchedulerRefusal as error:
            refused = error
        # A job of this script may have started and claimed the submission first: its id counts.
        holder = submissions.claim_array(own_folder, array)
        if holder == submissions.NO_ARRAY:
            why = str(refused)[:500]
            submissions.note(self.folder, submissions.DROPPED, submission, why=why)
            raise _refusal(refused, job.options) from refused
        submissions.note(self.folder, submissions.SENT, submission, job=holder)
        if tries > 1:
            poll.LOOKS.forget()
        return holder

    def _queue_room(self, evaluate: bool) -> int | None:
        """Return how many more cells the queue accepts; None if no limit is known."""
        limit = self.options.max_submit_jobs
        if limit is None:
            return None
        queue = retry_while_away(partial(scheduler.queue, [str(os.geteuid())]), self.tell)
        queued = sum(element.word not in scheduler.OVER for element in queue.values())
        return max(0, limit - queued) // (2 if evaluate else 1)


def _plain(text: str) -> str:
    return "".join(c if (c.isascii() and c.isalnum()) or c in "._-+" else "_" for c in text)


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


def reconcile(folder: RunFolder) -> list[str]:
    """Append an outcome to every intent that has none. Return sentences. The caller holds the lock.

    Raise EnvironmentFault if the scheduler does not answer. Raise OrchError if a process of orch on
    another machine may be submitting.
    """
    sentences = []
    for cut in [s for s in submissions.read(folder).values() if s.open]:
        _refuse_if_alive(cut)
        try:
            ids = scheduler.queued_ids(cut.name)
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            raise EnvironmentFault(
                f"submission {cut.id} was cut short, and the scheduler cannot say whether it has "
                f"the job: {error}. Nothing was submitted; run again when it answers"
            ) from error
        # With NO_ARRAY claimed, no array can run it any more, even if a lost request still arrives.
        # A job that has begun, and left the queue since, claimed it itself.
        own_folder = folder.submission(cut.id)
        job = submissions.claim_array(own_folder, ids[0] if ids else submissions.NO_ARRAY)
        if job == submissions.NO_ARRAY:
            submissions.note(folder, submissions.DROPPED, cut.id, why="cut short before sbatch")
            sentences.append(f"submission {cut.id} was cut short; its {cut.cells} cells go again")
        else:
            submissions.note(folder, submissions.SENT, cut.id, job=job, found=True)
            sentences.append(f"submission {cut.id} was cut short after sbatch; it is job {job}")
    if sentences:
        poll.LOOKS.forget()
    return sentences


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


def _bad_nodes(cell_dir: CellDir, state: CellState) -> tuple[str, ...]:
    """Return the node on which the last attempt failed. The next attempt avoids it."""
    ended = state.exit or next(
        (record for a in reversed(cell_dir.attempts()) if (record := a.known_exit())), None
    )
    return () if ended is None else bad_node(ended)


def bad_node(ended: ExitRecord) -> tuple[str, ...]:
    """Return the node that caused the failure, by an exit record; empty if no node did."""
    return (ended.host,) if ended.failure in _NODE_FAILURES and ended.host else ()


class SlurmLauncher(ClusterLauncher):
    """A SLURM cluster that was sent cells of a folder."""

    looks = poll.LOOKS

    def end_jobs(self, orders: Sequence[Order]) -> str:
        """Call scancel for trainings, and for the evaluations that wait for them."""
        known = submissions.read(self.folder)
        jobs = {sent.id: [sent.job] for sent in known.values() if sent.job}
        for sent in known.values():
            if sent.job and sent.follows in jobs:
                jobs[sent.follows].append(sent.job)
        elements = []
        for order in orders:
            elements += [f"{job}_{order['index']}" for job in jobs.get(order["submission"], ())]
        try:
            scheduler.cancel(elements)
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            return f"the scheduler did not take the cancellation ({error})"
        finally:
            poll.LOOKS.forget()
        return ""
