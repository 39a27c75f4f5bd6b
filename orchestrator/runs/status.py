"""The contents of `orch status`: states, cost and progress, once or again and again.

The live view is a table on a terminal, and lines elsewhere.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.metrics.zero_gradient import zero_gradient_stretch
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.cost import (
    evaluation_spending,
    measure,
    remaining_bill,
    remaining_gpu_hours,
    used_cpu_seconds,
    used_gpu_hours,
)
from orchestrator.runs.evaluation_jobs import cluster_standing, standing_sentences
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.pilot import pilot_costs
from orchestrator.runs.plan import Plan, PlanRow
from orchestrator.runs.plan import plan as plan_of
from orchestrator.runs.watch import (
    MOVING,
    CellLine,
    CurveTails,
    ProgressSnapshot,
    Speed,
    duration,
    latest_metrics,
    progress_line,
    take_snapshot,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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
    remaining = remaining_bill(rows, measure(plan.rows, pilot_costs(experiment.folder)))
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
    measured = measure(plan.rows, pilot_costs(folder))
    remaining = [
        remaining_gpu_hours(r.cell, r.directory, measured)
        for r in plan.rows
        if r.cell and r.state not in ("succeeded", "cancelled")
    ]
    spent = used_gpu_hours(plan.rows) + evaluation_spending(folder).used
    return spent, sum(hours for hours in remaining if hours == hours)


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
_SPARK = 24
_ORDER = (
    "running",
    "pending",
    "submitted",
    "unknown",
    "failed",
    "timed_out",
    "preempted",
    "cancelled",
    "planned",
    "succeeded",
)


class Group(NamedTuple):
    """One row of the table: a cell, or the seeds of one configuration."""

    name: str
    lines: tuple[CellLine, ...]

    @property
    def state(self) -> str:
        """Return the state to print: the cell's, or the most urgent one and how many seeds are in
        it.
        """
        states = [line.state for line in self.lines]
        if len(states) == 1:
            return states[0]
        first = min(states, key=_ORDER.index)
        return f"{states.count(first)}/{len(states)} {first}"

    @property
    def rank(self) -> int:
        """Return the group's place in the table: 0 is shown first."""
        return min(_ORDER.index(line.state) for line in self.lines)

    @property
    def values(self) -> list[float]:
        """Return the mean curve over seeds, as far as all that have begun go."""
        curves = [line.values for line in self.lines if line.values]
        return [math.fsum(column) / len(column) for column in zip(*curves, strict=False)]


def keep_showing(
    experiments: Sequence[Experiment],
    where: Sequence[str],
    extra_line: Callable[[Experiment], str] = lambda _: "",
    seconds: float = SECONDS,
) -> None:
    """Show the experiments again and again until all their cells have ended, or Ctrl-C.

    extra_line: what else to print below the table of an experiment; called now and then.
    """
    experiments = [experiment.chosen(where) for experiment in experiments]
    summaries = [_Summary(experiment, extra_line) for experiment in experiments]
    ticks = _ticks(experiments, CurveTails(), seconds)
    with suppress(KeyboardInterrupt):
        if sys.stdout.isatty():
            _on_terminal(summaries, ticks)
        else:
            _as_lines(summaries, ticks)


def _ticks(
    experiments: Sequence[Experiment], tails: CurveTails, seconds: float
) -> Iterator[list[ProgressSnapshot]]:
    """Yield a snapshot of each experiment; the last when all have ended."""
    while True:
        began = time.monotonic()
        snapshots = [take_snapshot(e.cells, e.folder, tails) for e in experiments]
        yield snapshots
        if all(one.over for one in snapshots):
            return
        time.sleep(max(seconds, (time.monotonic() - began) / _SHARE))


