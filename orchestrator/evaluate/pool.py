"""The processes that make scores, as orch sees them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from importlib.metadata import PackageNotFoundError, version

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate.results import Job

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",  # its threads would not survive the fork
    "TQDM_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",  # policies and items are on this machine
    "HF_DATASETS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",  # a device opened before the fork is of no use after it
}


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

    The processes end with this generator. Raises RuntimeError, with the traceback, for a bug.
    """
    argv = [sys.executable, "-P", "-m", "orchestrator.evaluate.worker", str(os.getpid()),
            str(workers)]  # fmt: skip
    with tempfile.TemporaryFile() as orders, tempfile.TemporaryFile() as noise:
        orders.writelines(job.model_dump_json().encode() + b"\n" for job in jobs)
        orders.seek(0)
        with subprocess.Popen(
            argv, stdin=orders, stdout=subprocess.PIPE, stderr=noise,
            env={**os.environ, **QUIET}, start_new_session=True,
        ) as process:  # fmt: skip
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
