"""Writes SkyRL's rollout batches as files: see orchestrator/library/rollout_dump.py.

Shipped beside a launch whose cell asks for its rollouts. orch_skyrl.py calls `record` on the
trainer that it made, in the process that has whole batches. Works with SkyRL 0.2.0 to 0.4.0.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OBSERVED: Mapping[str, str] = {
    "policy_loss": "policy_loss",
    "policy_kl": "kl_loss",
    "grad_norm": "grad_norm",
    "policy_lr": "learning_rate",
    "final_loss": "loss",
}
"""SkyRL's value of a rollout batch -> the dump's name."""


def record(trainer: Any, folder: Path) -> None:
    """Make a trainer write every rollout batch to `folder` once it was trained on."""
    from orch_rollout_dump import RolloutBatch, numbers, write

    convert, train = trainer.convert_to_training_input, trainer.train_critic_and_policy
    scored = keep_scored(trainer.generator)
    sampled: dict[str, Any] = {}

    def convert_to_training_input(output: Any, uids: Any, *more: Any, **named: Any) -> Any:
        rewards = [sum(each) if isinstance(each, list) else each for each in output["rewards"]]
        sampled.update(rewards=[float(each) for each in rewards], uids=[str(uid) for uid in uids])
        sampled.update(_take(scored, sampled["uids"]))
        return convert(output, uids, *more, **named)

    def train_critic_and_policy(data: Any) -> Any:
        mask = data["response_mask"].bool()
        advantages = _rows(data, "advantages", mask)  # training scales them for the loss
        bounds = (data.metadata or {}).get("policy_mini_batch_boundaries")
        status = train(data)
        rows = [
            data["sequences"][row][data["attention_mask"][row].bool()].tolist()
            for row in range(len(mask))
        ]
        lengths = mask.sum(dim=-1).tolist()
        cfg = trainer.cfg.trainer
        updates = cfg.train_batch_size // cfg.policy_mini_batch_size * cfg.update_epochs_per_batch
        reported = numbers(status)
        average = trainer.all_metrics.get("loss/avg_kl")
        observed = {ours: reported[name] for name, ours in OBSERVED.items() if name in reported}
        in_reward = trainer.cfg.trainer.algorithm.use_kl_in_reward
        if in_reward and average is not None:
            observed["kl_reward_per_token"] = float(average)
        observed["reward"] = sum(sampled["rewards"]) / len(rows)
        write(
            folder,
            RolloutBatch(
                step=trainer.global_step * updates,
                prompts=[ids[:-count] for ids, count in zip(rows, lengths, strict=True)],
                responses=[ids[-count:] for ids, count in zip(rows, lengths, strict=True)],
                rewards=sampled["rewards"],
                groups=sampled["uids"],
                mask=_rows(data, "loss_mask", mask, int),
                answers=sampled["answers"],
                texts=sampled["texts"],
                temperature=float(trainer.cfg.generator.sampling_params.temperature),
                logp_rollout=_rows(data, "rollout_logprobs", mask),
                logp_policy=_rows(data, "action_log_probs", mask),
                logp_reference=_rows(data, "base_action_log_probs", mask),
                kl_reward=_rows(data, "kl", mask) if in_reward else None,
                advantages=advantages,
                updates=_updates(bounds, len(rows), updates, cfg.update_epochs_per_batch),
                observed=observed,
                reported=reported,
            ),
        )
        return status

    trainer.convert_to_training_input = convert_to_training_input
    trainer.train_critic_and_policy = train_critic_and_policy


def keep_scored(generator: Any) -> dict[str, list[tuple[str, str]]]:
    """Make a generator keep what the reward was computed of, and return where: a prompt's name ->
    text and answer of each of its responses, in the generator's order."""
    own, scored = generator.generate, dict[str, list[tuple[str, str]]]()

    @functools.wraps(own)
    async def generate(input_batch: Any, *more: Any, **named: Any) -> Any:
        if input_batch["batch_metadata"].training_phase != "train":
            return await own(input_batch, *more, **named)
        extras = input_batch["env_extras"]
        heard: list[list[str]] = [[] for _ in extras]
        for each, texts in zip(extras, heard, strict=True):
            each["orch_heard"] = texts  # the environment of orch_skyrl.py appends to it
        output = await own(input_batch, *more, **named)
        names = [str(each.instance_id) for each in input_batch["trajectory_ids"]]
        scored.update({name: [] for name in names})
        for name, each, texts in zip(names, extras, heard, strict=True):
            del each["orch_heard"]
            if len(texts) == 1:  # a prompt that is too long is never answered
                scored[name].append((texts[0], each["reward_spec"]["ground_truth"]))
        return output

    generator.generate = generate
    return scored


def _take(scored: dict[str, list[tuple[str, str]]], uids: Sequence[str]) -> dict[str, Any]:
    """Return the texts and answers of a batch; None for both if they are not one each."""
    batch = {uid: scored.pop(uid, []) for uid in dict.fromkeys(uids)}
    if any(len(pairs) != uids.count(uid) for uid, pairs in batch.items()):
        return {"texts": None, "answers": None}
    pairs = [batch[uid].pop(0) for uid in uids]
    return {"texts": [text for text, _ in pairs], "answers": [answer for _, answer in pairs]}


def _updates(bounds: Any, count: int, updates: int, epochs: int) -> list[list[int]] | None:
    """Return the rollouts of each train step: SkyRL cuts a batch in order. None: a release that
    does not say where, and cuts it."""
    if bounds is None:
        return [list(range(count))] if updates == 1 else None
    return [list(range(start, end)) for _ in range(epochs) for start, end in bounds]


def _rows(data: Any, name: str, mask: Any, kind: type = float) -> Any:
    """Return a field's values at each response's tokens; None if the run does not have it."""
    values = data.get(name)
    if values is None:
        return None
    return [[kind(x) for x in row[kept].tolist()] for row, kept in zip(values, mask, strict=True)]
