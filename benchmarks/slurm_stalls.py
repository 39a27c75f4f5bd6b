"""Exactly once while the controller stalls: it is stopped at random moments of submissions.

python benchmarks/slurm_stalls.py [stalls] [seed]     needs SLURM's daemons, see tests/cluster

Each time, two submissions of 40 cells (five arrays each) begin, slurmctld is stopped (SIGSTOP) at a
random moment of them for 5 to 60 seconds and goes on, and the submissions come to their end. Then
SLURM is asked for every array of their names, those that were cancelled included. Prints for each
stall how many sbatch calls timed out, and at the end how many cells SLURM has twice; exits 1 if
there are any.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from measure import grid_spec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster import Cluster, missing, started

from orchestrator.launch.slurm import submissions
from orchestrator.launch.slurm.submit import submit
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import open_experiment
from orchestrator.spec.site_options import SlurmOptions

CELLS, ARRAY, AT_ONCE = 40, 8, 2
OPTIONS = SlurmOptions(extra=("--hold",), max_array_size=ARRAY)


def main() -> None:
    stalls = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)  # noqa: S311  (no secret)
    if fault := missing():
        sys.exit(fault)
    with started() as cluster, tempfile.TemporaryDirectory() as name:
        os.environ |= cluster.env
        spec = grid_spec(Path(name) / "stalls.yaml", 100)
        cells = open_experiment(spec, ["site=local"]).cells[:CELLS]
        began = time.monotonic()
        finish([begin(cells, Path(name) / "quiet")])
        quiet = time.monotonic() - began
        print(
            f"{CELLS} cells in {CELLS // ARRAY} arrays: {quiet:.1f} s without a stall", flush=True
        )
        doubled = sent = 0
        for number in range(stalls):
            folders = [Path(name) / f"s{number}{which}" for which in "ab"[:AT_ONCE]]
            extra, timeouts = stall(cluster, chance, cells, folders, quiet)
            doubled += extra
            sent += len(folders) * CELLS
            cluster.run("scancel", "--user", str(os.geteuid()))
            print(f"  stall {number + 1}: {timeouts}, {extra} cells twice", flush=True)
    print(f"{stalls} stalls, {sent} cells submitted, {doubled} of them twice")
    sys.exit(doubled > 0)


def stall(
    cluster: Cluster,
    chance: random.Random,
    cells: tuple[Cell, ...],
    folders: list[Path],
    quiet: float,
) -> tuple[int, str]:
    """Stall the controller once. Return how many cells SLURM has too often, and what happened."""
    moment, length = chance.uniform(0, quiet), chance.uniform(5, 60)
    controller = int((cluster.base / "run" / "slurmctld").read_text())
    children = [begin(cells, folder) for folder in folders]
    time.sleep(moment)
    os.kill(controller, signal.SIGSTOP)
    time.sleep(length)
    os.kill(controller, signal.SIGCONT)
    finish(children)
    extra = 0
    for folder in map(RunFolder, folders):
        known = submissions.read(folder).values()
        listed = cluster.run("squeue", "-h", "-t", "all", "-o", "%F|%j").splitlines()
        arrays = Counter(name for _, name in {tuple(line.split("|")) for line in listed})
        assert sum(s.cells for s in known if s.job) == len(cells), "a cell was lost"
        extra += sum((arrays[s.name] - 1) * s.cells for s in known if s.job)
        extra += sum(arrays[s.name] * s.cells for s in known if s.dropped)
        for cell in cells:
            assert len(folder.cell(cell).attempts()) == 1
    said = sum(
        (folder.with_suffix(".said").read_text().count("asking again")) for folder in folders
    )
    return extra, f"{length:.0f} s, {moment:.1f} s after the start, {said} calls timed out"


def begin(cells: tuple[Cell, ...], folder: Path) -> int:
    """Start a submission in a process of its own; return its pid."""
    child = os.fork()
    if child == 0:
        with folder.with_suffix(".said").open("w") as said:
            submit(cells, RunFolder(folder), OPTIONS, tell=lambda text: print(text, file=said))
        os._exit(0)
    return child


def finish(children: list[int]) -> None:
    """Wait for submissions; each must have come to its end."""
    for child in children:
        assert os.waitpid(child, 0)[1] == 0, "a submission failed"


if __name__ == "__main__":
    main()
