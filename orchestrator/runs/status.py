"""The contents of `orch status`: states, cost and progress, once or again and again.

The live view is a table on a terminal, and lines elsewhere.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.metrics.zero_gradient import zero_gradient_stretch
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.cost import (
    evaluation_hours,
    total_left,
    used_cpu_seconds,
    used_gpu_hours,
)
from orchestrator.runs.evaluation_jobs import cluster_standing, standing_sentences
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.pilot import known_rates
from orchestrator.runs.plan import Plan, PlanRow
from orchestrator.runs.plan import plan as plan_of
from orchestrator.runs.watch import (
    MOVING,
    CellLine,
    ProgressSnapshot,
    duration,
    latest_metrics,
    progress_line,
    take_snapshot,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_LEFT = ("planned", "submitted", "pending", "running", "unknown", "preempted", "timed_out")
"""States of cells that are still to be trained, wholly or from where they are."""
_LISTED = ("submitted", "running", "failed", "cancelled", "unknown", "preempted", "timed_out")
COLUMNS = ("cell", "state", "step", "reward", "detail")
"""The columns of `cell_rows`."""


# ---------------------------------------------------------------- once


def status_lines(experiment: Experiment, plan: Plan) -> Iterator[str]:
    """Yield the lines that sum up an experiment: states, cost, and its work on the cluster."""
    counts = _states(plan)
    done = counts.pop("succeeded", 0)
    states = [f"{count} {named(state, experiment.where)}" for state, count in counts.items()]
    whole = f"{experiment.folder.experiment}: {done} of {len(plan.rows)} cells done"
    yield ", ".join([whole, *states])
    spent = used_cpu_seconds(plan.rows)
    rows = [row for row in plan.rows if row.cell and row.state in _LEFT]
    remaining = total_left(rows, known_rates(plan.rows, experiment.folder))
    collapsed = sum(map(_is_collapsed, plan.rows))
    yield f"  {collapsed} collapsed; spent {_number(spent)} CPU-seconds; left {remaining}"
    if line := _hours_text(plan, experiment.folder):
        yield f"  {line}"
    for sentence in standing_sentences(cluster_standing(experiment, plan)):
        yield f"  {sentence}"


def counted_faults(plan: Plan) -> list[str]:
    """Return each fault of a plan once, with the number of cells that have it."""
    return [
        sentence if count == 1 else f"{count} cells: {sentence}"
        for sentence, count in Counter(plan.faults).items()
    ]


def stretches_without_gradient(experiment: Experiment, plan: Plan, everything: bool) -> list[str]:
    """Return sentences about listed cells without any gradient. The report has all cells."""
    listed = [row.cell for row in _listed(plan, everything) if row.cell]
    return [
        stretch.sentence(f"{record.cell.slug} ({record.cell.id})")
        for record in collect(listed, experiment.folder)
        if (stretch := zero_gradient_stretch(record.metrics)) is not None
    ]


def cell_rows(experiment: Experiment, plan: Plan, everything: bool) -> list[tuple[str, ...]]:
    """Return a row for each cell that is not simply planned or done, or for every cell."""
    return [_cell_row(row, experiment.where) for row in _listed(plan, everything)]


def _listed(plan: Plan, everything: bool) -> list[PlanRow]:
    return [row for row in plan.rows if everything or row.state in _LISTED]


def _cell_row(row: PlanRow, where: str) -> tuple[str, ...]:
    attempts = row.directory.attempts()
    now = latest_metrics(attempts[-1].path) if attempts else None
    total = row.cell.settings.num_train_steps if row.cell else "?"
    return (
        row.directory.path.name,
        named(row.state, where),
        f"{now.step if now else 0}/{total}",
        _number(now.reward if now else None),
        row.detail.partition("\n")[0],
    )


def named(state: str, where: str) -> str:
    """Return a state in words: on this machine nobody preempts, a person interrupts."""
    return "interrupted" if state == "preempted" and where == "local" else state


def hours_line(experiment: Experiment) -> str:
    """Return GPU-hours used and remaining as text; empty where cells take no GPU."""
    if experiment.scale == "micro":
        return ""
    return _hours_text(plan_of(experiment.cells, experiment.folder), experiment.folder)


def _hours_text(plan: Plan, folder: RunFolder) -> str:
    hours = _gpu_hours(plan, folder)
    return f"GPU-hours: {hours[0]:.3g} used, {hours[1]:.3g} remaining" if hours else ""


def _gpu_hours(plan: Plan, folder: RunFolder) -> tuple[float, float] | None:
    """Return GPU-hours used, also by evaluations, and remaining; None without GPUs."""
    if not any(
        r.cell and r.cell.scale == "full" and r.cell.resources.gpus_per_node for r in plan.rows
    ):
        return None
    unfinished = [row for row in plan.rows if row.state not in ("succeeded", "cancelled")]
    rates = known_rates(plan.rows, folder)
    spent = used_gpu_hours(plan.rows) + evaluation_hours(folder)
    return spent, total_left(unfinished, rates).gpu_hours


def _states(plan: Plan) -> dict[str, int]:
    states = [row.state for row in plan.rows]
    return {state: states.count(state) for state in dict.fromkeys(states)}


def _is_collapsed(row: PlanRow) -> bool:
    return bool(row.exit and row.exit.outcome and row.exit.outcome.kind == "collapsed")


def status_data(experiment: Experiment, plan: Plan, everything: bool) -> dict[str, object]:
    """Return the status of an experiment as plain data, with every cell."""
    hours = _gpu_hours(plan, experiment.folder)
    return {
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "directory": str(experiment.folder.path),
        "states": _states(plan),
        "collapsed": sum(map(_is_collapsed, plan.rows)),
        "cluster": cluster_standing(experiment, plan),
        "without_gradient": stretches_without_gradient(experiment, plan, everything),
        "gpu_hours": dict(zip(("used", "remaining"), hours, strict=True)) if hours else None,
        "cells": [
            {
                "id": row.directory.id,
                "slug": row.directory.slug,
                "state": row.state,
                "attempts": row.attempts,
                "detail": row.detail,
                "exit": json.loads(row.exit.model_dump_json()) if row.exit else None,
            }
            for row in plan.rows
        ],
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


# ---------------------------------------------------------------- again and again


SECONDS = 2.0
QUIET_SECONDS = 30.0
"""Without a terminal: seconds between two lines if nothing has changed."""

_SHARE = 0.2
"""At most this share of the time is spent looking."""


def keep_showing(experiments: Sequence[Experiment], where: Sequence[str]) -> None:
    """Show the experiments again and again until all their cells have ended, or Ctrl-C."""
    experiments = [experiment.chosen(where) for experiment in experiments]
    summaries = [_Summary(experiment) for experiment in experiments]
    ticks = _ticks(experiments)
    with suppress(KeyboardInterrupt):
        if sys.stdout.isatty():
            _on_terminal(summaries, ticks)
        else:
            _as_lines(summaries, ticks)


def _ticks(experiments: Sequence[Experiment]) -> Iterator[list[ProgressSnapshot]]:
    """Yield a snapshot of each experiment; the last when all have ended."""
    while True:
        began = time.monotonic()
        snapshots = [take_snapshot(e.cells, e.folder) for e in experiments]
        yield snapshots
        if all(one.over for one in snapshots):
            return
        time.sleep(max(SECONDS, (time.monotonic() - began) / _SHARE))


class _Summary:
    """The line below an experiment's table."""

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        self._began: tuple[float, int] | None = None
        """When the watch began, and the train steps that were done then."""
        self._said, self._asked = "", float("-inf")

    def of(self, snapshot: ProgressSnapshot) -> str:
        now = time.monotonic()
        seconds = self.seconds_left(snapshot, now)
        if now - self._asked > QUIET_SECONDS:
            self._asked, self._said = now, hours_line(self._experiment)
        parts = [f"{self._experiment.folder.experiment}: {progress_line(snapshot)}", self._said]
        parts.append(f"about {duration(seconds)} left" if seconds is not None else "")
        return "; ".join(part for part in parts if part)

    def seconds_left(self, snapshot: ProgressSnapshot, now: float) -> float | None:
        """Return the seconds left at the speed since the watch began; None before one is known."""
        if self._began is None:
            self._began = (now, snapshot.steps)
        spent, gained = now - self._began[0], snapshot.steps - self._began[1]
        is_known = gained > 0 and spent > 2 and snapshot.live
        return spent * snapshot.steps_left / gained if is_known else None