class _Summary:
    """The line below an experiment's table."""

    def __init__(self, experiment: Experiment, extra_line: Callable[[Experiment], str]):
        self._experiment, self._extra_line = experiment, extra_line
        self._speed, self._said, self._asked = Speed(), "", float("-inf")

    def of(self, snapshot: ProgressSnapshot) -> str:
        now = time.monotonic()
        seconds = self._speed.seconds_left(snapshot, now)
        if now - self._asked > QUIET_SECONDS:
            self._asked, self._said = now, self._extra_line(self._experiment)
        parts = [f"{self._experiment.folder.experiment}: {progress_line(snapshot)}", self._said]
        parts.append(f"about {duration(seconds)} left" if seconds is not None else "")
        return "; ".join(part for part in parts if part)


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
    from rich.console import Console
    from rich.console import Group as Stack
    from rich.live import Live

    console = Console()
    shown: Stack | None = None
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for snapshots in ticks:
                room = max(3, (console.height - 2) // max(1, len(snapshots)) - 5)
                shown = Stack(
                    *(
                        _drawn(one, summary.of(one), room, console)
                        for one, summary in zip(snapshots, summaries, strict=True)
                    )
                )
                live.update(shown, refresh=True)
    finally:
        if shown is not None:
            console.print(shown)


def _drawn(
    snapshot: ProgressSnapshot, summary: str, room: int, console: "Console"
) -> "RenderableType":
    """Return the table of one experiment."""
    from rich import box
    from rich.console import Group as Stack
    from rich.table import Table
    from rich.text import Text

    groups, hidden = fitted(snapshot, room)
    values = [value for group in groups for value in group.values if math.isfinite(value)]
    metrics = dict.fromkeys(line.metric for line in snapshot.lines if line.metric)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column(
        "cell" if all(len(g.lines) == 1 for g in groups) else "configuration",
        no_wrap=True,
        overflow="ellipsis",
        max_width=max(16, console.width - _SPARK - 45),
    )
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column(" or ".join(metrics) or "metric", no_wrap=True, min_width=_SPARK)
    table.add_column("now", justify="right", no_wrap=True)
    for group in groups:
        steps = sum(line.step for line in group.lines)
        curve = group.values
        spark = sparkline(curve, _SPARK, min(values, default=None), max(values, default=None))
        table.add_row(
            Text(group.name),
            Text(_state(group), style=_style(group)),
            f"{steps}/{sum(line.total for line in group.lines)}",
            Text(spark),
            _number(curve[-1] if curve else None),
        )
    more = [Text(f"... and {hidden} more", style="dim")] if hidden else []
    return Stack(table, *more, Text(summary))


def fitted(snapshot: ProgressSnapshot, room: int) -> tuple[list[Group], int]:
    """Return rows that fit the height, and how many are left out.

    A row is a cell, or a configuration with all its seeds where cells do not fit. Rows that still
    change come first.
    """
    groups = [Group(line.cell.slug, (line,)) for line in snapshot.lines]
    if len(groups) > room:
        by_name: dict[str, list[CellLine]] = {}
        for line in snapshot.lines:
            by_name.setdefault(_without_seed(line), []).append(line)
        groups = [Group(name, tuple(lines)) for name, lines in by_name.items()]
    if len(groups) > room:
        groups = sorted(groups, key=lambda group: group.rank)
    return groups[:room], max(0, len(groups) - room)


def _without_seed(line: CellLine) -> str:
    end = f"-s{line.cell.settings.seed}"
    return line.cell.slug.removesuffix(end)


def _state(group: Group) -> str:
    outcomes = [line.outcome for line in group.lines if line.outcome == "collapsed"]
    return f"{group.state}, collapsed" if outcomes else group.state


def _style(group: Group) -> str:
    states = {line.state for line in group.lines}
    if states & {"failed", "unknown"}:
        return "bold red"
    return "bold" if states & MOVING else "dim" if states == {"planned"} else ""


BARS = "▁▂▃▄▅▆▇█"
NAN = "×"


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Return at most `width` bars from the lowest value (or `low`) to the highest (or `high`).

    More values are averaged in equal groups. A value that is not finite shows as ×.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    groups = [
        values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)
    ]
    means = [math.fsum(group) / len(group) for group in groups]
    finite = [value for value in means if math.isfinite(value)]
    low = min(finite, default=0.0) if low is None else low
    high = max(finite, default=0.0) if high is None else high
    return "".join(_bar(value, low, high) for value in means)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NAN
    if high <= low:
        return BARS[0]
    share = (value - low) / (high - low)
    return BARS[min(len(BARS) - 1, max(0, int(share * len(BARS))))]
