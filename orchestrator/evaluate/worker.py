"""The process that imports the harness once and forks a worker per core.

Jobs come as lines of JSON on stdin until it closes; a line goes back for each: `{"done": n}`, or
with `fault` (a sentence) or `bug` (a traceback). The number is the job's place in the input.
"""

import json
import os
import sys
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import TextIO

from orchestrator.errors import OrchError
from orchestrator.evaluate.results import Job
from orchestrator.launch.system import die_with


def main(parent: int, workers: int) -> None:
    die_with(parent)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the harness prints
    jobs = [Job.model_validate_json(line) for line in sys.stdin]
    from orchestrator.evaluate import harness

    with suppress(Exception):  # the job itself will tell
        harness.prepare(jobs[0])
    with ProcessPoolExecutor(
        min(workers, len(jobs)), get_context("fork"), die_with, (os.getpid(),)
    ) as pool:
        places = {pool.submit(harness.answer, job): place for place, job in enumerate(jobs)}
        for future in as_completed(places):
            _reply(replies, places[future], future)
    os._exit(0)  # unloading the libraries would take another second


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
