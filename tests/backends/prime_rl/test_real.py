"""Prime-RL 0.5.0 trains on this machine: its `rl`, orchestrator, verifiers and trainer, with the
launch that orch emits. Only vLLM and the GPU stand in."""

import json
import math
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.backends import real
from tests.backends.environments import cpu_python
from tests.backends.prime_rl.conftest import VARIABLE
from tests.backends.trained import hold

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.real]

KLS = {
    "k3 in the loss, on policy": {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.05}},
    "k1 in the reward, two steps behind": {
        "kl": {"estimator": "k1", "placement": "reward", "beta": 0.05},
        "max_staleness_steps": 2,
    },
}
SENT = """
import json, sys, msgspec
from pathlib import Path
from transformers import AutoTokenizer
from prime_rl.transport.types import TrainingBatch
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
steps = []
for path in sorted(Path(sys.argv[1]).glob("step_*/*.bin"), key=lambda p: int(p.parent.name[5:])):
    batch = msgspec.msgpack.decode(path.read_bytes(), type=TrainingBatch)
    steps.append([
        {
            "prompt": tokenizer.decode(each.prompt_ids, skip_special_tokens=True),
            "response": tokenizer.decode(each.completion_ids, skip_special_tokens=True),
            "rollout": each.completion_logprobs,
            "reference": each.teacher_logprobs and each.teacher_logprobs[len(each.prompt_ids):],
            "advantage": each.advantage,
            "reward": each.reward,
        }
        for each in batch.examples
    ])
print(json.dumps(steps))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"set {VARIABLE} to a git repository of Prime-RL to train with it")
    return cpu_python("prime_rl", "0.5.0")


def sent(run: real.Trained, python: Path) -> list[list[dict[str, Any]]]:
    """The samples of each step, as Prime-RL's orchestrator sent them to its trainer."""
    folder = run.place.checkpoints_dir / "run_default" / "rollouts"
    done = subprocess.run(
        [python, "-c", SENT, folder, run.policy], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return steps


@pytest.mark.parametrize("name", KLS)
def test_it_trains(name: str, python: Path, tmp_path: Path) -> None:
    run = real.train("prime_rl", "0.5.0", python, tmp_path, KLS[name])
    hold("prime_rl", "0.5.0", name, real.STEPS, run.cpu_seconds)
    on_policy = run.cell.settings.max_staleness_steps == 0
    assert [point.step for point in run.points] == list(range(1, real.STEPS + 1))
    assert all(norm > 0 for norm in run.values("train/grad_norm"))
    lags = run.values("rollout/staleness_mean")
    assert max(lags) <= run.cell.settings.max_staleness_steps

    trainer_log = (run.place.attempt_dir / "logs" / "trainer.stdout").read_text()
    mismatch = [float(each) for each in re.findall(r"Mismatch KL: (\S+)", trainer_log)]
    assert len(mismatch) == real.STEPS
    assert max(mismatch if on_policy else mismatch[:1]) < 1e-3, "trainer and sampler differ"

    steps = sent(run, python)
    first = steps[0]
    gaps = [
        abs(a - b)
        for each in first
        for a, b in zip(each["rollout"], each["reference"], strict=True)
    ]
    assert max(gaps) < 1e-4, "policy and reference are the same at step 1"
    later = [
        abs(a - b)
        for each in steps[-1]
        for a, b in zip(each["rollout"], each["reference"], strict=True)
    ]
    assert max(later) > 1e-2, "the reference stays where it was"
    for step in steps:
        assert len(step) == real.PROMPTS * real.GROUP
        for each in step:
            assert each["reward"] == float(each["prompt"] == f"C{each['response']}=")
        groups: dict[str, list[dict[str, Any]]] = {}
        for each in step:
            groups.setdefault(each["prompt"], []).append(each)
        for group in groups.values():
            if len(group) == real.GROUP:
                total = sum(each["reward"] for each in group)
                for each in group:
                    others = (total - each["reward"]) / (real.GROUP - 1)
                    assert math.isclose(each["advantage"], each["reward"] - others, abs_tol=1e-5)

    _check_configuration(run)
    [half, last] = run.checkpoints[0], run.checkpoints[-1]
    assert half.step == real.STEPS // 2
    assert real.score(last.path, python) > real.score(run.policy, python)
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
