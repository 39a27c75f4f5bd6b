"""Checkpoints that may be removed: those before a cell's last whose scores are all on disk.

Libraries keep every checkpoint, because nothing may be deleted before it is evaluated. A removal
takes everything of a step: the checkpoint, its export, and the library's own state of that step.
Scores and their items stay. Only `free_checkpoints` deletes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.evaluate.checkpoint import Stamp, stamp
from orchestrator.evaluate.scores import Result, current
from orchestrator.evaluate.survey import divergence_tasks, seeds_of, tasks_of
from orchestrator.files import read_json, remove_tree
from orchestrator.records import Cell, Checkpoint, EvaluationSpec
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.runs.state import read_state

WORKING = frozenset({"running", "submitted", "pending", "unknown"})
REMOVED = ".removed-*"
"""Names that a removal that was killed leaves."""


@dataclass(frozen=True)
class RetentionDecision:
    """One checkpoint: `kept` for a reason, or free to be removed."""

    cell: Cell
    directory: CellDir
    step: int
    paths: tuple[Path, ...]
    """Everything on disk that is only of this step."""
    kept: str = ""

    @property
    def num_bytes(self) -> int:
        """Return the bytes on disk of the checkpoint's files."""
        files = (file for path in self.paths for file in _files(path))
        return sum(file.lstat().st_size for file in files)


def retention_decisions(
    cells: Iterable[Cell], evaluation: EvaluationSpec, folder: RunFolder
) -> Iterator[RetentionDecision]:
    """Yield every checkpoint of these cells, by cell and step."""
    for cell in cells:
        directory = folder.cell(cell)
        yield from _of_cell(cell, directory, evaluation, read_state(directory).state)


def _of_cell(
    cell: Cell, directory: CellDir, evaluation: EvaluationSpec, state: str
) -> Iterator[RetentionDecision]:
    checkpoints = plugins.load(cell.settings.backend.name).find_checkpoints(directory.checkpoints)
    results = current(directory) if len(checkpoints) > 1 else []
    for checkpoint in checkpoints:
        policy = _policy(directory, checkpoint)
        kept = ""
        if checkpoint.step == checkpoints[-1].step:
            kept = "the cell's last"
        elif state in WORKING:
            kept = f"the cell is {state}"
        elif policy is None:
            kept = "not exported, so never evaluated"
        elif missing := _missing(cell, evaluation, checkpoint.step, policy, results):
            kept = f"no scores of it for {missing[0]}" + (
                f" and {len(missing) - 1} more" if missing[1:] else ""
            )
        yield RetentionDecision(
            cell, directory, checkpoint.step, tuple(_belongings(cell, directory, checkpoint)), kept
        )


def free_checkpoints(
    decisions: Sequence[RetentionDecision], evaluation: EvaluationSpec, folder: RunFolder
) -> list[RetentionDecision]:
    """Remove what may go; return what was removed.

    Each cell is decided again under its claim: it may have changed since `decisions` were made.
    What a removal that was killed has left goes too.
    """
    removed: list[RetentionDecision] = []
    wanted = {each.paths for each in decisions if not each.kept}
    for cell in {each.cell.id: each.cell for each in decisions if not each.kept}.values():
        directory = folder.cell(cell)
        claim = directory.take_claim()
        if claim is None:
            continue
        with claim:
            state = read_state(directory, claimed=True).state
            if state in WORKING:
                continue
            for place in (directory.checkpoints, directory.exports):
                for leftover in list(place.rglob(REMOVED)):
                    rmtree(leftover)
            for each in _of_cell(cell, directory, evaluation, state):
                if not each.kept and each.paths in wanted:
                    folder.append("freed", cell.id, step=each.step)
                    _remove(each)
                    removed.append(each)
    return removed


def _remove(one: RetentionDecision) -> None:
    """Remove the checkpoint itself first: a half-removed one must not be taken for a whole one."""
    home = one.directory.path
    for path in one.paths:
        if not path.is_relative_to(home):
            raise OrchError(f"{path} does not lie in {home}; nothing more was removed")
        if path.exists():
            remove_tree(path)
        parent = path.parent
        # Folders that held only the checkpoint go too.
        while parent not in (home, one.directory.checkpoints) and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent


def _belongings(cell: Cell, directory: CellDir, checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the checkpoint's folder, what its library keeps beside it, and its export."""
    backend = plugins.load(cell.settings.backend.name)
    begun = backend.begun_checkpoints(directory.checkpoints)
    yield next(path for path in begun if checkpoint.path.is_relative_to(path))
    yield from backend.checkpoint_companions(directory.checkpoints, checkpoint)
    if checkpoint.needs_export:
        yield from sorted(directory.exports.glob(f"step{checkpoint.step}-*"))


def _policy(directory: CellDir, checkpoint: Checkpoint) -> Stamp | None:
    """Return the stamp of the files that evaluation reads; None if they were never made."""
    path = checkpoint.path
    if checkpoint.needs_export:
        decisions = [
            each.parent / "huggingface"
            for each in directory.exports.glob(f"step{checkpoint.step}-*/export.json")
            if (read_json(each) or {}).get("checkpoint") == str(checkpoint.path)
        ]
        if not decisions:
            return None
        path = decisions[-1]
    try:
        return stamp(path)
    except OrchError:
        return None


def _missing(
    cell: Cell, evaluation: EvaluationSpec, step: int, policy: Stamp, results: Sequence[Result]
) -> list[str]:
    """Return the evaluations of the spec that have no result of these very files."""
    scored = {
        (one.asked.kind, one.asked.task.name, one.asked.seed)
        for one in results
        if one.asked.step == step
        and one.files == policy
        and (one.asked.kind == "divergence" or one.asked.sampling == evaluation.sampling)
    }
    score_kinds = [
        ("accuracy", task.name, seed)
        for task in tasks_of(cell, evaluation)
        for seed in seeds_of(evaluation)
    ]
    declared = evaluation.divergence
    if declared is not None and declared.checkpoints != "last":
        tasks = divergence_tasks(cell, evaluation)
        score_kinds += [("divergence", task.name, evaluation.seeds[0]) for task in tasks]
    return [
        name if kind == "accuracy" else f"the divergence on {name}"
        for kind, name, seed in score_kinds
        if (kind, name, seed) not in scored
    ]


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (each for each in path.rglob("*") if not each.is_dir() or each.is_symlink())
    elif path.is_symlink() or path.exists():
        yield path
