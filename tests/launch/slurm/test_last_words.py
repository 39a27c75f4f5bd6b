"""What is read before and after the scheduler is asked; only its answer is made up here."""

import time
from pathlib import Path

import pytest

from orchestrator.launch.slurm import poll, submissions
from orchestrator.records import ExitRecord
from orchestrator.rundir import RunFolder, SchedulerReport
from orchestrator.runs import evaluation_jobs


def failed(failure: str) -> ExitRecord:
    now = time.time()
    return ExitRecord(state="failed", failure=failure, message="m", started=now, ended=now)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "ru ns'$x" / "a")
    made.open()
    submissions.write_manifest(made, "s1", {"kind": "evaluate", "elements": [["cell", 1]]})
    submissions.note(
        made,
        submissions.INTENT,
        "s1",
        kind="evaluate",
        name="n",
        host="h",
        pid=1,
        birth="b",
        cells=1,
    )
    submissions.note(made, submissions.SENT, "s1", job="7")
    return made


@pytest.mark.parametrize("in_time", [True, False])
def test_an_evaluation_that_ends_while_the_scheduler_is_asked_is_not_lost(
    in_time: bool, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler says `ended` of a job whose own word is written after it was looked for."""

    def ended(_folder: RunFolder, sent: submissions.Submission, index: int) -> SchedulerReport:
        if in_time:
            submissions.write_end(folder, sent.id, index, failed("export"))
        return SchedulerReport("failed", failed(""))

    monkeypatch.setattr(poll, "polled_element", ended)
    seen = evaluation_jobs.last_evaluations(folder, {"cell": "succeeded"})["cell"]
    assert seen.exit is not None
    told = (seen.state, seen.exit.failure, seen.failures, seen.written)
    assert told == ("failed", *(("export", 1, True) if in_time else ("lost", 1, False)))
    evaluation_jobs.record_ends(folder, {"cell": "succeeded"}, {"cell": seen})
    again = evaluation_jobs.last_evaluations(folder, {"cell": "succeeded"})["cell"]
    assert again.exit is not None
    assert (again.exit.failure, again.failures, again.written) == (seen.exit.failure, 1, True)
