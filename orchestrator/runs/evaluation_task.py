"""The evaluation of one cell as a job: export where it is needed, then every missing score.

How it ended is kept beside the submission, in a class of its own: training is not at fault.
"""

import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from orchestrator.launch.slurm import scheduler, submissions
from orchestrator.launch.slurm.task import STOP_SIGNALS, end_process, exit_code_of, read_element
from orchestrator.records import Record, Spec
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.spec.site_options import node_options


def main() -> int:
    """Export and score the cell of this job's element; return the job's exit code."""
    ask = worker.StopSignals(STOP_SIGNALS)
    element = read_element()
    if element is None:
        return scheduler.UNSEEN
    return exit_code_of(lambda: run(element.folder, element.cell_dir, element.manifest, ask))


def run(
    folder: RunFolder, cell_dir: CellDir, manifest: Mapping[str, Any], ask: worker.StopSignals
) -> int:
    """Exports and scores the cell's checkpoints; the job's exit code."""
    submission, began = Path.cwd().name, time.time()
    if Path(manifest["cwd"]).is_dir():
        os.chdir(manifest["cwd"])  # relative paths mean what they meant to the submitter
    try:
        with ask.interrupting():
            _score(folder, cell_dir, manifest)
        ending = Ending("succeeded", code=0)
    except Stopped:
        if scheduler.restarts() < int(manifest["options"]["max_requeues"]):
            scheduler.requeue_job(scheduler.job_id())
        return 1  # scores are kept: it goes on where it was
    except RunFolderError:
        raise
    except Exception as error:
        if full := disk_full_error(error, folder.path):
            raise full from error
        if not isinstance(error, OrchError):
            traceback.print_exc()
        else:
            sys.stderr.write(f"{error}\n")
        ending = _ending(error)
    record = ending.record(began, time.time())
    hours = manifest["gpus"] * (record.ended - began) / 3600
    record = record.model_copy(update={"gpu_hours": hours})
    submissions.write_end(folder, submission, int(os.environ["SLURM_ARRAY_TASK_ID"]), record)
    return 0 if record.state == "succeeded" else 1


def _score(folder: RunFolder, cell_dir: CellDir, manifest: Mapping[str, Any]) -> None:
    spec = read_object(Spec, folder.spec)
    if spec is None:
        raise RunFolderError(f"{folder.spec} is missing: `orch run` writes it")
    records = collect([cell_dir.read_cell()], folder)
    for record in records:
        _export(record, cell_dir, manifest["options"], every=spec.evaluation.checkpoints == "all")
    options = {**manifest["options"], "gpus_per_node": manifest["gpus"]}
    site = spec.site.model_copy(update={"options": options})
    evaluate(records, spec.evaluation, folder, site=site, workers=1)


def _export(
    record: Record, cell_dir: CellDir, options: Mapping[str, object], *, every: bool
) -> None:
    """Converts what evaluation reads, before it does, so that a failure has its own class."""
    for checkpoint in record.checkpoints if every else record.checkpoints[-1:]:
        export(record.cell, checkpoint, cell_dir, node_options(options))


def _ending(error: Exception) -> Ending:
    if isinstance(error, ExportError):
        return Ending("failed", code=1, failure="export", message=shortened(str(error)))
    if isinstance(error, UnscoredError):
        told = str(error)
        return Ending("failed", code=1, failure=failure_of(told), message=shortened(told))
    return ending_of(error)


if __name__ == "__main__":
    end_process(main())
