"""Where cells are, looked at again and again: only what was written since the last look is read.

tails = Tails()
while not (seen := look(experiment.cells, experiment.folder, tails)).over: ...
"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import registry
from orchestrator.attemptdir import AttemptDir
from orchestrator.files import telling
from orchestrator.fingerprint import digest
from orchestrator.rundir import RunFolder
from orchestrator.state import look as look_at
from orchestrator.types import Cell, State

MAIN_METRICS = ("eval/accuracy_in_domain", "train/reward_mean")
"""The first that a cell measures is the one shown."""

MOVING: frozenset[str] = frozenset({"submitted", "pending", "running"})
_FIRST_BYTES = 8 << 20
"""Of a file that is longer, what stands before its end by this much is not looked at."""
_FOREIGN_SECONDS = 30.0
"""Metrics that are not in metrics.jsonl are read whole, by the backend, and no oftener."""


@dataclass
class Curve:
    """What is known of one attempt's metrics."""

    step: int = 0
    points: dict[str, dict[int, float]] = field(default_factory=dict)
    """Main metric -> step -> value."""
    position: int = 0
    read_at: float = float("-inf")

    @property
    def main(self) -> str:
        return next((name for name in MAIN_METRICS if self.points.get(name)), "")

    def values(self) -> list[float]:
        """The main metric by step."""
        found = self.points.get(self.main, {})
        return [found[step] for step in sorted(found)]

    def take(self, step: object, values: object) -> None:
        """One point; what is not one is left out."""
        if not isinstance(step, int) or not isinstance(values, dict):
            return
        self.step = max(self.step, step)
        for name in MAIN_METRICS:
            if isinstance(value := values.get(name), int | float):
                self.points.setdefault(name, {})[step] = float(value)


class Tails:
    """Curves of attempts, read on from where they were."""

    def __init__(self) -> None:
        self._curves: dict[Path, Curve] = {}
        self.bytes_read = 0

    def curve(self, cell: Cell, attempt: AttemptDir, *, moving: bool) -> Curve:
        """The attempt's curve as far as it is written."""
        known = self._curves.get(attempt.path)
        curve = known or self._curves.setdefault(attempt.path, Curve())
        if not attempt.metrics.exists():
            now = time.monotonic()
            if known is None or (moving and now - curve.read_at > _FOREIGN_SECONDS):
                curve.read_at = now
                self._ask(cell, attempt, curve)
            return curve
        with telling(attempt.metrics), attempt.metrics.open("rb") as file:
            end = file.seek(0, 2)
            if end < curve.position:  # begun anew
                curve.position, curve.step = 0, 0
                curve.points.clear()
            start = max(curve.position, end - _FIRST_BYTES)
            if start == end:
                return curve
            file.seek(start)
            raw = file.read(end - start)
        whole, newline, _ = raw.rpartition(b"\n")  # the last line may just be being written
        self.bytes_read += len(raw)
        curve.position = start + len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                plain = json.loads(line)
                curve.take(plain["step"], plain["values"])
            except (ValueError, KeyError, TypeError):
                continue
        return curve

    def _ask(self, cell: Cell, attempt: AttemptDir, curve: Curve) -> None:
        backend = registry.load(cell.settings.backend.name)
        try:
            for point in backend.read_metrics(attempt.path):
                curve.take(point.step, dict(point.values))
        except (OSError, ValueError, KeyError, TypeError):
            return  # `collect` tells what is wrong with it


@dataclass(frozen=True)
class Line:
    """One cell at one moment."""

    cell: Cell
    state: State
    step: int
    values: tuple[float, ...] = ()
    metric: str = ""
    outcome: str = ""
    detail: str = ""
    trace: str = ""
    """Differs when anything about it did."""

    @property
    def total(self) -> int:
        return self.cell.settings.num_train_steps


@dataclass(frozen=True)
class Look:
    """All cells at one moment."""

    lines: tuple[Line, ...]

    @property
    def counts(self) -> dict[str, int]:
        states = [line.state for line in self.lines]
        return {state: states.count(state) for state in dict.fromkeys(states)}

    @property
    def steps(self) -> int:
        return sum(min(line.step, line.total) for line in self.lines)

    @property
    def steps_total(self) -> int:
        return sum(line.total for line in self.lines)

    @property
    def steps_left(self) -> int:
        """Of cells that will go on by themselves."""
        ended = ("succeeded", "failed", "cancelled")
        return sum(max(0, line.total - line.step) for line in self.lines if line.state not in ended)

    @property
    def over(self) -> bool:
        """Whether every cell has ended for good."""
        return all(line.state in ("succeeded", "failed", "cancelled") for line in self.lines)

    @property
    def live(self) -> bool:
        return any(line.state in MOVING for line in self.lines)

    @property
    def digest(self) -> str:
        return digest([[line.cell.id, line.state, line.trace] for line in self.lines])


def look(cells: Iterable[Cell], folder: RunFolder, tails: Tails | None = None) -> Look:
    """Every cell now. Without `tails` no metrics are read, only how long their files are."""
    lines = []
    for cell in cells:
        cell_dir = folder.cell(cell)
        seen = look_at(cell_dir)
        attempts = cell_dir.attempts() if seen.attempts else []
        outcome = seen.exit.outcome if seen.exit else None
        curve = Curve()
        if tails is not None:
            started = [a for a in attempts if a.job.exists() or a.metrics.exists()]
            for attempt in started[-1:]:
                curve = tails.curve(cell, attempt, moving=seen.state in MOVING)
        step = cell.settings.num_train_steps if seen.state == "succeeded" else curve.step
        message = seen.exit.message if seen.exit and seen.state != "succeeded" else seen.fault
        lines.append(
            Line(cell, seen.state, step, tuple(curve.values()), curve.main,
                 outcome.kind if outcome else "", message.strip().partition("\n")[0],
                 _trace(attempts, cell_dir.evaluations))
        )  # fmt: skip
    return Look(tuple(lines))


def _trace(attempts: Sequence[AttemptDir], evaluations: Path) -> str:
    """Sizes and times of what the report of a cell is made from; reads none of it."""
    seen: list[object] = [len(attempts)]
    files = [f for a in attempts[-1:] for f in (a.metrics, a.stdout, a.exit, a.path / "logs")]
    for path in (*files, evaluations):
        try:
            found = path.stat()
            seen += [found.st_size, found.st_mtime_ns]
        except OSError:
            seen.append(0)
    return ",".join(map(str, seen))


class Speed:
    """Steps a second since the watch began."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None

    def seconds_left(self, seen: Look, now: float) -> float | None:
        """None before anything has moved."""
        if self._began is None:
            self._began = (now, seen.steps)
        spent, gained = now - self._began[0], seen.steps - self._began[1]
        return spent * seen.steps_left / gained if gained > 0 and spent > 2 and seen.live else None


def progress_line(seen: Look) -> str:
    """`3 of 8 cells done, 2 running, 3 planned; 41% of steps`."""
    counts = seen.counts
    done = counts.pop("succeeded", 0)
    parts = [f"{done} of {len(seen.lines)} cells done"]
    parts += [f"{count} {state}" for state, count in counts.items()]
    collapsed = sum(line.outcome == "collapsed" for line in seen.lines)
    if collapsed:
        parts.append(f"{collapsed} collapsed")
    return f"{', '.join(parts)}; {seen.steps / max(1, seen.steps_total):.0%} of steps"
