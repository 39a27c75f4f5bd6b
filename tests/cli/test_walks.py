"""Three people's first hour, as they type it. Each walk prints its time to the first value."""

import json
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from command_line import orch
from lifeline import held, let_go

pytestmark = pytest.mark.slow

SCRIPT = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=rloo \\
    data.train_batch_size=256 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.05 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
"""


class Walk:
    """Commands one after the other, and when the first of them was of use."""

    def __init__(self, who: str, folder: Path, capsys: pytest.CaptureFixture[str]):
        self.who, self.folder, self.capsys = who, folder, capsys
        self.began = time.monotonic()

    def step(self, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
        """Return what a command printed. It ends with one of these codes and no traceback."""
        done = orch(self.folder, *argv)
        assert done.returncode in codes, (argv, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (argv, done.stderr)
        return done.stdout

    def first_value(self, more: float = 0.0) -> None:
        """Print how long it took. more: seconds of a step that another test made before."""
        seconds = time.monotonic() - self.began + more
        with self.capsys.disabled():
            print(f"\n{self.who}: first value after {seconds:.1f} s")


def test_a_script_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """audit -> fix -> explain: what my script does, the change, and why."""
    (tmp_path / "train.sh").write_text(SCRIPT)
    walk = Walk("script owner", tmp_path, capsys)
    found = walk.step("audit", "train.sh", codes=(1,))
    assert "forward KL" in found
    assert "(lines 5, 6, 7)" in found, found
    walk.first_value()
    walk.step("audit", "--fix", "train.sh", codes=(1,))
    assert (tmp_path / "train.sh").read_text() == SCRIPT, "the script itself is never touched"
    patch = ["git", "apply", "train.sh.orch.diff"]
    subprocess.run(patch, cwd=tmp_path, check=True)
    assert "reverse KL" in walk.step("audit", "train.sh")
    assert "forward KL" in walk.step("explain", "low_var_kl", "loss")


def test_an_experimenter(
    workspace: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """init -> plan -> run smoke -> report. The training is the one that other tests look at too."""
    walk = Walk("experimenter", workspace, capsys)
    walk.step("init", "mine")
    assert "k1.reward" in walk.step("plan", "mine.yaml", codes=(3,))
    trained = float(finished.with_name("finished.seconds").read_text())
    walk.first_value(trained)
    with capsys.disabled():
        print(f"{walk.who}: of which `orch run smoke` took {trained:.1f} s")
    states = json.loads(walk.step("run", "smoke", "--train-only", "--json"))["states"]
    assert states == {"succeeded": 4}
    page = Path(walk.step("report", "smoke", "--no-figures").strip())
    assert "Everything works" in page.read_text()


def test_a_reviewer(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page -> compare -> MLflow: the answer, its intervals, and each run by what varies."""
    walk = Walk("reviewer", finished, capsys)
    argv = [sys.executable, "-m", "orchestrator", "dashboard", "smoke", "--no-mlflow", "--no-open"]
    server = held(
        [*argv, "--port", "0"], cwd=finished, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1].decode()
        with urllib.request.urlopen(address, timeout=120) as page:  # noqa: S310  (our own server)
            assert "Everything works" in page.read().decode()
        walk.first_value()
    finally:
        let_go(server)
    compared = json.loads(walk.step("compare", "smoke", "--json"))
    assert [claim["verdict"] for claim in compared["claims"]] == ["holds"]
    with sqlite3.connect(finished / "runs" / "mlflow.db") as database:
        names = [name for (name,) in database.execute("SELECT name FROM runs")]
    assert sum(name.startswith(("k1.reward", "k3.", "none")) for name in names) == 4, names
