"""The whole comedy grid at micro scale, one seed: training, evaluation, mirror and report.

python benchmarks/grid.py
"""

import json
import shutil
import tempfile
from pathlib import Path

from measure import ORCH, measure

ROOT = Path(__file__).parents[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "experiments", folder / "experiments")
        whole = measure([ORCH, "run", "experiments/comedy_full.yaml", "seeds=[0]"], cwd=folder)
        cells = folder / "runs" / "comedy_full.micro" / "cells"
        ends = [json.loads(end.read_text()) for end in cells.glob("*/attempts/1/exit.json")]
    print(
        f"one seed of comedy_full, {len(ends)} cells   {whole.wall_seconds:.1f} s wall   "
        f"{whole.cpu_seconds:.1f} CPU s, of which training "
        f"{sum(end['cpu_seconds'] for end in ends):.1f}   "
        f"{whole.peak_mib / 1024:.2f} GiB largest process"
    )


if __name__ == "__main__":
    main()
