"""The reward file of a plan: in a bare interpreter, and as verl loads it."""

import json
import subprocess
from pathlib import Path

import pytest

from backends.verl import BACKEND
from orchestrator.records import AttemptPaths, LaunchPlan
from tests.backends.shipped import LABELS, RIGHT, WORTH, WRONG, write
from tests.backends.verl.cells import cell
from tests.backends.verl.library import VERSIONS, python, root

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

CALL = """
print(json.dumps([
    compute_score("math", text, label, {"index": 0}, rule=RULE, reward_model=None)
    for text in (right, wrong)
]))
"""
LOADED = """
import importlib.util, json, sys
loader, file, right, wrong, label = sys.argv[1:]
spec = importlib.util.spec_from_file_location("import_utils", loader)
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)
compute_score = utils.load_extern_object(module_path=file, object_name="compute_score")
"""


def planned(rule: str, folder: Path) -> LaunchPlan:
    place = AttemptPaths(folder, folder / "attempts" / "1", folder / "checkpoints")
    return BACKEND.translate(cell({"data.reward": rule}), place)


@pytest.mark.parametrize("version", VERSIONS)
def test_verl_loads_it_by_the_path_of_the_launch(version: str, tmp_path: Path) -> None:
    plan = planned("countdown", tmp_path)
    write(plan, tmp_path)
    (file,) = (a.partition("=")[2] for a in plan.argv if "custom_reward_function.path" in a)
    assert f"+reward.custom_reward_function.reward_kwargs.rule={'countdown'}" in plan.argv
    done = subprocess.run(
        [
            python(version),
            "-c",
            LOADED + CALL.replace("RULE", "'countdown'"),
            root(version) / "utils" / "import_utils.py",
            file,
            RIGHT["countdown"],
            WRONG["countdown"],
            LABELS["countdown"],
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == WORTH["countdown"]
