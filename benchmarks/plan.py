"""`orch plan` of large grids: CPU seconds and memory.

python benchmarks/plan.py [CELLS]...
"""

import sys
import tempfile
from pathlib import Path

from measure import ORCH, grid_spec, measure

CELLS = ("1000", "10000", "100000")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for cells in sys.argv[1:] or CELLS:
            spec = grid_spec(Path(name) / f"grid_{cells}.yaml", int(cells))
            cost = measure([ORCH, "plan", spec], cwd=Path(name), codes=(3,))
            print(f"{int(cells):,} cells   {cost.cpu_seconds:.2f} CPU s   {cost.peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
