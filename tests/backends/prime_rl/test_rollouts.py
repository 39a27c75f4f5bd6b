"""The files that a launch ships to write its rollouts, imported as Prime-RL imports them.

Stand-ins have the shape of 0.5.0's classes, and hand over what its orchestrator and trainer do:
test_real.py has the library itself do it, where there is a checkout.
"""

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from backends.prime_rl import BACKEND
from orchestrator.library import rollout_dump
from orchestrator.library.rollout_dump import RolloutBatch
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Cadence
from tests.backends.shipped import write

GROUP, BETA, LONGEST = 2, 0.5, 9
SAMPLES = [
    ([5, 6], [7, 8, 9], 1.0),
    ([5, 6], [7, 2], 0.0),
    ([5, 6, 4], [3], 0.0),
    ([5, 6, 4], [3, 3, 3, 3, 3, 3, 3], 1.0),
]
"""Prompt, response, reward; the last is longer than the trainer's sequences."""
ADVANTAGES = [1.0, -1.0, -1.0, 1.0]


def sample(number: int) -> SimpleNamespace:
    prompt, response, reward = SAMPLES[number]
    return SimpleNamespace(
        prompt_ids=prompt,
        completion_ids=response,
        completion_mask=[True] * len(response),
        completion_logprobs=[-0.1 * (number + k + 1) for k in range(len(response))],
        completion_temperatures=[1.0] * len(response),
        teacher_logprobs=[0.0] * len(prompt) + [-0.3] * len(response),
        advantage=ADVANTAGES[number],
        reward=reward,
    )


class Library(NamedTuple):
    """The shipped hooks, loaded beside stand-ins of the library."""

    hooks: ModuleType
    loader: Any
    monitor: Any
    broadcast: Any
    scheduler: Any
    sender: Any
    folder: Path

    def send(self, step: int, samples: Sequence[Any]) -> None:
        asyncio.run(self.scheduler.generate_batch(step))
        self.sender.send(SimpleNamespace(step=step, examples=samples))

    def train(self, step: int, samples: Sequence[Any], *, cut: int = LONGEST) -> None:
        """As the trainer's loop: packed, longest first, one call of the loss a sequence."""
        packed = sorted(samples, key=lambda s: -len(s.completion_ids))
        self.loader.ids = [(s.prompt_ids + s.completion_ids)[:cut] for s in packed]
        self.loader.get_batch()
        for each, ids in zip(packed, self.loader.ids, strict=True):
            first = len(each.prompt_ids)
            rollout = torch.tensor([0.0] * first + each.completion_logprobs)[: len(ids)]
            inputs = SimpleNamespace(
                trainer_logprobs=(rollout - 0.01).requires_grad_(),
                inference_logprobs=rollout,
                teacher_logprobs=torch.tensor(each.teacher_logprobs)[: len(ids)],
                advantages=torch.full((len(ids),), each.advantage),
                loss_mask=torch.tensor([k >= first for k in range(len(ids))]),
            )
            self.hooks.loss(inputs, estimator="k1", placement="reward", beta=BETA)
        self.monitor.log({"optim/grad_norm": 0.25, "optim/lr": 1e-3 * (step + 1)}, step=step)
        self.monitor.log({"loss/mean": 0.1, "ref_kl/mean": 0.2, "name": "x"}, step=step)
        self.broadcast.broadcast_weights(torch.nn.Linear(2, 2), step=step + 1)

    def written(self) -> list[RolloutBatch]:
        return list(rollout_dump.read([self.folder]))


