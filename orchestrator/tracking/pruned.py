"""Which cells `orch prune` removed, from the ledger of their folder."""

from orchestrator.errors import RunFolderError
from orchestrator.rundir import RunFolder

Gone = frozenset[str]
"""Ids of cells."""


def pruned(folder: RunFolder) -> Gone:
    """Cells that were removed and are not there again. Empty if the ledger cannot be read."""
    try:
        events = folder.events()
        there = folder.directories()
    except RunFolderError:
        return frozenset()
    return frozenset(
        str(event.get("cell")) for event in events
        if event.get("event") == "pruned" and event.get("cell") not in there
    )  # fmt: skip
