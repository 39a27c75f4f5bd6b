"""GPU-hours used and left, and which cells a budget still pays."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.slurm import submissions
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import RunFolder
from orchestrator.runs.cost import (
    afford,
    evaluation_hours,
    total_left,
    used_gpu_hours,
)
from orchestrator.runs.plan import Plan, PlanRow
from orchestrator.settings import Resources

FOUR_HOURS = Resources(num_nodes=1, gpus_per_node=4, hours=1)


@pytest.fixture
def rows(synthetic: Any, tmp_path: Path) -> Callable[..., Plan]:
    """Rows of declared cells of 4 GPU-hours each, in these states."""
    folder = RunFolder(tmp_path / "x")

    def made(*states: str) -> Plan:
        found = []
        for seed, state in enumerate(states):
            cell: Cell = synthetic.run(seed=seed, micro=False).records[0].cell
            cell = cell.model_copy(update={"resources": FOUR_HOURS})
            cell_dir = folder.cell(cell)
            cell_dir.make(cell)
            reason = {"planned": "new", "failed": "failed"}.get(state, "running")
            if state == "succeeded":
                reason = "unchanged"
            found.append(PlanRow(cell_dir, state, reason, cell))  # type: ignore[arg-type]  # one of the literals, from the mapping above
        return Plan(tuple(found))

    return made


def test_a_budget_pays_cells_in_order_and_says_what_is_left(rows: Callable[..., Plan]) -> None:
    plan = rows("running", "planned", "planned", "planned")
    afforded = afford(plan, 10, plan)
    assert [c.settings.seed for c in afforded.paid] == [1]
    assert [c.settings.seed for c in afforded.unpaid] == [2, 3]
    assert "budget of 10 GPU-hours" in afforded.sentence
    assert "4 with the scheduler, 4 to be submitted" in afforded.sentence
    assert afforded.sentence.endswith(
        "2 left, too little for 2 more cells: 8 GPU-hours [2 declared]"
    )
    sentence = afford(plan, 17, plan).sentence
    assert sentence.endswith("0 used, 4 with the scheduler, 12 to be submitted, 1 left")
    assert afford(plan, 17, plan).unpaid == ()


def test_evaluation_jobs_that_ended_are_paid(rows: Callable[..., Plan], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "x")
    assert evaluation_hours(folder) == 0, "nothing was scored yet"
    submissions.write_manifest(folder, "one", {"elements": [["a", 1], ["b", 1], ["c", 1]]})
    tries = [(0, "succeeded", 0.5), (1, "failed", 1.5), (1, "succeeded", 1.0), (2, "failed", 0.0)]
    for index, state, hours in tries:
        end = ExitRecord(state=state, started=0, ended=1, gpu_hours=hours)  # type: ignore[arg-type]  # one of the literals, from the list above
        submissions.write_end(folder, "one", index, end)
    (folder.submission("one") / "ends" / "2.succeeded.json").write_text("{")  # cut
    assert evaluation_hours(folder) == 3
    plan = rows("succeeded", "running", "planned", "planned")
    afforded = afford(plan, 14, plan, 3.0)
    assert "3 used, 4 with the scheduler, 4 to be submitted, 3 left" in afforded.sentence
    assert [c.settings.seed for c in afforded.paid] == [2]


def test_used_counts_every_attempt_also_one_that_left_no_word(rows: Callable[..., Plan]) -> None:
    plan = rows("running")
    cell_dir = plan.rows[0].directory
    first = cell_dir.new_attempt()
    first.write_exit(ExitRecord(state="preempted", started=0, ended=3600, gpu_hours=4))
    second = cell_dir.new_attempt()
    second.job.write_text(json.dumps({"started": 1000.0}))
    second.heartbeat.touch()
    os.utime(second.heartbeat, (2800.0, 2800.0))
    assert used_gpu_hours(plan.rows) == pytest.approx(4 + 0.5 * 4)


def test_remaining_goes_down_with_the_steps(rows: Callable[..., Plan]) -> None:
    row = rows("running").rows[0]
    assert row.cell is not None
    attempt = row.directory.new_attempt()
    half = row.cell.settings.num_train_steps // 2
    attempt.metrics.write_text(json.dumps({"step": half, "values": {}}) + "\n")
    assert total_left([row]).gpu_hours == pytest.approx(2)
