"""The rollout dump: what a library trained on and what it computed, batch by batch, as files.

    rollouts/000004.json     one rollout batch, complete or absent; named by its last train step
    rollouts/weights-4.pt    torch.save of the policy after that step, Hugging Face name -> tensor,
                             in the precision that the optimizer holds

The hook `lab/<library>/rollouts.py` writes it where a launch runs on a CPU (`lab.cpu.recording`),
and `python -m lab prove` replays it through the library's dialect. This file runs beside the hook,
in the library's own environment.

Rules for a hook:

- Record what the library's own code received and returned. Compute nothing.
- A quantity that the library does not have is None, never 0.
- The order of rollouts is that of the library's batch. All lists of rollouts have that order.
- Tokens are the library's ids, without padding. `mask` has a 0 for a response token that is in the
  sequence and not in the loss. Values of tokens have the length of the response, masked ones too.
- `write` raises OSError if the disk is full. A hook lets it through: a proof with holes is none.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = "rollouts"
"""Name of the folder in the attempt's directory."""
VARIABLE = "ORCH_ROLLOUT_DUMP"
"""Environment variable with that folder. Without it no hook is loaded."""
PASSES = "ORCH_CPU_PASSES"
"""Environment variable: the number format of the passes where a launch on a CPU changes it, `fp32`
(`CpuLaunch.in_fp32`)."""

Tokens = list[list[int]]
"""One list for each rollout."""
Values = list[list[float]]
"""One list for each rollout, one number for each response token."""


@dataclass
class RolloutBatch:
    """One rollout batch: what was sampled, what it was rewarded with, what was trained on it."""

    step: int
    """The number of train steps (optimizer updates) of the run after this batch."""
    prompts: Tokens
    responses: Tokens
    rewards: list[float]
    """The task's reward of each response, before any KL."""
    groups: list[str]
    """Rollouts of one prompt have one name."""
    mask: list[list[int]] | None = None
    """1 for a response token that is in the loss. None: all of them are."""
    answers: list[str] | None = None
    """The answer that each reward was computed with, as the reward function received it."""
    texts: list[str] | None = None
    """The decoded responses, exactly as the reward function received them. None if they are not
    at hand: `python -m lab prove` then decodes the tokens without special ones."""
    passes: str | None = None
    """The number format of the library's passes where a stand-in changed it; `write` sets it. None:
    that of the cell."""
    temperature: float = 1.0
    """All log-probabilities are of logits divided by it."""
    logp_rollout: Values | None = None
    """Log-probabilities that the sampler reported."""
    logp_policy: Values | None = None
    """By the trainer, before the batch's first train step."""
    logp_reference: Values | None = None
    """Of the reference policy."""
    advantages: Values | None = None
    """As the policy loss received them."""
    updates: list[list[int]] | None = None
    """The rollouts of each train step, in order: indices into the lists above. None: unknown, or
    one train step of all."""
    observed: dict[str, float] = field(default_factory=dict)
    """The library's report on this batch, under the names of OBSERVED; `write` adds the reward."""
    reported: dict[str, float] = field(default_factory=dict)
    """All of the library's metrics of this batch, under its own names."""


OBSERVED = {
    "policy_loss": "the aggregated policy loss",
    "kl_loss": "the aggregated KL estimate in the loss, before beta",
    "kl_reward": "the KL estimate in the reward before beta, summed over a response, mean of them",
    "kl_reward_per_token": "the same, mean over a response's tokens, then over responses",
    "grad_norm": "the norm of the gradient before it is clipped",
    "loss": "the number that was differentiated",
    "learning_rate": "of the batch's last train step",
    "reward": "the mean reward of the task",
}
"""Name in RolloutBatch.observed -> meaning. Each is the mean over the batch's train steps."""


def write(folder: Path, batch: RolloutBatch) -> None:
    """Write a batch. A kill leaves all of it or nothing.

    Raise ValueError for lists of unequal lengths, OSError if it cannot be written.
    """
    _check(batch)
    batch.passes = os.environ.get(PASSES)
    batch.observed["reward"] = sum(batch.rewards) / len(batch.rewards)
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / f"{batch.step:06d}.json", asdict(batch))


def replace(path: Path, plain: object) -> None:
    """Write plain data as JSON. Another process reads all of it or nothing."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(plain), encoding="utf-8")
    new.replace(path)


def weights_path(folder: Path, step: int) -> Path:
    """Return where the policy after train step `step` is saved."""
    return folder / f"weights-{step}.pt"


def save_weights(path: Path, weights: Mapping[str, Any]) -> None:
    """Save a policy as a hook found it: name -> tensor on any device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}
    import_module("torch").save(kept, path)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the lists of a batch from the entries of each rollout; None for what one lacks."""
    lists = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: None if None in values else values for name, values in lists.items()}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of a library's report that are numbers."""
    kept: dict[str, float] = {}
    for name, value in values.items():
        with suppress(TypeError, ValueError, RuntimeError):
            kept[name] = float(value)
    return kept


def read(folders: Iterable[Path]) -> Iterator[RolloutBatch]:
    """Yield the batches of a run by step.

    `folders`: the dumps of its attempts, oldest first. Of a step that several attempts trained, the
    newest counts. Raise ValueError, with a sentence, for a file that cannot be understood.
    """
    newest: dict[int, Path] = {}
    for folder in folders:
        for path in folder.glob("[0-9]*.json"):
            newest[int(path.stem)] = path
    for _, path in sorted(newest.items()):
        yield _read(path)


def _read(path: Path) -> RolloutBatch:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # Earlier hooks wrote more.
        known = {each.name for each in fields(RolloutBatch)} & content.keys()
        batch = RolloutBatch(**{name: content[name] for name in known})
        _check(batch)
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no rollout batch: {error}") from None
    return batch


def _check(batch: RolloutBatch) -> None:
    count = len(batch.responses)
    for name in ("prompts", "rewards", "groups", "answers", "mask", "texts"):
        _same(name, getattr(batch, name), count)
    for name in ("mask", "logp_rollout", "logp_policy", "logp_reference", "advantages"):
        values = getattr(batch, name)
        _same(name, values, count)
        for number, (row, response) in enumerate(zip(values or (), batch.responses, strict=False)):
            if len(row) != len(response):
                raise ValueError(
                    f"{name}[{number}] has {len(row)} values for {len(response)} response tokens"
                )
    if unknown := sorted(batch.observed.keys() - OBSERVED.keys()):
        raise ValueError(f"observed has {', '.join(unknown)}; it may have {', '.join(OBSERVED)}")


def _same(name: str, values: object, count: int) -> None:
    if isinstance(values, list) and len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries for {count} responses")
