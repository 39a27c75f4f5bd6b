"""`orch show SPEC -w ... --out DIR`: a launch that one takes away, run without orch."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import orch

from tests.launch.kit import program
from tests.settings import SPEC

STUB = r'printf "%s\0" "$0" "$@" > "$RECORD"'


@pytest.mark.parametrize("library", ["verl@0.9.1", "openrlhf@0.11.2", "trl@1.16.0"])
def test_it_starts_what_orch_would_from_wherever_it_lies(library: str, tmp_path: Path) -> None:
    """Moved to another place, by hand and as the copy that sbatch runs; the words are orch's."""
    base = "kl.beta: 0.1, advantage.estimator: grpo, resources: {num_nodes: 1, gpus_per_node: 4}"
    spec = SPEC.replace("kl.beta: 0.1", base).replace("k1.reward", "k3.loss")
    (tmp_path / "S.yaml").write_text(spec.replace("verl@0.9.1", library))
    chosen = ("S.yaml", "-w", "kl=k3.loss")
    done = orch(tmp_path, "show", *chosen, "--out", "away")
    assert done.returncode == 0, done.stderr
    assert "orch data prepare" in done.stderr, "it says what is not there yet"
    assert orch(tmp_path, "show", *chosen, "--out", "away").returncode == 1, "never over another"
    moved = tmp_path / "it's elsewhere"
    shutil.move(tmp_path / "away", moved)
    plan = json.loads(orch(tmp_path, "show", *chosen, "--json").stdout)["plan"]
    stub = program(tmp_path / "bin" / plan["argv"][0], STUB)
    spool = tmp_path / "spool" / "slurm_script"
    spool.parent.mkdir()
    shutil.copy(moved / "launch.sh", spool)
    environment = {"PATH": f"{stub.parent}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(moved)}
    for script in (moved / "launch.sh", spool):
        record = tmp_path / f"{script.name}.words"
        subprocess.run(
            ["/bin/bash", script], check=True, env=environment | {"RECORD": str(record)}, cwd="/"
        )
        _, *words = record.read_text().split("\0")[:-1]
        assert _placed(words, moved) == _placed(plan["argv"][1:], tmp_path / "runs")
    text = (moved / "launch.sh").read_text()
    assert "#SBATCH --gres=gpu:a100:4" in text
    found = re.search(r"#SBATCH --cpus-per-task=(\d+)", text)
    assert int(found[1]) >= max(16, plan["ray_cpus"] or 0)
    for name, content in plan["files"].items():
        own = (moved / name).read_text()
        assert "@HERE@" not in own
        assert own == content or str(moved) in own, name


def _placed(words: list[str], root: Path) -> list[str]:
    """Return the words; of one with a folder of its own only what stands before it."""
    return sorted(word.partition(str(root))[0] for word in words)
