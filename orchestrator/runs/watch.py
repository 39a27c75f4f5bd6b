"""Progress of cells: a snapshot from disk, drawn again and again, and lines as cells end."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from orchestrator.files import read_tail
from orchestrator.launch import LaunchEvent
from orchestrator.records import Cell, State
from orchestrator.rundir import RunFolder
from orchestrator.runs.state import one_look, read_state

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    step: int
    reward: float | None = None
    outcome: str = ""

    @property
    def total(self) -> int:
        """Return the number of train steps of the cell."""
        return self.cell.settings.num_train_steps


@dataclass(frozen=True)
class ProgressSnapshot:
    """The state of all cells at one moment."""

    lines: tuple[CellLine, ...]

    @property
    def steps(self) -> int:
        """Return the train steps done, over all cells."""
        return sum(min(line.step, line.total) for line in self.lines)

    @property
    def steps_left(self) -> int:
        """Return the number of steps left in cells that continue without a person."""
        return sum(max(0, one.total - one.step) for one in self.lines if one.state not in _OVER)

    @property
    def over(self) -> bool:
        """Return True if every cell has ended for good."""
        return all(line.state in _OVER for line in self.lines)


def take_snapshot(cells: Iterable[Cell], folder: RunFolder) -> ProgressSnapshot:
    """Return the state of every cell now, with the last metrics of those that have not
    succeeded."""
    lines = []
    with one_look(folder):
        states = [(cell, read_state(folder.cell(cell))) for cell in cells]
    for cell, look in states:
        now = LatestMetrics(cell.settings.num_train_steps)
        if look.state != "succeeded":
            waits = look.state in ("submitted", "pending") and look.attempts == 1
            attempts = [] if waits or not look.attempts else folder.cell(cell).attempts()
            started = [a for a in attempts if a.job.exists() or a.metrics.exists()]
            now = latest_metrics(started[-1].path) if started else LatestMetrics()
        outcome = look.exit.outcome if look.exit else None
        kind = outcome.kind if outcome else ""
        lines.append(CellLine(cell, look.state, now.step, now.reward, kind))
    return ProgressSnapshot(tuple(lines))


def progress_line(snapshot: ProgressSnapshot) -> str:
    """Return one line such as `3 of 8 cells done, 2 running, 3 planned; 41% of steps`."""
    counts = Counter(line.state for line in snapshot.lines)
    done = counts.pop("succeeded", 0)
    parts = [f"{done} of {len(snapshot.lines)} cells done"]
    parts += [f"{count} {state}" for state, count in counts.items()]
    collapsed = sum(line.outcome == "collapsed" for line in snapshot.lines)
    if collapsed:
        parts.append(f"{collapsed} collapsed")
    total = sum(line.total for line in snapshot.lines)
    return f"{', '.join(parts)}; {snapshot.steps / max(1, total):.0%} of steps"


class Summary:
    """The line below the cells: how many are done, and how long the others take."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        """When the watch began, and the train steps that were done then."""

    def of(self, snapshot: ProgressSnapshot) -> str:
        """Return `3 of 8 cells done, 5 running; 41% of steps; about 12 min left`."""
        seconds = self.seconds_left(snapshot, time.monotonic())
        left = "" if seconds is None else f"; about {duration(seconds)} left"
        return progress_line(snapshot) + left

    def seconds_left(self, snapshot: ProgressSnapshot, now: float) -> float | None:
        """Return the seconds left at the speed since the watch began; None before one is known."""
        if self._began is None:
            self._began = (now, snapshot.steps)
        spent, gained = now - self._began[0], snapshot.steps - self._began[1]
        is_moving = any(line.state in MOVING for line in snapshot.lines)
        is_known = gained > 0 and spent > 2 and is_moving
        return spent * snapshot.steps_left / gained if is_known else None


def drawn(snapshot: ProgressSnapshot, summary: str, room: int) -> "RenderableType":
    """Return the cells that are neither planned nor done, as many as fit, and the summary."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    listed = [line for line in snapshot.lines if line.state in LISTED]
    listed.sort(key=lambda line: line.state not in MOVING)
    table = Table.grid(padding=(0, 2))
    for line in listed[:room]:
        style = "bold red" if line.state in ("failed", "unknown") else ""
        reward = "" if line.reward is None else f"reward {line.reward:.3g}"
        steps = f"step {line.step}/{line.total}"
        table.add_row(Text(line.cell.slug), Text(line.state, style), steps, reward)
    more = len(listed) - room
    return Group(table, *([Text(f"... and {more} more")] if more > 0 else []), Text(summary))


