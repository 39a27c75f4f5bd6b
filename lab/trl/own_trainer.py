"""A trainer of somebody's own as a loss function, for `orchestrator/exact/own_run.py`.

The trainer is made as its script makes it, on a small shipped policy. Then its model is a table
over the laboratory's two tokens: the first is the one that was sampled, and its log-probability is
the batch's. A row's number stands in its prompt, as bits. This file imports nothing of orch.
"""

import tempfile
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from own_run import function_of  # own_run.py is the program; its folder is on the path

POLICY = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "elder"
BITS = 12
"""Tokens of a prompt: 4,096 rows at most."""


class TrainerLoss:
    """The `compute_loss` of a subclass of TRL's GRPOTrainer."""

    def __init__(self, trainer: str, options: dict[str, Any]) -> None:
        import trl
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer

        kind: Any = function_of(trainer)
        if trl.GRPOTrainer not in getattr(kind, "__mro__", ()):
            raise TypeError(f"{trainer} is no subclass of trl.GRPOTrainer")
        known = {each.name for each in fields(trl.GRPOConfig)}
        self.folder = tempfile.TemporaryDirectory(prefix="orch-own-trainer-")
        given: dict[str, Any] = {
            "output_dir": self.folder.name,
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "num_generations": 2,
            "per_device_train_batch_size": 2,
            "beta": 0.1,
        }
        given |= {name: value for name, value in options.items() if name in known}
        more = {name: value for name, value in options.items() if name not in known}
        self.trainer: Any = kind(
            model=AutoModelForCausalLM.from_pretrained(POLICY),
            processing_class=AutoTokenizer.from_pretrained(POLICY),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=trl.GRPOConfig(**given),
            train_dataset=Dataset.from_list([{"prompt": "1"}] * 8),
            **more,
        )
        self.trainer.current_gradient_accumulation_steps = 1

    def __call__(
        self,
        log_prob: Any,
        old_log_prob: Any,
        ref_log_prob: Any,
        rollout_log_prob: Any,
        advantages: Any,
        mask: Any,
        beta: float,
    ) -> Any:
        """Return the loss of a batch."""
        rows, width = log_prob.shape
        number = torch.arange(rows)[:, None] >> torch.arange(BITS)
        inputs = {
            "prompt_ids": number % 2,
            "prompt_mask": torch.ones(rows, BITS, dtype=mask.dtype),
            "completion_ids": torch.zeros(rows, width, dtype=torch.long),
            "completion_mask": mask,
            "advantages": advantages,
            "old_per_token_logps": old_log_prob,
            "ref_per_token_logps": ref_log_prob,
            "sampling_per_token_logps": rollout_log_prob,
            "num_items_in_batch": mask.sum(),
        }
        trainer = self.trainer
        trainer.beta = trainer.args.beta = beta
        trainer.model, trainer.ref_model = _Table(log_prob), _Table(ref_log_prob)
        return trainer.compute_loss(trainer.model, inputs)


class _Table(torch.nn.Module):
    """A model whose first token has given log-probabilities after the prompt of each row."""

    def __init__(self, log_prob: Any) -> None:
        super().__init__()
        self.log_prob = log_prob

    def forward(self, input_ids: Any, **_: Any) -> Any:
        """Return logits [rows, tokens, 2], and what TRL's fused head returns in their place."""
        bits = input_ids[:, :BITS] << torch.arange(BITS)
        logp = self.log_prob[bits.sum(1)]
        states = torch.stack([logp, torch.log1p(-logp.exp())], dim=-1)
        before = torch.zeros(len(logp), BITS - 1, 2, dtype=logp.dtype)
        logits = torch.cat([before, states, before[:, :1]], dim=1)
        entropy = -(states.exp() * states).sum(-1)
        return SimpleNamespace(logits=logits, log_probs=logp, entropy=entropy, aux_loss=None)
