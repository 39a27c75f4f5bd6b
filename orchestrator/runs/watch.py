"""Progress of cells: a snapshot of an experiment from disk, and the events of a launch."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from orchestrator.files import read_tail
from orchestrator.identity import digest
from orchestrator.launch import LaunchEvent
from orchestrator.records import Cell, State
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.state import one_look

if TYPE_CHECKING:
    from rich.console import RenderableType

MOVING: frozenset[str] = frozenset({"submitted", "pending", "running"})


@dataclass(frozen=True)
class CellLine:
    """The state of one cell at one moment."""

    cell: Cell
    state: State
    step: int
    reward: float | None = None
    outcome: str = ""
    detail: str = ""
    trace: str = ""
    """A digest that changes with any file of the cell."""

    @property
    def total(self) -> int:
        """Return the number of train steps of the cell."""
        return self.cell.settings.num_train_steps


@dataclass(frozen=True)
class ProgressSnapshot:
    """The state of all cells at one moment."""

    lines: tuple[CellLine, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Return state -> number of cells in it."""
        states = [line.state for line in self.lines]
        return {state: states.count(state) for state in dict.fromkeys(states)}

    @property
    def steps(self) -> int:
        """Return the train steps done, over all cells."""
        return sum(min(line.step, line.total) for line in self.lines)

    @property
    def steps_total(self) -> int:
        """Return the train steps of all cells."""
        return sum(line.total for line in self.lines)

    @property
    def steps_left(self) -> int:
        """Return the number of steps left in cells that continue without a person."""
        ended = ("succeeded", "failed", "cancelled")
        return sum(max(0, line.total - line.step) for line in self.lines if line.state not in ended)

    @property
    def over(self) -> bool:
        """Return True if every cell has ended for good."""
        return all(line.state in ("succeeded", "failed", "cancelled") for line in self.lines)

    @property
    def live(self) -> bool:
        """Return True if a cell is in a state that can change without a person."""
        return any(line.state in MOVING for line in self.lines)

    @property
    def digest(self) -> str:
        """Return a digest of the cells' states and files."""
        return digest([[line.cell.id, line.state, line.trace] for line in self.lines])


def take_snapshot(cells: Iterable[Cell], folder: RunFolder) -> ProgressSnapshot:
    """Return the state of every cell now, with the last metrics of those that have not
    succeeded."""
    lines = []
    with one_look(folder) as answer:
        states = [(cell, answer.state_of(folder.cell(cell))) for cell in cells]
    for cell, look in states:
        cell_dir = folder.cell(cell)
        attempts = cell_dir.attempts() if look.attempts else []
        outcome = look.exit.outcome if look.exit else None
        now = LatestMetrics(cell.settings.num_train_steps)
        if look.state != "succeeded":
            started = [a for a in attempts if a.job.exists() or a.metrics.exists()]
            now = latest_metrics(started[-1].path) if started else LatestMetrics()
        message = look.exit.message if look.exit and look.state != "succeeded" else look.fault
        lines.append(
            CellLine(
                cell,
                look.state,
                now.step,
                now.reward,
                outcome.kind if outcome else "",
                message.strip().partition("\n")[0],
                _trace(attempts, cell_dir.evaluations),
            )
        )
    return ProgressSnapshot(tuple(lines))


def _trace(attempts: Sequence[AttemptDir], evaluations: Path) -> str:
    """Return sizes and times of the files from which a cell's report is made. Read none of them."""
    trace: list[object] = [len(attempts)]
    files = [f for a in attempts[-1:] for f in (a.metrics, a.stdout, a.exit, a.path / "logs")]
    for path in (*files, evaluations):
        try:
            stat = path.stat()
            trace += [stat.st_size, stat.st_mtime_ns]
        except OSError:
            trace.append(0)
    return ",".join(map(str, trace))


def progress_line(snapshot: ProgressSnapshot) -> str:
    """Return one line such as `3 of 8 cells done, 2 running, 3 planned; 41% of steps`."""
    counts = snapshot.counts
    done = counts.pop("succeeded", 0)
    parts = [f"{done} of {len(snapshot.lines)} cells done"]
    parts += [f"{count} {state}" for state, count in counts.items()]
    collapsed = sum(line.outcome == "collapsed" for line in snapshot.lines)
    if collapsed:
        parts.append(f"{collapsed} collapsed")
    return f"{', '.join(parts)}; {snapshot.steps / max(1, snapshot.steps_total):.0%} of steps"


_HEARTBEAT_SECONDS = 30.0
_TAIL_BYTES = 4096


class LatestMetrics(NamedTuple):
    """The last line of a running cell's metrics."""

    step: int = 0
    reward: float | None = None


