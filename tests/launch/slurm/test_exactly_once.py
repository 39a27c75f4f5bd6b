"""Killed at every instant of a submission and run again, each cell is submitted exactly once."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.launch.slurm import submissions
from orchestrator.launch.slurm.submissions import claim_array
from orchestrator.rundir import RunFolder
from tests.cluster import Cluster
from tests.launch.kit import HOUSE, many

HERE = Path(__file__).parent
KINDS = ("train", "evaluate")


@pytest.mark.slow
def test_each_cell_is_submitted_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    cells = many(3)  # with arrays of two: two trainings, two evaluations
    listed = tmp_path / "cells.json"
    listed.write_text(json.dumps([json.loads(c.model_dump_json()) for c in cells]))
    root = tmp_path / "k"
    done = subprocess.run(
        [sys.executable, str(HERE / "kill.py"), str(listed), str(root)],
        env={**os.environ, "PYTHONPATH": str(HOUSE)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    operations = int(done.stdout.split()[-1])
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
