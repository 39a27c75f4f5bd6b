"""One run on disk: its cell, its rollouts, and the policy that it started from."""

from json import loads
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import CheckpointError, EnvironmentFault
from orchestrator.evaluate.baselines import base_model
from orchestrator.kl.library_semantics import Dialect
from orchestrator.library import rollout_dump
from orchestrator.library.rollout_dump import RolloutBatch
from orchestrator.prove.proof import Proof, prove
from orchestrator.records import Cell
from orchestrator.rundir import CellDir

LARGEST_BYTES = 400_000_000
"""Bytes of weights. A larger policy is trained again only if the user names its folder."""


class Run(NamedTuple):
    """A run with rollouts."""

    cell: Cell
    dialect: Dialect
    batches: tuple[RolloutBatch, ...]
    policy: Path | None
    """Folder of the policy it started from, or None if it is not on this machine or too large."""
    without_policy: str
    """Why `policy` is None; empty if it is not."""
    weights: dict[int, Path]
    """Train step -> the policy that the run saved with its rollouts."""
    exports: dict[int, Path]
    """Train step -> a checkpoint that is a Hugging Face folder with fp32 weights."""

    def proof(self, dialect: Dialect | None = None) -> Proof:
        """Return the comparison of the run with its own dialect, or with another one."""
        return prove(
            self.cell.settings,
            dialect or self.dialect,
            self.batches,
            self.policy,
            self.exports | self.weights,
            self.without_policy,
        )


def read_run(cell_dir: CellDir, policy: Path | None = None) -> Run:
    """Return a run from its cell's directory.

    policy: the folder of the policy that it started from, if that was moved. Raise EnvironmentFault
    for a run without rollouts or with damaged ones.
    """
    cell = cell_dir.read_cell()
    folders = [attempt.path / rollout_dump.FOLDER for attempt in cell_dir.attempts()]
    try:
        batches = tuple(rollout_dump.read(folders))
    except ValueError as error:
        raise EnvironmentFault(f"{error}. Remove the file, or train the cell again") from None
    if not batches:
        raise EnvironmentFault(
            f"{cell_dir.path} has no rollouts: train the cell with cadence.dump_rollouts=true"
        )
    weights = {}
    for folder in folders:
        for batch in batches:
            path = rollout_dump.weights_path(folder, batch.step)
            if path.is_file():
                weights[batch.step] = path
    library = cell.settings.backend
    exports = {
        each.step: each.path
        for each in plugins.load(library.name).find_checkpoints(cell_dir.checkpoints)
        if not each.needs_export and _formats(each.path) == {"F32"}
    }
    dialect = plugins.load(library.name).semantics(library.version).dialect
    start, why = (policy, "") if policy is not None else _start(cell)
    return Run(cell, dialect, batches, start, why, weights, exports)


def _formats(folder: Path) -> set[str]:
    """Return the number formats of the weights in a Hugging Face folder."""
    formats = set()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            # The form of safetensors: eight bytes with the length of the header, then the header as
            # JSON.
            header = loads(opened.read(int.from_bytes(opened.read(8), "little")))
        formats |= {each["dtype"] for name, each in header.items() if name != "__metadata__"}
    return formats


def _start(cell: Cell) -> tuple[Path | None, str]:
    path = cell.settings.model.path
    try:
        folder = base_model(path)
    except CheckpointError:
        return None, f"{path} is not on this machine; --policy names its folder"
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size > LARGEST_BYTES:
        return (
            None,
            f"{path} has {size / 1e9:.1f} GB of weights; --policy trains it here all the same",
        )
    if not (folder / "model.safetensors").is_file():
        return None, f"{folder} has no model.safetensors"
    return folder, ""
