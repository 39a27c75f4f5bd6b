"""The meter counts what resource usage does not: processes whose parents ended without a wait."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.backends.cpu_meter import CpuMeter

BURN = "import time; end = time.process_time() + 1.2\nwhile time.process_time() < end: pass"
LEAVES = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {BURN!r}], start_new_session=True)
print(child.pid, flush=True)
os._exit(0)
"""


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_what_outlives_its_parent_is_counted(tmp_path: Path) -> None:
    before = children()
    environment = {**os.environ, "ORCH_TOKEN": str(tmp_path)}
    with CpuMeter(str(tmp_path)) as meter, CpuMeter("nobody has this") as other:
        said = subprocess.run(
            [sys.executable, "-c", LEAVES], env=environment, stdout=subprocess.PIPE, check=True
        )
        orphan = Path(f"/proc/{int(said.stdout)}/stat")
        while orphan.exists() and " Z " not in orphan.read_text():
            time.sleep(0.05)
    assert meter.seconds > 0.8
    assert other.seconds == 0
    assert children() - before < meter.seconds, "its parent did not wait for it"


def test_a_program_that_replaces_another_is_counted(tmp_path: Path) -> None:
    """A fork that was looked at before it started its program was never looked at again."""
    later = "import os, sys, time\ntime.sleep(1)\nos.environ['ORCH_TOKEN'] = sys.argv[1]\n"
    later += f"os.execv(sys.executable, [sys.executable, '-c', {BURN!r}])"
    with CpuMeter(str(tmp_path)) as meter:
        subprocess.run([sys.executable, "-c", later, str(tmp_path)], check=True)
    assert meter.seconds > 0.8
