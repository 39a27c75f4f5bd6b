"""The live view of `orch status --watch`: a table on a terminal, lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from orchestrator.cli.common import number
from orchestrator.metrics.sparkline import sparkline
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.watch import (
    MOVING,
    CellLine,
    CurveTails,
    ProgressSnapshot,
    Speed,
    duration,
    progress_line,
    take_snapshot,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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


def watch(
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
                    click.echo(f"{line.cell.slug}: {line.state}{detail and f' ({detail})'}")
                states[line.cell.id] = line.state
            summary = summaries[i].of(one)
            late = time.monotonic() - at[i] >= QUIET_SECONDS
            if summary != printed[i] and (late or one.over):
                click.echo(summary)
                printed[i], at[i] = summary, time.monotonic()
        sys.stdout.flush()


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
            number(curve[-1] if curve else None),
        )
    more = [Text(f"... and {hidden} more", style="dim")] if hidden else []
    return Stack(table, *more, Text(summary))


def fitted(snapshot: ProgressSnapshot, room: int) -> tuple[list[Group], int]:
    """Return rows that fit the height, and how many are left out: cells, else configurations with
    their seeds together, what moves first."""
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
