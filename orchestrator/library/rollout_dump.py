"""The rollout dump: what a library trained on and what it computed, batch by batch, as files.

A launch writes it when a cell asks (`cadence.dump_rollouts`), under `attempt_dir/rollouts/`. `orch
prove` replays it through the library's dialect. This file is also shipped into launches, as
`orch_rollout_dump.py`: it imports the standard library only, and runs on Python 3.10.

    rollouts/000004.json     one rollout batch, complete or absent; named by its last train step
    rollouts/weights-4.pt    optional: torch.save of the policy after that step, Hugging Face name
                             -> tensor, in the precision that the optimizer holds

A hook of a library does this once for each rollout batch, in the process that has the batch:

    from orch_rollout_dump import RolloutBatch, write
    write(folder, RolloutBatch(step=..., prompts=..., responses=..., rewards=..., ...))

and, where the policy has at most SMALL_POLICY parameters, saves its weights under
`weights_path(folder, step)` first.

Rules for a hook:

- Record what the library's own code received and returned. Compute nothing.
- A quantity that the library does not have is None, never 0.
- The order of rollouts is that of the library's batch. All lists of rollouts have that order.
- Tokens are the library's ids, without padding. `mask` has a 0 for a response token that is in the
  sequence and not in the loss. Values of tokens have the length of the response, masked ones too.
- Several processes may train: one of them writes, with the whole batch.
- `write` raises OSError if the disk is full. A hook lets it through: a proof with holes is none.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FORMAT = 1
"""Changed whenever a reader of the older format could misread the newer one."""
FOLDER = "rollouts"
"""Name of the folder in the attempt's directory."""
VARIABLE = "ORCH_ROLLOUT_DUMP"
"""Environment variable with the folder for a hook. Without it a hook does nothing."""
PASSES = "ORCH_CPU_PASSES"
"""Environment variable: the number format of the passes where a launch on a CPU changes it, `fp32`
(`CpuLaunch.in_fp32`)."""
MODULE = "orch_rollout_dump"
"""Name of this module where it is shipped into a launch."""
SMALL_POLICY = 5_000_000
"""A policy with at most so many parameters is saved with every batch."""

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
    kl_reward: Values | None = None
    """The KL estimate of each token that was subtracted from the reward, before beta."""
    advantages: Values | None = None
    """As the policy loss received them."""
    updates: list[list[int]] | None = None
    """The rollouts of each train step, in order: indices into the lists above. None: unknown, or
    one train step of all."""
    micro_batches: list[list[list[int]]] | None = None
    """The rollouts of each forward pass of each train step, where the loss depends on them."""
    observed: dict[str, float] = field(default_factory=dict)
    """The library's report on this batch, under the names of OBSERVED."""
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


def write(folder: str | os.PathLike[str], batch: RolloutBatch) -> Path:
    """Write a batch. A kill leaves all of it or nothing. Return the path of the file.

    Raise ValueError for lists of unequal lengths, OSError if it cannot be written.
    """
    _check(batch)
    batch.passes = batch.passes or os.environ.get(PASSES)
    path = Path(folder, f"{batch.step:06d}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, **asdict(batch)})
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return path


def weights_path(folder: str | os.PathLike[str], step: int) -> Path:
    """Return where the policy after train step `step` is saved."""
    return Path(folder, f"weights-{step}.pt")


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of a library's report that are numbers."""
    kept: dict[str, float] = {}
    for name, value in values.items():
        with suppress(TypeError, ValueError, RuntimeError):
            kept[name] = float(value)
    return kept


class CallAfterImport(importlib.abc.MetaPathFinder):
    """Calls a function on a module right after its import, so that nothing is imported for it."""

    def __init__(self, calls: dict[str, Callable[[Any], None]]):
        """Take module -> function. What is imported already is called at once."""
        self.calls = calls
        for name in [name for name in calls if name in sys.modules]:
            calls.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002  the protocol's
        """Return the module's own spec with a loader that calls back after the import, or None."""
        # Taken out first: importlib.util.find_spec below asks this finder again.
        call = self.calls.pop(fullname, None)
        if call is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        own = spec.loader.exec_module

        def run(module: Any) -> None:
            own(module)
            call(module)

        spec.loader.exec_module = run  # type: ignore[method-assign]  # of this one module's loader
        return spec


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
        version = content.pop("format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no rollout batch ({error})") from None
    if version != FORMAT:
        raise ValueError(f"{path} has format {version}; this orch reads format {FORMAT}")
    known = {each.name for each in fields(RolloutBatch)}
    if unknown := sorted(content.keys() - known):
        raise ValueError(f"{path} has unknown entries: {', '.join(unknown)}")
    try:
        batch = RolloutBatch(**content)
        _check(batch)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no rollout batch: {error}") from None
    return batch


def _check(batch: RolloutBatch) -> None:
    count = len(batch.responses)
    for name in ("prompts", "rewards", "groups", "answers", "mask", "texts"):
        _same(name, getattr(batch, name), count)
    for name in (
        "mask",
        "logp_rollout",
        "logp_policy",
        "logp_reference",
        "kl_reward",
        "advantages",
    ):
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


def launched(hook: Path, name: str, folder: str = "") -> dict[str, str]:
    """Return the files of a launch that writes its rollouts: name -> text.

    hook: the library's hook, which the launch has as `name`. folder: that of both files.
    """
    files = {name: hook, f"{MODULE}.py": Path(__file__)}
    return {f"{folder}{name}": path.read_text(encoding="utf-8") for name, path in files.items()}


def variables(attempt_dir: Path) -> dict[str, str]:
    """Return the environment variable with which a launch writes its rollouts."""
    return {VARIABLE: str(attempt_dir / FOLDER)}