class LaunchProgress:
    """A count of the events that `launch` reports of the cells it has to train."""

    def __init__(self, cells: Iterable[Cell], clock: Callable[[], float] = time.monotonic):
        self.cells = list(cells)
        self.running: dict[str, tuple[Cell, Path]] = {}
        self.done = self.failed = self.collapsed = 0
        self._clock, self._began = clock, clock()
        self._known = {cell.id for cell in self.cells}
        self._steps_total = sum(cell.settings.num_train_steps for cell in self.cells)
        self._steps_done = 0
        self._steps_found: dict[str, int] = {}
        """Train steps that resumed cells already had: they do not count for the speed of this
        run."""

    def take(self, event: LaunchEvent) -> str:
        """Count an event; return the line to print for it, or nothing."""
        cell = event.cell
        if cell is None:
            return ""
        if cell.id not in self._known:  # another orch was training it when this one began
            self._known.add(cell.id)
            self.cells.append(cell)
            self._steps_total += cell.settings.num_train_steps
        if event.kind == "started" and event.attempt_dir is not None:
            self.running[cell.id] = (cell, event.attempt_dir)
            # The attempt before has the steps that this one resumes from. Attempt 0 has no folder,
            # and no steps.
            earlier = event.attempt_dir.with_name(str(int(event.attempt_dir.name) - 1))
            step = max(latest_metrics(earlier).step, latest_metrics(event.attempt_dir).step)
            self._steps_found.setdefault(cell.id, step)
            return ""
        self.running.pop(cell.id, None)
        if event.kind == "lost":
            what = "it is started again" if event.again else "it is left for the next run"
            return f"{cell.slug}: its process was killed; {what}, from its last checkpoint if any"
        if event.kind == "elsewhere":
            return f"{cell.slug}: another orch is training it"
        return self._ended(cell, event)

    def _ended(self, cell: Cell, event: LaunchEvent) -> str:
        ended = event.exit
        if ended is None or ended.state == "preempted":
            return f"{cell.slug}: stopped; it goes on from its last checkpoint when run again"
        self.done += 1
        self._steps_done += cell.settings.num_train_steps
        head = f"[{self.done}/{len(self.cells)}] {cell.slug}"
        if ended.state != "succeeded":
            self.failed += ended.state == "failed"
            kind = f"({ended.failure}) " if ended.failure else ""
            return f"{head}: {ended.state} {kind}{_first_line(ended.message)}".rstrip()
        outcome, reward = ended.outcome, None
        if event.attempt_dir is not None:
            reward = latest_metrics(event.attempt_dir).reward
        if outcome is not None and outcome.kind in ("collapsed", "unstable"):
            self.collapsed += outcome.kind == "collapsed"
            return f"{head}: {outcome.kind} ({outcome.cause}) at step {outcome.step}"
        seconds = ended.ended - ended.started
        return f"{head}: trained in {seconds:.1f} s{_reward(reward)}"

    def steps(self) -> int:
        """Return the number of train steps done in all these cells together."""
        reached = (
            max(latest_metrics(path).step, self._steps_found.get(id_, 0))
            for id_, (_, path) in self.running.items()
        )
        return min(self._steps_total, self._steps_done + sum(reached))

    def fraction(self) -> float:
        """Return the train steps done, divided by all train steps of this run, between 0 and 1."""
        return self.steps() / max(1, self._steps_total)

    def seconds_left(self) -> float | None:
        """Return the seconds left at the speed of this run so far; None before a speed is known."""
        done, spent = self.steps(), self._clock() - self._began
        gained = done - sum(self._steps_found.values())
        return spent * (self._steps_total - done) / gained if gained > 0 and spent > 1 else None

    def summary(self) -> str:
        """Return a line with the cells done, running, collapsed and failed, and the time left."""
        parts = [f"{self.done} of {len(self.cells)} cells done", f"{len(self.running)} running"]
        parts += [
            f"{n} {word}"
            for n, word in ((self.collapsed, "collapsed"), (self.failed, "failed"))
            if n
        ]
        seconds = self.seconds_left()
        if seconds is not None and self.running:
            parts.append(f"about {duration(seconds)} left")
        return ", ".join(parts)


class Watch(NamedTuple):
    """A display in use. Pass `show` to `launch` as its on_event."""

    show: Callable[[LaunchEvent], None]


@contextmanager
def watch(cells: Iterable[Cell], stream: TextIO | None = None) -> Iterator[Watch]:
    """Show the progress of these cells on `stream` (None: stderr).

    A live table on a terminal, plain lines elsewhere. Use the display as launch's on_event.
    """
    stream = stream or sys.stderr
    count = LaunchProgress(cells)
    if not (stream.isatty() and count.cells):
        yield Watch(_plain(count, stream))
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)

    def show(event: LaunchEvent) -> None:
        if line := count.take(event):
            console.print(line, markup=False, highlight=False)
        live.update(_table(count), refresh=True)

    # no refresh thread: launch ticks often enough
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Watch(show)


def _plain(count: LaunchProgress, stream: TextIO) -> Callable[[LaunchEvent], None]:
    last = time.monotonic()

    def show(event: LaunchEvent) -> None:
        nonlocal last
        line = count.take(event)
        if not line and time.monotonic() - last >= _HEARTBEAT_SECONDS:
            line = count.summary()
        if line:
            last = time.monotonic()
            print(line, file=stream, flush=True)

    return show


def _table(count: LaunchProgress) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for cell, attempt_dir in count.running.values():
        now, total = latest_metrics(attempt_dir), cell.settings.num_train_steps
        table.add_row(Text(cell.slug), f"step {now.step}/{total}", _reward(now.reward).strip(", "))
    bar = ProgressBar(total=1.0, completed=count.fraction(), width=40)
    return Group(table, bar, Text(count.summary()))


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


def _reward(reward: float | None) -> str:
    return "" if reward is None else f", reward {reward:.3f}"


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0]
