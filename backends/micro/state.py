"""Save and load the whole state of training, so that a resumed run equals an unbroken one.

The state holds no random generator: the random numbers of a rollout batch are a function of the
cell's seed and the batch's number. States are saved between rollout batches.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from backends.micro import disk
from backends.micro.optimizer import Moments
from backends.micro.shape import NUM_PARAMETERS
from orchestrator.errors import CheckpointError

log = logging.getLogger("orch.micro")
TRACED = ("train/reward_mean", "rollout/response_tokens", "train/entropy")


@dataclass
class State:
    """The state of training after `step` train steps."""

    step: int
    policy: Tensor
    """[N], the flat vector."""
    moments: Moments
    reference: Tensor
    """[N], the reference policy."""
    earlier: list[Tensor] = field(default_factory=list)
    """[N] each: the policies after steps step - len, ..., step - 1, for stale rollouts."""
    trace: list[tuple[float, ...]] = field(default_factory=list)
    """The values of TRACED at each train step, by which the outcome is judged."""
    beta: float | None = None
    """The current beta if a controller moved it, or None."""

    @classmethod
    def fresh(cls, base: Tensor, reference: Tensor | None = None) -> "State":
        """Return the state before training, from weights [N]. reference: None: those weights."""
        return cls(0, base.clone(), Moments.zeros(base), base if reference is None else reference)

    def version(self, step: int) -> Tensor:
        """Return the policy after `step` train steps. The state must still keep it."""
        return self.policy if step == self.step else self.earlier[step - self.step]


def save_state(state: State, path: Path, cell_id: str) -> None:
    """Write a state to `path`, completely or not at all."""
    # torch.stack needs a tensor: an empty one stands for no earlier policy.
    kept = state.earlier or [state.policy[:0]]
    tensors = {
        "policy": state.policy.detach(),
        "first": state.moments.first,
        "second": state.moments.second,
        "reference": state.reference,
        "earlier": torch.stack(kept),
        "trace": torch.tensor(state.trace, dtype=torch.float64),
    }
    on_cpu = {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}
    with disk.replacing(path) as temporary:
        about = {"cell": cell_id, "step": str(state.step), "digest": _digest(on_cpu)}
        if state.beta is not None:
            about["beta"] = repr(state.beta)
        temporary.write_bytes(save(on_cpu, about))


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return a digest of all numbers: a file whose end a crash left as zeros has the right size."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def load_state(path: Path, cell_id: str, device: torch.device) -> State:
    """Return a saved state. Raise CheckpointError if it is cut off or belongs to another cell."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        if about.get("cell") != cell_id:
            raise CheckpointError(
                f"{path} belongs to cell {about.get('cell')}, not to {cell_id}: it was copied "
                "here from another run directory; remove it"
            )
        if about["digest"] != _digest({name: each.numpy() for name, each in tensors.items()}):
            raise ValueError("its numbers are not those that were written")
        policy, first, second, reference, earlier = (
            tensors[name].to(device)
            for name in ("policy", "first", "second", "reference", "earlier")
        )
        trace = [tuple(row) for row in tensors["trace"].tolist()]
        return State(
            int(about["step"]),
            policy.view(NUM_PARAMETERS),
            Moments(first, second),
            reference,
            list(earlier) if earlier.numel() else [],
            trace,
            float(about["beta"]) if "beta" in about else None,
        )
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} cannot be resumed from ({error}): it is missing or was cut in half; remove "
            "it, and training goes on from the checkpoint before it"
        ) from error


def newest_state(checkpoints_dir: Path, cell_id: str, device: torch.device) -> State | None:
    """Return the usable state with the most train steps, or None. Log and skip unusable ones."""
    saved = [checkpoint.path / disk.STATE for checkpoint in disk.all_checkpoints(checkpoints_dir)]
    rolling = _first([checkpoints_dir / disk.RESUME], cell_id, device)
    checkpoint = _first(saved[::-1], cell_id, device)
    return max((s for s in (rolling, checkpoint) if s), key=lambda s: s.step, default=None)


def _first(paths: list[Path], cell_id: str, device: torch.device) -> State | None:
    """Return the first usable state, or None. Log each unusable one before it."""
    for path in paths:
        try:
            if path.name == disk.STATE and not disk.is_whole(path.parent):
                raise CheckpointError(
                    f"{path.parent} was cut in half; training goes on from the state before it"
                )
            if path.exists():
                return load_state(path, cell_id, device)
        except CheckpointError as error:
            log.warning("%s", error)
    return None
