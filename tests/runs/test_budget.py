"""GPU-hours used and left, and a budget that is too little."""

import json
import os
from typing import Any

import pytest

from orchestrator.errors import SelectionError
from orchestrator.launch.slurm import submissions
from orchestrator.pipeline.training import refuse_over_budget
from orchestrator.records import ExitRecord
from orchestrator.rundir import RunFolder
from orchestrator.runs.cost import evaluation_hours, total_left, used
from orchestrator.runs.plan import Plan, PlanRow
from tests.launch.kit import leave, many

REASONS = {"planned": "new", "failed": "failed", "running": "running", "succeeded": "unchanged"}


def rows(folder: RunFolder, *states: str) -> Plan:
    """Rows of declared cells of 4 GPU-hours each, in these states."""
    four_hours = {"num_nodes": 1, "gpus_per_node": 4, "hours": 1}
    cells = many(len(states), steps=100, resources=four_hours)
    homes = [leave(folder, cell) for cell in cells]
    made: Any = zip(homes, states, [REASONS[state] for state in states], cells, strict=True)
    return Plan(tuple(PlanRow(*each) for each in made))


def test_a_budget_that_is_too_little_starts_nothing(folder: RunFolder) -> None:
    plan = rows(folder, "running", "planned", "planned", "failed")
    said = refuse_over_budget(12, plan, plan, folder)
    assert said.startswith("budget of 12 GPU-hours: 0 used, 4 at work, and the missing cells take")
    assert said.endswith("8 GPU-hours [2 declared]")
    with pytest.raises(SelectionError, match="that is more"):
        refuse_over_budget(11, plan, plan, folder)


def test_evaluation_jobs_that_ended_are_paid(folder: RunFolder) -> None:
    assert evaluation_hours(folder) == 0, "nothing was scored yet"
    submissions.write_manifest(folder, "one", {"elements": [["a", 1], ["b", 1], ["c", 1]]})
    tries = [(0, "succeeded", 0.5), (1, "failed", 1.5), (1, "succeeded", 1.0), (2, "failed", 0.0)]
    for index, state, hours in tries:
        end = ExitRecord(state=state, started=0, ended=1, gpu_hours=hours)  # type: ignore[arg-type]  # one of the literals, from the list above
        submissions.write_end(folder, "one", index, end)
    (folder.submission("one") / "ends" / "2.succeeded.json").write_text("{")  # cut
    assert evaluation_hours(folder) == 3
    plan = rows(folder, "succeeded", "running", "planned")
    said = refuse_over_budget(14, plan, plan, folder)
    assert "3 used, 4 at work, and the missing cells take 4 GPU-hours" in said


def test_used_counts_every_attempt_also_one_that_left_no_word(folder: RunFolder) -> None:
    plan = rows(folder, "running")
    cell_dir = plan.rows[0].directory
    first = cell_dir.new_attempt()
    first.write_exit(ExitRecord(state="preempted", started=0, ended=3600, gpu_hours=4))
    second = cell_dir.new_attempt()
    second.job.write_text(json.dumps({"started": 1000.0}))
    second.heartbeat.touch()
    os.utime(second.heartbeat, (2800.0, 2800.0))
    assert used(plan.rows)[0] == pytest.approx(4 + 0.5 * 4)


def test_remaining_goes_down_with_the_steps(folder: RunFolder) -> None:
    row = rows(folder, "running").rows[0]
    attempt = row.directory.new_attempt()
    half = row.cell.settings.num_train_steps // 2
    attempt.metrics.write_text(json.dumps({"step": half, "values": {}}) + "\n")
    assert total_left([row]).gpu_hours == pytest.approx(2)
