"""The declared cells of the shipped specs, read once a process: cells are frozen."""

from collections.abc import Callable, Sequence, Set
from functools import cache
from pathlib import Path
from typing import TypeVar

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.library.protocol import EmbeddedTrainer
from orchestrator.records import AttemptPaths, Cell
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse

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


@cache
def translated(library: str) -> tuple[Cell, ...]:
    """Of every spec, the cells of a library that it translates: as declared, or as rehearsed."""
    backend, declared_ = plugins.load(library), every()
    cells = [cell for cell in declared_ if cell.settings.backend.name == library]
    if isinstance(backend, EmbeddedTrainer):
        cells += rehearse(declared_, library)
    place = AttemptPaths(Path("plan"), Path("attempts/1"), Path("checkpoints"))
    kept = []
    for cell in cells:
        try:
            backend.translate(cell, place)
        except UnsupportedSetting as refused:
            assert refused.field, "a refusal names a field"  # noqa: PT017  (the rest translates)
        else:
            kept.append(cell)
    return tuple(kept)


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
