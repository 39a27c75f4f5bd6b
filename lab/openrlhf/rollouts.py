"""Writes OpenRLHF's rollout batches as files: see lab/cpu/orch_rollout_dump.py.

The trainer's process has whole batches. The policy has one process: it has minibatches, their
losses and the weights. Written for OpenRLHF 0.11.2.
"""

import json
import sys
from collections.abc import Iterator, Sequence
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

PARTS, WEIGHTS = "minibatches.json", "weights.pt"
"""What the policy's process tells the trainer's of the batch that it has just trained on."""
PROGRAM = "openrlhf.cli.train_ppo_ray"


def install(folder: Path) -> None:
    """Have the library's modules changed as soon as they are imported in a worker of Ray.

    The program trains nothing. It sends classes whose methods Ray has copied before a module is
    changed: it sends the name of a method only as long as the module has the same one.
    """
    if PROGRAM in sys.orig_argv:
        return
    after("openrlhf.trainer.ppo_utils.samples_generator", _samples)
    after("openrlhf.trainer.ppo_utils.experience_maker", _maker)
    after("openrlhf.trainer.ppo_trainer", _trainer, folder)
    after("openrlhf.trainer.ray.ppo_actor", _policy, folder)


def _samples(samples: Any) -> None:
    """Ask the sampler for the log-probabilities of its tokens, also where no correction needs them.

    The loss does not look at them without a correction. At another temperature than 1 vLLM reports
    those of the logits as they are, which nothing is to be compared with.
    """

    def sampling_params(own: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("logprobs") is None and (named["temperature"], named["top_p"]) == (1.0, 1.0):
            named["logprobs"] = 1
        return own(*arguments, **named)

    around(samples, "SamplingParams", sampling_params)


def _maker(maker: Any) -> None:
    """Keep the reference policy's log-probabilities: a KL in the reward drops them."""
    of_reference: list[Any] = []

    def kl(own: Any, log_probs: Any, log_probs_base: Any, *more: Any, **named: Any) -> Any:
        of_reference.append(log_probs_base)
        return own(log_probs, log_probs_base, *more, **named)

    def make(own: Any, self: Any, samples_list: Any) -> Any:
        of_reference.clear()
        experiences = own(self, samples_list)
        self.orch_references = list(of_reference) or [
            each.base_action_log_probs for each in experiences
        ]
        return experiences

    around(maker, "compute_approx_kl", kl)
    around(maker.RemoteExperienceMaker, "make_experience", make)


def _trainer(trainer: Any, folder: Path) -> None:
    """Write every rollout batch once it was trained on."""

    def train_step(own: Any, self: Any, rollout_samples: Any, global_step: int) -> Any:
        maker = self.experience_maker
        make, rows = maker.make_experience_batch, list[dict[str, Any]]()

        def make_experience_batch(samples: Any) -> Any:
            experiences = make(samples)
            size = self.args.rollout.n_samples_per_prompt
            rows.extend(_rows(experiences, maker.orch_references, size))
            return experiences

        maker.make_experience_batch = make_experience_batch
        try:
            status, step = own(self, rollout_samples, global_step)
        finally:
            del maker.make_experience_batch
        _write(self.args, folder, rows, numbers(status), step)
        return status, step

    around(trainer.BasePPOTrainer, "train_step", train_step)


def _rows(experiences: Any, references: Any, group_size: int) -> Iterator[dict[str, Any]]:
    """Yield what is written of each rollout, in the order of the batch."""
    for part, reference in zip(experiences, references, strict=True):
        for i in range(len(part.sequences)):
            tokens = part.sequences[i][part.attention_mask[i].bool()].tolist()
            # The token after position `first` is a response's.
            first = int(part.action_mask[i].bool().int().argmax())
            kept = slice(first, len(tokens) - 1)
            fields = {
                "logp_rollout": part.rollout_log_probs,
                "logp_policy": part.action_log_probs,
                "logp_reference": reference,
                "advantages": part.advantages,
            }
            yield {
                "prompts": tokens[: first + 1],
                "responses": tokens[first + 1 :],
                "mask": [int(x) for x in part.action_mask[i][kept].tolist()],
                "rewards": float(part.info["reward"][i]),
                "groups": str(part.index[i] // group_size),
                "answers": part.labels[i],
                **{name: None if x is None else x[i][kept].tolist() for name, x in fields.items()},
            }


def _write(
    args: Any, folder: Path, rows: Sequence[Any], reported: dict[str, float], step: int
) -> None:
    parts = json.loads((folder / PARTS).read_text(encoding="utf-8"))
    last = step * len(parts["updates"])
    observed = parts["observed"]
    if args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss:
        observed["kl_reward_per_token"] = reported["kl"]
    if "actor_lr" in reported:
        observed["learning_rate"] = reported["actor_lr"]
    (folder / WEIGHTS).replace(weights_path(folder, last))
    write(
        folder,
        RolloutBatch(
            step=last,
            temperature=float(args.rollout.temperature),
            updates=parts["updates"],
            observed=observed,
            reported=reported,
            **columns(rows),
        ),
    )


def _policy(policy: Any, folder: Path) -> None:
    """Leave the minibatches of each batch and the weights after it for the trainer's process."""

    def ppo_train(own: Any, self: Any, kl_ctl: float) -> Any:
        # A batch is shuffled, and its items stay the same objects.
        number = {id(item): at for at, item in enumerate(self.replay_buffer.items)}
        collate, self.orch_taken, self.orch_said = self.replay_buffer.collate_fn, [], []

        def collate_fn(items: Any) -> Any:
            flat = items[0] if isinstance(items[0], list) else items
            self.orch_taken.append([number[id(item)] for item in flat])
            return collate(items)

        self.replay_buffer.collate_fn = collate_fn
        try:
            status = own(self, kl_ctl)
        finally:
            del self.replay_buffer.collate_fn
        _leave(self, folder, kl_ctl)
        return status

    def training_step(own: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        returned = own(self, *arguments, **named)
        self.orch_said.append(numbers(returned["metrics"]))
        return returned

    around(policy.ActorPPOTrainer, "ppo_train", ppo_train)
    around(policy.ActorPPOTrainer, "training_step", training_step)


def _leave(trainer: Any, folder: Path, beta: float) -> None:
    """Write the minibatches and the losses of a batch, and the weights after it.

    DeepSpeed makes a train step of `gas` micro-batches, whose losses are all divided by the whole
    step's tokens over `gas`: the step's is their mean.
    """
    gas = max(int(trainer.strategy.accumulated_gradient), 1)
    starts = range(0, len(trainer.orch_taken) - gas + 1, gas)
    updates = [[i for part in trainer.orch_taken[at : at + gas] for i in part] for at in starts]
    said = trainer.orch_said[: len(starts) * gas]
    # DeepSpeed has a step's norm after its last micro-batch.
    norms = [said[at + gas - 1]["actor_grad_norm"] for at in starts]
    policy_loss = sum(each["policy_loss"] for each in said) / len(said)
    observed = {"policy_loss": policy_loss, "loss": policy_loss}
    observed["grad_norm"] = sum(norms) / len(norms)
    if trainer.args.algo.kl.use_loss and trainer.args.algo.kl.init_coef > 0:
        observed["kl_loss"] = sum(each["kl"] for each in said) / len(said)
        observed["loss"] += beta * observed["kl_loss"]
    # As the library gathers what AdamW updates for a checkpoint. DeepSpeed has no public name.
    model, in_parts = trainer.actor.model, trainer.strategy.args.ds.zero_stage > 2
    weights = model._consolidated_16bit_state_dict() if in_parts else model.module.state_dict()  # noqa: SLF001
    save_weights(folder / WEIGHTS, weights)
    replace(folder / PARTS, {"updates": updates, "observed": observed})
