"""Writes Prime-RL's rollout batches as files: see orchestrator/library/rollout_dump.py.

Shipped as orch_prime_rl_rollouts.py beside a launch whose cell asks for its rollouts; the variable
ORCH_ROLLOUT_DUMP names the folder. Two processes have a part of a batch each:

- the orchestrator, where our environment is loaded (`watch_orchestrator`), leaves what it sends to
  the trainer: tokens, rewards, answers;
- the trainer, where our loss is loaded (`watch_trainer`), adds what the loss received and returned
  and what was logged. It writes the batch when it broadcasts the weights after that train step, so
  each batch has its weights.

Written for Prime-RL 0.5.0, whose batch is one train step. Of several trainer ranks the first
writes, and what the loss received in the others is left out.
"""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SENT = "sent-{}.json"
"""What the orchestrator sent for the batch of a train step, counted from 1, until it is written."""
SCHEDULER, SENDER = "prime_rl.orchestrator.scheduler", "prime_rl.transport.filesystem"
LOADER, BROADCAST = "prime_rl.trainer.rl.data", "prime_rl.trainer.rl.broadcast.filesystem"
_MARK = "orch_watched"

Row = dict[str, Any]


def watch_orchestrator(folder: Path) -> None:
    """Make this process leave each batch that it sends; nothing where it is no orchestrator."""
    scheduler = sys.modules.get(SCHEDULER)
    if scheduler is None or hasattr(scheduler, _MARK):
        return
    setattr(scheduler, _MARK, True)
    sender = sys.modules[SENDER].FileSystemTrainingBatchSender
    generate, send = scheduler.Scheduler.generate_batch, sender.send
    sampled: list[Row] = []

    @functools.wraps(generate)
    async def generate_batch(self: Any, *given: Any, **named: Any) -> Any:
        rollouts = await generate(self, *given, **named)
        size = self.rollouts_per_example
        # In place: send_batch below reads this list.
        sampled[:] = [
            {
                "group": f"{number // size}-{each['example_id']}",
                "answer": str(each["answer"]),
                "text": _text(each["completion"]),
            }
            for number, each in enumerate(rollouts)
        ]
        return rollouts

    @functools.wraps(send)
    def send_batch(self: Any, batch: Any) -> Any:
        _leave(folder, batch, sampled)
        return send(self, batch)

    scheduler.Scheduler.generate_batch = generate_batch
    sender.send = send_batch


def _text(completion: Any) -> str:
    """Return a response as the reward function of our environment gets it."""
    return str(completion if isinstance(completion, str) else completion[-1]["content"])


