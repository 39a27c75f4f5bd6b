"""CPU seconds of all processes of a launch, those of Ray too, which are nobody's children.

Ray's workers outlive the programs that started them, and are never waited for: no resource usage
has them. /proc has each process while it lives.
"""

import os
import threading
from pathlib import Path
from typing import NamedTuple, Self

EVERY_SECONDS = 0.25
"""What a process computes after the last look is lost: at most this much of each."""
KEEPS_RECORDS = "ORCH_KEEP_RECORDS"
"""The variable with which tests keep records of their runs, CPU seconds included (trained.py)."""
_TICKS = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    number: int
    parent: int
    started: int
    """Ticks since the machine started: numbers are used again."""
    seconds: float


class CpuMeter:
    """Counts the processes that have a text among their variables, and all that these start."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._seconds: dict[tuple[int, int], float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """CPU seconds, of the user and of the system, of every process that was seen."""
        return sum(self._seconds.values())

    def _watch(self) -> None:
        while not self._end.wait(EVERY_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        alive = sorted(_processes(), key=lambda each: each.started)  # a parent before its children
        ours = {each.number for each in alive if (each.number, each.started) in self._seconds}
        for each in alive:
            key = each.number, each.started
            if key not in self._seconds:
                # asked at each look: a fork has its parent's variables until it starts a program
                if each.parent not in ours and not self._has_token(each):
                    continue
                ours.add(each.number)
            self._seconds[key] = each.seconds

    def _has_token(self, process: _Process) -> bool:
        if process.number == os.getpid():
            return False
        try:
            return self._token in Path(f"/proc/{process.number}/environ").read_bytes()
        except OSError:
            return False


class Unmeasured:
    """A meter that never looks."""

    seconds: None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def meter_of_record(token: str) -> CpuMeter | Unmeasured:
    """Return a meter for the record of a run, which never looks if no record is kept.

    A look costs 7 ms: 3 % of a processor for as long as the run takes.
    """
    return CpuMeter(token) if os.environ.get(KEEPS_RECORDS) else Unmeasured()


def _processes() -> list[_Process]:
    alive = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        alive.append(_Process(int(path.parent.name), int(fields[1]), int(fields[19]), seconds))
    return alive
