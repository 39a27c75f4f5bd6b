"""OpenRLHF 0.11.2 trains on this machine: its program, Ray, DeepSpeed's ZeRO-3 and its trainer,
with the launch that orch emits. Only vLLM and the GPU stand in."""

import json
from pathlib import Path

import pytest

from tests.backends import real
from tests.backends.environments import cpu_python

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.real]

KLS = {
    "k1 in the reward": {"kl": {"estimator": "k1", "placement": "reward", "beta": 0.05}},
    "k3 in the loss": {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.05}},
}


@pytest.fixture(scope="module")
def python() -> Path:
    return cpu_python("openrlhf", "0.11.2")


@pytest.mark.parametrize("name", KLS)
def test_it_trains(name: str, python: Path, tmp_path: Path) -> None:
    run = real.train("openrlhf", "0.11.2", python, tmp_path, KLS[name])
    assert [point.step for point in run.points] == list(range(1, real.STEPS + 1))
    assert any(norm > 0 for norm in run.values("train/grad_norm"))
    kls = run.values("train/kl_reference_per_token")
    assert kls[0] == 0, "policy and reference are the same at step 1"
    assert max(map(abs, kls)) > 1e-3, "the reference stays where it was"

    assert [each.step for each in run.checkpoints] == [real.STEPS // 2, real.STEPS]
    last = run.checkpoints[-1].path
    assert real.score(last, python) > real.score(run.policy, python)
    assert real.dtypes(last) == {"BF16"}, "as the ledger says of precision.checkpoint"
    tokenizer = json.loads((last / "tokenizer.json").read_text())
    assert tokenizer["model"] == json.loads((run.policy / "tokenizer.json").read_text())["model"]
