"""The reward of a plan in a bare interpreter, loaded as orch_skyrl.py loads it."""

from pathlib import Path

import pytest

from backends.skyrl import BACKEND
from orchestrator.records import AttemptPaths
from tests.backends.shipped import WORTH, rewards
from tests.backends.skyrl.cells import VERSIONS, changed, onpolicy

PROGRAM = """
import importlib.util, json
from pathlib import Path
folder, right, wrong, label = sys.argv[1:]
spec = importlib.util.spec_from_file_location("orch_reward", Path(folder) / "reward.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([module.score(text, label) for text in (right, wrong)]))
"""


@pytest.mark.parametrize("rule", WORTH)
def test_it_stands_alone(rule: str, tmp_path: Path) -> None:
    cell = onpolicy(VERSIONS[0])
    data = cell.settings.data.model_copy(update={"reward": rule})
    place = AttemptPaths(tmp_path / "plan", tmp_path / "attempts" / "1", tmp_path / "checkpoints")
    plan = BACKEND.translate(changed(cell, data=data), place)
    assert rewards(PROGRAM, plan, place.plan_dir, rule) == WORTH[rule]
