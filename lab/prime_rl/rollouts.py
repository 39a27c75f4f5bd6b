"""Writes Prime-RL's rollout batches as files: see lab/cpu/orch_rollout_dump.py.

Two processes have a part of a batch each:

- the orchestrator leaves what it sends to the trainer: tokens, rewards, answers;
- the trainer, where our loss is loaded, adds what the loss received and returned and what was
  logged. It writes the batch when it broadcasts the weights after that train step, so each batch
  has its weights.

Written for Prime-RL 0.5.0, whose batch is one train step, and for one process that trains.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orch_cpu_device import after, around
from orch_rollout_dump import (
    RolloutBatch,
    columns,
    numbers,
    replace,
    save_weights,
    weights_path,
    write,
)

SENT = "sent-{}.json"
"""What the orchestrator sent for the batch of a train step, counted from 1, until it is written."""
LOADER, BROADCAST = "prime_rl.trainer.rl.data", "prime_rl.trainer.rl.broadcast.filesystem"
Row = dict[str, Any]
SAMPLED: list[Row] = []
"""In the orchestrator: group, answer and text of each rollout of the batch that it made last."""


def install(folder: Path) -> None:
    """Have the modules changed as soon as they are imported in this process."""
    after("prime_rl.orchestrator.scheduler", _scheduler)
    after("prime_rl.transport.filesystem", _sender, folder)
    after("orch_prime_rl_hooks", _trainer, folder)


def _scheduler(module: Any) -> None:
    async def generate_batch(own: Any, self: Any, *given: Any, **named: Any) -> Any:
        rollouts = await own(self, *given, **named)
        size = self.rollouts_per_example
        SAMPLED[:] = [
            {
                "groups": f"{number // size}-{each['example_id']}",
                "answers": str(each["answer"]),
                "texts": _text(each["completion"]),
            }
            for number, each in enumerate(rollouts)
        ]
        return rollouts

    around(module.Scheduler, "generate_batch", generate_batch)


def _text(completion: Any) -> str:
    """Return a response as the reward function of our environment gets it."""
    return str(completion if isinstance(completion, str) else completion[-1]["content"])


def _sender(module: Any, folder: Path) -> None:
    """Write what the trainer will be sent, before it is sent."""

    def send(own: Any, self: Any, batch: Any) -> Any:
        if len(batch.examples) != len(SAMPLED):
            raise ValueError(
                f"step {batch.step} sends {len(batch.examples)} samples of {len(SAMPLED)} "
                "rollouts: which belongs to which cannot be written"
            )
        rows = [
            {
                **each,
                "prompts": sample.prompt_ids,
                "responses": sample.completion_ids,
                "mask": [int(x) for x in sample.completion_mask],
                "logp_rollout": sample.completion_logprobs,
                "logp_reference": _of_response(sample),
                "rewards": sample.reward,
                "advantage": sample.advantage,
                "temperature": sample.completion_temperatures[0],
            }
            for each, sample in zip(SAMPLED, batch.examples, strict=True)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / SENT.format(batch.step + 1), rows)
        return own(self, batch)

    around(module.FileSystemTrainingBatchSender, "send", send)


def _of_response(sample: Any) -> Any:
    """Return the reference policy's values of the response; None if there is none.

    Prime-RL has them of the whole sequence.
    """
    values, first = sample.teacher_logprobs, len(sample.prompt_ids)
    return None if values is None else values[first : first + len(sample.completion_ids)]


class _Step:
    """What the trainer knows of the train step that is under way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: list[int] = []
        """Of all sequences of its micro batches, one after the other."""
        self.num_micro_batches = 0
        self.calls: list[Row] = []
        """What the loss received and returned, sequence after sequence."""
        self.reported: dict[str, float] = {}
        self.rate: float | None = None
        """The learning rate that the train step before logged: that of this one."""

    def begin(self, micro_batches: Sequence[Mapping[str, Any]]) -> None:
        """Take the micro batches."""
        self.ids = [x for each in micro_batches for x in each["input_ids"][0].tolist()]
        self.num_micro_batches = len(micro_batches)
        self.calls, self.reported = [], {}


def _trainer(hooks: Any, folder: Path) -> None:
    """Make this process write each batch that it trains on; nothing where it is no trainer.

    hooks: our loss, whose functions are replaced in it by ones that are watched.
    """
    if LOADER in sys.modules:
        current = _Step(folder)
        _watch_loss(hooks, current)
        _watch_library(current)


