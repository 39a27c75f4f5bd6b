"""TRL's own GRPO loss in any release since 0.15.0, for lab/probes/runner.py.

A Python with torch runs it on TRL's source, without an import of orch or TRL. The function is
GRPOTrainer's. A launch is `grpo`, its options, and the release's defaults as `defaults.json`.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

PACKAGE = "trl"
FILE = "trainer/grpo_trainer.py"
REFERENCE = "the reference policy"


class Grpo:
    """GRPOTrainer's loss, with a forward pass that returns the batch's log-probabilities."""

    def __init__(self, sources: Any):
        import torch

        text = (sources.folder / FILE).read_text(encoding="utf-8")
        self.method = "_compute_loss" if "def _compute_loss" in text else "compute_loss"
        metrics = {"nanmin": _one, "nanmax": _one}
        module = sources.load(
            FILE,
            [f"GRPOTrainer.{self.method}"],
            torch=torch,
            profiling_decorator=_same,
            **metrics,
        )
        self.compute = getattr(module, self.method)
        # Releases return one to three tensors: the left side of the assignment says how many.
        returned = text.partition("= self._get_per_token_logps")[0].rpartition("\n")[2]
        self.returned = returned.count(",") + 1

    def read(self, argv: Sequence[str], files: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the options of a launch over the release's defaults."""
        options: dict[str, Any] = json.loads(files["defaults.json"])
        for key, value in zip(argv[1::2], argv[2::2], strict=True):
            options[key.removeprefix("--")] = json.loads(value)
        return options

    def loss(self, options: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        """Return the loss of one micro-batch that is the whole minibatch."""
        mask = batch["mask"]
        trainer = self._trainer(options, batch)
        inputs = {
            "prompt_ids": mask[:, :0],
            "prompt_mask": mask[:, :0],
            "completion_ids": mask,
            "completion_mask": mask,
            "advantages": batch["advantages"][:, 0],
            "old_per_token_logps": batch["old"],
            "ref_per_token_logps": batch["ref"],
            "num_items_in_batch": mask.sum(),
        }
        return self.compute(trainer, trainer.model, inputs)

    def _trainer(self, options: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        def answer(model: object, *_: Any, **__: Any) -> Any:
            logp = batch["ref"] if model is REFERENCE else batch["logp"]
            return (logp, logp.detach(), None)[: self.returned] if self.returned > 1 else logp

        high = options.get("epsilon_high")
        low = options.get("epsilon", float("inf"))
        more = {
            "epsilon_low": low,
            "epsilon_high": low if high is None else high,
            "args": SimpleNamespace(**{"delta": None, **options, "steps_per_generation": 1}),
            "accelerator": SimpleNamespace(
                gather=_same, gather_for_metrics=_same, reduce=_same, num_processes=1
            ),
            "control": SimpleNamespace(should_evaluate=False),
            "model": SimpleNamespace(training=True),
            "ref_model": REFERENCE,
            "current_gradient_accumulation_steps": 1,
            "use_vllm": False,
            "tools": None,
            "aux_loss_enabled": False,
            "_entropy_bonus_enabled": False,
            "_metrics": _Metrics(),
            "_get_per_token_logps": answer,
            "_get_per_token_logps_and_entropies": answer,
        }
        return SimpleNamespace(**{**options, **more})


def _same(value: Any, **_: Any) -> Any:
    """Return the value. Stands in for a decorator, and for a gather over processes."""
    return value


def _one(value: Any) -> Any:
    """Return the first value for a metric's smallest or largest, which nothing here reads."""
    return value.reshape(-1)[0]


class _Metrics(defaultdict[str, Any]):
    """Metrics by mode and by name, as the releases store them."""

    def __missing__(self, key: str) -> Any:
        return _Metrics() if key in ("train", "eval") else []


def open_library(sources: Any, _version: str) -> Grpo:
    """Return TRL's functions for runner.py."""
    return Grpo(sources)