@pytest.fixture
def library(base: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """What a launch ships, in this process."""
    place = AttemptPaths(tmp_path / "plan", tmp_path / "attempts/1", tmp_path / "checkpoints")
    plan = BACKEND.translate(base.but(cadence=Cadence(dump_rollouts=True)), place)
    write(plan, place.plan_dir)
    for name, value in plan.env.items():
        monkeypatch.setenv(name, value)
    stand_ins = _library()
    for name, members in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    modules = {}
    for name in ("orch_rollout_dump", "orch_prime_rl_rollouts", "orch_prime_rl_hooks"):
        spec = importlib.util.spec_from_file_location(name, place.plan_dir / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        modules[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, modules[name])
        spec.loader.exec_module(modules[name])
    folder = Path(plan.env[rollout_dump.VARIABLE])
    modules["orch_prime_rl_rollouts"].watch_orchestrator(folder)
    return Library(
        modules["orch_prime_rl_hooks"],
        stand_ins["prime_rl.trainer.rl.data"]["DataLoader"](),
        stand_ins["prime_rl.utils.monitor"]["get_monitor"](),
        stand_ins["prime_rl.trainer.rl.broadcast.filesystem"]["FileSystemWeightBroadcast"](),
        stand_ins["prime_rl.orchestrator.scheduler"]["Scheduler"](),
        stand_ins["prime_rl.transport.filesystem"]["FileSystemTrainingBatchSender"](),
        folder,
    )


def _library() -> dict[str, dict[str, Any]]:
    class Scheduler:
        rollouts_per_example = GROUP

        async def generate_batch(self, step: int) -> list[dict[str, Any]]:
            return [
                {
                    "example_id": number // GROUP,
                    "answer": f"answer {step}",
                    "completion": [{"role": "assistant", "content": f"said {number}"}],
                }
                for number in range(len(SAMPLES))
            ]

    class FileSystemTrainingBatchSender:
        def send(self, batch: Any) -> int:
            return len(batch.examples)

    class DataLoader:
        packer = SimpleNamespace(seq_len=LONGEST)
        ids: Sequence[Sequence[int]] = ()

        def get_batch(self) -> list[dict[str, Any]]:
            return [{"input_ids": torch.tensor([[x for each in self.ids for x in each]])}]

    class FileSystemWeightBroadcast:
        def broadcast_weights(self, model: Any, step: int) -> None:
            assert model is not None
            assert step

    class Monitor:
        def __init__(self) -> None:
            self.history: list[Any] = []

        def log(self, metrics: dict[str, Any], step: int) -> None:
            self.history.append((step, metrics))

    monitor = Monitor()
    world = SimpleNamespace(is_master=True, world_size=1)
    return {
        "prime_rl.orchestrator.scheduler": {"Scheduler": Scheduler},
        "prime_rl.transport.filesystem": {
            "FileSystemTrainingBatchSender": FileSystemTrainingBatchSender
        },
        "prime_rl.trainer.rl.data": {"DataLoader": DataLoader},
        "prime_rl.trainer.rl.broadcast.filesystem": {
            "FileSystemWeightBroadcast": FileSystemWeightBroadcast
        },
        "prime_rl.trainer.models": {"PreTrainedModelPrimeRL": type("Own", (), {})},
        "prime_rl.trainer.weights": {
            "gather_weights_on_master": lambda model, _, dtype: {
                name: value.to(dtype) for name, value in model.state_dict().items()
            }
        },
        "prime_rl.trainer.world": {"get_world": lambda: world},
        "prime_rl.utils.monitor": {"get_monitor": lambda: monitor},
        "transformers.core_model_loading": {"revert_weight_conversion": lambda _, state: state},
    }


def test_a_batch_has_what_both_processes_know(library: Library) -> None:
    samples = [sample(number) for number in range(4)]
    for step in (0, 1):
        library.send(step, samples)
        library.train(step, samples)
    first, second = library.written()
    assert (first.step, second.step) == (1, 2)
    assert first.prompts == [prompt for prompt, _, _ in SAMPLES]
    assert first.responses == [r[: LONGEST - len(p)] for p, r, _ in SAMPLES]
    assert len(first.responses[3]) < len(SAMPLES[3][1]), "cut as the trainer cuts it"
    assert first.rewards == [reward for _, _, reward in SAMPLES]
    assert first.groups == ["0-0", "0-0", "1-1", "1-1"]
    assert first.answers == ["answer 0"] * 4
    assert first.texts == [f"said {number}" for number in range(4)]
    assert first.logp_rollout is not None
    assert first.logp_policy is not None
    assert first.kl_reward is not None
    assert first.advantages is not None
    for number in range(4):
        rollout = first.logp_rollout[number]
        assert first.logp_policy[number] == pytest.approx([x - 0.01 for x in rollout])
        kl = [x + 0.3 for x in first.logp_policy[number]]
        assert first.kl_reward[number] == pytest.approx(kl, abs=1e-6)
        shaped = ADVANTAGES[number] - BETA * sum(kl)
        assert first.advantages[number] == pytest.approx([shaped] * len(rollout))
    assert first.logp_reference == [[-0.3] * len(row) for row in first.responses]
    observed = first.observed
    assert (observed["grad_norm"], observed["loss"]) == (0.25, 0.1)
    assert observed["kl_reward_per_token"] == 0.2
    tokens = [x for row in first.advantages for x in row]
    ratio = torch.tensor(-0.01).exp().item()
    assert observed["policy_loss"] == pytest.approx(-ratio * sum(tokens) / len(tokens))
    assert "learning_rate" not in observed, "Prime-RL logs that of the next step"
    assert second.observed["learning_rate"] == 1e-3
    assert first.reported["optim/lr"] == 1e-3
    weights = torch.load(rollout_dump.weights_path(library.folder, 2), weights_only=True)
    assert weights["weight"].dtype == torch.float32
    assert not list(library.folder.glob("sent-*")), "nothing else is left"


def test_what_does_not_belong_together_is_not_written(library: Library) -> None:
    samples = [sample(number) for number in range(4)]
    with pytest.raises(ValueError, match="train without"):
        library.send(0, samples[:3])
    library.send(0, samples)
    samples[1].completion_ids = [2, 7]
    with pytest.raises(ValueError, match="other sequences"):
        library.train(0, samples)
    assert not library.written()
