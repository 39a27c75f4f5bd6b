"""The processes that make scores, as orch sees them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate.results import Job
from orchestrator.evaluate.task_files import OWN_TASKS

QUIET = {
    "TOKENIZERS_PARALLELISM": "false",  # its threads would not survive the fork
    "TQDM_DISABLE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}
ON_CORES = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",  # a device opened before the fork is of no use after it
}
"""Where all jobs generate on the CPU."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Where policies and items are on this machine: nothing is looked up in vain."""


def harness_version() -> str:
    """`lm-eval 0.4.13`. Raises EnvironmentFault if it is not installed. Imports nothing of it."""
    try:
        return f"lm-eval {version('lm_eval')}"
    except PackageNotFoundError as error:
        raise EnvironmentFault(
            "evaluation needs lm-evaluation-harness, which is not installed here; install orch "
            "with it: pip install 'orch-rl[micro,eval]'"
        ) from error


def work(jobs: Sequence[Job], workers: int) -> Generator[tuple[int, str]]:
    """Has the jobs done; as each ends, tells its place and "" or a sentence of what is wrong.

    Jobs of another interpreter have a process of their own. The processes end with this generator.
    Raises RuntimeError, with the traceback, for a bug.
    """
    interpreters = {job.engine.python for job in jobs}
    for python in sorted(interpreters, key=str):
        places = [place for place, job in enumerate(jobs) if job.engine.python == python]
        done = _one_process([jobs[place] for place in places], workers, python or sys.executable)
        with closing(done) as answers:
            for place, fault in answers:
                yield places[place], fault


def environment(jobs: Sequence[Job]) -> dict[str, str]:
    """Of the process that does these jobs."""
    env = {**os.environ, **QUIET}
    if all(job.engine.name == "hf" and job.engine.device == "cpu" for job in jobs):
        env |= ON_CORES
    if not any(Path(ask.task_file).is_relative_to(OWN_TASKS) for job in jobs for ask in job.asks):
        env |= OFFLINE
    if any(job.engine.python for job in jobs):
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(OWN_TASKS.parents[2]), os.environ.get("PYTHONPATH")])
        )
    return env


def _one_process(jobs: Sequence[Job], workers: int, python: str) -> Generator[tuple[int, str]]:
    argv = [python, "-P", "-m", "orchestrator.evaluate.worker", str(os.getpid()), str(workers)]
    with tempfile.TemporaryFile() as orders, tempfile.TemporaryFile() as noise:
        orders.writelines(job.model_dump_json().encode() + b"\n" for job in jobs)
        orders.seek(0)
        try:
            process = subprocess.Popen(
                argv, stdin=orders, stdout=subprocess.PIPE, stderr=noise, env=environment(jobs),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise EnvironmentFault(
                f"the interpreter {python} (evaluation.engine.python) cannot be started: "
                f"{error.strerror}"
            ) from error
        with process:
            try:
                for line in process.stdout or ():
                    yield _told(line, jobs)
                if process.wait():
                    noise.seek(0)
                    raise EnvironmentFault(
                        f"the evaluating process ended with code {process.returncode}; what is "
                        "scored stays scored, run it again. Its last words:\n"
                        + noise.read().decode(errors="replace")[-2000:].strip()
                    )
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _told(line: bytes, jobs: Sequence[Job]) -> tuple[int, str]:
    reply = json.loads(line)
    place: int = reply["done"]
    if "bug" in reply:
        raise RuntimeError(f"evaluating {jobs[place].checkpoint}:\n{reply['bug']}")
    return place, reply.get("fault", "")
