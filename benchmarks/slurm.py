"""Submitting and watching on a real cluster of this machine's own: what orch adds to SLURM.

python benchmarks/slurm.py [cells]      needs SLURM's daemons, see tests/cluster

Prints the client's time to submit so many cells, the time of `orch status` of them and how often
it called the scheduler, and how fast they are drained beside an array of `true`.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import ORCH, grid_spec, measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster import Cluster, missing, started, wait_for

from orchestrator.launch.local import launch
from orchestrator.launch.slurm.poll import PATIENCE_SECONDS
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import open_experiment

COUNTED = ("sbatch", "sacct", "squeue", "scontrol", "scancel")
WRAPPER = '#!/bin/sh\necho {name} >> "{log}"\nexec {real} "$@"\n'


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    if fault := missing():
        sys.exit(fault)
    with started() as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= cluster.env
        calls = count_calls(folder)
        spec = grid_spec(folder / f"bench_{cells}.yaml", cells)
        site = ["site.kind=slurm", '+site.options.extra=["--begin=now+2hours"]']
        empty = measure([ORCH, "plan", spec, *site], cwd=folder, codes=(2,))
        sent = measure([ORCH, "run", spec, *site], cwd=folder)
        called = calls()
        each = (sent.cpu_seconds - empty.cpu_seconds) / cells * 1000
        spent = f"{sent.wall_seconds:.2f} s, {sent.cpu_seconds:.2f} CPU s"
        print(f"orch run of {cells} cells: {spent}, beyond orch plan {each:.2f} ms a cell (bar 2)")
        print(f"  calls: {called}")
        job = cluster.run("squeue", "-h", "-o", "%F").split()[0]
        wait_for(lambda: cluster.run("sacct", "-X", "-n", "-j", job), 30, "sacct to know the job")
        time.sleep(PATIENCE_SECONDS + 5)  # after that, why jobs wait is looked at as well
        status = min(
            (measure([ORCH, "status"], cwd=folder) for _ in range(3)),
            key=lambda cost: cost.wall_seconds,
        )
        assert f"{cells} pending" in status.output, status.output[:500]
        called = calls()
        spent = f"{status.wall_seconds:.2f} s, {status.cpu_seconds:.2f} CPU s"
        print(f"orch status: {spent} (bar 1), calls of three: {called}")
        again = measure([ORCH, "run", spec, *site], cwd=folder)
        print(f"orch run again: {again.wall_seconds:.2f} s, nothing sent: {calls()}")
        cluster.run("scancel", "--user", str(os.geteuid()))
        floor = drain(cluster, min(cells, 200))
        train(cluster, folder, cells, floor)


def count_calls(folder: Path) -> Callable[[], dict[str, int]]:
    """Puts wrappers before SLURM's commands; the result gives what was called since last asked."""
    log, place = folder / "calls", folder / "bin"
    place.mkdir()
    for name in COUNTED:
        path = place / name
        path.write_text(WRAPPER.format(name=name, log=log, real=shutil.which(name)))
        path.chmod(0o755)
    os.environ["PATH"] = f"{place}:{os.environ['PATH']}"

    def asked() -> dict[str, int]:
        lines = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return {name: lines.count(name) for name in COUNTED if name in lines}

    return asked


SMALL = 100
"""Jobs that import torch, two CPU seconds each, and cells trained without a cluster."""


def drain(cluster: Cluster, count: int) -> float:
    """Arrays of `true`, and of Pythons that end at once or import what a job of orch imports, or
    torch: the floors of a cell. Jobs of `true` a second."""
    first = 0.0
    for what in ("true", "pass", "import orchestrator.launch.slurm.task", "import torch"):
        line = what if what == "true" else f"{sys.executable} -P -c '{what}'"
        count = min(count, SMALL // 2) if "torch" in what else count
        wait_for(lambda: not cluster.run("squeue", "-h"), 120, "the queue to be empty")
        began = time.monotonic()
        cluster.run(
            "sbatch", "-o", "/dev/null", f"--array=0-{count - 1}", "--mem=100M", f"--wrap={line}"
        )
        wait_for(lambda: not cluster.run("squeue", "-h"), 600, "the array to end")
        rate = count / (time.monotonic() - began)
        first = first or rate
        print(f"  {count} jobs of `{what}`: {rate:.2f} a second, 1/{first / rate:.1f} of `true`")
    return first


def train(cluster: Cluster, folder: Path, cells: int, floor: float) -> None:
    """Cells of one train step as jobs, beside `true` and beside their training alone."""
    short = "studies.grid.base.num_train_steps=1"
    small = open_experiment(grid_spec(folder / f"local_{SMALL}.yaml", SMALL), [short, "site=local"])
    began = time.monotonic()
    assert launch(small.cells, RunFolder(folder / "local")).count("succeeded") == SMALL
    trained = SMALL / (time.monotonic() - began)
    print(f"  {SMALL} embedded cells of one step without a cluster: {trained:.2f} a second")
    asked = [
        "site.kind=slurm",
        short,
        "+site.options={evaluate: false, memory_gib: 0.5, time_limit_hours: 0.5}",
    ]
    wait_for(lambda: not cluster.run("squeue", "-h"), 120, "the queue to be empty")
    spec = grid_spec(folder / f"small_{cells}.yaml", cells)
    measure([ORCH, "run", spec, *asked], cwd=folder)
    began = time.monotonic()
    wait_for(lambda: not cluster.run("squeue", "-h"), 1800, "the cells to end", every=1.0)
    rate = cells / (time.monotonic() - began)
    status = measure([ORCH, "status", spec, *asked], cwd=folder)
    assert f"{cells} of {cells} cells done" in status.output, status.output[:500]
    both = 1 / (1 / floor + 1 / trained)
    print(
        f"  {cells} of them as jobs: {rate:.2f} a second, 1/{floor / rate:.1f} of `true`, "
        f"{rate / both:.2f} of a cluster that drains `true` and trains them besides; "
        f"status of them {status.wall_seconds:.2f} s"
    )


if __name__ == "__main__":
    main()
