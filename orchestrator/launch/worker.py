"""Train one cell in an attempt of its own, in a process on this machine or in a job."""

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.errors import LogFault, OrchError, RunFolderError
from orchestrator.files import link_folder, write_text
from orchestrator.launch import processes, provenance
from orchestrator.launch.endings import (
    Ending,
    Stopped,
    disk_full_error,
    ending_of,
    not_finite_message,
    shortened,
)
from orchestrator.launch.spent_states import removed_while_training
from orchestrator.library import neighbour
from orchestrator.metrics import outcome
from orchestrator.metrics.points import checked, merge
from orchestrator.records import (
    AttemptPaths,
    Cell,
    ExitRecord,
    LaunchPlan,
    MetricPoint,
    Outcome,
    State,
)
from orchestrator.rundir import COMPUTED_BY, AttemptDir, CellDir
from orchestrator.version import __version__

STOP_SIGNALS: Mapping[int, State] = {signal.SIGTERM: "preempted", signal.SIGINT: "cancelled"}
"""SIGTERM requests that a worker writes what it has and stops, SIGINT that it gives up."""


class StopSignals:
    """The requests to stop since this object was made. `state` is the state that they ask for.

    A request interrupts only the training, never the bookkeeping around it: the writing of an exit
    record always finishes.
    """

    def __init__(self, signals: Mapping[int, State] = STOP_SIGNALS) -> None:
        self.state: State | None = None
        self._signals = signals
        self._armed = False
        for number in signals:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.state = self.state or self._signals[number]
        if self._armed:
            # Once only: a second signal must not interrupt the writing of the exit record.
            self._armed = False
            raise Stopped(self.state)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise Stopped inside the context at a request, also for an earlier request."""
        self._armed = True
        try:
            if self.state is not None:
                raise Stopped(self.state)
            yield
        finally:
            self._armed = False


def train(
    cell: Cell,
    cell_dir: CellDir,
    attempt: AttemptDir,
    job: Mapping[str, object],
    stop: StopSignals,
    announce: Callable[[], None],
    execute: Callable[[LaunchPlan], Ending],
) -> ExitRecord:
    """Train a cell in an attempt that belongs to this process. Return how it ended.

    job: further entries of job.json. announce: called when job.json is written. execute: runs a
    plan that is a program. Raise RunFolderError if the disk is full.
    """
    # a job may have trained another cell before: its CPU time is not this one's
    started, before = time.time(), cpu_seconds()
    try:
        with stop.interrupting():
            given, paths = cell_dir.with_system(cell), cell_dir.paths(attempt)
            plan = neighbour.translated(plugins.load(cell.settings.backend.name), given, paths)
            cell_dir.write(given, plan)
            prepared.link(paths.plan_dir)
            link_policy(cell.settings.model.path, plan, paths.plan_dir)
            _write_job(attempt, job, plan, started)
            announce()
            if plan.entry is None:
                with removed_while_training(cell, cell_dir.checkpoints):
                    ending = execute(plan)
                ending = _with_advice(_with_outcome(ending, cell, cell_dir), given)
            else:
                ending = Ending("succeeded", 0, outcome=_call_entry(plan.entry, cell, paths))
    except RunFolderError:
        raise
    except (Exception, Stopped) as error:
        # A full disk writes no exit record: the cell stays resumable, and goes on when there is
        # room.
        if full := disk_full_error(error, attempt.path):
            raise full from error
        if not isinstance(error, Stopped | OrchError):
            traceback.print_exc()
        ending = ending_of(error)
        if ending.state == "cancelled" and attempt.cancel_reason.exists():
            ending = ending._replace(message=attempt.cancel_reason.read_text())
    ended = time.time()
    gpus = cell.resources.reserved_gpus if cell.scale == "full" else 0
    return ending.record(started, ended).model_copy(
        update={
            "cpu_seconds": round(cpu_seconds() - before, 3),
            "gpu_hours": gpus * (ended - started) / 3600,
        }
    )


def redirect(stdout: Path, stderr: Path | None = None) -> None:
    """Send all further output to files; without stderr, both to one."""
    for stream, number, path in ((sys.stdout, 1, stdout), (sys.stderr, 2, stderr or stdout)):
        stream.flush()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # The descriptor itself is replaced, so that libraries in C and child processes write there
        # too.
        os.dup2(descriptor, number)
        os.close(descriptor)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # files


def one_thread() -> None:
    """Compute with one thread, because orch runs workers in parallel."""
    # Not imported here: torch is loaded only in processes whose backend computes with it.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _with_outcome(ending: Ending, cell: Cell, cell_dir: CellDir) -> Ending:
    """Return the ending of a program with the outcome that its curves show.

    A crash because the numbers were no longer finite is an outcome: the attempt has succeeded.
    """
    attempts = cell_dir.attempts()
    if ending.state == "succeeded":
        return ending._replace(outcome=outcome.judge(_curves(cell, attempts), cell.settings))
    if ending.failure != "error":
        return ending
    curves = _curves(cell, attempts)
    broken = outcome.not_finite(curves)
    if broken is None and (message := not_finite_message(attempts[-1])):
        broken = curves[-1].step + 1 if curves else 1, f"the policy ({message})"
    if broken is None:
        return ending
    return ending._replace(state="succeeded", failure="", outcome=outcome.diverged(*broken))


def _curves(cell: Cell, attempts: Iterable[AttemptDir]) -> tuple[MetricPoint, ...]:
    """Return what can be read of the metrics of a cell. `collect` tells what cannot."""
    backend = plugins.load(cell.settings.backend.name)
    logged: list[list[MetricPoint]] = []
    for attempt in attempts:
        logged.append([])
        with suppress(LogFault, OSError, ValueError, KeyError, TypeError):
            for read in backend.read_metrics(attempt.path):
                point, _ = checked(read)
                if point is not None:
                    logged[-1].append(point)
    return merge(logged)


def _with_advice(ending: Ending, cell: Cell) -> Ending:
    """Return an ending whose message says, after a lack of memory, what lowers the need of it."""
    manifest = plugins.load(cell.settings.backend.name).manifest
    if ending.failure != "out_of_memory" or manifest is None:
        return ending
    settings = manifest.lower_memory(cell.settings, cell.system)
    if not settings:
        return ending
    advice = (
        f"Lower the memory with {' or '.join(settings)}: `orch retry SPEC -w id={cell.id} "
        f"{settings[0]}`, then `orch run SPEC`. The cell keeps its id and its checkpoints."
    )
    return ending._replace(message=shortened(f"{ending.message}\n{advice}"))


def link_policy(path: str, plan: LaunchPlan, plan_dir: Path) -> None:
    """Link `model` in a plan's folder to the policy that ships with a backend, if it trains one.

    A library loads a shipped policy, such as `micro:elder`, under that name.
    """
    policy = None if plan.entry is not None else plugins.shipped_policy(path)
    if policy is not None:
        link_folder(plan_dir / "model", policy)


def _call_entry(entry: str, cell: Cell, paths: AttemptPaths) -> Outcome:
    module, _, function = entry.partition(":")
    result = getattr(import_module(module), function)(cell, paths)
    if not isinstance(result, Outcome):
        raise TypeError(f"{entry} gave {type(result).__name__}, not an Outcome")
    return result


def _write_job(
    attempt: AttemptDir, job: Mapping[str, object], plan: LaunchPlan, started: float
) -> None:
    trainer = plugins.load_embedded(plan.backend)
    by = trainer.computed_by() if trainer else ""
    record = {
        "pid": os.getpid(),
        "started": started,
        "argv": list(plan.argv),
        "host": processes.node_name(),
        "birth": processes.birth(os.getpid()),
        "orch": __version__,
        "commit": provenance.commit(),
        "library": f"{plan.backend} {plan.version}".strip(),
        "versions": {},
        **job,
    }
    if plan.entry is not None:
        record["versions"] = provenance.versions() | ({COMPUTED_BY: by} if by else {})
    write_text(attempt.job, json.dumps(record) + "\n")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the processes that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
