"""The whole comedy grid at micro scale, one seed: training, evaluation, mirror and report.

The peer is the updates alone, one cell after another, unpacked and under autograd: 61 cells x 100
updates x U (micro_update.py, measured in the same run).
    python benchmarks/grid.py
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import micro_update
from measure import ORCH, Cost, measure

ROOT = Path(__file__).parents[1]
BAR, BAR_GIB = 0.3, 1.5
"""Of the peer, in CPU seconds; largest process."""
UPDATES = 100


class SeedCost(NamedTuple):
    """What one seed costs."""

    whole: Cost
    cells: int
    trained: float
    """CPU seconds of the cells' training."""

    def peer(self, unit_ms: float) -> float:
        """Return the CPU seconds of the updates alone, for U in milliseconds."""
        return self.cells * UPDATES * unit_ms / 1e3


def one_seed() -> SeedCost:
    """Run one seed of comedy_full in a new folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "experiments", folder / "experiments")
        whole = measure([ORCH, "run", "experiments/comedy_full.yaml", "seeds=[0]"], cwd=folder)
        ends = list(
            (folder / "runs" / "comedy_full.micro" / "cells").glob("*/attempts/1/exit.json")
        )
        return SeedCost(
            whole, len(ends), sum(json.loads(end.read_text())["cpu_seconds"] for end in ends)
        )


def main() -> int:
    seed = one_seed()
    unit = min(micro_update.measure(["unpacked"])["unpacked"])
    ratio = seed.whole.cpu_seconds / seed.peer(unit)
    gib = seed.whole.peak_mib / 1024
    print(
        f"one seed of comedy_full, {seed.cells} cells   {seed.whole.wall_seconds:.1f} s wall"
        f"   {seed.whole.cpu_seconds:.1f} CPU s, of which training {seed.trained:.1f}\n"
        f"{seed.peer(unit):.1f} CPU s: {seed.cells} x {UPDATES} updates of {unit:.1f} ms alone   "
        f"ratio {ratio:.2f}, bar {BAR}\n"
        f"{gib:.2f} GiB largest process, bar {BAR_GIB}"
    )
    return 0 if ratio <= BAR and gib <= BAR_GIB else 1


if __name__ == "__main__":
    sys.exit(main())
