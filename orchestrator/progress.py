"""What a person sees while cells train: a live table on a terminal, plain lines elsewhere.

with watch(cells) as display:
    launch(cells, folder, on_event=display.show)
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from orchestrator.files import read_tail
from orchestrator.launch import Event
from orchestrator.types import Cell

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEARTBEAT_SECONDS = 30.0
_TAIL_BYTES = 4096


class Now(NamedTuple):
    """Where a running cell is: the last line of its metrics."""

    step: int = 0
    reward: float | None = None


class Progress:
    """Counts what `launch` tells of the cells it has to train."""

    def __init__(self, cells: Iterable[Cell], clock: Callable[[], float] = time.monotonic):
        self.cells = list(cells)
        self.running: dict[str, tuple[Cell, Path]] = {}
        self.done = self.failed = self.collapsed = 0
        self._clock, self._began = clock, clock()
        self._known = {cell.id for cell in self.cells}
        self._steps_total = sum(cell.settings.num_train_steps for cell in self.cells)
        self._steps_done = 0
        self._steps_found: dict[str, int] = {}
        """Steps of resumed cells that were there when they started: not this run's speed."""

    def take(self, event: Event) -> str:
        """Notes an event; the line to print for it, or nothing."""
        cell = event.cell
        if cell is None:
            return ""
        if cell.id not in self._known:  # another orch was at it when this one began
            self._known.add(cell.id)
            self.cells.append(cell)
            self._steps_total += cell.settings.num_train_steps
        if event.kind == "started" and event.attempt_dir is not None:
            self.running[cell.id] = (cell, event.attempt_dir)
            earlier = event.attempt_dir.with_name(str(int(event.attempt_dir.name) - 1))
            found = max(now_of(earlier).step, now_of(event.attempt_dir).step)
            self._steps_found.setdefault(cell.id, found)
            return ""
        self.running.pop(cell.id, None)
        if event.kind == "lost":
            what = "it is started again" if event.again else "it is left for the next run"
            return f"{cell.slug}: its process was killed; {what}, from its last checkpoint"
        if event.kind == "elsewhere":
            return f"{cell.slug}: another orch is training it"
        return self._ended(cell, event)

    def _ended(self, cell: Cell, event: Event) -> str:
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
            reward = now_of(event.attempt_dir).reward
        if outcome is not None and outcome.kind == "collapsed":
            self.collapsed += 1
            return f"{head}: collapsed ({outcome.cause}) at step {outcome.step}"
        seconds = ended.ended - ended.started
        return f"{head}: trained in {seconds:.1f} s{_reward(reward)}"

    def steps(self) -> int:
        """Train steps that are done, of all these cells together."""
        reached = (max(now_of(path).step, self._steps_found.get(id_, 0))
                   for id_, (_, path) in self.running.items())  # fmt: skip
        return min(self._steps_total, self._steps_done + sum(reached))

    def fraction(self) -> float:
        """Train steps done, over all that were to be done; between 0 and 1."""
        return self.steps() / max(1, self._steps_total)

    def seconds_left(self) -> float | None:
        """At the speed of this run so far; None before there is one."""
        done, spent = self.steps(), self._clock() - self._began
        gained = done - sum(self._steps_found.values())
        return spent * (self._steps_total - done) / gained if gained > 0 and spent > 1 else None

    def summary(self) -> str:
        """One line: how many cells are done, running, collapsed and failed, and the time left."""
        parts = [f"{self.done} of {len(self.cells)} cells done", f"{len(self.running)} running"]
        parts += [f"{n} {word}" for n, word in
                  ((self.collapsed, "collapsed"), (self.failed, "failed")) if n]  # fmt: skip
        left = self.seconds_left()
        if left is not None and self.running:
            parts.append(f"about {duration(left)} left")
        return ", ".join(parts)


class Watch(NamedTuple):
    """A display in use: `show` is launch's on_event."""

    show: Callable[[Event], None]


@contextmanager
def watch(cells: Iterable[Cell], stream: TextIO | None = None) -> Iterator[Watch]:
    """Shows on `stream` (None: stderr) what becomes of the cells that are to be trained."""
    stream = stream or sys.stderr
    count = Progress(cells)
    if not (stream.isatty() and count.cells):
        yield Watch(_plain(count, stream))
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)

    def show(event: Event) -> None:
        if line := count.take(event):
            console.print(line, markup=False, highlight=False)
        live.update(_table(count), refresh=True)

    # no refresh thread: launch ticks often enough
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Watch(show)


def _plain(count: Progress, stream: TextIO) -> Callable[[Event], None]:
    last = time.monotonic()

    def show(event: Event) -> None:
        nonlocal last
        line = count.take(event)
        if not line and time.monotonic() - last >= _HEARTBEAT_SECONDS:
            line = count.summary()
        if line:
            last = time.monotonic()
            print(line, file=stream, flush=True)

    return show


def _table(count: Progress) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for cell, attempt_dir in count.running.values():
        now, total = now_of(attempt_dir), cell.settings.num_train_steps
        table.add_row(Text(cell.slug), f"step {now.step}/{total}", _reward(now.reward).strip(", "))
    bar = ProgressBar(total=1.0, completed=count.fraction(), width=40)
    return Group(table, bar, Text(count.summary()))


def now_of(attempt_dir: Path) -> Now:
    """The last whole line of an attempt's metrics."""
    for line in reversed(read_tail(attempt_dir / "metrics.jsonl", _TAIL_BYTES).splitlines()):
        try:
            point = json.loads(line)
            return Now(int(point["step"]), point["values"].get("train/reward_mean"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # torn, or not a metric: the line before it is as good
    return Now()


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _reward(reward: float | None) -> str:
    return "" if reward is None else f", reward {reward:.3f}"


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0]
