"""`orch status` of 10,000 finished cells, beside what a bare loop costs.

python benchmarks/status.py [cells]
"""

import sys
import tempfile
from pathlib import Path

from measure import ORCH, grid_spec, measure
from run_again import BARE, finished

BAR = 2.0


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = finished(grid_spec(folder / f"bench_{cells}.yaml", cells), folder)
        costs = [measure([ORCH, "status"], cwd=folder) for _ in range(3)]
        status = min(cost.cpu_seconds for cost in costs)
        assert f"{len(experiment.cells)} of {len(experiment.cells)} cells" in costs[0].output
        bare = min(
            measure([sys.executable, "-c", BARE, experiment.folder.path]).cpu_seconds
            for _ in range(3)
        )
        print(f"orch status, {len(experiment.cells):6d} cells    {status:6.2f} CPU s   bar {BAR}")
        print(f"  peer: a bare loop over exit.json {bare:6.2f} CPU s")


if __name__ == "__main__":
    main()