@contextmanager
def watch(
    cells: Sequence[Cell], folder: RunFolder, stream: TextIO | None = None, *, local: bool = True
) -> Iterator[Callable[[LaunchEvent], None]]:
    """Show the progress of these cells on `stream` (None: stderr): a line as each ends, and how
    far all are, on a terminal as a table that is drawn anew.

    Yield what takes the events of `launch`. local: no scheduler has to be asked.
    """
    stream = stream or sys.stderr
    lines, summary = _EventLines(len(cells)), Summary()
    if not (stream.isatty() and cells):
        quiet_since = time.monotonic()

        def tell(event: LaunchEvent) -> None:
            nonlocal quiet_since
            line = lines.of(event)
            if not line and time.monotonic() - quiet_since >= QUIET_SECONDS:
                line = summary.of(take_snapshot(cells, folder))
            if line:
                quiet_since = time.monotonic()
                print(line, file=stream, flush=True)

        yield tell
        return
    from rich.console import Console
    from rich.live import Live

    console, due = Console(file=stream), 0.0

    def show(event: LaunchEvent) -> None:
        nonlocal due
        if line := lines.of(event):
            console.print(line, markup=False, highlight=False)
        began = time.monotonic()
        if began >= due:
            snapshot = take_snapshot(cells, folder)
            live.update(drawn(snapshot, summary.of(snapshot), console.height // 2), refresh=True)
            spent = time.monotonic() - began
            due = began + max(LOOK_SECONDS if local else QUIET_SECONDS, spent / _SHARE_LOOKING)

    # no refresh thread: launch ticks often enough
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield show


class _EventLines:
    """A line for each event of a launch that a person wants to know."""

    def __init__(self, total: int):
        self._done, self._total = 0, total

    def of(self, event: LaunchEvent) -> str:
        """Return the line of an event; empty for one without."""
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
        self._done += 1
        head = f"[{self._done}/{max(self._done, self._total)}] {cell.slug}"
        if ended.state != "succeeded":
            kind = f"({ended.failure}) " if ended.failure else ""
            return f"{head}: {ended.state} {kind}{_first_line(ended.message)}".rstrip()
        outcome = ended.outcome
        if outcome is not None and outcome.kind in ("collapsed", "unstable"):
            return f"{head}: {outcome.kind} ({outcome.cause}) at step {outcome.step}"
        reward = latest_metrics(event.attempt_dir).reward if event.attempt_dir else None
        shown = "" if reward is None else f", reward {reward:.3f}"
        return f"{head}: trained in {ended.ended - ended.started:.1f} s{shown}"


def keep_showing(cells: Sequence[tuple[str, Sequence[Cell], RunFolder]]) -> None:
    """Show experiments again and again until all their cells have ended, or Ctrl-C.

    cells: name, cells and folder of each experiment. A table on a terminal, and lines elsewhere.
    """
    summaries = [Summary() for _ in cells]
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        show = _table(stack) if sys.stdout.isatty() else _lines()
        while True:
            began = time.monotonic()
            snapshots = [take_snapshot(own, folder) for _, own, folder in cells]
            texts = [
                f"{name}: {summary.of(one)}"
                for one, summary, (name, *_) in zip(snapshots, summaries, cells, strict=True)
            ]
            show(snapshots, texts)
            if all(one.over for one in snapshots):
                return
            spent = time.monotonic() - began
            time.sleep(max(2 * LOOK_SECONDS, spent / _SHARE_LOOKING))


Show = Callable[[Sequence[ProgressSnapshot], Sequence[str]], None]
"""Shows experiments, each with the line that sums it up."""


def _lines() -> Show:
    """Print, now and then, how far all are."""
    printed: dict[int, tuple[str, float]] = {}

    def show(snapshots: Sequence[ProgressSnapshot], texts: Sequence[str]) -> None:
        for i, (snapshot, summary) in enumerate(zip(snapshots, texts, strict=True)):
            before, at = printed.get(i, ("", float("-inf")))
            is_late = time.monotonic() - at >= QUIET_SECONDS
            if summary != before and (is_late or snapshot.over):
                sys.stdout.write(f"{summary}\n")
                sys.stdout.flush()
                printed[i] = summary, time.monotonic()

    return show


def _table(stack: ExitStack) -> Show:
    """Draw a table anew on the terminal; its last state stays there."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    live = stack.enter_context(Live(console=console, auto_refresh=False))

    def show(snapshots: Sequence[ProgressSnapshot], texts: Sequence[str]) -> None:
        room = max(3, (console.height - 2) // max(1, len(snapshots)) - 3)
        parts = (drawn(*each, room) for each in zip(snapshots, texts, strict=True))
        live.update(Group(*parts), refresh=True)

    return show


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


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0]
