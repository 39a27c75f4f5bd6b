"""Writes TRL's rollout batches as files: see lab/cpu/orch_rollout_dump.py.

Once it trains, a trainer becomes one of a subclass, above all that a launch has added to it. One
process only, whose policy itself samples. Written for TRL 1.9.2 and 1.16.0.
"""

from pathlib import Path
from typing import Any

from orch_cpu_device import after, around
from orch_rollout_dump import RolloutBatch, save_weights, weights_path, write

INDEX = "orch_index"
"""A tensor in the library's batch that tells which rollouts an update has, once shuffled."""


def install(folder: Path) -> None:
    """Have transformers' trainer changed as soon as it is imported in this process."""
    after("transformers.trainer", _trainer, folder)


def _trainer(transformers: Any, folder: Path) -> None:
    def train(own: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        library = type(self)
        self.__class__ = type(library.__name__, (library,), _recorded(library, folder))
        return own(self, *arguments, **named)

    around(transformers.Trainer, "train", train)


def _recorded(library: Any, folder: Path) -> dict[str, Any]:
    """Return methods for a subclass of the library's trainer that records each batch."""
    import torch

    def rewards(
        self: Any, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Any:
        returned = library._calculate_rewards(  # noqa: SLF001  # the library's
            self, inputs, prompts, completions, completion_ids_list
        )
        self.orch_batch["rewards"] = returned[:, 0].tolist()
        self.orch_batch["texts"] = [
            each if isinstance(each, str) else each[-1]["content"] for each in completions
        ]
        return returned

    def score(self: Any, inputs: Any) -> Any:
        self.orch_batch = {"updates": [], "logs": [], "first": []}
        self.orch_phase = "score"
        output = library._generate_and_score_completions(self, inputs)  # noqa: SLF001  TRL's own step
        self.orch_phase = ""
        self.orch_batch["output"] = dict(output)
        return {**output, INDEX: torch.arange(len(output["completion_ids"]))}

    def log_probabilities(self: Any, model: Any, *given: Any, **named: Any) -> Any:
        returned = library._get_per_token_logps_and_entropies(  # noqa: SLF001  TRL's own step
            self, model, *given, **named
        )
        if self.orch_phase == "score":
            whose = "reference" if model is self.ref_model else "policy"
            self.orch_batch[whose] = returned[0].detach().clone()
        # Only in a batch's first train step is the policy still the one before the batch.
        elif self.orch_phase == "loss" and len(self.orch_batch["updates"]) == 1:
            indices = self.orch_batch["updates"][0][-len(returned[0]) :]
            self.orch_batch["first"] += zip(indices, returned[0].detach().clone(), strict=True)
        return returned

    def loss(self: Any, model: Any, inputs: Any) -> Any:
        updates = self.orch_batch["updates"]
        # A train step begins once the one before it is logged.
        if len(updates) == len(self.orch_batch["logs"]):
            updates.append([])
        updates[-1] += inputs[INDEX].tolist()
        self.orch_phase = "loss"
        value = library._compute_loss(self, model, inputs)  # noqa: SLF001  TRL's own step
        self.orch_phase = ""
        return value

    def log(self: Any, logs: Any, *more: Any) -> None:
        """Write the batch if this train step is its last."""
        library.log(self, logs, *more)
        if "learning_rate" not in logs:  # the run's last report
            return
        kept = self.orch_batch
        kept["logs"].append({k: v for k, v in logs.items() if isinstance(v, int | float)})
        accumulated = self.args.gradient_accumulation_steps
        if len(kept["logs"]) == self.args.steps_per_generation // accumulated:
            step = self.state.global_step
            model = self.accelerator.unwrap_model(self.model)
            save_weights(weights_path(folder, step), model.state_dict())
            write(folder, _batch(self, step, kept))

    methods = {
        "_calculate_rewards": rewards,
        "_generate_and_score_completions": score,
        "_get_per_token_logps_and_entropies": log_probabilities,
        "_compute_loss": loss,
        "log": log,
    }
    return {name: _in_training(getattr(library, name), each) for name, each in methods.items()}


def _in_training(own: Any, method: Any) -> Any:
    """Return a method that is `method` in training and the library's own in an evaluation."""

    def call(self: Any, *args: Any, **named: Any) -> Any:
        return (method if self.model.training else own)(self, *args, **named)

    return call


def _batch(trainer: Any, step: int, kept: dict[str, Any]) -> RolloutBatch:
    output, logs = kept["output"], kept["logs"]
    lengths = output["completion_mask"].sum(1).int().tolist()

    def values(rows: Any) -> Any:
        if rows is None:
            return None
        return [row[:n].tolist() for row, n in zip(rows, lengths, strict=True)]

    policy = kept.get("policy")
    if policy is None and len(kept["updates"]) == 1:
        policy = [row for _, row in sorted(kept["first"], key=lambda pair: pair[0])]
    observed = {
        name: sum(each[name] for each in logs) / len(logs) for name in ("loss", "grad_norm")
    }
    observed["learning_rate"] = logs[-1]["learning_rate"]
    prompts = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
    return RolloutBatch(
        step=step,
        prompts=[row[mask].tolist() for row, mask in prompts],
        responses=values(output["completion_ids"]),
        rewards=kept["rewards"],
        groups=[str(i // trainer.num_generations) for i in range(len(lengths))],
        texts=kept["texts"],
        temperature=trainer.temperature,
        logp_policy=values(policy),
        logp_reference=values(kept.get("reference")),
        advantages=[
            a[:n] if isinstance(a, list) else [a] * n
            for a, n in zip(output["advantages"].tolist(), lengths, strict=True)
        ],
        updates=kept["updates"],
        observed=observed,
        # TRL logs the norm of each train step; what is observed is their mean.
        reported={**logs[0], "last_grad_norm": logs[-1]["grad_norm"]},
    )
