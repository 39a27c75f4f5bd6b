"""Writes verl's rollout batches as files: see orchestrator/library/rollout_dump.py.

Shipped beside a launch as orch_verl_rollouts.py and named in VERL_USE_EXTERNAL_MODULES, it is
imported in every process at the end of `import verl`. It wraps two methods once their modules are
imported: the trainer's `_update_actor`, after which all fields of a batch exist, and the training
worker's `train_mini_batch`, after which the weights do. Written for verl 0.9.1's trainer (V1).
"""

import functools
import os
from typing import Any

TRAINER = "verl.trainer.ppo.v1.trainer_base"
WORKERS = "verl.workers.engine_workers"
STEP = "orch_step"
"""Entry of a batch by which the trainer tells its worker the number of train steps after it."""
FIELDS = (
    "uid",
    "prompts",
    "responses",
    "response_mask",
    "rm_scores",
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "advantages",
    "reward_model",
)
OBSERVED = {
    "actor/pg_loss": "policy_loss",
    "actor/kl_loss": "kl_loss",
    "actor/reward_kl_penalty": "kl_reward_per_token",
    "actor/grad_norm": "grad_norm",
    "actor/loss": "loss",
    "actor/lr": "learning_rate",
}
"""verl's metric -> the dump's quantity. verl gives the mean over a batch's train steps."""


def wrap_trainer(trainer: Any, folder: str) -> None:
    """Make the trainer write each batch that it trained on."""
    from orch_rollout_dump import RolloutBatch, numbers, write

    own = trainer.PPOTrainer._update_actor  # noqa: SLF001  verl has no public hook here

    @functools.wraps(own)
    def update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        step, splits = _train_steps(self, batch)
        # The worker cannot know the trainer's counters, so the number travels with the batch.
        batch.extra_info[STEP] = step
        result = own(self, batch, metrics)
        data = trainer.tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS)
        )
        reported = numbers(metrics)
        observed = {name: reported[key] for key, name in OBSERVED.items() if key in reported}
        rewards = [float(row.sum()) for row in data["rm_scores"].unbind(0)]
        observed["reward"] = sum(rewards) / len(rewards)
        write(
            folder,
            RolloutBatch(
                step=step,
                prompts=_lists(data, "prompts"),
                responses=_lists(data, "responses"),
                rewards=rewards,
                groups=[str(name) for name in data.pop("uid").tolist()],
                answers=_answers(data),
                mask=_lists(data, "response_mask"),
                temperature=float(self.config.actor_rollout_ref.rollout.temperature),
                logp_rollout=_lists(data, "rollout_log_probs"),
                logp_policy=_lists(data, "old_log_probs"),
                logp_reference=_lists(data, "ref_log_prob"),
                advantages=_lists(data, "advantages"),
                updates=splits,
                observed=observed,
                reported=reported,
            ),
        )
        return result

    trainer.PPOTrainer._update_actor = update  # noqa: SLF001  the same


def _train_steps(trainer: Any, batch: Any) -> tuple[int, list[list[int]] | None]:
    """Return the number of train steps after this batch, and the rollouts of each of its own.

    The latter is None where verl shuffles. verl gives each of D ranks an equal, contiguous part
    and takes a D-th of each minibatch from each part, in order.
    """
    actor = trainer.config.actor_rollout_ref.actor
    size = actor.ppo_mini_batch_size * trainer.config.actor_rollout_ref.rollout.n
    updates = len(batch) // size * actor.ppo_epochs
    done = (trainer.global_steps - 1) * trainer.parameter_sync_step + trainer.local_trigger_step
    if actor.shuffle:
        return (done + 1) * updates, None
    ranks = max(trainer.actor_rollout_wg._dispatch_info["actor"]) + 1  # noqa: SLF001  verl reads it so
    share, part = len(batch) // ranks, size // ranks
    splits = [
        [rank * share + first + i for rank in range(ranks) for i in range(part)]
        for _ in range(actor.ppo_epochs)
        for first in range(0, share, part)
    ]
    return (done + 1) * updates, splits


def wrap_workers(workers: Any, folder: str) -> None:
    """Make the training worker save the weights of a small policy after each batch."""
    import torch
    from orch_rollout_dump import SMALL_POLICY, weights_path

    own = workers.TrainingWorker.train_mini_batch

    @functools.wraps(own)
    def train(self: Any, data: Any) -> Any:
        step = workers.tu.pop(data, key=STEP, default=None)
        result = own(self, data)
        if step is None:  # the critic's
            return result
        size = sum(parameter.numel() for parameter in self.engine.module.parameters())
        if size * torch.distributed.get_world_size() <= SMALL_POLICY:
            named, _ = self.engine.get_per_tensor_param()  # every rank takes part
            weights = {name: tensor.detach().cpu().clone() for name, tensor in named}
            if torch.distributed.get_rank() == 0:
                path = weights_path(folder, step)
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(weights, path)
        return result

    workers.TrainingWorker.train_mini_batch = train


def _answers(data: Any) -> list[str] | None:
    """Return the answers that the rewards were computed with; None if the data name none."""
    if "reward_model" not in data.keys():  # noqa: SIM118  `in` asks a TensorDict something else
        return None
    answers = [entry.get("ground_truth") for entry in data.pop("reward_model").tolist()]
    return None if None in answers else [str(answer) for answer in answers]


def _lists(data: Any, name: str) -> Any:
    """Return a ragged field as lists; None if the run does not have it."""
    if name not in data.keys():  # noqa: SIM118  `in` asks a TensorDict something else
        return None
    return [row.tolist() for row in data[name].unbind(0)]


def install(folder: str) -> None:
    """Wrap both modules: now if they are imported, else after their import."""
    from orch_rollout_dump import CallAfterImport

    CallAfterImport(
        {
            TRAINER: functools.partial(wrap_trainer, folder=folder),
            WORKERS: functools.partial(wrap_workers, folder=folder),
        }
    )


if __name__ == "orch_verl_rollouts" and "ORCH_ROLLOUT_DUMP" in os.environ:
    install(os.environ["ORCH_ROLLOUT_DUMP"])
