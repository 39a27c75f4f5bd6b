"""A verl cell that was trained, and an environment whose merger writes what verl's writes."""

import sys
from pathlib import Path

from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import CellDir, RunFolder
from tests.backends.verl.cells import cell as verl_cell
from tests.launch.kit import ended, leave, program
from tests.replay import recorded

POLICIES = Path(__file__).parents[2] / "backends" / "micro" / "policies"

MERGER = """\
import os, pathlib, shutil, sys, time

how = os.environ.get("STAND_IN", "")
said = sys.argv[1:]
assert said[:5] == ["-m", "verl.model_merger", "merge", "--backend", "fsdp"], said
given = dict(zip(said[5::2], said[6::2]))
local, target = pathlib.Path(given["--local_dir"]), pathlib.Path(given["--target_dir"])
assert (local / "huggingface" / "config.json").exists()
with open({log!r}, "a") as log:
    log.write(str(os.getpid()) + "\\n")
if how == "fail":
    sys.exit("RuntimeError: size mismatch for lm_head.weight")
target.mkdir(parents=True)
for path in sorted(pathlib.Path({policy!r}).iterdir(), reverse=True):
    shutil.copy(path, target)  # weights before config.json
    if how == "slow":
        time.sleep(600)
    if how == "half":
        break
"""


def environment(folder: Path) -> Path:
    """The environment; `calls` of its folder has a line for each time it was used."""
    body = MERGER.format(log=str(folder / "calls"), policy=str(POLICIES / "elder"))
    program(folder / "bin" / "python", body, sys.executable)
    return folder


def calls(folder: Path) -> int:
    log = folder / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0


def options(folder: Path, how: str = "") -> dict[str, object]:
    """`site.options` that name it."""
    return {"environments": {"verl": {"venv": str(folder)}}, "env": {"STAND_IN": how}}


def trained(folder: RunFolder, seed: int = 0) -> tuple[Cell, CellDir]:
    """A verl cell that has succeeded, with the checkpoint of its last step."""
    cell = verl_cell({"seed": seed})
    home = leave(folder, cell, ended())
    plan = LaunchPlan(cell_id=cell.id, backend="verl", version="0.9.1", argv=("python",))
    home.write(cell, plan)
    recorded.checkpoint("verl", home.checkpoints, cell.settings.num_train_steps, 1)
    return cell, home
