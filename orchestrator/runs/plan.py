"""The cells that would run, and why: the cells of a spec against the run directories.

Planning changes nothing. Cells that searches launched are in the experiment's folder and in no
spec; runs/<experiment>/tune/cells.jsonl has one line for each, written before it is launched, so
that they are no orphans.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.errors import RunFolderError
from orchestrator.files import append_line, read_lines
from orchestrator.identity import drift, identity
from orchestrator.launch.progress import resumable_step
from orchestrator.records import Cell, ExitRecord, State
from orchestrator.rundir import CellDir, CellState, RunFolder
from orchestrator.runs.state import one_look, read_state

_NAME = "tune/cells.jsonl"


def note_tuned(folder: RunFolder, cell_id: str, search: str, trial: int) -> None:
    """Record that a cell belongs to a trial of a search, so that `prune` keeps it."""
    line = {"cell": cell_id, "search": search, "trial": trial}
    append_line(folder.path / _NAME, json.dumps(line))


def tuned_ids(folder: RunFolder) -> set[str]:
    """Return the ids of all cells that searches launched."""
    return {str(line.get("cell")) for line in read_lines(folder.path / _NAME)}


Reason = Literal[
    "new",
    "changed",
    "interrupted",
    "running",
    "unchanged",
    "failed",
    "cancelled",
    "unreadable",
    "orphan",
]
PENDING: frozenset[str] = frozenset({"new", "changed", "interrupted"})
"""Reasons for which `orch run` trains a cell. `failed` and `cancelled` wait for `retry`."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One cell of the spec, or one directory that left it (`cell` None)."""

    directory: CellDir
    state: State
    reason: Reason
    cell: Cell | None = None
    detail: str = ""
    exit: ExitRecord | None = None
    """The end of the last attempt."""
    attempts: int = 0

    @property
    def pending(self) -> bool:
        """Return True if `orch run` would work on the row."""
        return self.reason in PENDING


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of a spec's cells, in the order of the spec, then the directories that left the
    spec."""

    rows: tuple[PlanRow, ...]

    @property
    def pending(self) -> tuple[PlanRow, ...]:
        """The rows that `orch run` would train."""
        return tuple(row for row in self.rows if row.pending)

    @property
    def orphans(self) -> tuple[PlanRow, ...]:
        """Directories whose cell left the spec: what `prune` would remove."""
        return tuple(row for row in self.rows if row.reason == "orphan")

    @property
    def faults(self) -> tuple[str, ...]:
        """Directories that cannot be read, in sentences. Run leaves their cells alone."""
        return tuple(row.detail for row in self.rows if row.reason == "unreadable")

    def only(self, ids: Collection[str]) -> "Plan":
        """Return the rows of these cells alone."""
        return Plan(tuple(row for row in self.rows if row.cell and row.cell.id in ids))

    def counts(self) -> dict[Reason, int]:
        """Return rows by reason, in the order of Reason; reasons with none are left out."""
        counted = Counter(row.reason for row in self.rows)
        return {reason: counted[reason] for reason in get_args(Reason) if reason in counted}


def plan(cells: Iterable[Cell], folder: RunFolder) -> Plan:
    """Return every cell with its state and the reason why it would run or not, then the orphans.

    cells: all cells of the spec, because a directory on disk whose cell is not among them is an
    orphan. Select afterwards with `Plan.only`. A cell is `changed` if its directory is missing, and
    its slug is on disk with other settings in a study that both share. Raise RunFolderError for a
    folder that is not orch's.
    """
    folder.check()
    with one_look(folder):
        return _plan(cells, folder)


def _plan(cells: Iterable[Cell], folder: RunFolder) -> Plan:
    wanted = {cell.id: cell for cell in cells}
    on_disk = folder.directories()
    known = wanted.keys() | tuned_ids(folder)
    orphans = [
        CellDir(folder.cells_path / name) for id_, name in on_disk.items() if id_ not in known
    ]
    earlier: dict[str, list[CellDir]] = {}
    for orphan in orphans:
        earlier.setdefault(orphan.slug, []).append(orphan)
    rows, replaced = [], {}
    for cell in wanted.values():
        # A directory keeps the slug that it was made with; the id finds it.
        directory = CellDir(folder.cells_path / on_disk.get(cell.id, cell.directory))
        if cell.id in on_disk:
            look = read_state(directory)
            rows.append(_row(directory, look, *_why(cell, directory, look), cell))
            continue
        row = _unknown(cell, directory, earlier.get(cell.slug, ()))
        rows.append(row)
        if row.reason == "changed":
            replaced[cell.slug] = cell.id
    for orphan in orphans:
        look, newer = read_state(orphan), replaced.get(orphan.slug)
        detail = f"replaced by {newer}" if newer else "no longer in the spec"
        rows.append(_row(orphan, look, "orphan", look.fault or detail))
    return Plan(tuple(rows))


def _row(
    directory: CellDir, look: CellState, reason: Reason, detail: str, cell: Cell | None = None
) -> PlanRow:
    return PlanRow(directory, look.state, reason, cell, detail, look.exit, look.attempts)


def _why(cell: Cell, directory: CellDir, state: CellState) -> tuple[Reason, str]:
    match state.state:
        case "succeeded":
            outcome = state.exit.outcome if state.exit else None
            return "unchanged", outcome.word if outcome else "trained"
        case "failed":
            ended = state.exit
            return "failed", f"{ended.failure}: {ended.message.strip()}" if ended else ""
        case "cancelled":
            return "cancelled", "waits for `orch retry`"
        case "unknown":
            return "unreadable", state.fault
        case "preempted" | "timed_out":
            return "interrupted", _resumption(cell, directory)
        case "planned":
            return "new", "to be tried again" if state.attempts > 1 else ""
        case _:
            again = f"attempt {state.attempts}" if state.attempts > 1 else ""
            return "running", state.fault or again


def _resumption(cell: Cell, directory: CellDir) -> str:
    """Return from which step a cell goes on that was started before."""
    if step := resumable_step(cell, directory):
        return f"goes on from step {step} of {cell.settings.num_train_steps}"
    return "starts again: it has no checkpoint yet"


def _unknown(cell: Cell, directory: CellDir, earlier: Iterable[CellDir]) -> PlanRow:
    """Return the row of a cell without a directory: new, or a changed version of one that has."""
    for candidate in earlier:
        try:
            old = candidate.read_cell()
        except RunFolderError:
            continue  # an orphan that cannot be read; its own row stays
        if set(old.studies) & set(cell.studies):
            changes = drift(identity(old.settings), identity(cell.settings))
            detail = "; ".join(
                f"{field}: {_plain(before)} -> {_plain(after)}"
                for field, (before, after) in changes.items()
            )
            return PlanRow(directory, "planned", "changed", cell, detail)
    return PlanRow(directory, "planned", "new", cell)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
