"""Progress of cells: a snapshot from disk, drawn again and again, and lines as cells end."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from orchestrator.files import read_tail
from orchestrator.launch import LaunchEvent
from orchestrator.records import Cell, State
from orchestrator.rundir import RunFolder
from orchestrator.runs.state import read_states

if TYPE_CHECKING:
    from rich.live import Live

MOVING: frozenset[str] = frozenset({"submitted", "pending", "running"})
LISTED = ("submitted", "running", "failed", "cancelled", "unknown", "preempted", "timed_out")
"""States that are listed cell by cell."""
_OVER: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})
LOOK_SECONDS = 1.0
"""Seconds between two looks at cells on this machine."""
QUIET_SECONDS = 30.0
"""Seconds between two lines if nothing has changed, and between two questions to a scheduler."""
_SHARE_LOOKING = 0.2
"""At most this share of the time is spent looking."""
_TAIL_BYTES = 4096


class LatestMetrics(NamedTuple):
    """The last line of a running cell's metrics."""

    step: int = 0
    reward: float | None = None


@dataclass(frozen=True)
class CellLine:
    """The state of one cell at one moment."""

    cell: Cell
    state: State
    now: LatestMetrics
    collapsed: bool

    @property
    def total(self) -> int:
        """Return the number of train steps of the cell."""
        return self.cell.settings.num_train_steps


def take_snapshot(cells: Iterable[Cell], folder: RunFolder) -> list[CellLine]:
    """Return the state of every cell now, with the last metrics of those that have not
    succeeded."""
    lines = []
    for cell, look in read_states(cells, folder):
        now = LatestMetrics(cell.settings.num_train_steps)
        if look.state != "succeeded":
            attempts = folder.cell(cell).attempts()
            started = [a for a in attempts if a.job.exists() or a.metrics.exists()]
            now = latest_metrics(started[-1].path) if started else LatestMetrics()
        outcome = look.exit.outcome if look.exit else None
        collapsed = outcome is not None and outcome.kind == "collapsed"
        lines.append(CellLine(cell, look.state, now, collapsed))
    return lines


class Summary:
    """The line below the cells: how many are done, and how long the others take."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        """When the watch began, and the train steps that were done then."""

    def of(self, lines: Sequence[CellLine], now: float) -> str:
        """Return `3 of 8 cells done, 5 running; 41% of steps; about 12 min left`, with the time
        left at the speed since the watch began."""
        counts = Counter(line.state for line in lines)
        done = counts.pop("succeeded", 0)
        parts = [f"{done} of {len(lines)} cells done"]
        parts += [f"{count} {state}" for state, count in counts.items()]
        if collapsed := sum(line.collapsed for line in lines):
            parts.append(f"{collapsed} collapsed")
        steps = sum(min(line.now.step, line.total) for line in lines)
        share = steps / max(1, sum(line.total for line in lines))
        text = f"{', '.join(parts)}; {share:.0%} of steps"
        if self._began is None:
            self._began = (now, steps)
        spent, gained = now - self._began[0], steps - self._began[1]
        if gained <= 0 or spent <= 2 or MOVING.isdisjoint(counts):
            return text
        left = sum(max(0, one.total - one.now.step) for one in lines if one.state not in _OVER)
        return f"{text}; about {duration(spent * left / gained)} left"


class Progress:
    """Shows how far cells are: a table that is drawn anew on a terminal, lines elsewhere."""

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: RunFolder,
        stream: TextIO,
        live: "Live | None",
        seconds: float,
    ):
        """live: of a terminal. seconds: between two looks at least."""
        self._cells, self._folder, self._stream, self._live = cells, folder, stream, live
        self._seconds = seconds if live else QUIET_SECONDS
        self._summary, self._printed = Summary(), ""
        self.due = 0.0

    def tell(self, line: str) -> None:
        """Print a line about one cell."""
        if self._live:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)
            self.due = time.monotonic() + QUIET_SECONDS

    def look(self) -> bool:
        """Look at the cells and show them; elsewhere than on a terminal now and then, and at the
        end. Return True if all have ended for good."""
        began = time.monotonic()
        lines = take_snapshot(self._cells, self._folder)
        over = all(line.state in _OVER for line in lines)
        text = self._summary.of(lines, began)
        if self._live:
            self._draw(self._live, lines, text)
        elif text != self._printed and (over or began >= self.due):
            print(text, file=self._stream, flush=True)
            self._printed = text
        if began >= self.due:
            spent = time.monotonic() - began
            self.due = began + max(self._seconds, spent / _SHARE_LOOKING)
        return over

    def _draw(self, live: "Live", lines: Sequence[CellLine], summary: str) -> None:
        """Draw the cells that are neither planned nor done, as many as fit, and the summary."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        room = max(3, live.console.height // 2 - 2)
        listed = [line for line in lines if line.state in LISTED]
        listed.sort(key=lambda line: line.state not in MOVING)
        table = Table.grid(padding=(0, 2))
        for line in listed[:room]:
            style = "bold red" if line.state in ("failed", "unknown") else ""
            reward = "" if line.now.reward is None else f"reward {line.now.reward:.3g}"
            steps = f"step {line.now.step}/{line.total}"
            table.add_row(Text(line.cell.slug), Text(line.state, style), steps, reward)
        more = len(listed) - room
        last = Text(f"... and {more} more\n{summary}" if more > 0 else summary)
        live.update(Group(table, last), refresh=True)


