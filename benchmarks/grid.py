"""The whole comedy grid at micro scale, one seed, evaluation included, on a quiet machine.

The peer is one process for each cell that packs nothing: the measured cost of a cell in a process
of its own, plus what its updates cost more without packing (both measured here), times the cells.
    python benchmarks/grid.py
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from measure import ORCH, measure
from micro_update import measure as measure_updates

ROOT = Path(__file__).parents[1]
BAR_SECONDS, BAR_GIB = 120.0, 1.5
UPDATES = 100
"""Train steps of the cell that stands for all."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "experiments", folder / "experiments")
        whole = measure([ORCH, "run", "experiments/comedy_full.yaml", "seeds=[0]"], cwd=folder)
        cells = sorted((folder / "runs" / "comedy_full.micro" / "cells").iterdir())
        trained = sum(
            json.loads((cell / "attempts" / "1" / "exit.json").read_text())["cpu_seconds"]
            for cell in cells
        )
        print(
            f"comedy grid, {len(cells)} cells   {whole.wall_seconds:6.1f} s wall (bar "
            f"{BAR_SECONDS:.0f} on 2 quiet cores)   {whole.cpu_seconds:.1f} CPU s, of which "
            f"training {trained:.1f}   {whole.peak_mib / 1024:.2f} GiB largest process "
            f"(bar {BAR_GIB} together)"
        )
        alone = cell_alone(folder, next(c for c in cells if "k1.reward-b0.05-verl" in c.name))
    updates = measure_updates()
    packed, unpacked = (min(updates[key]) / 1000 for key in sorted(updates))
    peer = len(cells) * (alone + UPDATES * (unpacked - packed))
    print(
        f"  peer: {len(cells)} unpacked processes  {peer:6.1f} CPU s   "
        f"training here costs 1/{peer / trained:.1f} of it"
    )


def cell_alone(folder: Path, cell: Path) -> float:
    """CPU seconds of one cell in a process of its own, torch's import included."""
    out = folder / "alone"
    for part in ("attempt", "checkpoints"):
        (out / part).mkdir(parents=True)
    argv = [sys.executable, "-m", "backends.micro", cell / "plan" / "cell.json"]
    for part in ("plan", "attempt", "checkpoints"):
        argv += [f"--{part}-dir", cell / "plan" if part == "plan" else out / part]
    return measure(argv, cwd=ROOT).cpu_seconds


if __name__ == "__main__":
    main()
