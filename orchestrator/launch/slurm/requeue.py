"""A job that puts itself back into the queue, under its own id."""

import os
import subprocess
import time
from contextlib import suppress
from functools import partial

_PATIENCE_SECONDS = 120
_OURS = ("RUNNING", "SIGNALING")
"""States in which nobody else ends the job; the second is that of one that was told just now."""


def job_id() -> str:
    """`<array>_<index>` of this job, as SLURM's commands take it."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def restarts() -> int:
    """How often SLURM has started this job again; not exact where it had troubles of its own."""
    told = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(told) if told.isdigit() else 0


def requeue_job(job: str) -> bool:
    """Whether the job was put back, or SLURM is at it itself (also to cancel it)."""
    call = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=60)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            listed = call(["squeue", "--noheader", f"--jobs={job}", "--format=%T"])
            if listed.returncode == 0 and listed.stdout.strip() not in _OURS:
                return True
            if call(["scontrol", "requeue", job]).returncode == 0:
                return True
        time.sleep(2)
    return False