def _as_lines(summaries: Sequence[_Summary], ticks: Iterable[list[ProgressSnapshot]]) -> None:
    """Print what became of each cell and, now and then, how far all are."""
    states: dict[str, str] = {}
    printed, at = [""] * len(summaries), [float("-inf")] * len(summaries)
    for snapshots in ticks:
        for i, one in enumerate(snapshots):
            for line in one.lines:
                if states.get(line.cell.id, line.state) != line.state:
                    detail = line.detail or (line.outcome if line.state == "succeeded" else "")
                    _write(f"{line.cell.slug}: {line.state}{detail and f' ({detail})'}")
                states[line.cell.id] = line.state
            summary = summaries[i].of(one)
            late = time.monotonic() - at[i] >= QUIET_SECONDS
            if summary != printed[i] and (late or one.over):
                _write(summary)
                printed[i], at[i] = summary, time.monotonic()
        sys.stdout.flush()


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _on_terminal(summaries: Sequence[_Summary], ticks: Iterable[list[ProgressSnapshot]]) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    shown: Group | None = None
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for snapshots in ticks:
                room = max(3, (console.height - 2) // max(1, len(snapshots)) - 3)
                parts = (
                    _drawn(one, summary.of(one), room)
                    for one, summary in zip(snapshots, summaries, strict=True)
                )
                shown = Group(*parts)
                live.update(shown, refresh=True)
    finally:
        if shown is not None:
            console.print(shown)


def _drawn(snapshot: ProgressSnapshot, summary: str, room: int) -> "RenderableType":
    """Return the cells that are neither planned nor done, as many as fit, and the summary."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    listed = [line for line in snapshot.lines if line.state in _LISTED]
    listed.sort(key=lambda line: line.state not in MOVING)
    table = Table.grid(padding=(0, 2))
    for line in listed[:room]:
        reward = "" if line.reward is None else f"reward {_number(line.reward)}"
        steps = f"step {line.step}/{line.total}"
        table.add_row(Text(line.cell.slug), Text(line.state, _style(line)), steps, reward)
    more = len(listed) - room
    return Group(table, *([Text(f"... and {more} more")] if more > 0 else []), Text(summary))


def _style(line: CellLine) -> str:
    return "bold red" if line.state in ("failed", "unknown") else ""