@contextmanager
def _shown(
    cells: Sequence[Cell], folder: RunFolder, stream: TextIO, seconds: float, *, transient: bool
) -> Iterator[Progress]:
    """Yield what shows cells on a stream. transient: the table does not stay."""
    if not stream.isatty():
        yield Progress(cells, folder, stream, None, seconds)
        return
    from rich.console import Console
    from rich.live import Live

    # no refresh thread: who shows looks often enough
    with Live(console=Console(file=stream), auto_refresh=False, transient=transient) as live:
        yield Progress(cells, folder, stream, live, seconds)


@contextmanager
def watch(
    cells: Sequence[Cell], folder: RunFolder, stream: TextIO | None = None, *, local: bool = True
) -> Iterator[Callable[[LaunchEvent], None]]:
    """Show the progress of these cells on `stream` (None: stderr): a line as each ends, and how
    far all are.

    Yield what takes the events of `launch`. local: no scheduler has to be asked.
    """
    done, stream = 0, stream or sys.stderr
    seconds = LOOK_SECONDS if local else QUIET_SECONDS
    with _shown(cells, folder, stream, seconds, transient=True) as progress:
        if not stream.isatty():
            progress.due = time.monotonic() + QUIET_SECONDS

        def show(event: LaunchEvent) -> None:
            nonlocal done
            done += event.exit is not None and event.exit.state != "preempted"
            if line := _line(event, f"{done}/{max(done, len(cells))}", folder):
                progress.tell(line)
            if cells and time.monotonic() >= progress.due:
                progress.look()

        yield show


def _line(event: LaunchEvent, place: str, folder: RunFolder) -> str:
    """Return a line on an event of a launch that a person wants to know, else an empty text."""
    cell, ended = event.cell, event.exit
    if cell is None or event.kind == "started":
        return ""
    if event.kind == "lost":
        what = "it is started again" if event.again else "it is left for the next run"
        return f"{cell.slug}: its process was killed; {what}, from its last checkpoint if any"
    if event.kind == "elsewhere":
        return f"{cell.slug}: another orch is training it"
    if ended is None or ended.state == "preempted":
        return f"{cell.slug}: stopped; it goes on from its last checkpoint when run again"
    head = f"[{place}] {cell.slug}"
    if ended.state != "succeeded":
        kind = f"({ended.failure}) " if ended.failure else ""
        message = ended.message.strip().partition("\n")[0]
        return f"{head}: {ended.state} {kind}{message}".rstrip()
    outcome = ended.outcome
    if outcome is not None and outcome.kind in ("collapsed", "unstable"):
        return f"{head}: {outcome.kind} ({outcome.cause}) at step {outcome.step}"
    reward = latest_metrics(folder.cell(cell).attempts()[-1].path).reward
    shown = "" if reward is None else f", reward {reward:.3f}"
    return f"{head}: trained in {ended.ended - ended.started:.1f} s{shown}"


def keep_showing(cells: Sequence[Cell], folder: RunFolder) -> None:
    """Show cells again and again until all have ended, or Ctrl-C."""
    with (
        suppress(KeyboardInterrupt),
        _shown(cells, folder, sys.stdout, 0.0, transient=False) as shown,
    ):
        began = time.monotonic()
        while not shown.look():
            spent = time.monotonic() - began
            time.sleep(max(2 * LOOK_SECONDS, spent / _SHARE_LOOKING))
            began = time.monotonic()


def latest_metrics(attempt_dir: Path) -> LatestMetrics:
    """Return the last whole line of an attempt's metrics."""
    for line in reversed(read_tail(attempt_dir / "metrics.jsonl", _TAIL_BYTES).splitlines()):
        try:
            point = json.loads(line)
            reward = point["values"].get("train/reward_mean")
            return LatestMetrics(int(point["step"]), None if reward is None else float(reward))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue  # torn, or not a metric: the line before it is as good
    return LatestMetrics()


def duration(seconds: float) -> str:
    """Return a duration as `40 s`, `12 min` or `3 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
