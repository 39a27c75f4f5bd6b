"""Submitting and watching on a real cluster of this machine's own: what orch adds to SLURM.

python benchmarks/slurm.py [cells ...] [--drain]      needs SLURM's daemons, see tests/cluster

For 1,000 and 10,000 cells (or those given) prints CPU seconds and calls of the scheduler of
submitting them, of `orch status`, of running again with nothing to send, and of `orch status` when
all have ended. --drain: how fast they are drained beside an array of `true`.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import ORCH, Cost, grid_spec, measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster import Cluster, missing, started, wait_for

from orchestrator.launch.local import launch
from orchestrator.launch.slurm.poll import PATIENCE_SECONDS
from orchestrator.records import ExitRecord, Outcome
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import open_experiment

COUNTED = ("sbatch", "sacct", "squeue", "scontrol", "scancel")
WRAPPER = '#!/bin/sh\necho {name} >> "{log}"\nexec {real} "$@"\n'


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or [1000, 10_000]
    if fault := missing():
        sys.exit(fault)
    with started() as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= cluster.env
        calls = count_calls(folder)
        for cells in sizes:
            look(cluster, folder, cells, calls)
        if "--drain" in sys.argv:
            floor = drain(cluster, 200)
            train(cluster, folder, min(sizes), floor)


def look(cluster: Cluster, folder: Path, cells: int, calls: Callable[[], dict[str, int]]) -> None:
    """Print how long a person waits with so many cells in the queue, and when all have ended."""
    spec = grid_spec(folder / f"bench_{cells}.yaml", cells)
    site = ["site.kind=slurm", '+site.options.extra=["--begin=now+2hours"]']

    def said(what: str, cost: Cost, beyond: float = 0.0) -> None:
        each = (cost.cpu_seconds - beyond) / cells * 1000
        more = f", beyond that {each:.2f} ms a cell" if beyond else ""
        print(f"  {what}: {cost.cpu_seconds:.2f} CPU s{more}; calls {calls()}", flush=True)

    print(f"{cells} cells")
    alone = measure([ORCH, "plan", spec, *site], cwd=folder, codes=(3,))
    said("orch plan, which reads and expands the spec", alone)
    said("orch run", measure([ORCH, "run", spec, *site], cwd=folder), alone.cpu_seconds)
    time.sleep(PATIENCE_SECONDS + 2)  # after that, why jobs wait is looked at as well
    waiting = measure([ORCH, "status", spec, *site], cwd=folder)
    assert f"{cells} pending" in waiting.output, waiting.output[:500]
    said("orch status SPEC", waiting)
    said("orch status", measure([ORCH, "status"], cwd=folder))
    again = measure([ORCH, "run", spec, *site], cwd=folder)
    assert "submitted" not in again.output
    said("orch run again, nothing to send", again)
    cluster.run("scancel", "--user", str(os.geteuid()))
    end_all(RunFolder(folder / "runs" / f"bench_{cells}"))
    said("orch status, all ended, the first time", measure([ORCH, "status"], cwd=folder))
    said("orch status, all ended, from the index", measure([ORCH, "status"], cwd=folder))
    shutil.rmtree(folder / "runs")


def end_all(folder: RunFolder) -> None:
    """Write the exit records that workers would have written, ten minutes ago."""
    then = time.time() - 600
    outcome = Outcome(kind="trained")
    record = ExitRecord(state="succeeded", started=then - 60, ended=then, outcome=outcome)
    for cell_dir in folder.cells():
        (attempt,) = cell_dir.attempts()
        attempt.write_exit(record)
        for path in (attempt.path, attempt.path.parent):
            os.utime(path, (then, then))


def count_calls(folder: Path) -> Callable[[], dict[str, int]]:
    """Wrap SLURM's commands; return a function that counts the calls since it was last called."""
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
