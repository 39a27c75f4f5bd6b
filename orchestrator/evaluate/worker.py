"""The process that imports the harness once and forks a worker per core.

Jobs come as lines of JSON on stdin until it closes; a line goes back for each: `{"done": n}`, or
with `fault` (a sentence) or `bug` (a traceback). The number is the job's place in the input.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import TextIO

from orchestrator.errors import OrchError
from orchestrator.evaluate.scores import ScoringJob
from orchestrator.launch.processes import die_with


def main(parent: int, workers: int) -> None:
    """Score the jobs on stdin. `workers`: processes for jobs that need one core each."""
    die_with(parent)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the harness prints
    jobs = [ScoringJob.model_validate_json(line) for line in sys.stdin]
    from orchestrator.evaluate import harness

    on_cores = [place for place, job in enumerate(jobs) if _is_light(job)]
    if on_cores:
        with suppress(Exception):  # the job itself will report the error
            harness.prepare(jobs[on_cores[0]])
        # The workers' collector need not look at half a million objects of libraries, nor write
        # into their pages, which the workers share with this process.
        gc.freeze()
    _do(jobs, on_cores, workers, replies)
    for place, job in enumerate(jobs):
        if not _is_light(job):  # alone, in a process that leaves the GPU with its end
            _do(jobs, [place], 1, replies)
    os._exit(0)  # unloading the libraries would take another second


def _is_light(job: ScoringJob) -> bool:
    return job.engine.name == "hf" and job.engine.device == "cpu"


def _do(jobs: Sequence[ScoringJob], places: Sequence[int], workers: int, replies: TextIO) -> None:
    from orchestrator.evaluate import harness

    if not places:
        return
    with ProcessPoolExecutor(
        min(workers, len(places)), get_context("fork"), die_with, (os.getpid(),)
    ) as pool:
        futures = {pool.submit(harness.answer, jobs[place]): place for place in places}
        for future in as_completed(futures):
            _reply(replies, futures[future], future)


def _reply(replies: TextIO, place: int, future: "Future[None]") -> None:
    message: dict[str, object] = {"done": place}
    try:
        future.result()
    except OrchError as error:
        message["fault"] = str(error)
    except BrokenProcessPool:
        message["fault"] = (
            "a process that evaluated was killed (out of memory?); run it again, with fewer "
            "workers if need be: what is scored stays scored"
        )
    except Exception:
        message["bug"] = traceback.format_exc()
    print(json.dumps(message), file=replies, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
