"""What Ray does to orch_skyrl.py: pickled by value in one process, run in another."""

import json
import subprocess
import sys
from pathlib import Path

from backends.skyrl import BACKEND
from backends.skyrl.translate import ENTRY
from orchestrator.records import AttemptPaths
from tests.backends.shipped import write
from tests.backends.skyrl.cells import VERSIONS, onpolicy

PROGRAM = Path(__file__).parent / "ask" / "pickled.py"


def test_a_launch_survives_being_pickled_by_value(tmp_path: Path) -> None:
    place = AttemptPaths(tmp_path / "plan", tmp_path / "attempts" / "1", tmp_path / "checkpoints")
    write(BACKEND.translate(onpolicy(VERSIONS[0]), place), place.plan_dir)
    (place.plan_dir / "reward.py").write_text("def score(a, b):\n    return float(a == b)\n")
    sent, script = tmp_path / "sent", place.plan_dir / ENTRY
    said = ""
    for argv in (("send", sent, script), ("run", sent)):
        done = subprocess.run(
            [sys.executable, PROGRAM, *argv],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        said = done.stdout
    trainer, template, rows, rewards = json.loads(said.rpartition("ANSWER ")[2])
    assert trainer == "asynchronous"
    assert "message['content']" in template
    assert (rows, rewards) == (8, [1.0, 0.0])
