"""Writes SkyRL's rollout batches as files: see lab/cpu/orch_rollout_dump.py.

The trainer has whole batches, and the generator's environments have what was rewarded. Written for
SkyRL 0.4.0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch_cpu_device import after, around
from orch_rollout_dump import RolloutBatch, numbers, write

HEARD = "orch_heard"
"""Entry of an environment's own data: the text of the response that it rewarded."""
OBSERVED: Mapping[str, str] = {
    "policy_loss": "policy_loss",
    "policy_kl": "kl_loss",
    "grad_norm": "grad_norm",
    "policy_lr": "learning_rate",
    "final_loss": "loss",
}
"""SkyRL's value of a rollout batch -> the dump's name."""


def install(folder: Path) -> None:
    """Have the library's modules changed as soon as they are imported in this process."""
    after("skyrl_gym", _environments)
    after("skyrl.train.generators.skyrl_gym_generator", _generator)
    after("skyrl.train.trainer", _trainer, folder)


def _environments(gym: Any) -> None:
    """Make each environment leave the response that it rewards beside its answer."""

    def make(own: Any, name: str, *, extras: dict[str, Any], **more: Any) -> Any:
        def heard(step: Any, action: str) -> Any:
            extras[HEARD] = action
            return step(action)

        made = own(name, extras=extras, **more)
        around(made, "step", heard)
        return made

    around(gym, "make", make)


def _generator(module: Any) -> None:
    """Make the generator keep text and answer of each response of the batch that it made."""

    async def generate(own: Any, self: Any, input_batch: Any, *more: Any, **named: Any) -> Any:
        output = await own(self, input_batch, *more, **named)
        if input_batch["batch_metadata"].training_phase == "train":
            rows = input_batch["env_extras"]
            answers = [row["reward_spec"]["ground_truth"] for row in rows]
            self.orch_scored = {"texts": [row[HEARD] for row in rows], "answers": answers}
        return output

    around(module.SkyRLGymGenerator, "generate", generate)


def _trainer(module: Any, folder: Path) -> None:
    """Make the trainer write every rollout batch once it was trained on."""

    def convert_to_training_input(convert: Any, self: Any, output: Any, uids: Any) -> Any:
        rewards = [sum(each) if isinstance(each, list) else each for each in output["rewards"]]
        self.orch_sampled = {
            "rewards": [float(each) for each in rewards],
            "groups": [str(uid) for uid in uids],
            **self.generator.orch_scored,
        }
        return convert(self, output, uids)

    def train_critic_and_policy(train: Any, self: Any, data: Any) -> Any:
        mask = data["response_mask"].bool()
        advantages = _rows(data, "advantages", mask)  # training scales them for the loss
        updates = [
            list(range(first, end))
            for _ in range(self.cfg.trainer.update_epochs_per_batch)
            for first, end in data.metadata["policy_mini_batch_boundaries"]
        ]
        status = train(self, data)
        reported = numbers(status)
        observed = {ours: reported[name] for name, ours in OBSERVED.items() if name in reported}
        if self.cfg.trainer.algorithm.use_kl_in_reward:
            observed["kl_reward_per_token"] = float(self.all_metrics["loss/avg_kl"])
        attended = zip(data["sequences"], data["attention_mask"].bool(), strict=True)
        rows = [row[kept].tolist() for row, kept in attended]
        lengths = mask.sum(dim=-1).tolist()
        write(
            folder,
            RolloutBatch(
                step=self.global_step * len(updates),
                prompts=[ids[:-count] for ids, count in zip(rows, lengths, strict=True)],
                responses=[ids[-count:] for ids, count in zip(rows, lengths, strict=True)],
                mask=_rows(data, "loss_mask", mask, int),
                temperature=float(self.cfg.generator.sampling_params.temperature),
                logp_rollout=_rows(data, "rollout_logprobs", mask),
                logp_policy=_rows(data, "action_log_probs", mask),
                logp_reference=_rows(data, "base_action_log_probs", mask),
                advantages=advantages,
                updates=updates,
                observed=observed,
                reported=reported,
                **self.orch_sampled,
            ),
        )
        return status

    around(module.RayPPOTrainer, "convert_to_training_input", convert_to_training_input)
    around(module.RayPPOTrainer, "train_critic_and_policy", train_critic_and_policy)


def _rows(data: Any, name: str, mask: Any, kind: type = float) -> Any:
    """Return a field's values at each response's tokens; None if the run does not have it."""
    values = data.get(name)
    if values is None:
        return None
    return [[kind(x) for x in row[kept].tolist()] for row, kept in zip(values, mask, strict=True)]
