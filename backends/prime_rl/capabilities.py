"""What Prime-RL can train, release by release, and the sentences for what it cannot."""

from collections.abc import Mapping, Sequence
from typing import get_args

from orchestrator.errors import UnsupportedSetting
from orchestrator.records import Cell
from orchestrator.settings import AdvantageEstimator, Placement

NAME = "prime_rl"
VERSIONS = ("0.5.0", "0.8.0")
"""The first is what a cell without a version gets: it expresses most."""
CURRENT = "0.8.0"

TORCH_EPSILON = 1e-8
NO_CLIP_NORM = 1e30
"""Stands for no clipping of the gradient: the key takes no None."""

CAPABILITIES: Mapping[str, Sequence[object]] = {
    "backend.version": (None, *VERSIONS),
    "model.chat_template": ("default",),
    "advantage.estimator": get_args(AdvantageEstimator),
    "loss.aggregation": ("token_mean", "constant"),
    "kl.estimator": (
        "none",
        "k1",
        "k2",
        "k3",
        "abs",
        "rho_k1",
        "rho_k2",
        "sg_rho_k2",
        "rho_k3",
        "k1+",
        "k2+",
        "k3+",
        "abs+",
    ),
    "kl.placement": (None, *get_args(Placement)),
    "kl.reset_reference_every_steps": (None,),
    "rollout.top_p": (1.0,),
    "batch.num_minibatches": (1,),
    "optimizer.epsilon": (TORCH_EPSILON,),
}

OF_CURRENT: Mapping[str, Sequence[object]] = {
    "kl.estimator": ("none",),
    "kl.placement": (None,),
    "advantage.estimator": ("dr_grpo", "rloo"),
    "max_staleness_steps": (1,),
}
"""Fields of which 0.8.0 offers less."""

_OLD = "Set backend.version=0.5.0, which has it"
_OF_CURRENT = {
    "max_staleness_steps": "One batch is generated while another trains; there is no key for it. "
    f"Set max_staleness_steps=1. {_OLD} as max_async_level.",
    "kl.estimator": "Its RL loss is handed no reference log-probabilities, and its `kl_tau` pulls "
    f"to the rollout policy. Set kl.estimator=none. {_OLD} through our loss.",
    "kl.placement": f"Its RL loss is handed no reference log-probabilities. {_OLD} in our loss.",
    "advantage.estimator": "Its advantages are named in its own code, with no hook: the reward "
    "minus the group mean, which our loss scales for rloo. Set advantage.estimator=dr_grpo. "
    f"{_OLD} as a hook.",
}

_ADVICE = {
    "backend.version": "0.5.0 is the last release with a configurable async level and reference "
    "log-probabilities in the RL loss; 0.8.0 has one fixed overlap and rejects a teacher beside "
    "RL. Set backend=prime_rl@0.5.0.",
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
            raise refuse(cell, field, leaves[field], CAPABILITIES[field], advice)
    if leaves["backend.version"] == CURRENT:
        for field, advice in _OF_CURRENT.items():
            if leaves[field] not in OF_CURRENT[field]:
                raise refuse(cell, field, leaves[field], OF_CURRENT[field], advice)
    _check_optimizer(cell)
    _check_gpus(cell)
    settings = cell.settings
    if settings.kl.estimator != "none" and settings.rollout.temperature != 1.0:
        raise refuse(
            cell,
            "rollout.temperature",
            settings.rollout.temperature,
            (1.0,),
            "Its reference log-probabilities are always of temperature 1, the policy's of the "
            "rollout's: their difference would be no KL. Set rollout.temperature=1.0.",
        )
    if settings.advantage.estimator == "grpo" and settings.kl.placement not in (None, "loss"):
        raise refuse(
            cell,
            "kl.placement",
            settings.kl.placement,
            (None, "loss"),
            "Its advantage hook sees no log-probabilities, so grpo would divide the reward by the "
            "group's standard deviation and the KL by none. Set advantage.estimator=dr_grpo or "
            "rloo, or kl.placement=loss.",
        )
    if settings.data.path.startswith("micro:") or settings.model.path.startswith("micro:"):
        field = "data.path" if settings.data.path.startswith("micro:") else "model.path"
        raise refuse(
            cell,
            field,
            leaves[field],
            ("a Hugging Face id", "a file"),
            "Embedded policies and skills exist for backend=micro only.",
        )


def _check_optimizer(cell: Cell) -> None:
    optimizer, steps = cell.settings.optimizer, cell.settings.num_train_steps
    if optimizer.max_grad_norm is not None and optimizer.max_grad_norm >= NO_CLIP_NORM:
        raise refuse(
            cell,
            "optimizer.max_grad_norm",
            optimizer.max_grad_norm,
            (f"less than {NO_CLIP_NORM:g}",),
            "Set it to null: no clipping.",
        )
    if optimizer.num_warmup_steps >= steps and optimizer.num_warmup_steps:
        raise refuse(
            cell,
            "optimizer.num_warmup_steps",
            optimizer.num_warmup_steps,
            (f"0 to {steps - 1}",),
            "Its schedule must leave a step after the warm-up.",
        )
    if optimizer.schedule == "linear" and steps - optimizer.num_warmup_steps < 2:
        raise refuse(
            cell,
            "optimizer.schedule",
            "linear",
            ("constant", "cosine"),
            "Its linear decay divides by the decay steps less one. Train at least two steps after "
            "the warm-up.",
        )


def _check_gpus(cell: Cell) -> None:
    nodes, gpus = cell.resources.num_nodes, cell.resources.gpus_per_node
    if nodes > 2:
        raise refuse(
            cell,
            "resources.num_nodes",
            nodes,
            (1, 2),
            "One node trains and one serves. Use nodes with more GPUs, or train with verl.",
        )
    current = cell.settings.backend.version == CURRENT
    least = (1 if current else 2) + (nodes == 1)
    if gpus < least:
        why = (
            "The trainer and the rollout policy each need a GPU."
            if current
            else (
                "The trainer, the rollout policy and the reference policy each need a GPU (the "
                "same "
                "split is kept without KL, so that the lag of the policies compares)."
            )
        )
        raise refuse(cell, "resources.gpus_per_node", gpus, (f"{least} or more",), why)


def refuse(
    cell: Cell, field: str, value: object, offered: Sequence[object], advice: str
) -> UnsupportedSetting:
    """In the name of the release that the cell would train in; of the library, for another."""
    version = cell.settings.backend.version or VERSIONS[0]
    name = f"{NAME} {version}" if version in VERSIONS else NAME
    return UnsupportedSetting(name, field, value, offered, advice)
