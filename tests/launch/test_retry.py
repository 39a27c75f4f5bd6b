"""Which cells that stopped are started again."""

import json
from pathlib import Path

import pytest

from orchestrator.records import ExitRecord
from orchestrator.rundir import RunFolder
from orchestrator.runs.state import may_retry, read_state
from orchestrator.spec.site_options import ClusterOptions
from tests.launch.kit import make_cell

pytestmark = pytest.mark.usefixtures("fake")


@pytest.mark.parametrize(("stops", "again"), [(2, True), (3, False)])
def test_a_cell_that_stops_without_progress_waits_for_a_person(
    tmp_path: Path, stops: int, again: bool
) -> None:
    cell = make_cell(0, "slow")
    cell_dir = RunFolder(tmp_path / "x").cell(cell)
    cell_dir.make(cell)
    for _ in range(stops):
        attempt = cell_dir.new_attempt()
        attempt.job.write_text(json.dumps({"checkpoint_step": 0}))
        attempt.write_exit(ExitRecord(state="preempted", started=0, ended=1))
    assert may_retry(cell_dir, read_state(cell_dir), ClusterOptions(max_requeues=20)) is again
