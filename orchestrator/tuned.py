"""Cells that searches have launched: in the experiment's folder, in no spec, and no orphans.

runs/<experiment>/tune/cells.jsonl      one line for each, written before it is launched
"""

import json

from orchestrator.files import append_line, read_lines
from orchestrator.rundir import RunFolder

_NAME = "tune/cells.jsonl"


def note_tuned(folder: RunFolder, cell_id: str, search: str, trial: int) -> None:
    """Says that a cell is a trial's, so that `prune` keeps it."""
    line = {"cell": cell_id, "search": search, "trial": trial}
    append_line(folder.path / _NAME, json.dumps(line))


def tuned_ids(folder: RunFolder) -> set[str]:
    """Ids of all of them."""
    return {str(line.get("cell")) for line in read_lines(folder.path / _NAME)}
