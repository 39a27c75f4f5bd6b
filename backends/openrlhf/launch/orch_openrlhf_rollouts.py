"""Writes OpenRLHF's rollout batches as files: see orchestrator/library/rollout_dump.py.

    python orch_openrlhf_rollouts.py -m openrlhf.cli.train_ppo_ray --flag value ...

Shipped beside a launch whose cell asks for its rollouts, and started in the place of the program,
which it then runs. Each of Ray's workers calls `install` when it starts (Ray's own
`worker_process_setup_hook`). What is written is what the library's functions received and returned:
the trainer's process has whole batches, the first rank of the policy's has weights and minibatches.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
SAMPLES = "openrlhf.trainer.ppo_utils.samples_generator"
TRAINER = "openrlhf.trainer.ppo_trainer"
POLICY = "openrlhf.trainer.ray.ppo_actor"
PARTS = "minibatches.json"
"""What the policy's process tells the trainer's of the batch that it has just trained on."""
COLUMNS = (
    *("prompts", "responses", "rewards", "mask", "answers"),
    *("logp_rollout", "logp_policy", "logp_reference", "advantages"),
)
"""What is written of each rollout as the rows have it."""


def wrap_samples(samples: Any) -> None:
    """Ask the sampler for the log-probabilities of its tokens, also where no correction needs them.

    The loss does not look at them without a correction. At another temperature than 1 vLLM reports
    those of the logits as they are, which nothing is to be compared with.
    """
    own = samples.SamplingParams

    @functools.wraps(own)
    def sampling_params(*arguments: Any, **named: Any) -> Any:
        if named.get("logprobs") is None and (named["temperature"], named["top_p"]) == (1.0, 1.0):
            named["logprobs"] = 1
        return own(*arguments, **named)

    samples.SamplingParams = sampling_params


def wrap_maker(maker: Any) -> None:
    """Keep the reference policy's log-probabilities: a KL in the reward drops them."""
    own_make, own_kl = maker.RemoteExperienceMaker.make_experience, maker.compute_approx_kl
    of_reference: list[Any] = []

    @functools.wraps(own_kl)
    def kl(log_probs: Any, log_probs_base: Any, *more: Any, **named: Any) -> Any:
        of_reference.append(log_probs_base)
        return own_kl(log_probs, log_probs_base, *more, **named)

    @functools.wraps(own_make)
    def make(self: Any, samples_list: Any) -> Any:
        of_reference.clear()
        experiences = own_make(self, samples_list)
        references = list(of_reference) or [each.base_action_log_probs for each in experiences]
        self.orch_kept = [
            (reference, None if each.kl is None else each.kl.clone())
            for reference, each in zip(references, experiences)  # noqa: B905  no strict= before 3.10
        ]
        return experiences

    maker.compute_approx_kl = kl
    maker.RemoteExperienceMaker.make_experience = make


def wrap_trainer(trainer: Any, folder: Path) -> None:
    """Write every rollout batch once it was trained on."""
    own = trainer.BasePPOTrainer.train_step

    @functools.wraps(own)
    def train_step(self: Any, rollout_samples: Any, global_step: int) -> Any:
        maker, kept = self.experience_maker, []
        make = maker.make_experience_batch

        def make_experience_batch(samples: Any) -> Any:
            experiences = make(samples)
            kept.extend(_rows(experiences, maker.orch_kept))
            return experiences

        maker.make_experience_batch = make_experience_batch
        try:
            status, step = own(self, rollout_samples, global_step)
        finally:
            del maker.make_experience_batch
        _write(self.args, folder, kept, status, step)
        return status, step

    trainer.BasePPOTrainer.train_step = train_step


