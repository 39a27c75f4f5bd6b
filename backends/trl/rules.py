"""Refuse combinations of fields that TRL cannot train as asked: machines, batches, constants."""

from collections.abc import Iterator
from typing import NamedTuple

from backends.trl.manifest import script_of
from backends.trl.options import BEFORE_BIAS_CORRECTION
from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import Resources, Settings

LARGEST_ON_GPU, LARGEST_ON_CPU = 8, 512
"""Most rollouts in one forward pass of a process. Gradients of more rollouts are accumulated."""


class ProcessShares(NamedTuple):
    """The parts of a batch for each process."""

    processes: int
    """One for each GPU; one on a machine without GPUs."""
    on_cpu: bool
    per_device: int
    """Rollouts in one forward pass of a process."""
    accumulation: int
    """Forward passes of a process in one train step."""


def rank_layout(settings: Settings, resources: Resources) -> ProcessShares:
    """Return the parts of a batch. Raise UnsupportedSetting if it does not divide."""
    if resources.num_nodes > 1:
        raise _refused(
            "resources.num_nodes",
            resources.num_nodes,
            "1",
            "orch starts TRL on one node only: set resources.num_nodes=1.",
        )
    on_cpu = resources.gpus_per_node == 0
    processes = max(resources.gpus_per_node, 1)
    rollouts = settings.batch.num_prompts * settings.rollout.group_size
    share, remainder = divmod(rollouts // settings.batch.num_minibatches, processes)
    if remainder:
        raise _refused(
            "batch.num_prompts",
            settings.batch.num_prompts,
            f"num_prompts x group_size / num_minibatches a multiple of {processes}",
            "A minibatch is shared equally by one process a GPU: change batch.num_prompts, "
            "rollout.group_size or the number of GPUs.",
        )
    largest = LARGEST_ON_CPU if on_cpu else LARGEST_ON_GPU
    per_device = next(n for n in range(min(largest, share), 0, -1) if share % n == 0)
    return ProcessShares(processes, on_cpu, per_device, share // per_device)


def check(settings: Settings, version: str) -> None:
    """Raise UnsupportedSetting for the first rule that a cell breaks."""
    for refusal in _refusals(settings, version):
        raise refusal


def _refusals(settings: Settings, version: str) -> Iterator[UnsupportedSetting]:
    loss, batch = settings.loss, settings.batch
    rloo = script_of(settings) == "rloo"
    if rloo and loss.constant_tokens != 1:
        yield _refused(
            "loss.constant_tokens",
            loss.constant_tokens,
            "1",
            "RLOOTrainer sums over a response's tokens and averages responses: "
            "loss.constant_tokens=1.",
        )
    longest = settings.rollout.max_response_tokens
    if not rloo and loss.constant_tokens not in (None, longest):
        if version == BEFORE_BIAS_CORRECTION:
            yield _refused(
                "loss.constant_tokens",
                loss.constant_tokens,
                f"rollout.max_response_tokens ({longest})",
                f"TRL {version} divides by max_completion_length (loss_type dr_grpo); its luspo "
                "weighs tokens by the length of their response, padding included.",
            )
        elif loss.constant_tokens != 1:
            yield _refused(
                "loss.constant_tokens",
                loss.constant_tokens,
                f"1 and rollout.max_response_tokens ({longest})",
                "TRL divides by max_completion_length (loss_type dr_grpo) or by nothing (luspo).",
            )
    if (
        loss.clip is not None
        and loss.clip.dual is not None
        and loss.clip.dual <= 1 + loss.clip.high
    ):
        yield _refused(
            "loss.clip.dual",
            loss.clip.dual,
            f"numbers above 1 + loss.clip.high ({1 + loss.clip.high:g})",
            "TRL's `delta` bounds the ratio, which is dual clip only beyond the ratio's own clip.",
        )
    known = settings.data.num_prompts
    if known is not None and known < batch.num_prompts:
        yield _refused(
            "batch.num_prompts",
            batch.num_prompts,
            f"at most data.num_prompts ({known})",
            "TRL leaves out what makes no whole batch, which would be every prompt.",
        )
    every = settings.kl.reset_reference_every_steps
    if every is not None and settings.kl.beta == 0:
        yield _refused(
            "kl.reset_reference_every_steps",
            every,
            "null, where kl.beta is 0",
            "With beta 0 no reference policy is loaded: leave it out, or give kl.beta.",
        )
    if settings.kl.estimator == "rho_k3" and settings.kl.ratio_level != loss.ratio_level:
        yield _refused(
            "kl.ratio_level",
            settings.kl.ratio_level,
            f"{loss.ratio_level}, which is loss.ratio_level",
            "TRL has one option for the ratio of the policy loss and of the KL.",
        )
    if settings.kl.reference is not None and settings.kl.beta == 0:
        yield _refused(
            "kl.reference.kind",
            settings.kl.reference.kind,
            "no kl.reference, where kl.beta is 0",
            "With beta 0 no reference policy is loaded: leave it out, or give kl.beta.",
        )


def _refused(field: str, value: object, offered: str, advice: str) -> UnsupportedSetting:
    return UnsupportedSetting("trl", field, value, (offered,), advice)
