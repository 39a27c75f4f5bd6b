"""Read run directories into Records. One broken file costs only that file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from orchestrator import plugins
from orchestrator.errors import LogFault, RunFolderError
from orchestrator.files import read_lines, telling
from orchestrator.library.protocol import Backend
from orchestrator.metrics import outcome
from orchestrator.metrics.points import checked, merge
from orchestrator.records import (
    Cell,
    Checkpoint,
    ExitRecord,
    MetricPoint,
    Outcome,
    Record,
    State,
)
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.runs.state import one_look, read_state

Read = TypeVar("Read")


def collect(cells: Iterable[Cell], folder: RunFolder) -> list[Record]:
    """Return one Record per cell, in order. A cell that was never launched is `planned`.

    Leave out files that cannot be read, and name them in `Record.faults`. Raise RunFolderError only
    for a folder that is not orch's or has a newer format.
    """
    folder.check()
    planned = _planning_times(folder)
    with one_look(folder):
        return [
            replace(
                _record(cell, folder.cell(cell)),
                planned=planned.get((cell.declared or cell.settings).seed),
            )
            for cell in cells
        ]


def _planning_times(folder: RunFolder) -> dict[int, float]:
    """Return seed -> Unix time of the first `orch run` that had it."""
    return {
        seed: event["time"]
        for event in reversed(folder.events())
        if event.get("event") == "planned"
        for seed in event["seeds"]
    }


def _record(cell: Cell, cell_dir: CellDir) -> Record:
    state = read_state(cell_dir)
    faults = [state.fault] if state.fault else []
    attempts = _or_fault(cell_dir.attempts, faults)
    if not attempts:
        return Record(cell, state.state, directory=cell_dir.path, faults=tuple(faults))
    backend = plugins.load(cell.settings.backend.name)
    exits = tuple(_or_fault(attempt.read_exit, faults) for attempt in attempts)
    metrics = _parsed(cell, backend, attempts, exits, state.state, faults)
    judged = _outcome(cell, state.state, exits, metrics)
    checkpoints = _checkpoints(backend, cell_dir, state.state, faults)
    if judged is not None and judged.cause == "nan" and judged.step is not None:
        # What was saved later is not the policy that training came to.
        checkpoints = tuple(each for each in checkpoints if each.step < judged.step)
    return Record(
        cell,
        state.state,
        attempts=exits,
        outcome=judged,
        metrics=metrics,
        checkpoints=checkpoints,
        directory=cell_dir.path,
        faults=tuple(dict.fromkeys(faults)),
    )


def _parsed(
    cell: Cell,
    backend: Backend,
    attempts: Sequence[AttemptDir],
    exits: Sequence[ExitRecord | None],
    state: State,
    faults: list[str],
) -> tuple[MetricPoint, ...]:
    """Return the metrics of a cell from the logs of its attempts. Add sentences to `faults`."""
    logged: list[list[MetricPoint]] = []
    for attempt, ended in zip(attempts, exits, strict=True):
        steps = (point.step for points in logged for point in points)
        nothing_left = any(step >= cell.settings.num_train_steps for step in steps)
        logged.append(_points(backend, attempt, state, ended, nothing_left, faults))
    return merge(logged)


def _or_fault(read: Callable[[], Read], faults: list[str]) -> Read | None:
    """Return what is read; None, and a sentence in `faults`, for what cannot be read."""
    try:
        return read()
    except RunFolderError as error:
        faults.append(str(error))
        return None


def _outcome(
    cell: Cell, state: State, exits: Sequence[ExitRecord | None], metrics: Sequence[MetricPoint]
) -> Outcome | None:
    """Return what training did, judged anew; None for a cell that has not ended well.

    The exit record alone knows of numbers that stopped to be finite before the log had them.
    """
    if state != "succeeded":
        return None
    noted = exits[-1].outcome if exits and exits[-1] else None
    return noted if noted and noted.cause == "nan" else outcome.judge(metrics, cell.settings)


def _points(
    backend: Backend,
    attempt: AttemptDir,
    state: State,
    ended: ExitRecord | None,
    nothing_left: bool,
    faults: list[str],
) -> list[MetricPoint]:
    """Return the points of an attempt's log. Add what is wrong with the log to `faults`.

    nothing_left: an earlier attempt logged the last train step and was killed before it wrote its
    exit record. Then this attempt may succeed without any step.
    """
    points: list[MetricPoint] = []
    num_read, foreign = 0, list[str]()
    try:
        for read in backend.read_metrics(attempt.path):
            num_read += 1
            point, sentence = checked(read)
            if point is not None:
                points.append(point)
            if sentence:
                foreign.append(sentence)
    except LogFault as fault:
        faults.append(str(fault))
    except (OSError, ValueError, KeyError, TypeError) as error:
        faults.append(
            f"the log of {attempt.path} is not what backend '{backend.name}' writes "
            f"({type(error).__name__}: {error}); the {len(points)} points before that are kept"
        )
    else:
        if state != "running":  # its last line may just be being written
            faults.extend(_lost_lines(attempt.metrics, num_read))
        has_succeeded = ended is not None and ended.state == "succeeded"
        if not points and has_succeeded and not nothing_left:
            faults.append(
                f"{attempt.path} ended well, and there is no metric in it where backend "
                f"'{backend.name}' looks for its log"
            )
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        faults.append(
            f"the log of {attempt.path}: {foreign[0]}{more}; they are left out, the rest is kept"
        )
    return points


def _lost_lines(path: Path, num_points: int) -> list[str]:
    """Return sentences about lines that gave no point. Parse only a file that has such lines.

    num_points: the number of points that the backend read from the file.
    """
    faults: list[str] = []
    try:
        with telling(path):
            num_lines = sum(1 for line in path.read_bytes().split(b"\n") if line.strip())
        if num_lines > num_points:
            num_objects = sum(1 for _ in read_lines(path, faults))
            if num_objects > num_points:
                faults.append(
                    f"{path}: {num_lines} lines gave {num_points} points; the others are left out"
                )
    except FileNotFoundError:
        pass
    except RunFolderError as error:
        faults.append(str(error))
    return faults


def _checkpoints(
    backend: Backend, cell_dir: CellDir, state: State, faults: list[str]
) -> tuple[Checkpoint, ...]:
    complete = backend.find_checkpoints(cell_dir.checkpoints)
    if state != "running":  # one may just be being written
        # A complete checkpoint may lie deeper in the folder that the library began.
        parts = {part for point in complete for part in (point.path, *point.path.parents)}
        faults.extend(
            f"{path} is not a whole checkpoint (cut off?); it is left out, and the others are kept"
            for path in backend.begun_checkpoints(cell_dir.checkpoints)
            if path not in parts
        )
    return tuple(complete)
