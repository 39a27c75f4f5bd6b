"""The cluster, and a day of orch on it, as somebody who is not root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import missing

from tests.launch.slurm.conftest import ROOT
from tests.launch.slurm.plain_user import NAMESPACE, no_plain_user

pytestmark = [pytest.mark.slow, pytest.mark.long(100), pytest.mark.slurm]

DAY = "tests/launch/slurm/test_command_line.py::test_a_day_on_the_cluster"


def test_the_same_day_as_a_plain_user(tmp_path: Path) -> None:
    """The daemons and orch run in a user namespace, as nobody."""
    if fault := missing() or no_plain_user():
        pytest.skip(fault)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SLURM", "XDG"))}
    kept = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    named = {"HOME": str(tmp_path), "USER": "nobody", "LOGNAME": "nobody"}
    environment = {**own, **named, "XDG_CACHE_HOME": kept}  # the compiled kernels are in it
    done = subprocess.run(
        [
            *NAMESPACE,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'there'}",
            DAY,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout, done.stdout
