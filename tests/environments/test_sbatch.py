"""`orch show --sbatch`: the script of one cell, run with stand-ins for the cluster's programs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.cli.sbatch import script
from orchestrator.data.prepared import folder_of
from orchestrator.environments import Environment
from orchestrator.errors import UnsupportedSetting
from orchestrator.launch.check import _without_environment
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.site_options import NodeOptions, SlurmOptions

ROOT = Path(__file__).parents[2]
STAND_IN = """#!{python}
import json, sys
with open({seen!r}, "a") as file:
    file.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
{more}
"""


@pytest.fixture(scope="module")
def cells() -> dict[str, Cell]:
    """One cell a library."""
    found: dict[str, Cell] = {}
    for cell in expand(load(ROOT / "experiments" / "cross_library.yaml")):
        if cell.settings.kl.label == "k1.reward" and cell.scale == "full":
            found.setdefault(cell.settings.backend.name, cell)
    return found


@pytest.mark.parametrize("library", ["verl", "openrlhf", "skyrl", "prime_rl"])
def test_a_pasted_script_writes_the_plan_and_starts_it(
    library: str, cells: dict[str, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells[library]
    monkeypatch.setenv("ORCH_DATA_DIR", str(tmp_path / "prepared 'ü'"))
    home = tmp_path / 'it\'s "a run" ü'
    home.mkdir()
    place = AttemptPaths(home / "plan", home / "attempts" / "1", home / "checkpoints")
    try:
        plan = plugins.load(library).translate(cell, place)
    except UnsupportedSetting as refused:
        pytest.fail(str(refused))
    programs, seen = tmp_path / "env" / "bin", tmp_path / "seen.jsonl"
    programs.mkdir(parents=True)
    for name, more in (
        ("python", ""),
        ("python3", ""),
        ("srun", ""),
        ("ray", ""),
        ("sleep", ""),
        ("scontrol", 'print("n1\\nn2")'),
    ):
        (programs / name).write_text(
            STAND_IN.format(python=sys.executable, seen=str(seen), name=name, more=more)
        )
        (programs / name).chmod(0o755)
    made = Environment(library, plan.version, "gpu", tmp_path / "env", "sha256:0")
    text = script(cell, plan, place, SlurmOptions(partition="gpu", gres="gpu:a100:4"), made)
    header = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --partition=gpu" in header
    assert f"#SBATCH --nodes={cell.resources.num_nodes}" in header
    assert not [line for line in header if "array" in line or "%A" in line]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(shutil.which("bash")), "-c", text],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"},
            cwd=tmp_path,
        )

    assert "orch data prepare SPEC" in run().stderr
    prompts = folder_of(plan)
    assert prompts is not None
    prompts.mkdir(parents=True)
    done = run()
    assert done.returncode == 0, done.stderr
    assert (place.plan_dir / "data").resolve() == prompts.resolve()
    for name, content in plan.files.items():
        assert (place.plan_dir / name).read_text().rstrip("\n") == content.rstrip("\n")
    calls = [json.loads(line) for line in seen.read_text().splitlines()]
    assert [Path(plan.argv[0]).name, *plan.argv[1:]] in calls
    if plan.bring_up == "ray" and cell.resources.num_nodes > 1:
        assert any(call[0] == "srun" and "--head" in call for call in calls)
        assert any(call[0] == "srun" and "--address=n1:24711" in call for call in calls)


def test_a_library_is_never_run_in_orchs_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(tmp_path / "none"))
    plan = LaunchPlan(cell_id="0" * 12, backend="verl", version="0.9.1", argv=("python",))
    told = _without_environment(plan, NodeOptions())
    assert "`orch env create verl@0.9.1` makes one" in told
    embedded = plan.model_copy(update={"entry": "backends.micro:x"})
    assert _without_environment(embedded, NodeOptions()) == ""
    foreign = plan.model_copy(update={"backend": "of_a_plug_in"})
    assert _without_environment(foreign, NodeOptions()) == ""
