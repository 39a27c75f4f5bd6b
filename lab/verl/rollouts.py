"""Writes verl's rollout batches as files: see lab/cpu/orch_rollout_dump.py.

Two methods are wrapped: the trainer's `_update_actor`, after which all fields of a batch exist, and
the training worker's `train_mini_batch`, after which the weights do. Written for verl 0.9.1's
trainer (V1).
"""

from pathlib import Path
from typing import Any

from orch_cpu_device import after, around
from orch_rollout_dump import RolloutBatch, numbers, save_weights, weights_path, write

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


def install(folder: Path) -> None:
    """Have the library's modules changed as soon as they are imported in this process."""
    after("verl.trainer.ppo.v1.trainer_base", _trainer, folder)
    after("verl.workers.engine_workers", _workers, folder)


def _trainer(trainer: Any, folder: Path) -> None:
    """Make the trainer write each batch that it trained on."""

    def update(own: Any, self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        step, splits = _train_steps(self, batch)
        # The worker cannot know the trainer's counters, so the number travels with the batch.
        batch.extra_info[STEP] = step
        result = own(self, batch, metrics)
        data = trainer.tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS)
        )
        reported = numbers(metrics)
        observed = {name: reported[key] for key, name in OBSERVED.items() if key in reported}
        write(
            folder,
            RolloutBatch(
                step=step,
                prompts=_lists(data, "prompts"),
                responses=_lists(data, "responses"),
                rewards=[float(row.sum()) for row in data["rm_scores"].unbind(0)],
                groups=[str(name) for name in data.pop("uid").tolist()],
                answers=[str(each["ground_truth"]) for each in data.pop("reward_model").tolist()],
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

    around(trainer.PPOTrainer, "_update_actor", update)


def _train_steps(trainer: Any, batch: Any) -> tuple[int, list[list[int]] | None]:
    """Return the number of train steps after this batch, and the rollouts of each of its own.

    The latter is None where verl shuffles. One worker takes the minibatches in order.
    """
    actor = trainer.config.actor_rollout_ref.actor
    size = actor.ppo_mini_batch_size * trainer.config.actor_rollout_ref.rollout.n
    updates = len(batch) // size * actor.ppo_epochs
    done = (trainer.global_steps - 1) * trainer.parameter_sync_step + trainer.local_trigger_step
    splits = [
        list(range(first, first + size))
        for _ in range(actor.ppo_epochs)
        for first in range(0, len(batch), size)
    ]
    return (done + 1) * updates, None if actor.shuffle else splits


def _workers(workers: Any, folder: Path) -> None:
    """Make the training worker save the weights after each batch."""

    def train(own: Any, self: Any, data: Any) -> Any:
        step = workers.tu.pop(data, key=STEP, default=None)
        result = own(self, data)
        if step is not None:  # None: the critic's
            save_weights(weights_path(folder, step), dict(self.engine.get_per_tensor_param()[0]))
        return result

    around(workers.TrainingWorker, "train_mini_batch", train)


def _lists(data: Any, name: str) -> Any:
    """Return a ragged field as lists; None if the run does not have it."""
    if name not in data.keys():  # noqa: SIM118  `in` asks a TensorDict something else
        return None
    return [row.tolist() for row in data[name].unbind(0)]
