"""The hook that writes Prime-RL's rollouts, imported as a launch imports it.

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
from lab.cpu import orch_rollout_dump as rollout_dump
from lab.prove.scaled_down import cell_of, on_cpu, on_few_gpus
from orchestrator.records import AttemptPaths
from tests.backends.shipped import write

GROUP, BETA = 2, 0.5
SAMPLES = [
    ([5, 6], [7, 8, 9], 1.0),
    ([5, 6], [7, 2], 0.0),
    ([5, 6, 4], [3], 0.0),
    ([5, 6, 4], [3, 3, 3, 3, 3, 3, 3], 1.0),
]
"""Prompt, response, reward."""
ADVANTAGES = [1.0, -1.0, -1.0, 1.0]


def samples() -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            prompt_ids=prompt,
            completion_ids=response,
            completion_mask=[True] * len(response),
            completion_logprobs=[-0.1 * (number + k + 1) for k in range(len(response))],
            completion_temperatures=[1.0] * len(response),
            teacher_logprobs=[0.0] * len(prompt) + [-0.3] * len(response),
            advantage=ADVANTAGES[number],
            reward=reward,
        )
        for number, (prompt, response, reward) in enumerate(SAMPLES)
    ]


class Library(NamedTuple):
    """The launch's own loss, loaded beside stand-ins of the library."""

    hooks: ModuleType
    modules: dict[str, Any]
    folder: Path

    def send(self, step: int, examples: Sequence[Any]) -> None:
        asyncio.run(self.modules["orchestrator.scheduler"].Scheduler().generate_batch(step))
        sender = self.modules["transport.filesystem"].FileSystemTrainingBatchSender()
        sender.send(SimpleNamespace(step=step, examples=examples))

    def train(self, step: int, examples: Sequence[Any]) -> None:
        """As the trainer's loop: packed, longest first, one call of the loss a sequence."""
        packed = sorted(examples, key=lambda s: -len(s.completion_ids))
        loader = self.modules["trainer.rl.data"].DataLoader()
        loader.ids = [x for each in packed for x in each.prompt_ids + each.completion_ids]
        loader.get_batch()
        for each in packed:
            first = len(each.prompt_ids)
            rollout = torch.tensor([0.0] * first + each.completion_logprobs)
            inputs = SimpleNamespace(
                trainer_logprobs=(rollout - 0.01).requires_grad_(),
                inference_logprobs=rollout,
                teacher_logprobs=torch.tensor(each.teacher_logprobs),
                advantages=torch.full((len(rollout),), each.advantage),
                loss_mask=torch.tensor([k >= first for k in range(len(rollout))]),
            )
            self.hooks.loss(inputs, estimator="k1", placement="reward", beta=BETA)
        monitor = self.modules["utils.monitor"].get_monitor()
        monitor.log({"optim/grad_norm": 0.25, "optim/lr": 1e-3 * (step + 1)}, step=step)
        monitor.log({"loss/mean": 0.1, "ref_kl/mean": 0.2, "name": "x"}, step=step)
        broadcast = self.modules["trainer.rl.broadcast.filesystem"].FileSystemWeightBroadcast()
        broadcast.broadcast_weights(torch.nn.Linear(2, 2), step=step + 1)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """What a launch on a CPU ships, in this process."""
    place = AttemptPaths(tmp_path / "plan", tmp_path / "attempts/1", tmp_path / "checkpoints")
    kl = {"kl": {"estimator": "k1", "placement": "reward", "beta": BETA}}
    plan = on_cpu(on_few_gpus(cell_of("prime_rl", BACKEND.versions[0], kl)), place).plan
    write(plan, place.plan_dir)
    modules = stand_ins()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"prime_rl.{name}", module)
    weights = SimpleNamespace(revert_weight_conversion=lambda _, state: state)
    monkeypatch.setitem(sys.modules, "transformers.core_model_loading", weights)
    loaded = {}
    hook = ("orch_cpu_device", "orch_rollout_dump", "orch_rollout_hook")
    for file in ("orch_prime_rl_hooks.py", *(f"cpu/{name}.py" for name in hook)):
        path = place.plan_dir / file
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        loaded[path.stem] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, loaded[path.stem])
        spec.loader.exec_module(loaded[path.stem])
    folder = Path(plan.env[rollout_dump.VARIABLE])
    loaded["orch_rollout_hook"].install(folder)
    return Library(loaded["orch_prime_rl_hooks"], modules, folder)


def stand_ins() -> dict[str, Any]:
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

    class Sender:
        def send(self, batch: Any) -> int:
            return len(batch.examples)

    class DataLoader:
        ids: Sequence[int] = ()

        def get_batch(self) -> list[dict[str, Any]]:
            return [{"input_ids": torch.tensor([self.ids])}]

    class Broadcast:
        def broadcast_weights(self, model: Any, step: int) -> None:
            assert model is not None
            assert step

    def gathered(model: Any, _: bool, dtype: Any) -> dict[str, Any]:
        return {name: value.to(dtype) for name, value in model.state_dict().items()}

    monitor = SimpleNamespace(log=lambda metrics, step: (metrics, step))
    return {
        "orchestrator.scheduler": SimpleNamespace(Scheduler=Scheduler),
        "transport.filesystem": SimpleNamespace(FileSystemTrainingBatchSender=Sender),
        "trainer.rl.data": SimpleNamespace(DataLoader=DataLoader),
        "trainer.rl.broadcast.filesystem": SimpleNamespace(FileSystemWeightBroadcast=Broadcast),
        "trainer.weights": SimpleNamespace(gather_weights_on_master=gathered),
        "utils.monitor": SimpleNamespace(get_monitor=lambda: monitor),
    }


def test_a_batch_has_what_both_processes_know(library: Library) -> None:
    for step in (0, 1):
        library.send(step, samples())
        library.train(step, samples())
    first, second = rollout_dump.read([library.folder])
    assert (first.step, second.step) == (1, 2)
    assert first.prompts == [prompt for prompt, _, _ in SAMPLES]
    assert first.responses == [response for _, response, _ in SAMPLES]
    assert first.rewards == [reward for _, _, reward in SAMPLES]
    assert first.groups == ["0-0", "0-0", "1-1", "1-1"]
    assert first.answers == ["answer 0"] * 4
    assert first.texts == [f"said {number}" for number in range(4)]
    assert first.logp_rollout is not None
    assert first.logp_policy is not None
    assert first.advantages is not None
    for number, rollout in enumerate(first.logp_rollout):
        assert first.logp_policy[number] == pytest.approx([x - 0.01 for x in rollout])
        shaped = ADVANTAGES[number] - BETA * sum(x + 0.3 for x in first.logp_policy[number])
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
    sent = samples()
    with pytest.raises(ValueError, match="which belongs to which"):
        library.send(0, sent[:3])
    library.send(0, sent)
    sent[1].completion_ids = [2, 7]
    with pytest.raises(ValueError, match="other sequences"):
        library.train(0, sent)
    assert not list(rollout_dump.read([library.folder]))