def _watch_loss(hooks: Any, current: _Step) -> None:
    call: Row = {}

    def loss(own: Any, inputs: Any, **named: Any) -> Any:
        call.clear()
        outputs = own(inputs, **named)
        call.update(
            logp=inputs.trainer_logprobs.detach().tolist(),
            mask=inputs.loss_mask.tolist(),
            advantage=inputs.advantages[0].item(),
            placement=named.get("placement", ""),
        )
        current.calls.append(dict(call))
        return outputs

    def surrogate(own: Any, ratio: Any, advantages: Any, *more: Any) -> Any:
        gain = own(ratio, advantages, *more)
        call.update(advantages=advantages.tolist(), gain=gain.detach().tolist())
        return gain

    def token_kl(own: Any, *given: Any) -> Any:
        kl = own(*given)
        call.update(kl=kl.detach().tolist())
        return kl

    for change in (loss, surrogate, token_kl):
        around(hooks, change.__name__, change)


def _watch_library(current: _Step) -> None:
    def get_batch(own: Any, self: Any) -> Any:
        micro_batches = own(self)
        current.begin(micro_batches)
        return micro_batches

    def log(own: Any, metrics: Mapping[str, Any], *more: Any, **named: Any) -> Any:
        current.reported |= numbers(metrics)
        return own(metrics, *more, **named)

    def broadcast(own: Any, self: Any, model: Any, step: int) -> Any:
        if current.calls:  # none at the broadcast of a step that an earlier attempt trained
            _write(current, model, step)
            current.calls = []
        return own(self, model, step=step)

    around(sys.modules[LOADER].DataLoader, "get_batch", get_batch)
    around(sys.modules[BROADCAST].FileSystemWeightBroadcast, "broadcast_weights", broadcast)
    around(sys.modules["prime_rl.utils.monitor"].get_monitor(), "log", log)


def _write(current: _Step, model: Any, step: int) -> None:
    """Write the batch of a train step, and before it the weights."""
    save_weights(weights_path(current.folder, step), _weights(model))
    batch_file, reported = current.folder / SENT.format(step), current.reported
    rows = json.loads(batch_file.read_text(encoding="utf-8"))
    calls = _by_row(rows, current)
    observed = {
        "grad_norm": reported["optim/grad_norm"],
        # each micro batch's loss is its part of the sum, and the mean of them is logged
        "loss": reported["loss/mean"] * current.num_micro_batches,
        **_sums(calls),
    }
    if "kl_reward" in observed:
        observed["kl_reward_per_token"] = reported["ref_kl/mean"]
    if current.rate is not None:  # what Prime-RL logs is the rate of the next train step
        observed["learning_rate"] = current.rate
    current.rate = reported.get("optim/lr")
    (temperature,) = {row.pop("temperature") for row in rows}
    for row, call in zip(rows, calls, strict=True):
        first = len(row["prompts"])
        row |= {"logp_policy": call["logp"][first:], "advantages": _spread(call)[first:]}
    write(
        current.folder,
        RolloutBatch(
            step=step,
            temperature=temperature,
            observed=observed,
            reported=reported,
            **columns(rows),
        ),
    )
    batch_file.unlink()


def _weights(model: Any) -> Any:
    """Return the weights in fp32 by their Hugging Face names."""
    from transformers.core_model_loading import revert_weight_conversion

    gather = sys.modules["prime_rl.trainer.weights"].gather_weights_on_master
    return revert_weight_conversion(model, gather(model, True, dtype=sys.modules["torch"].float32))


def _by_row(rows: Sequence[Row], current: _Step) -> list[Row]:
    """Return the loss's call of each row.

    The trainer sorts and packs sequences; a row is known by its tokens and its advantage. Raise
    ValueError for a row that the loss never got.
    """
    calls: dict[tuple[object, ...], list[Row]] = {}
    at = 0
    for call in current.calls:
        ids = current.ids[at : at + len(call["logp"])]
        at += len(ids)
        calls.setdefault((*ids, call["advantage"]), []).append(call)
    ordered = []
    for row in rows:
        # As a tensor, since the trainer's numbers are rounded to float32.
        advantage = sys.modules["torch"].tensor(row.pop("advantage")).item()
        same = calls.get((*row["prompts"], *row["responses"], advantage))
        if not same:
            raise ValueError("the trainer got other sequences than the orchestrator sent")
        # Rows with equal keys are alike; each call is used once.
        ordered.append(same.pop())
    return ordered


def _spread(call: Row) -> list[float]:
    """Return the advantages of the trained tokens at their places; 0 at the others."""
    values = iter(call["advantages"])
    return [next(values) if trained else 0.0 for trained in call["mask"]]


def _sums(calls: Sequence[Row]) -> dict[str, float]:
    """Return the parts of the loss: the sums that the loss made, over the batch's tokens."""
    tokens = max(sum(sum(call["mask"]) for call in calls), 1)
    sums = {"policy_loss": -sum(sum(call["gain"]) for call in calls) / tokens}
    if "loss" in calls[0]["placement"]:
        sums["kl_loss"] = sum(sum(call["kl"]) for call in calls) / tokens
    if "reward" in calls[0]["placement"]:
        sums["kl_reward"] = sum(sum(call["kl"]) for call in calls) / len(calls)
    return sums
