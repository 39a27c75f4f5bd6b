"""Cells for verl: the paper's on-policy one, and any other."""

from pathlib import Path
from typing import Any

from orchestrator.records import AttemptPaths, Cell
from tests import golden

PLACE = golden.PLACE
NASTY = AttemptPaths(*(Path(f'/runs/it\'s "q" = [a, b]\\ ü ${{x}}/{n}') for n in ("p", "a", "c")))


def cell(
    changes: dict[str, Any] | None = None, *, nodes: int = 2, gpus: int = 4, **cadence: int
) -> Cell:
    """The paper's on-policy cell with some fields (dotted) changed."""
    resources = {"num_nodes": nodes, "gpus_per_node": gpus}
    beside = {"resources": resources, "cadence": cadence}
    return golden.cell_of("verl", "0.9.1", {**(changes or {}), **beside})
