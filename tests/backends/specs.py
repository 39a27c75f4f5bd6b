"""The declared cells of the shipped specs, read once a process: cells are frozen."""

from collections.abc import Callable, Sequence, Set
from functools import cache
from pathlib import Path
from typing import TypeVar

from orchestrator.records import Cell
from orchestrator.spec import load
from orchestrator.spec.expand import expand

ROOT = Path(__file__).parents[2]
Launch = TypeVar("Launch")


@cache
def declared(name: str) -> tuple[Cell, ...]:
    """Of experiments/<name>.yaml."""
    return tuple(expand(load(ROOT / "experiments" / f"{name}.yaml")))


def every() -> tuple[Cell, ...]:
    """Of every spec, by the names of their files."""
    paths = sorted((ROOT / "experiments").glob("*.yaml"))
    return tuple(cell for path in paths for cell in declared(path.stem))


def which_cover(launches: Sequence[Launch], words_of: Callable[[Launch], Set[str]]) -> list[Launch]:
    """Return few launches that hold, together, every argument of all of them."""
    words = [words_of(launch) for launch in launches]
    missing = set().union(*words)
    chosen = []
    while missing:
        most = max(range(len(words)), key=lambda number: len(words[number] & missing))
        chosen.append(launches[most])
        missing -= words[most]
    return chosen
