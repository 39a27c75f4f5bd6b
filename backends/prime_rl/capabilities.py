"""What Prime-RL 0.5.0 can train, and the sentences for what it cannot."""

from collections.abc import Mapping, Sequence
from typing import get_args

from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import AdvantageEstimator, Estimator, Placement
from orchestrator.types import Cell

NAME = "prime_rl"
VERSIONS = ("0.5.0",)

TORCH_EPSILON = 1e-8
NO_CLIP_NORM = 1e30
"""Stands for no clipping of the gradient: the key takes no None."""

CAPABILITIES: Mapping[str, Sequence[object]] = {
    "backend.version": (None, *VERSIONS),
    "model.chat_template": ("default",),
    "advantage.estimator": get_args(AdvantageEstimator),
    "loss.aggregation": ("token_mean", "constant"),
    "kl.estimator": get_args(Estimator),
    "kl.placement": (None, *get_args(Placement)),
    "kl.reset_reference_every_steps": (None,),
    "rollout.top_p": (1.0,),
    "batch.num_minibatches": (1,),
    "optimizer.epsilon": (TORCH_EPSILON,),
}

_ADVICE = {
    "backend.version": "0.5.0 is the last release with a configurable async level and reference "
    "log-probabilities in the RL loss: later ones have one fixed overlap, reject a teacher beside "
    "RL, and from August 2026 write no Hugging Face weights. Set backend=prime_rl@0.5.0.",
    "model.chat_template": "Its environments are asked through the chat endpoint, which applies "
    "the template. Set model.chat_template=default, or train with verl.",
    "loss.aggregation": "Its trainer divides the sum over tokens by the number of tokens. Set "
    "loss.aggregation=token_mean, or train with verl.",
    "kl.reset_reference_every_steps": "The reference policy is a server whose weights never "
    "change. Leave it out; of orch's backends only the embedded trainer resets it.",
    "rollout.top_p": "The orchestrator sends top_p=1.0 with every request. Set rollout.top_p=1.0.",
    "batch.num_minibatches": "It makes one optimizer step of a rollout batch. Set "
    "batch.num_minibatches=1 (and max_staleness_steps for samples of older policies), or train "
    "with verl.",
    "optimizer.epsilon": "It builds AdamW with torch's epsilon. Set optimizer.epsilon=1e-8.",
}


def check(cell: Cell, leaves: Mapping[str, object]) -> None:
    """Raises UnsupportedSetting for the first field that Prime-RL cannot express."""
    for field, advice in _ADVICE.items():
        if leaves[field] not in CAPABILITIES[field]:
            raise refuse(field, leaves[field], CAPABILITIES[field], advice)
    _check_optimizer(cell)
    _check_gpus(cell)
    settings = cell.settings
    if settings.kl.estimator != "none" and settings.rollout.temperature != 1.0:
        raise refuse(
            "rollout.temperature", settings.rollout.temperature, (1.0,),
            "Its reference log-probabilities are always of temperature 1, the policy's of the "
            "rollout's: their difference would be no KL. Set rollout.temperature=1.0.",
        )  # fmt: skip
    if settings.advantage.estimator == "grpo" and settings.kl.placement not in (None, "loss"):
        raise refuse(
            "kl.placement", settings.kl.placement, (None, "loss"),
            "Its advantage hook sees no log-probabilities, so grpo would divide the reward by the "
            "group's standard deviation and the KL by none. Set advantage.estimator=dr_grpo or "
            "rloo, or kl.placement=loss.",
        )  # fmt: skip
    if settings.data.path.startswith("micro:") or settings.model.path.startswith("micro:"):
        field = "data.path" if settings.data.path.startswith("micro:") else "model.path"
        raise refuse(
            field, leaves[field], ("a Hugging Face id", "a file"),
            "Embedded policies and skills exist for backend=micro only.",
        )  # fmt: skip


def _check_optimizer(cell: Cell) -> None:
    optimizer, steps = cell.settings.optimizer, cell.settings.num_train_steps
    if optimizer.max_grad_norm is not None and optimizer.max_grad_norm >= NO_CLIP_NORM:
        raise refuse(
            "optimizer.max_grad_norm", optimizer.max_grad_norm, (f"less than {NO_CLIP_NORM:g}",),
            "Set it to null: no clipping.",
        )  # fmt: skip
    if optimizer.num_warmup_steps >= steps and optimizer.num_warmup_steps:
        raise refuse(
            "optimizer.num_warmup_steps", optimizer.num_warmup_steps, (f"0 to {steps - 1}",),
            "Its schedule must leave a step after the warm-up.",
        )  # fmt: skip
    if optimizer.schedule == "linear" and steps - optimizer.num_warmup_steps < 2:
        raise refuse(
            "optimizer.schedule", "linear", ("constant", "cosine"),
            "Its linear decay divides by the decay steps less one. Train at least two steps after "
            "the warm-up.",
        )  # fmt: skip


def _check_gpus(cell: Cell) -> None:
    nodes, gpus = cell.resources.num_nodes, cell.resources.gpus_per_node
    if nodes > 2:
        raise refuse(
            "resources.num_nodes", nodes, (1, 2),
            "One node trains and one serves. Use nodes with more GPUs, or train with verl.",
        )  # fmt: skip
    least = 2 if nodes == 2 else 3
    if gpus < least:
        raise refuse(
            "resources.gpus_per_node", gpus, (f"{least} or more",),
            "The trainer, the rollout policy and the reference policy each need a GPU (the same "
            "split is kept without KL, so that the lag of the policies compares).",
        )  # fmt: skip


def refuse(field: str, value: object, offered: Sequence[object], advice: str) -> UnsupportedSetting:
    return UnsupportedSetting(f"{NAME} 0.5.0", field, value, offered, advice)
