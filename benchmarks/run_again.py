"""`orch run` again on a finished spec of 10,000 cells, beside what a bare loop costs.

The peer is the least that any tool must do: one process that reads every exit.json with the
standard library. The run was complete (orchestrator/runs/completion.py), so nothing is to be
trained, evaluated, mirrored or reported, and finding that out is what is measured.
    python benchmarks/run_again.py [cells]
"""

import os
import sys
import tempfile
from pathlib import Path

from measure import ORCH, grid_spec, measure

from orchestrator.records import ExitRecord, Outcome
from orchestrator.runs.completion import mark_complete
from orchestrator.runs.experiment import Experiment, open_experiment
from orchestrator.runs.plan import plan
from orchestrator.tracking.store import store_of

BAR = 2.0
BARE = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("cells/*/attempts/*/exit.json"):
    assert json.loads(path.read_text())["state"] == "succeeded"
"""


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = grid_spec(folder / f"bench_{cells}.yaml", cells)
        experiment = finished(spec, folder)
        mirror = store_of(experiment.folder, experiment.spec.site.tracking_uri)
        mark_complete(experiment, plan(experiment.cells, experiment.folder), mirror)
        argv = [ORCH, "run", spec, "site.kind=local"]
        costs = [measure(argv, cwd=folder) for _ in range(3)]
        assert all("nothing to do" in cost.output for cost in costs)
        again = min(cost.cpu_seconds for cost in costs)
        assert not experiment.folder.ledger.exists(), "something was submitted"
        bare = min(
            measure([sys.executable, "-c", BARE, experiment.folder.path]).cpu_seconds
            for _ in range(3)
        )
        print(f"orch run again, {len(experiment.cells):6d} cells {again:6.2f} CPU s   bar {BAR}")
        print(f"  peer: a bare loop over exit.json {bare:6.2f} CPU s")


def finished(spec: Path, folder: Path) -> Experiment:
    """Return the experiment below `folder`, with every cell as one that succeeded leaves it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        experiment = open_experiment(spec, ["site.kind=local"])
    finally:
        os.chdir(before)
    experiment.folder.open()
    experiment.folder.spec.write_text(experiment.spec.model_dump_json())
    for cell in experiment.cells:
        cell_dir = experiment.folder.cell(cell)
        cell_dir.make(cell)
        attempt = cell_dir.new_attempt()
        attempt.job.write_text("{}")
        attempt.write_exit(
            ExitRecord(
                state="succeeded",
                started=1e9,
                ended=1e9 + 5,
                cpu_seconds=4.0,
                outcome=Outcome(kind="trained"),
            )
        )
    return experiment


if __name__ == "__main__":
    main()
