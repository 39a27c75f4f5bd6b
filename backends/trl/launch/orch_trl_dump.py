"""Writes TRL's rollout batches as files: see orchestrator/library/rollout_dump.py.

orch_trl.py mixes `recorded` into the trainer of a launch that was asked for its rollouts. Nothing
is computed: what the library's own functions received and returned is kept. One process only.
"""

from typing import Any

from orch_rollout_dump import (
    SMALL_POLICY,
    RolloutBatch,
    weights_path,
    write,
)

INDEX = "orch_index"
"""A tensor in the library's batch that tells which rollouts an update has, once shuffled."""


def recorded(library: Any, folder: str) -> tuple[dict[str, Any], Any, Any]:
    """Return methods for a subclass of the library's trainer, and what to call with each log."""
    import torch

    def begin(self: Any) -> None:
        self.orch_batch = {"updates": [], "logs": [], "texts": []}
        self.orch_phase = ""

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
        begin(self)
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
            parts = self.orch_batch.setdefault("first", [])
            parts.append((self.orch_indices, returned[0].detach().clone()))
        return returned

    def loss(self: Any, model: Any, inputs: Any) -> Any:
        updates = self.orch_batch["updates"]
        # A train step begins once the one before it is logged.
        if len(updates) == len(self.orch_batch["logs"]):
            updates.append([])
        self.orch_indices = inputs[INDEX].tolist()
        updates[-1] += self.orch_indices
        self.orch_phase = "loss"
        value = library._compute_loss(self, model, inputs)  # noqa: SLF001  TRL's own step
        self.orch_phase = ""
        return value

    def on_log(self: Any, step: int, values: dict[str, Any]) -> None:
        """Write the batch if `step` is its last train step."""
        kept = self.orch_batch
        kept["logs"].append(values)
        accumulated = self.args.gradient_accumulation_steps
        if len(kept["logs"]) < self.args.steps_per_generation // accumulated:
            return
        model = self.accelerator.unwrap_model(self.model)
        if sum(each.numel() for each in model.parameters()) <= SMALL_POLICY:
            path = weights_path(folder, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({k: v.detach().clone() for k, v in model.state_dict().items()}, path)
        write(folder, _batch(self, step, kept))

    methods = {
        "_calculate_rewards": rewards,
        "_generate_and_score_completions": score,
        "_get_per_token_logps_and_entropies": log_probabilities,
        "_compute_loss": loss,
    }
    return {n: _in_training(getattr(library, n), m) for n, m in methods.items()}, begin, on_log


def _in_training(own: Any, method: Any) -> Any:
    """Return a method that is `method` in training and the library's own in an evaluation."""

    def call(self: Any, *args: Any, **named: Any) -> Any:
        return (method if self.model.training else own)(self, *args, **named)

    return call


def _batch(trainer: Any, step: int, kept: dict[str, Any]) -> Any:
    output = kept["output"]
    lengths = output["completion_mask"].sum(1).int().tolist()
    count = len(lengths)

    def values(rows: Any) -> Any:
        return None if rows is None else [row[:n].tolist() for row, n in zip(rows, lengths)]  # noqa: B905  no strict= before 3.10

    policy = values(kept.get("policy"))
    if policy is None and len(kept["updates"]) == 1:
        policy = [[] for _ in range(count)]
        for indices, rows in kept["first"]:
            for index, row in zip(indices, rows):  # noqa: B905  no strict= before 3.10
                policy[index] = row[: lengths[index]].tolist()
    sampled = values(output.get("sampling_per_token_logps"))  # where an engine or a program samples
    if sampled is not None and any(x != x for row in sampled for x in row):
        sampled = None  # a token that the engine could not score
    logs = kept["logs"]
    observed = {
        name: sum(each[name] for each in logs) / len(logs) for name in ("loss", "grad_norm")
    }
    observed["learning_rate"] = logs[-1]["learning_rate"]
    observed["reward"] = sum(kept["rewards"]) / count
    return RolloutBatch(
        step=step,
        prompts=[
            row[mask.bool()].tolist()
            for row, mask in zip(output["prompt_ids"], output["prompt_mask"])  # noqa: B905  no strict= before 3.10
        ],
        responses=[row[:n].tolist() for row, n in zip(output["completion_ids"], lengths)],  # noqa: B905  no strict= before 3.10
        rewards=kept["rewards"],
        groups=[str(i // trainer.num_generations) for i in range(count)],
        texts=kept["texts"],
        temperature=trainer.temperature,
        logp_rollout=sampled,
        logp_policy=policy,
        logp_reference=values(kept.get("reference")),
        advantages=[
            a[:n] if isinstance(a, list) else [a] * n
            for a, n in zip(output["advantages"].tolist(), lengths)  # noqa: B905  no strict= before 3.10
        ],
        updates=kept["updates"],
        observed=observed,
        # TRL logs the norm of each train step; what is observed is their mean.
        reported={**logs[0], "last_grad_norm": logs[-1]["grad_norm"]},
    )
