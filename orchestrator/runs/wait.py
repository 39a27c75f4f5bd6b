"""Submit cells to a cluster, retry those that may be retried, and wait until all have ended."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from orchestrator.files import clock_of
from orchestrator.launch import LaunchEvent, processes
from orchestrator.launch.cluster_launcher import ClusterLauncher
from orchestrator.launch.gpu_memory import evaluation_gpus
from orchestrator.launch.local import Launched
from orchestrator.launch.ray import submit as ray
from orchestrator.launch.slurm import submit as slurm
from orchestrator.launch.slurm.script import ArrayResources, array_resources
from orchestrator.launch.slurm.submit import Submitted, bad_node
from orchestrator.records import Cell, ExitRecord, State
from orchestrator.rundir import ON_CLUSTER, RESUMABLE, CellState, RunFolder
from orchestrator.runs import evaluation_jobs
from orchestrator.runs.evaluation_jobs import EvaluationState, may_repeat
from orchestrator.runs.state import may_retry, read_states
from orchestrator.spec.sentences import counted
from orchestrator.spec.site_options import RayOptions, SlurmOptions

POLL_SECONDS = 2.0
FULL_SECONDS = 60.0
"""Seconds for which a full queue is not queried again, unless one of these cells ends."""
CLOCKS_DIFFER_SECONDS = 60.0
"""Seconds between two clocks beyond which it is said."""
_BUSY: frozenset[str] = ON_CLUSTER | {"unknown"}


class SubmitRequest(NamedTuple):
    """The cells to submit, and how."""

    cells: Sequence[Cell]
    folder: RunFolder
    options: SlurmOptions | RayOptions
    evaluate: bool
    tell: Callable[[str], None]
    on_event: Callable[[LaunchEvent], None] = lambda _event: None


def start(request: SubmitRequest) -> Submitted:
    """Submit the cells to train. Include failed cells if their class of failure allows a retry."""
    folder, options = request.folder, request.options
    folder.open()
    ahead = time.time() - clock_of(folder.path)
    if abs(ahead) > CLOCKS_DIFFER_SECONDS:
        request.tell(
            f"the clock of this machine is {abs(ahead) / 60:.0f} min "
            f"{'ahead of' if ahead > 0 else 'behind'} that of the file system of {folder.path}: "
            "the times that orch prints are off by that; no job is ended for it"
        )
    busy, wanted = [], list[Cell]()
    for cell, state in read_states(request.cells, folder):
        cell_dir = folder.cell(cell)
        if state.state in RESUMABLE or state.state == "failed":
            if may_retry(cell_dir, state, options):
                if state.state == "failed":
                    _begin_again(folder, cell, state)
                wanted.append(cell)
            elif state.state in RESUMABLE:
                request.tell(f"{cell.slug}: {state.state} too often; see `orch logs`, then retry")
        elif state.state in _BUSY:
            busy.append(cell)  # an intent that was cut short is among these
    cells, tell = [*busy, *wanted], request.tell
    if isinstance(options, RayOptions):
        sent = ray.submit(cells, folder, options, tell=tell)
    else:
        sent = slurm.submit(cells, folder, options, evaluate=request.evaluate, tell=tell)
    _evaluate_again(request, {c.id for c in sent.cells})
    return sent


def _begin_again(folder: RunFolder, cell: Cell, state: CellState) -> None:
    """Make a new attempt of a cell that failed."""
    last = folder.cell(cell).attempts()[-1]
    if state.exit is not None and last.read_exit() is None:
        last.write_exit(state.exit)  # only the scheduler knew, and it must count as a try
    folder.cell(cell).new_attempt()
    folder.append("retry", cell.id, why=state.exit.failure if state.exit else "")


def _evaluate_again(request: SubmitRequest, sent: Collection[str]) -> None:
    """Submit evaluations that failed and may be retried, and those that were never submitted."""
    if not request.evaluate:
        return
    looks = read_states((c for c in request.cells if c.id not in sent), request.folder)
    states, known = evaluation_states(request.folder, looks)
    evaluation_jobs.record_ends(request.folder, states, known)
    again: dict[tuple[ArrayResources, tuple[str, ...]], list[Cell]] = {}
    failed: dict[str, ExitRecord] = {}
    for cell, last in _to_evaluate(request, looks, known):
        exclude: tuple[str, ...] = ()
        if last is not None and last.exit is not None:
            failed[cell.id], exclude = last.exit, bad_node(last.exit)
        # An array has one shape of job and one list of excluded nodes.
        again.setdefault((array_resources(cell), exclude), []).append(cell)
    for (_, exclude), cells in again.items():
        if isinstance(request.options, RayOptions):
            jobs = ray.submit_evaluation(cells, request.folder, request.options, request.tell)
            cells = [cell for cell in cells if cell.id in jobs]  # the others had no room
            as_ = f"as Ray jobs {jobs}"
        else:
            jobs = slurm.submit_evaluation(
                cells, request.folder, request.options, request.tell, exclude=exclude
            )
            as_ = f"as job array {jobs}"
            if gpus := evaluation_gpus(cells, request.options):
                as_ += f", on {counted(gpus, 'GPU')}"
            as_ += f", without node {exclude[0]}" if exclude else ""
        for cell in cells:
            if cell.id in failed:
                why = _reason(failed[cell.id])
                request.tell(f"{cell.slug}: its evaluation failed ({why}); it is tried again")
        if cells:
            trained = counted(len(cells), "trained cell")
            request.tell(f"submitted the evaluation of {trained} {as_}")


def _to_evaluate(
    request: SubmitRequest,
    looks: Sequence[tuple[Cell, CellState]],
    known: Mapping[str, EvaluationState],
) -> list[tuple[Cell, EvaluationState | None]]:
    """Return the trained cells whose evaluation may be submitted, each with its last one.

    SLURM's are submitted with the cells, as far as the queue had room; a Ray has no queue for them.
    Small cells are scored by `orch run`.
    """
    trained = [cell for cell, state in looks if state.state == "succeeded" and request.evaluate]
    last = [(cell, known.get(request.folder.cell(cell).path.name)) for cell in trained]
    return [
        (cell, one)
        for cell, one in last
        if (may_repeat(one, request.options) if one else cell.scale == "full")
    ]


def evaluation_states(
    folder: RunFolder, looks: Sequence[tuple[Cell, CellState]]
) -> tuple[dict[str, State], dict[str, EvaluationState]]:
    """Return the states of these cells by directory, and the states of their evaluation jobs."""
    states = {folder.cell(cell).path.name: state.state for cell, state in looks}
    return states, evaluation_jobs.last_evaluations(folder, states)


def wait(request: SubmitRequest) -> Launched:
    """Wait until the scheduler has no cell and no cell may be retried.

    Ctrl-C ends only the waiting: jobs continue.
    """
    seen_before: dict[str, str] = {}
    launcher: ClusterLauncher = slurm.SlurmLauncher(request.folder)
    if isinstance(request.options, RayOptions):
        launcher = ray.RayLauncher(request.folder)
    full_until = 0.0
    with processes.Stop().listening() as stop:
        while True:
            looks = read_states(request.cells, request.folder)
            for cell, state in looks:
                if seen_before.get(cell.id) != state.state:
                    full_until = 0.0  # what has ended may have made room
                    _tell_change(request, cell, state)
                    seen_before[cell.id] = state.state
            if stop.asked:
                return Launched(tuple(looks), interrupted=True)
            frozen = [(c, state) for c, state in looks if state.state == "running" and state.fault]
            if frozen:
                for sentence in launcher.end_frozen(frozen):
                    request.tell(sentence)
                # Their states are others now: look again before anything is submitted.
                continue
            states, scores = evaluation_states(request.folder, looks)
            evaluation_jobs.record_ends(request.folder, states, scores)
            again = any(_goes_again(request, cell, state) for cell, state in looks)
            if again or _to_evaluate(request, looks, scores):
                if time.monotonic() > full_until:
                    sent = start(request)
                    full_until = time.monotonic() + FULL_SECONDS if sent.no_room else 0.0
            elif not num_waiting(scores) and not any(
                state.state in _BUSY and not state.cut for _, state in looks
            ):
                return Launched(tuple(looks))
            _pause(request, stop)


def num_waiting(scores: Mapping[str, EvaluationState]) -> int:
    """Return the number of evaluations that the scheduler has or whose state is unknown."""
    return sum(each.state in ("pending", "unknown") for each in scores.values())


def _goes_again(request: SubmitRequest, cell: Cell, state: CellState) -> bool:
    stopped = state.state in RESUMABLE or state.state == "failed"
    return stopped and may_retry(request.folder.cell(cell), state, request.options)


def _tell_change(request: SubmitRequest, cell: Cell, state: CellState) -> None:
    if state.state == "running":
        request.on_event(LaunchEvent("started", cell))
    elif state.state == "failed" and _goes_again(request, cell, state):
        why = _reason(state.exit) if state.exit else ""
        request.tell(f"{cell.slug}: failed ({why}); it is tried again")
    elif state.cut:
        request.tell(f"{cell.slug}: {state.fault}; `orch retry` lets it run again without it")
    elif state.state not in _BUSY | RESUMABLE:
        request.on_event(LaunchEvent("ended", cell, state.exit))


def _reason(ended: ExitRecord) -> str:
    return f"{ended.failure}: {ended.message}".partition("\n")[0]


def _pause(request: SubmitRequest, stop: processes.Stop) -> None:
    deadline = time.monotonic() + POLL_SECONDS
    while time.monotonic() < deadline and not stop.asked:
        time.sleep(0.25)
        request.on_event(LaunchEvent("tick"))
