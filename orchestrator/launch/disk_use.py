"""The bytes that the checkpoints of cells would take of a disk."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.launch.hub_data import SiteFinding
from orchestrator.library.model_size import size_of
from orchestrator.records import Cell

TERA = 1e12


class DiskUse(NamedTuple):
    """The bytes of checkpoints, at most, estimated from the number of parameters."""

    largest: float
    """Of the cell with the most."""
    total: float
    cells: int
    unknown: int
    """Cells of a model, or a library, of unknown size."""

    def __str__(self) -> str:
        if self.cells == 1:
            text = f"at most {shown(self.total)}"
        else:
            text = f"at most {shown(self.total)}, {shown(self.largest)} for the largest cell"
        return text + (f"; {self.unknown} cells of unknown size" if self.unknown else "")


def disk_use(cells: Iterable[Cell]) -> DiskUse | None:
    """Return the bytes that the checkpoints of cells on GPUs would take; None if none is known."""
    each: list[float] = []
    unknown = 0
    for cell in cells:
        if cell.scale != "full" or not cell.resources.gpus_per_node:
            continue
        use = plugins.load(cell.settings.backend.name).checkpoint_use(cell)
        size = size_of(cell.settings.model)
        if use and size:
            each.append(use.num_bytes(size.num_parameters))
        else:
            unknown += 1
    return DiskUse(max(each), sum(each), len(each), unknown) if each else None


def disk_of_checkpoints(runs_dir: Path, cells: Sequence[Cell]) -> list[SiteFinding]:
    """Return a finding: does the disk of the runs folder hold the checkpoints of these cells?"""
    needed = disk_use(cells)
    if needed is None:
        return []
    free = shutil.disk_usage(nearest(runs_dir)).free
    check, found = "disk for checkpoints", f"{needed} (estimated); {shown(free)} free"
    if needed.total <= free:
        return [SiteFinding(check, "ok", found)]
    advice = (
        "fewer checkpoints (cadence.checkpoint_every_steps), `orch prune` as they are scored, or "
        "another disk (site.runs_dir)"
    )
    return [SiteFinding(check, "broken" if needed.largest > free else "missing", found, advice)]


def nearest(path: Path) -> Path:
    """Return the path, or the folder that exists on the way to it."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def shown(num_bytes: float) -> str:
    """Return bytes for people, as disks are sold: `91 GB`, `1.4 TB`."""
    if num_bytes >= TERA:
        return f"{float(f'{num_bytes / TERA:.3g}'):,g} TB"
    return f"{num_bytes / 1e9:.3g} GB"
