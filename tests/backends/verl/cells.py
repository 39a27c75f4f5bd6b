"""Cells for verl: the paper's on-policy one, and any other."""

from typing import Any

from orchestrator.records import Cell
from tests import golden

PLACE = golden.PLACE


def cell(changes: dict[str, Any] | None = None, *, nodes: int = 2, gpus: int = 4) -> Cell:
    """The paper's on-policy cell with some fields (dotted) changed."""
    resources = {"num_nodes": nodes, "gpus_per_node": gpus}
    return golden.cell_of("verl", "0.9.1", {**(changes or {}), "resources": resources})