def _rows(experiences: Sequence[Any], others: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what is written of each rollout, in the order of the batch."""
    rows = []
    for part, (reference, kl) in zip(experiences, others):  # noqa: B905  no strict= before 3.10
        for i in range(len(part.sequences)):
            tokens = part.sequences[i][part.attention_mask[i].bool()].tolist()
            counted = part.action_mask[i].bool()
            first = int(counted.int().argmax())  # the token after position `first` is a response's
            last = len(tokens) - 1

            def values(field: Any, i: int = i, first: int = first, last: int = last) -> Any:
                return None if field is None else field[i][first:last].tolist()

            rows.append(
                {
                    "prompts": tokens[: first + 1],
                    "responses": tokens[first + 1 :],
                    "mask": [int(x) for x in part.action_mask[i][first:last].tolist()],
                    "rewards": float(part.info["reward"][i]),
                    "groups": part.prompts[i],
                    "answers": part.labels[i],
                    "index": part.index[i],
                    "logp_rollout": values(part.rollout_log_probs),
                    "logp_policy": values(part.action_log_probs),
                    "logp_reference": values(reference),
                    "kl_reward": values(kl),
                    "advantages": values(part.advantages),
                }
            )
    return rows


def _write(args: Any, folder: Path, rows: list[dict[str, Any]], status: Any, step: int) -> None:
    from orch_rollout_dump import RolloutBatch, numbers, weights_path, write

    def column(name: str) -> Any:
        values = [row[name] for row in rows]
        return None if None in values else values

    size = args.train.batch_size
    updates = len(rows) // size * args.train.max_epochs
    parts = _parts(folder)
    reported = numbers(status)
    observed = {"reward": sum(row["rewards"] for row in rows) / len(rows)}
    in_reward = args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss
    if in_reward and "kl" in reported:
        observed["kl_reward_per_token"] = reported["kl"]
    if "actor_lr" in reported:
        observed["learning_rate"] = reported["actor_lr"]
    observed |= parts["observed"] if parts else {}
    if not parts and updates == 1:  # several processes train
        observed["grad_norm"] = reported["actor_grad_norm"]
    samples = args.rollout.n_samples_per_prompt
    write(
        folder,
        RolloutBatch(
            step=step * updates,
            **{name: column(name) for name in COLUMNS},
            groups=[str(row["index"] // samples) for row in rows],
            temperature=float(args.rollout.temperature),
            kl_reward=column("kl_reward") if in_reward else None,
            updates=parts["updates"] if parts else None,
            observed=observed,
            reported=reported,
        ),
    )
    if parts and (folder / "weights.pt").exists():
        (folder / "weights.pt").replace(weights_path(folder, step * updates))


def _parts(folder: Path) -> Any:
    """Take what the policy's process left of this batch; None if several processes train."""
    path = folder / PARTS
    if not path.exists():
        return None
    parts = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return parts


def wrap_policy(policy: Any, folder: Path) -> None:
    """Leave the minibatches of each batch, and the weights of a small policy, for the trainer."""
    from orch_rollout_dump import numbers

    trainer = policy.ActorPPOTrainer
    own_train, own_step = trainer.ppo_train, trainer.training_step

    @functools.wraps(own_train)
    def ppo_train(self: Any, kl_ctl: float) -> Any:
        import torch

        if torch.distributed.get_world_size() > 1:
            return own_train(self, kl_ctl)
        # A batch is shuffled, and its items stay the same objects.
        number = {id(item): at for at, item in enumerate(self.replay_buffer.items)}
        collate, self.orch_taken, self.orch_said = self.replay_buffer.collate_fn, [], []

        def collate_fn(items: Any) -> Any:
            flat = items[0] if isinstance(items[0], list) else items
            self.orch_taken.append([number[id(item)] for item in flat])
            return collate(items)

        self.replay_buffer.collate_fn = collate_fn
        try:
            status = own_train(self, kl_ctl)
        finally:
            del self.replay_buffer.collate_fn
        _leave(self, folder, kl_ctl)
        return status

    @functools.wraps(own_step)
    def training_step(self: Any, *arguments: Any, **named: Any) -> Any:
        returned = own_step(self, *arguments, **named)
        if hasattr(self, "orch_said"):
            self.orch_said.append(numbers(returned["metrics"]))
        return returned

    trainer.ppo_train = ppo_train
    trainer.training_step = training_step


def _leave(trainer: Any, folder: Path, beta: float) -> None:
    """Write the minibatches and the losses of a batch, and the weights after it.

    DeepSpeed makes a train step of `gas` micro-batches, whose losses are all divided by the whole
    step's tokens over `gas`: the step's is their mean.
    """
    import torch
    from orch_rollout_dump import SMALL_POLICY

    gas = max(int(trainer.strategy.accumulated_gradient), 1)
    steps = range(0, len(trainer.orch_taken) - gas + 1, gas)
    updates = [[i for part in trainer.orch_taken[at : at + gas] for i in part] for at in steps]
    in_loss = trainer.args.algo.kl.use_loss and trainer.args.algo.kl.init_coef > 0
    losses, kls, norms = [], [], []
    for at in steps:
        reports = trainer.orch_said[at : at + gas]
        losses.append(sum(each["policy_loss"] for each in reports) / gas)
        kls.append(sum(each.get("kl", 0.0) for each in reports) / gas if in_loss else 0.0)
        # DeepSpeed has the step's norm after the last micro-batch.
        norms.append(reports[-1]["actor_grad_norm"])
    count = len(updates)
    observed = {
        "policy_loss": sum(losses) / count,
        "loss": (sum(losses) + beta * sum(kls)) / count,
        "grad_norm": sum(norms) / count,
    }
    if in_loss:
        observed["kl_loss"] = sum(kls) / count
    folder.mkdir(parents=True, exist_ok=True)
    model = trainer.actor.model
    parameters = list(model.module.parameters())
    # ZeRO-3 keeps a part of each parameter here; `ds_numel` is the size of the whole.
    if sum(getattr(each, "ds_numel", each.numel()) for each in parameters) <= SMALL_POLICY:
        weights = {k: v.detach().cpu().clone() for k, v in _gathered(trainer, model).items()}
        torch.save(weights, folder / "weights.pt")
    # Renamed, so that the trainer's process never reads half of it.
    new = folder / f".{PARTS}.{os.getpid()}"
    new.write_text(json.dumps({"updates": updates, "observed": observed}), encoding="utf-8")
    new.replace(folder / PARTS)


def _gathered(trainer: Any, model: Any) -> Any:
    """Return the weights that AdamW updates, as DeepSpeed gathers them for a checkpoint."""
    if trainer.strategy.args.ds.zero_stage > 2:
        return model._consolidated_16bit_state_dict()  # noqa: SLF001  as the library's save_model
    return model.module.state_dict()


def install() -> None:
    """Wrap the library's modules as soon as they are imported in this process."""
    from orch_rollout_dump import CallAfterImport

    folder = Path(os.environ["ORCH_ROLLOUT_DUMP"])
    CallAfterImport(
        {
            SAMPLES: wrap_samples,
            MAKER: wrap_maker,
            TRAINER: functools.partial(wrap_trainer, folder=folder),
            POLICY: functools.partial(wrap_policy, folder=folder),
        }
    )


def main() -> None:
    """Run the program after `-m`, with a Ray whose workers call `install`."""
    import ray

    plan_dir, own = str(Path(__file__).resolve().parent), ray.init
    paths = os.pathsep.join(filter(None, [plan_dir, os.environ.get("PYTHONPATH")]))

    @functools.wraps(own)
    def init(*arguments: Any, **named: Any) -> Any:
        runtime = dict(named.pop("runtime_env", None) or {})
        variables = {
            **runtime.get("env_vars", {}),
            "PYTHONPATH": paths,
            "ORCH_ROLLOUT_DUMP": os.environ["ORCH_ROLLOUT_DUMP"],
        }
        named["runtime_env"] = {
            **runtime,
            "env_vars": variables,
            "worker_process_setup_hook": "orch_openrlhf_rollouts.install",
        }
        return own(*arguments, **named)

    ray.init = init
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
