"""The program of an evaluation job: export the checkpoints of one cell, then score them.

    python -m orchestrator.runs.evaluation_task             SLURM's variables name the element
    python -m orchestrator.runs.evaluation_task FOLDER      a Ray job: the folder of its submission

The job writes its ending into the folder of its submission, with separate failure classes
(`export`), because a failed evaluation is no failure of the training.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.evaluate import UnscoredError, evaluate
from orchestrator.files import read_object
from orchestrator.launch import worker
from orchestrator.launch.endings import (
    Ending,
    Stopped,
    disk_full_error,
    ending_of,
    failure_of,
    shortened,
)
from orchestrator.launch.export import ExportError, export
from orchestrator.launch.job import end_process, exit_code_of, say
from orchestrator.launch.node.gpus import gpu_fault
from orchestrator.launch.processes import node_name
from orchestrator.launch.slurm import scheduler, submissions
from orchestrator.launch.slurm.task import (
    STOP_SIGNALS,
    ArrayTask,
    read_task,
    refuse_copies,
)
from orchestrator.records import Record, Spec
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.spec.site_options import node_options


class BadNodeError(OrchError):
    """Raised if a GPU of this job's node is not well."""


def main(argv: Sequence[str] = ()) -> int:
    """Export and score the cell of this job's element; return the job's exit code."""
    stop = worker.StopSignals(STOP_SIGNALS)
    if argv:
        return exit_code_of(lambda: of_ray_job(Path(argv[0]), stop))
    task = read_task()
    if task is None:
        return scheduler.UNSEEN
    return exit_code_of(lambda: refuse_copies(task) or run(task, stop))


def of_ray_job(place: Path, stop: worker.StopSignals) -> int:
    """Export and score the cell of a Ray job; return its exit code. place: its submission's folder.

    A second start of the same job does no harm: scores that are there are not made again.
    """
    manifest = submissions.read_manifest(RunFolder(place.parents[1]), place.name)
    if not manifest:
        say(
            f"{place} cannot be seen from {node_name()}: the runs folder must lie on a file system "
            "that every node of the Ray sees"
        )
        return scheduler.UNSEEN
    os.environ["ORCH_DATA_DIR"] = manifest["data_dir"]
    worker.redirect(place / f"{place.name}_0.log")
    return run(ArrayTask(place, 0, manifest), stop, requeue=lambda _task: None)


def _requeue(task: ArrayTask) -> None:
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    if restarts < int(task.manifest["options"]["max_requeues"]):
        scheduler.requeue_job(scheduler.job_id())


def run(
    task: ArrayTask, stop: worker.StopSignals, requeue: Callable[[ArrayTask], None] = _requeue
) -> int:
    """Export and score the cell's checkpoints, and write the ending. Return the exit code.

    requeue: called when the job is asked to stop before its end.
    """
    began = time.time()
    if Path(task.manifest["cwd"]).is_dir():
        os.chdir(task.manifest["cwd"])  # relative paths mean what they meant to the submitter
    try:
        with stop.interrupting():
            _check_gpus(task)
            _score(task)
        ending = Ending("succeeded", code=0)
    except Stopped:
        requeue(task)
        return 1  # scores that were written are kept: it goes on where it was
    except RunFolderError:
        raise
    except Exception as error:
        if full := disk_full_error(error, task.folder.path):
            raise full from error
        if not isinstance(error, OrchError):
            traceback.print_exc()
        else:
            sys.stderr.write(f"{error}\n")
        ending = _ending(error)
    record = ending.record(began, time.time())
    hours = task.manifest["gpus"] * (record.ended - began) / 3600
    record = record.model_copy(update={"gpu_hours": hours})
    submissions.write_end(task.folder, task.submission.name, task.index, record)
    return 0 if record.state == "succeeded" else 1


def _check_gpus(task: ArrayTask) -> None:
    """Raise BadNodeError for a bad GPU, as before a training: orch then tries another node."""
    count = int(task.manifest["gpus"])
    if count and node_options(task.manifest["options"]).gpu_check and (fault := gpu_fault(count)):
        raise BadNodeError(f"node {node_name()}: {fault}")


def _score(task: ArrayTask) -> None:
    spec = read_object(Spec, task.folder.spec)
    if spec is None:
        raise RunFolderError(f"{task.folder.spec} is missing: `orch run` writes it")
    records = collect([task.cell_dir.read_cell()], task.folder)
    for record in records:
        _export(task, record, every=spec.evaluation.checkpoints == "all")
    options = {**task.manifest["options"], "gpus_per_node": task.manifest["gpus"]}
    site = spec.site.model_copy(update={"options": options})
    evaluate(records, spec.evaluation, task.folder, site=site, workers=1)


def _export(task: ArrayTask, record: Record, *, every: bool) -> None:
    """Export all checkpoints before evaluation reads them, so that a failed export has its own
    class."""
    options = node_options(task.manifest["options"])
    for checkpoint in record.checkpoints if every else record.checkpoints[-1:]:
        export(record.cell, checkpoint, task.cell_dir, options)


def _ending(error: Exception) -> Ending:
    message = shortened(str(error))
    if isinstance(error, BadNodeError):
        return Ending("failed", code=1, failure="node", message=message)
    if isinstance(error, ExportError):
        return Ending("failed", code=1, failure="export", message=message)
    if isinstance(error, UnscoredError):
        return Ending("failed", code=1, failure=failure_of(str(error)), message=message)
    return ending_of(error)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
