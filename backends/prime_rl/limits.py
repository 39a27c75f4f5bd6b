"""Refuse combinations of fields that Prime-RL cannot run: schedules, and GPUs that do not fit."""

from collections.abc import Sequence

from backends.prime_rl.releases import CURRENT, NAME, VERSIONS
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import Cell


def check(cell: Cell) -> None:
    """Raise UnsupportedSetting for the first combination that Prime-RL cannot express."""
    _check_optimizer(cell)
    _check_gpus(cell)


def _check_optimizer(cell: Cell) -> None:
    optimizer, steps = cell.settings.optimizer, cell.settings.num_train_steps
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
    """Return the error for a field that cannot be run.

    It names the release that the cell would train in, or only the library if orch does not know the
    release.
    """
    version = cell.settings.backend.version or VERSIONS[0]
    name = f"{NAME} {version}" if version in VERSIONS else NAME
    return UnsupportedSetting(name, field, value, offered, advice)