def _leave(folder: Path, batch: Any, sampled: Sequence[Row]) -> None:
    """Write what the trainer will be sent, before it is sent."""
    if len(batch.examples) != len(sampled):
        raise ValueError(
            f"step {batch.step} sends {len(batch.examples)} samples of {len(sampled)} rollouts: "
            "which belongs to which cannot be written; train without cadence.dump_rollouts"
        )
    rows = [
        {
            **each,
            "prompt": sample.prompt_ids,
            "response": sample.completion_ids,
            "mask": [int(x) for x in sample.completion_mask],
            "rollout": sample.completion_logprobs,
            "reference": sample.teacher_logprobs,
            "advantage": sample.advantage,
            "reward": sample.reward,
            "temperature": sample.completion_temperatures[0],
        }
        for each, sample in zip(sampled, batch.examples, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SENT.format(batch.step + 1)
    # The trainer reads the file in another process: all of it or nothing.
    new = path.with_suffix(".new")
    new.write_text(json.dumps(rows), encoding="utf-8")
    new.replace(path)


def watch_trainer(hooks: ModuleType, folder: Path) -> None:
    """Make this process write each batch that it trains on; nothing where it is no trainer.

    hooks: our loss (hooks.py), whose functions are replaced in it by ones that are watched.
    """
    if LOADER not in sys.modules or hasattr(hooks, _MARK):
        return
    setattr(hooks, _MARK, True)
    current = _Step(folder)
    _watch_loss(hooks, current)
    _watch_library(current)


class _Step:
    """What is known of the train step that is under way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.longest = 0
        """Tokens to which the trainer cuts a sequence; known to the first rank."""
        self.ids: list[int] = []
        """Of all sequences of this rank's micro batches, one after the other."""
        self.num_micro_batches = 0
        self.calls: list[Row] = []
        """What the loss received and returned, sequence after sequence."""
        self.reported: dict[str, float] = {}
        self.rate: float | None = None
        """The learning rate that the train step before logged: that of this one."""

    def begin(self, loader: Any, micro_batches: Sequence[Mapping[str, Any]]) -> None:
        """Take the micro batches of this rank."""
        self.longest = loader.packer.seq_len if hasattr(loader, "packer") else 0
        self.ids = [x for each in micro_batches for x in each["input_ids"][0].tolist()]
        self.num_micro_batches = len(micro_batches)
        self.calls, self.reported = [], {}


def _watch_loss(hooks: ModuleType, current: _Step) -> None:
    own, surrogate, token_kl = hooks.loss, hooks.surrogate, hooks.token_kl
    call: Row = {}

    @functools.wraps(own)
    def loss(inputs: Any, **named: Any) -> Any:
        call.clear()
        outputs = own(inputs, **named)
        call.update(
            logp=inputs.trainer_logprobs.detach().tolist(),
            rollout=inputs.inference_logprobs.tolist(),
            mask=inputs.loss_mask.tolist(),
            advantage=inputs.advantages[0].item(),
            placement=named.get("placement", ""),
        )
        current.calls.append(dict(call))
        return outputs

    @functools.wraps(surrogate)
    def watched_surrogate(ratio: Any, advantages: Any, *more: Any) -> Any:
        gain = surrogate(ratio, advantages, *more)
        call.update(advantages=advantages.tolist(), gain=gain.detach().tolist())
        return gain

    @functools.wraps(token_kl)
    def watched_kl(*given: Any) -> Any:
        kl = token_kl(*given)
        call.update(kl=kl.detach().tolist())
        return kl

    vars(hooks).update(loss=loss, surrogate=watched_surrogate, token_kl=watched_kl)


def _watch_library(current: _Step) -> None:
    from orch_rollout_dump import numbers

    loader = sys.modules[LOADER].DataLoader
    broadcast = sys.modules[BROADCAST].FileSystemWeightBroadcast
    monitor = sys.modules["prime_rl.utils.monitor"].get_monitor()
    get_batch, send, log = loader.get_batch, broadcast.broadcast_weights, monitor.log

    @functools.wraps(get_batch)
    def watched_batch(self: Any) -> Any:
        micro_batches = get_batch(self)
        current.begin(self, micro_batches)
        return micro_batches

    @functools.wraps(log)
    def watched_log(metrics: Mapping[str, Any], *more: Any, **named: Any) -> Any:
        current.reported |= numbers(metrics)
        return log(metrics, *more, **named)

    @functools.wraps(send)
    def watched_broadcast(self: Any, model: Any, step: int) -> Any:
        if current.calls:  # none at the broadcast of a step that an earlier attempt trained
            _write(current, model, step)
            current.calls = []
        return send(self, model, step=step)

    loader.get_batch, broadcast.broadcast_weights = watched_batch, watched_broadcast
    monitor.log = watched_log


def _write(current: _Step, model: Any, step: int) -> None:
    """Write the batch of a train step, and before it the weights of a small policy."""
    from orch_rollout_dump import SMALL_POLICY, RolloutBatch, weights_path, write

    torch = sys.modules["torch"]
    world = sys.modules["prime_rl.trainer.world"].get_world()
    reported = current.reported
    small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL_POLICY
    state = _weights(model, world.is_master) if small else None
    rate, current.rate = current.rate, reported.get("optim/lr")
    if not world.is_master:
        return
    if state is not None:
        torch.save(state, weights_path(current.folder, step))
    batch_file = current.folder / SENT.format(step)
    rows = json.loads(batch_file.read_text(encoding="utf-8"))
    rows = [_cut(row, current.longest) for row in rows]
    observed = {"reward": sum(row["reward"] for row in rows) / len(rows)}
    observed["grad_norm"] = reported["optim/grad_norm"]
    if rate is not None:  # what Prime-RL logs is the rate of the next train step
        observed["learning_rate"] = rate
    in_loss: dict[str, Any] = {}
    if world.world_size == 1:
        calls = _by_row(rows, current, torch)
        in_loss = _of_loss(rows, calls)
        # each micro batch's loss is its part of the sum, and the mean of them is logged
        observed["loss"] = reported["loss/mean"] * current.num_micro_batches
        observed |= _sums(calls)
        if "kl_reward" in in_loss:
            observed["kl_reward_per_token"] = reported["ref_kl/mean"]
    write(
        current.folder,
        RolloutBatch(
            step=step,
            prompts=[row["prompt"] for row in rows],
            responses=[row["response"] for row in rows],
            rewards=[row["reward"] for row in rows],
            groups=[row["group"] for row in rows],
            mask=[row["mask"] for row in rows],
            answers=[row["answer"] for row in rows],
            texts=[row["text"] for row in rows],
            temperature=rows[0]["temperature"],
            logp_rollout=[row["rollout"] for row in rows],
            logp_reference=_references(rows),
            observed=observed,
            reported=reported,
            **in_loss,
        ),
    )
    batch_file.unlink()


def _weights(model: Any, is_master: bool) -> Any:
    """Return the weights in fp32 by their Hugging Face names. Every rank takes part."""
    torch, library = sys.modules["torch"], sys.modules["prime_rl.trainer.weights"]
    state = library.gather_weights_on_master(model, is_master, dtype=torch.float32)
    own = sys.modules["prime_rl.trainer.models"].PreTrainedModelPrimeRL
    if isinstance(model, own) and model.is_prime_state_dict(state):
        model.convert_to_hf(state)
        return state
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, state)


def _by_row(rows: Sequence[Row], current: _Step, torch: Any) -> list[Row]:
    """Return the loss's call of each row.

    The trainer sorts and packs sequences; a row is known by its tokens, the sampler's
    log-probabilities and its advantage. Raise ValueError for a row that the loss never got.
    """
    calls: dict[tuple[object, ...], list[Row]] = {}
    at = 0
    for call in current.calls:
        ids = current.ids[at : at + len(call["logp"])]
        at += len(ids)
        calls.setdefault(_key(ids, call["rollout"], call["advantage"]), []).append(call)
    ordered = []
    for row in rows:
        ids = [*row["prompt"], *row["response"]]
        # As tensors, since the trainer's numbers are rounded to float32.
        logps = torch.tensor([0.0] * len(row["prompt"]) + row["rollout"]).tolist()
        same = calls.get(_key(ids, logps, torch.tensor(row["advantage"]).item()))
        if not same:
            raise ValueError("the trainer got other sequences than the orchestrator sent")
        # Rows with equal keys are alike; each call is used once.
        ordered.append(same.pop())
    return ordered


def _key(ids: Sequence[int], logps: Sequence[float], advantage: float) -> tuple[object, ...]:
    return advantage, tuple(ids), tuple(logps)


def _cut(row: Row, longest: int) -> Row:
    """Return a row at the trainer's longest sequence, as the trainer cuts it."""
    kept = max(longest - len(row["prompt"]), 0)
    return {**row, **{name: row[name][:kept] for name in ("response", "mask", "rollout")}}


def _of_loss(rows: Sequence[Row], calls: Sequence[Row]) -> dict[str, Any]:
    """Return what the loss received and computed of each response's tokens."""
    first = [len(row["prompt"]) for row in rows]
    in_loss: dict[str, Any] = {
        "logp_policy": [call["logp"][at:] for call, at in zip(calls, first, strict=True)],
        "advantages": [
            _spread(call, "advantages", at) for call, at in zip(calls, first, strict=True)
        ],
    }
    if "reward" in calls[0]["placement"]:
        in_loss["kl_reward"] = [
            _spread(call, "kl", at) for call, at in zip(calls, first, strict=True)
        ]
    return in_loss


def _spread(call: Row, name: str, first: int) -> list[float]:
    """Return values of the trained tokens at their places in the response; 0 at the others."""
    values = iter(call[name])
    return [next(values) if trained else 0.0 for trained in call["mask"]][first:]


def _sums(calls: Sequence[Row]) -> dict[str, float]:
    """Return the parts of the loss: the sums that the loss made, over the batch's tokens."""
    tokens = max(sum(sum(call["mask"]) for call in calls), 1)
    sums = {"policy_loss": -sum(sum(call["gain"]) for call in calls) / tokens}
    if "loss" in calls[0]["placement"]:
        sums["kl_loss"] = sum(sum(call["kl"]) for call in calls) / tokens
    if "reward" in calls[0]["placement"]:
        sums["kl_reward"] = sum(sum(call["kl"]) for call in calls) / len(calls)
    return sums


def _references(rows: Sequence[Row]) -> list[list[float]] | None:
    """Return the reference policy's values of each response; None if there is none.

    Prime-RL has them of the whole sequence.
    """
    if any(row["reference"] is None for row in rows):
        return None
    return [row["reference"][len(row["prompt"]) :][: len(row["response"])] for row in rows]
