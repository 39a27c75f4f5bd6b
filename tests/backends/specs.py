"""The declared cells of the shipped specs, read once a process: cells are frozen."""

from functools import cache
from pathlib import Path

from orchestrator.records import Cell
from orchestrator.spec import load
from orchestrator.spec.expand import expand

ROOT = Path(__file__).parents[2]


@cache
def declared(name: str) -> tuple[Cell, ...]:
    """Of experiments/<name>.yaml."""
    return tuple(expand(load(ROOT / "experiments" / f"{name}.yaml")))


def every() -> tuple[Cell, ...]:
    """Of every spec, by the names of their files."""
    paths = sorted((ROOT / "experiments").glob("*.yaml"))
    return tuple(cell for path in paths for cell in declared(path.stem))
