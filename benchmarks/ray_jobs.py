"""Submitting and watching at a job server: what orch costs where cells are Ray jobs.

python benchmarks/ray_jobs.py [cells ...]      the server is a model in this process, no Ray

For 1,000 and 10,000 cells (or those given) prints CPU seconds of orch and calls of the job server
of submitting all of them at once, of `orch status`, and of running again with nothing to send.
benchmarks/slurm.py prints the same for SLURM.
"""

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from measure import ORCH, Cost, grid_spec, measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.launch.ray.model_server import ModelServer, model_server


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or [1000, 10_000]
    with tempfile.TemporaryDirectory() as name:
        for cells in sizes:
            with model_server() as server:
                look(server, Path(name), cells)


def look(server: ModelServer, folder: Path, cells: int) -> None:
    """Print how long a person waits with so many cells at the job server."""
    spec = grid_spec(folder / f"bench_{cells}.yaml", cells)
    site = ["site.kind=ray", f"+site.options.address={server.address}"]
    site.append(f"+site.options.max_running={cells}")

    def said(what: str, cost: Cost, beyond: float = 0.0) -> None:
        each = (cost.cpu_seconds - beyond) / cells * 1000
        more = f", beyond that {each:.2f} ms a cell" if beyond else ""
        calls = dict(Counter(call.split()[0] for call in server.calls))
        server.calls.clear()
        print(f"  {what}: {cost.cpu_seconds:.2f} CPU s{more}; calls {calls}", flush=True)

    print(f"{cells} cells")
    alone = measure([ORCH, "plan", spec, *site], cwd=folder, codes=(3,))
    said("orch plan, which reads and expands the spec", alone)
    said("orch run", measure([ORCH, "run", spec, *site], cwd=folder), alone.cpu_seconds)
    assert len(server.jobs) == cells
    waiting = measure([ORCH, "status", spec, *site], cwd=folder)
    assert f"{cells} pending" in waiting.output, waiting.output[:500]
    said("orch status SPEC", waiting)
    again = measure([ORCH, "run", spec, *site], cwd=folder)
    assert "submitted" not in again.output
    said("orch run again, nothing to send", again)
    assert len(server.jobs) == cells
    shutil.rmtree(folder / "runs")


if __name__ == "__main__":
    main()
