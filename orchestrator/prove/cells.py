"""The cells that prove a release: each place of the KL, and several train steps for each batch."""

from collections.abc import Iterator

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault, UnsupportedSetting
from orchestrator.prove.small import NOWHERE, cell_of, on_cpu, on_few_gpus
from orchestrator.records import Cell

BETA = 0.05
WANTED: dict[str, dict[str, object]] = {
    "k3.loss": {"kl": {"estimator": "k3", "placement": "loss", "beta": BETA}},
    "k1.reward": {"kl": {"estimator": "k1", "placement": "reward", "beta": BETA}},
    "k3.loss.x4": {
        "kl": {"estimator": "k3", "placement": "loss", "beta": BETA},
        "batch": {"num_prompts": 8, "num_minibatches": 4},
        "num_train_steps": 32,
    },
    "k1.reward.grpo": {
        "kl": {"estimator": "k1", "placement": "reward", "beta": BETA},
        "advantage": {"estimator": "grpo"},
    },
    "k1_to_go.reward": {"kl": {"estimator": "k1_to_go", "placement": "reward", "beta": BETA}},
}
"""Name -> sections of Settings."""
_LOSSES: tuple[dict[str, object], ...] = (
    {},
    {"aggregation": "sequence_mean"},
    {"aggregation": "constant", "constant_tokens": 1},
)
"""Sections for the loss, tried in order, because a library may accept only some of them."""


def cells_of(library: str, version: str) -> Iterator[tuple[str, Cell]]:
    """Yield name and cell for each of WANTED that a release accepts, in fp32 if the release can.

    Raise EnvironmentFault if the release accepts none, or if orch has no hook for its rollouts.
    """
    if not plugins.load(library).dumps_rollouts:
        raise EnvironmentFault(
            f"orch has no hook that writes the rollouts of {plugins.load(library).title}, so there "
            "is nothing to replay; `orch rehearse --real SPEC` trains it and checks what it leaves"
        )
    count = 0
    refused = ""
    for name, settings in WANTED.items():
        for loss in _LOSSES:
            cell, fault = _accepted(library, version, {**settings, "loss": loss})
            refused = refused or fault
            if cell is not None:
                count += 1
                yield name, cell
                break
    if not count:
        raise EnvironmentFault(f"{library} {version} takes none of the proof's cells: {refused}")


def _accepted(library: str, version: str, settings: dict[str, object]) -> tuple[Cell | None, str]:
    fault = ""
    for precision in ({"training": "fp32"}, {}):
        cell = cell_of(library, version, {**settings, "precision": precision})
        try:
            cell = on_few_gpus(cell)
            on_cpu(cell, NOWHERE)
        except UnsupportedSetting as error:
            fault = str(error)
        else:
            return cell, ""
    return None, fault
