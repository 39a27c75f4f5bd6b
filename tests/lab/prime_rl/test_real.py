"""Prime-RL 0.5.0 trains on this machine: its `rl`, orchestrator, verifiers and trainer, with the
launch that orch emits. Only vLLM and the GPU stand in."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from orchestrator.kl.library_semantics import parse
from tests.backends.environments import cpu_python
from tests.backends.prime_rl.conftest import VARIABLE
from tests.lab import proven, real

pytestmark = [pytest.mark.slow, pytest.mark.long(200), pytest.mark.real]

KLS = {"k3 in the loss, on policy": real.K3, "k1 in the reward, two steps behind": real.STALE_K1}


@pytest.fixture(scope="module")
def python() -> Path:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"set {VARIABLE} to a git repository of Prime-RL to train with it")
    return cpu_python("prime_rl", "0.5.0")


@pytest.mark.parametrize("name", KLS)
def test_it_trains(name: str, python: Path, tmp_path: Path) -> None:
    run = real.train("prime_rl", "0.5.0", python, tmp_path, KLS[name])
    on_policy = run.cell.settings.max_staleness_steps == 0
    assert [point.step for point in run.points] == list(range(1, real.STEPS + 1))
    assert list(run.validation) == [0]
    assert all(norm > 0 for norm in run.values("train/grad_norm"))
    lags = run.values("rollout/staleness_mean")
    assert max(lags) <= run.cell.settings.max_staleness_steps

    trainer_log = (run.place.attempt_dir / "logs" / "trainer.stdout").read_text()
    mismatch = [float(each) for each in re.findall(r"Mismatch KL: (\S+)", trainer_log)]
    assert len(mismatch) == real.STEPS
    assert max(mismatch if on_policy else mismatch[:1]) < 1e-3, "trainer and sampler differ"

    _check_configuration(run)
    [half, last] = run.checkpoints[0], run.checkpoints[-1]
    assert half.step == real.STEPS // 2
    after, before = real.scores((last.path, run.policy), python)
    assert after > before
    assert real.dtypes(last.path) == {"BF16"}, "as the ledger says of precision.checkpoint"
    tokenizer = json.loads((last.path / "tokenizer.json").read_text())
    assert tokenizer["model"] == json.loads((run.policy / "tokenizer.json").read_text())["model"]


def _check_configuration(run: real.Trained) -> None:
    """What the library resolved, in the files that its processes read."""
    folder = run.place.checkpoints_dir / "configs"
    read = {path.stem: tomllib.loads(path.read_text()) for path in folder.glob("*.toml")}
    trainer, orchestrator = read["trainer"], read["orchestrator"]
    settings = run.cell.settings
    names = {
        trainer["model"]["name"],
        trainer["tokenizer"]["name"],
        orchestrator["model"]["name"],
        orchestrator["teacher_model"]["model"]["name"],
        read["inference"]["model"]["name"],
        read["teacher_inference"]["model"]["name"],
    }
    assert names == {settings.model.path}
    assert trainer["model"]["optimization_dtype"] == trainer["model"]["reduce_dtype"] == "float32"
    assert read["inference"]["seed"] == orchestrator["buffer"]["seed"] == settings.seed
    assert orchestrator["sampling"]["temperature"] == settings.rollout.temperature
    assert orchestrator["sampling"]["max_tokens"] == settings.rollout.max_response_tokens
    assert orchestrator["rollouts_per_example"] == settings.rollout.group_size
    assert orchestrator["batch_size"] == settings.batch.num_prompts * settings.rollout.group_size
    assert trainer["model"]["seq_len"] == orchestrator["seq_len"] == 16
    assert trainer["max_async_level"] == settings.max_staleness_steps
    assert trainer["loss"]["kwargs"]["estimator"] == settings.kl.estimator
    assert trainer["loss"]["kwargs"]["placement"] == settings.kl.placement
    assert trainer["loss"]["kwargs"]["beta"] == settings.kl.beta
    assert trainer["optim"]["lr"] == settings.optimizer.learning_rate
    assert trainer["max_steps"] == orchestrator["max_steps"] == settings.num_train_steps


def test_it_is_killed_goes_on_and_does_what_its_dialect_predicts(
    python: Path, tmp_path: Path
) -> None:
    """In fp32, by stand-ins: over both attempts, to the weights. A wrong dialect fails."""
    assert python.exists()
    proof_cell = proven.proof_cell("prime_rl", "0.5.0", "k1.reward", tmp_path / "it's a folder")
    run = proven.goes_on_as_predicted(
        proof_cell, "advantages", "kl_reward_per_token", "policy_loss", all_seen=False
    )
    assert not run.proof(parse("kl_reward=token")).holds
