"""A folder that others share: their jobs, another cluster's jobs."""

import os
from pathlib import Path

import pytest

from orchestrator.launch.slurm import poll, submissions
from orchestrator.runs.operations import cancel, retry
from tests.launch.kit import many, program, units
from tests.launch.slurm.conftest import Site


def test_cells_of_another_user_are_taken_over_and_go_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's job, which nobody here can see or cancel, is fenced, and does no unit twice."""
    (cell,) = many(1, "slow", 300)
    (first,) = site.start(cell).jobs
    site.until_units(cell, 5)
    path = os.environ["PATH"]
    mine = f'"user": "{submissions.user_name()}", "uid": {os.geteuid()}'
    ledger = site.folder.ledger.read_text()
    assert mine in ledger
    site.folder.ledger.write_text(ledger.replace(mine, '"user": "ada", "uid": 4242'))
    for name in ("squeue", "sacct"):  # SLURM lists nothing (PrivateData)
        program(tmp_path / "bin" / name, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{path}")
    monkeypatch.setattr(poll, "_YOUNG_SECONDS", 0.0)
    seen = site.look(cell)
    assert seen.state == "unknown"
    assert seen.fault.startswith(f"submitted by ada as job {first}, not visible to you")
    assert "`orch cancel` and `orch retry` submit the cell again" in seen.fault
    assert site.submit(cell).cells == (), "never submitted again by itself"
    assert cancel([cell], site.folder)[0].done
    assert retry([cell], site.folder)[0].done
    taken = site.submit(cell)
    assert taken.cells == (cell,)
    monkeypatch.setenv("PATH", path)  # ours are visible
    listed = ("squeue", "-h", "-o", "%F")
    site.wait_for(lambda: first not in site.cluster.run(*listed).split(), cell)  # it is fenced
    assert site.wait(cell)[cell.id].state == "succeeded", site.words(cell)
    *_old, new = site.attempts(cell)
    assert new.read_order()["submission"] in {
        sent.id for sent in submissions.read(site.folder).values() if sent.job == taken.jobs[0]
    }
    assert units(site.folder, cell) == list(range(1, 301)), "it went on where the first was ended"
