"""A worker that Ray would start is a fork, with all that it would have had. Without Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.ray_forks import workers_fork

SETUP = """
import os, sys
os.environ["OF_THE_SETUP"] = "yes"
worker = f"exec {sys.executable} -s '{sys.argv[1]}' 'two words'"
os.execvp("bash", args=["bash", "-c", worker])
"""
WORKER = """
import json, os, sys
seen = {
    "argv": sys.argv, "imported": "decimal" in sys.modules, "leads": os.getpgid(0) == os.getpid(),
    "variables": [os.environ.get(name) for name in ("OF_THE_SETUP", "OF_THE_START")],
    "folder": os.getcwd(), "number": os.getpid(), "parent": os.getppid(), "path": sys.path[:3],
    "loaded": getattr(sys, "of_the_plan", False),
}
print(json.dumps(seen), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("ended", [False, True])
def test_a_worker_is_a_fork_and_ends_its_asker_as_it_ends(ended: bool, tmp_path: Path) -> None:
    """Without its parent, it is a program like any other."""
    setup = tmp_path / "ray" / "_private" / "workers" / "setup_worker.py"
    setup.parent.mkdir(parents=True)
    setup.write_text(SETUP)
    worker = tmp_path / "a worker.py"
    worker.write_text(WORKER)
    launch = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    launch["PYTHONPATH"] = str(tmp_path / "plan")
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "sitecustomize.py").write_text("import sys\nsys.of_the_plan = True\n")
    with workers_fork(["decimal"], launch) as variables:
        if ended:
            variables["ORCH_TEST_RAY_FORKS"] += " of another"
        asker = subprocess.Popen(
            [sys.executable, setup, worker],
            env={**variables, "OF_THE_START": "yes"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        said, _ = asker.communicate(timeout=60)
    seen = json.loads(said)
    assert asker.returncode == 7
    assert seen["loaded"]
    assert seen["imported"] is not ended
    assert (seen["number"] == asker.pid) is ended
    assert seen["leads"] is not ended
    assert seen["argv"] == [str(worker), "two words"]
    assert seen["variables"] == ["yes", "yes"]
    assert seen["folder"] == str(tmp_path)
    assert seen["path"][0] == str(tmp_path)
    assert seen["path"][2] == str(tmp_path / "plan")
