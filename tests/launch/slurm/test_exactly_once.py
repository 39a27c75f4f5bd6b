"""Killed at every instant of a submission and run again, each cell is submitted exactly once."""

import os
import signal
import threading
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from orchestrator.launch.slurm import submissions
from orchestrator.launch.slurm.submissions import claim_array
from orchestrator.launch.slurm.submit import submit
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import SlurmOptions
from tests.cluster import Cluster
from tests.launch.kills import Hook, at_operation, killed
from tests.launch.kit import many

DELAYS = (0.003, 0.006, 0.012, 0.02, 0.03)
KINDS = ("train", "evaluate")


def after_sbatch(delay: float) -> Hook:
    def kill() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and arguments[0] == "sbatch":
            threading.Thread(target=kill, daemon=True).start()

    return hook


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
def test_each_cell_is_submitted_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    """Killed at each operation, and so long after sbatch was started; then submitted once more."""
    cells = many(3)  # with arrays of two: two trainings, two evaluations
    options = SlurmOptions(extra=("--hold",), max_array_size=2)

    def submitting(place: Path) -> partial[object]:
        return partial(submit, cells, RunFolder(place), options, evaluate=True)

    root = tmp_path / "k"
    for operations in count(1):
        place = root / f"at{operations}"
        if not killed(submitting(place), at_operation(operations, place)):
            break
    for number, delay in enumerate(DELAYS):
        killed(submitting(root / f"after{number}"), after_sbatch(delay))
    for place in sorted(root.iterdir()):
        submitting(place)()
    assert operations > 30, "the kills did not cover the submission"
    elements = Counter(cluster.run("squeue", "-h", "-r", "-o", "%j").split())
    known: set[str] = set()
    for path in root.iterdir():
        folder = RunFolder(path)
        sent = [s for s in submissions.read(folder).values() if s.job]
        assert not [s for s in submissions.read(folder).values() if s.open], path.name
        assert all(elements[s.name] >= s.cells for s in sent), path.name
        # An sbatch may reach SLURM after it was asked for the job: such a copy may start nothing.
        holders = {s.job: claim_array(folder.submission(s.id), "another") for s in sent}
        assert all(job == holder for job, holder in holders.items()), path.name
        counts = {kind: sum(s.cells for s in sent if s.kind == kind) for kind in KINDS}
        assert counts["train"] == len(cells), path.name
        # What a kill left out is submitted once its cell is trained.
        assert counts["evaluate"] <= len(cells), path.name
        known |= {s.name for s in submissions.read(folder).values()}
        for cell in cells:
            attempts = folder.cell(cell).attempts()
            assert len(attempts) == 1
            assert attempts[0].read_order()["submission"] in {s.id for s in sent}
    assert set(elements) <= known, "a job that no ledger knows of"
