"""Five people's first hour, as they type it.

Each walk prints how long the first value took, and how much there was to read until the end.
"""

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


TRL = """\
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig("out", beta=0.04, num_generations=8, loss_type="cispo", num_iterations=2)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B", reward_funcs=[], args=args).train()
"""


class Walk:
    """Commands one after the other, when the first of them was of use, and what they printed."""

    def __init__(self, who: str, folder: Path, capsys: pytest.CaptureFixture[str]):
        self.who, self.folder, self.capsys = who, folder, capsys
        self.began = time.monotonic()
        self.read: list[str] = []

    def step(self, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
        """Return what a command printed. It ends with one of these codes and no traceback."""
        done = orch(self.folder, *argv)
        assert done.returncode in codes, (argv, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (argv, done.stderr)
        if "--json" not in argv:
            self.read += [*done.stdout.splitlines(), *done.stderr.splitlines()]
        return done.stdout

    def ends(self, *, lines: int, words: int) -> None:
        """Print the lines and words that were to be read, and hold them to these bounds."""
        num_words = sum(len(line.split()) for line in self.read)
        with self.capsys.disabled():
            print(f"\n{self.who}: {len(self.read)} lines, {num_words} words to read")
        assert len(self.read) <= lines, "\n".join(self.read)
        assert num_words <= words, "\n".join(self.read)

    def first_value(self, more: float = 0.0) -> None:
        """Print how long it took. more: seconds of a step that another test made before."""
        seconds = time.monotonic() - self.began + more
        with self.capsys.disabled():
            print(f"\n{self.who}: first value after {seconds:.1f} s")


def test_the_owner_of_a_verl_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """audit -> fix -> explain: what my script does, the change, and why."""
    (tmp_path / "train.sh").write_text(SCRIPT)
    walk = Walk("owner of a verl script", tmp_path, capsys)
    found = walk.step("audit", "train.sh", codes=(1,))
    assert "forward KL" in found
    assert "(lines 5, 6, 7)" in found, found
    walk.first_value()
    walk.step("audit", "--fix", "train.sh", codes=(1,))
    assert (tmp_path / "train.sh").read_text() == SCRIPT, "the script itself is never touched"
    patch = ["git", "apply", "train.sh.orch.diff"]
    subprocess.run(patch, cwd=tmp_path, check=True)
    assert "reverse KL" in walk.step("audit", "train.sh", codes=(1,)), "a group of one is left"
    assert "forward KL" in walk.step("explain", "low_var_kl", "loss")
    walk.ends(lines=75, words=760)


def test_the_owner_of_a_trl_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """audit -> audit of my release -> mended -> explain: the mistake is in the first lines."""
    script = tmp_path / "train.py"
    script.write_text(TRL)
    walk = Walk("owner of a TRL script", tmp_path, capsys)
    assert "epsilon_high 5.0" in walk.step("audit", "train.py", codes=(1,))
    walk.first_value()
    mine = ("audit", "--library", "trl@1.16.0", "train.py")
    assert "has a mistake" in walk.step(*mine, codes=(1,))
    script.write_text(TRL.replace("beta=0.04", "beta=0.04, epsilon_high=5.0"))
    assert "mistake" not in walk.step(*mine, codes=(0, 1))
    assert "pull" in walk.step("explain", "cispo+rho_k3")
    walk.ends(lines=75, words=700)


def test_an_experimenter(
    workspace: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """init -> plan -> run smoke -> report. The training is the one that other tests look at too."""
    walk = Walk("experimenter", workspace, capsys)
    walk.step("init", "mine")
    assert "k1.reward" in walk.step("plan", "mine.yaml")
    trained = float(finished.with_name("finished.seconds").read_text())
    walk.first_value(trained)
    with capsys.disabled():
        print(f"{walk.who}: of which `orch run smoke` took {trained:.1f} s")
    states = json.loads(walk.step("run", "smoke", "--train-only", "--json"))["states"]
    assert states == {"succeeded": 4}
    page = Path(walk.step("report", "smoke", "--no-figures").strip())
    assert "Everything works" in page.read_text()
    walk.ends(lines=52, words=340)


def test_a_reviewer_of_the_page(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page -> compare: the answer, and its intervals."""
    walk = Walk("reviewer of the page", finished, capsys)
    argv = [sys.executable, "-m", "orchestrator", "dashboard", "smoke"]
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
    walk.step("compare", "smoke")
    walk.ends(lines=16, words=100)


def test_a_reviewer_in_mlflow(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runs' names, their note and the view that MLflow opens on, as its database holds them.

    What the browser makes of the view is tested in tests/tracking/test_server.py.
    """
    with sqlite3.connect(finished / "runs" / "mlflow.db") as database:
        names = {name for (name,) in database.execute("SELECT name FROM runs")}
        notes = [
            note
            for (note,) in database.execute(
                "SELECT value FROM tags WHERE key = 'mlflow.note.content' AND run_uuid IN"
                " (SELECT run_uuid FROM tags WHERE key = 'orch.kind' AND value = 'cell')"
            )
        ]
        (view,) = database.execute(
            "SELECT value FROM experiment_tags WHERE key = 'mlflow.sharedViewState.orch-all'"
        ).fetchone()
    assert names >= {"none s0 micro", "k1.reward β0.3 s0 micro", "k3.loss β0.3 s0 micro"}, names
    assert [note.startswith("**Micro scale**") for note in notes] == [True] * 4, notes
    columns = json.loads(view)["selectedColumns"]
    assert columns[0] == "metrics.`eval/accuracy_in_domain`"
    with capsys.disabled():
        print(
            f"\nreviewer in MLflow: {sum(len(note.split()) for note in notes) / 4:.0f} words a run"
        )
