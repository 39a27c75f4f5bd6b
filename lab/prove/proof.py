"""One run on disk, and its comparison with the prediction of its dialect for the same rollouts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import loads
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from lab.cpu import orch_rollout_dump as rollout_dump
from lab.cpu.orch_rollout_dump import RolloutBatch, Values
from lab.libraries import part
from orchestrator import plugins
from orchestrator.errors import CheckpointError, EnvironmentFault
from orchestrator.estimators import NONE, entry
from orchestrator.evaluate.baselines import base_model
from orchestrator.kl.library_semantics import Dialect, precision_of
from orchestrator.records import Cell
from orchestrator.rundir import CellDir
from orchestrator.settings import Settings

TOLERANCE: Mapping[str, float] = {"fp32": 1e-4, "bf16": 0.25, "fp16": 0.1}
"""Number format of the library's passes -> the largest relative difference that passes.

The replay computes in fp32. Two fp32 trainers differ by the order of their sums. bf16 keeps 8 bits
of a number, and the two policies drift apart: up to 0.11 after 8 train steps. A bf16 proof shows a
wrong objective only if its error exceeds that rounding.
"""
TOLERANCE_LATER: Mapping[str, float] = {**TOLERANCE, "fp32": 1e-3}
"""The same for batches after the first.

Each update adds the rounding of both trainers to their weights, and Adam moves a weight with a tiny
gradient as far as any other. In seven runs of one verl script, 16 train steps each, the gradient
norm ended between 4e-7 and 3.6e-4 away, and the weights between 2e-5 and 1.5e-4.
"""
ADVANTAGE_TOLERANCE: Mapping[str, float] = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}
"""The same for advantages, which the replay computes from the run's own log-probabilities."""
QUANTITIES = (
    "advantages",
    "kl_reward",
    "kl_reward_per_token",
    "kl_loss",
    "policy_loss",
    "loss",
    "grad_norm",
    "learning_rate",
    "weights",
)
"""Quantities in the order of a table. A wrong `logp` shows in `grad_norm`, so it is not listed."""
ZERO_ON_POLICY = frozenset({"policy_loss", "loss"})
"""Sums of advantages, which cancel. Their differences are relative to an advantage's mean size."""
FLOOR = 1e-6


class NotReplayed(EnvironmentFault):
    """Raised for a cell with a part of the objective that the replay does not have."""


class BatchPrediction(NamedTuple):
    """A dialect's prediction of one rollout batch, in the order and under the names of its dump."""

    step: int
    """Number of train steps of the run after the batch."""
    observed: Mapping[str, float]
    """Quantity (rollout_dump.OBSERVED) -> its mean over the batch's train steps. A quantity that
    cannot be predicted is absent."""
    advantages: Values
    """The advantage of each token, from the log-probabilities that the trainer reported, if any."""
    logp_policy: Values
    """Log-probabilities before the batch's first train step."""
    weights: Mapping[str, Any]
    """The policy after the batch, Hugging Face name -> tensor."""


class Quantity(NamedTuple):
    """One quantity over a run: the worst difference between prediction and library."""

    name: str
    worst: float
    """The difference relative to the largest value in the run; of weights, to their movement."""
    step: int
    """The train step of the worst difference."""
    predicted: float
    observed: float
    """Both values at that step. Advantages and weights have 0, because they are many numbers."""
    tolerance: float

    @property
    def holds(self) -> bool:
        """Return True if the worst difference is within the tolerance."""
        return self.worst <= self.tolerance


class Proof(NamedTuple):
    """The comparison of a run with its dialect."""

    library: str
    version: str
    dialect: str
    precision: str
    num_batches: int
    num_steps: int
    quantities: tuple[Quantity, ...]
    left_out: tuple[str, ...]
    """Quantities that were not compared, in sentences."""

    @property
    def holds(self) -> bool:
        """Return True if every quantity holds. A proof of no quantity does not hold."""
        return bool(self.quantities) and all(each.holds for each in self.quantities)


def prove(
    settings: Settings,
    dialect: Dialect,
    batches: Sequence[RolloutBatch],
    policy: Path,
    weights: Mapping[int, Path] | None = None,
) -> Proof:
    """Return the comparison of a run with its dialect.

    policy: the folder that the run started from. weights: train step -> the policy that the library
    saved, a torch file or a Hugging Face folder. Raise EnvironmentFault for a run without rollouts,
    NotReplayed for one that cannot be replayed.
    """
    if reasons := list(_not_replayed(settings, batches)):
        raise NotReplayed(f"orch cannot replay this cell: {'; '.join(reasons)}")
    if not batches:
        raise EnvironmentFault(
            "the run left no rollouts: `python -m lab prove LIBRARY@VERSION --keep` leaves them"
        )
    if all(batch.observed.get("grad_norm") == 0 for batch in batches):
        rewards = sorted({reward for batch in batches for reward in batch.rewards})
        why = f"every reward is {rewards[0]:g}" if len(rewards) == 1 else "no group has two rewards"
        raise NotReplayed(
            f"the gradient is 0 in all {len(batches)} rollout batches ({why}): any dialect says "
            "so, and nothing is shown. Train with prompts that the policy sometimes solves"
        )
    first = batches[0]
    if settings.batch.num_minibatches > 1 and first.updates is None:
        raise NotReplayed("the library did not say which rollouts made which train step")
    if first.step != len(first.updates or [[]]):
        raise NotReplayed(f"the first rollouts are those of train step {first.step}")
    precision = passes_of(settings, dialect, batches)
    replay = part("micro", "replay")
    if replay is None:
        raise EnvironmentFault("the embedded trainer has no replay")
    predictions: list[BatchPrediction] = list(replay.replay(settings, dialect, batches, policy))
    comparisons = list(_compared(batches, predictions, precision))
    if weights:
        comparisons += _weights(predictions, weights, policy, precision)
    present = {each.name for each in comparisons}
    left_out = []
    if missing := [name for name in QUANTITIES if name not in present]:
        left_out.append(f"not reported by the run, or not predicted: {', '.join(missing)}")
    return Proof(
        settings.backend.name,
        settings.backend.version or plugins.load(settings.backend.name).versions[0],
        dialect.text,
        precision,
        len(batches),
        batches[-1].step,
        tuple(sorted(comparisons, key=lambda each: QUANTITIES.index(each.name))),
        tuple(left_out),
    )


def _not_replayed(settings: Settings, batches: Sequence[RolloutBatch]) -> Iterator[str]:
    """Yield each field of a cell that the replay does not have, with the reason."""
    kl, correction = settings.kl, settings.loss.correction
    if kl.estimator != NONE and entry(kl.estimator).is_of_vocabulary:
        yield f"kl.estimator={kl.estimator} needs logits of the whole vocabulary"
    if kl.reference is not None:
        yield f"kl.reference.kind={kl.reference.kind} is not the policy that the run started from"
    if kl.controller is not None:
        yield "kl.controller moves beta, which rollouts do not record"
    if settings.lora is not None:
        yield "lora trains an adapter, and the replay the whole model"
    if correction is not None and any(batch.logp_rollout is None for batch in batches):
        yield (
            f"loss.correction.kind={correction.kind} weighs by the engine's log-probabilities, "
            "which the run did not record"
        )
    elif correction is not None and any(0 in row for b in batches for row in b.mask or ()):
        yield (
            f"loss.correction.kind={correction.kind} rejects samples, and the run recorded the "
            "mask that is left, not the tokens that it rejected"
        )


def passes_of(settings: Settings, dialect: Dialect, batches: Sequence[RolloutBatch]) -> str:
    """Return the number format of a run's passes: that of its stand-ins, else cell or dialect."""
    return batches[0].passes or str(precision_of(settings, dialect)[0])


def _compared(
    batches: Sequence[RolloutBatch],
    predictions: Sequence[BatchPrediction],
    precision: str,
) -> Iterator[Quantity]:
    """Yield the largest difference of each quantity, or the largest of those that do not pass."""
    in_first, after = (
        table.get(precision, table["bf16"]) for table in (TOLERANCE, TOLERANCE_LATER)
    )
    sizes = [abs(x) for batch in batches for row in batch.advantages or () for x in row]
    typical = sum(sizes) / len(sizes) if sizes else 1.0
    for name in QUANTITIES:
        pairs = [
            (batch.step, prediction.observed[name], batch.observed[name])
            for batch, prediction in zip(batches, predictions, strict=True)
            if name in batch.observed and name in prediction.observed
        ]
        if not pairs:
            continue
        largest = max(abs(observed) for _, _, observed in pairs)
        scale = max(largest, typical if name in ZERO_ON_POLICY else 0.0, FLOOR)
        each = [
            Quantity(
                name,
                _distance(predicted, observed) / scale,
                step,
                predicted,
                observed,
                in_first if step == batches[0].step else after,
            )
            for step, predicted, observed in pairs
        ]
        yield max(each, key=lambda quantity: (not quantity.holds, quantity.worst))
    if (quantity := _advantages(batches, predictions, precision)) is not None:
        yield quantity


def _distance(one: float, other: float) -> float:
    """Return the absolute difference, with infinity in the place of NaN."""
    distance = abs(one - other)
    # Every comparison with NaN is false, so `max` could pass over it.
    return float("inf") if isnan(distance) else distance


def _advantages(
    batches: Sequence[RolloutBatch], predictions: Sequence[BatchPrediction], precision: str
) -> Quantity | None:
    each = [
        (batch.step, _farthest(prediction.advantages, batch.advantages, batch.mask))
        for batch, prediction in zip(batches, predictions, strict=True)
        if batch.advantages is not None
    ]
    if not each:
        return None
    largest = max(abs(x) for batch in batches for row in batch.advantages or () for x in row)
    step, distance = max(each, key=lambda pair: pair[1])
    tolerance = ADVANTAGE_TOLERANCE.get(precision, ADVANTAGE_TOLERANCE["bf16"])
    return Quantity("advantages", distance / max(largest, FLOOR), step, 0, 0, tolerance)


def _farthest(predicted: Values, observed: Values, mask: list[list[int]] | None) -> float:
    masks: Iterable[list[int]] = mask or [[1] * len(row) for row in observed]
    return max(
        (
            _distance(one, other)
            for ours, theirs, counted in zip(predicted, observed, masks, strict=True)
            for one, other, counts in zip(ours, theirs, counted, strict=True)
            if counts
        ),
        default=0.0,
    )


def _weights(
    predictions: Sequence[BatchPrediction],
    saved: Mapping[int, Path],
    policy: Path,
    precision: str,
) -> Iterator[Quantity]:
    """Yield the error of the last saved policy, divided by the distance that training moved it."""
    import torch
    from safetensors.torch import load_file

    last = next((each for each in reversed(predictions) if each.step in saved), None)
    if last is None:
        return
    begin, path = load_file(policy / "model.safetensors"), saved[last.step]
    if path.is_dir():
        theirs = {k: v for file in path.glob("*.safetensors") for k, v in load_file(file).items()}
    else:
        theirs = torch.load(path, map_location="cpu", weights_only=True)
    if absent := sorted(begin.keys() - theirs.keys()):
        raise EnvironmentFault(f"{saved[last.step]} has no {', '.join(absent[:3])}")
    apart = moved = 0.0
    for name in begin:
        library = theirs[name].float()
        apart += float((library - last.weights[name]).square().sum())
        moved += float((library - begin[name].float()).square().sum())
    ratio = (apart / max(moved, FLOOR**2)) ** 0.5
    tolerance = TOLERANCE.get(precision, TOLERANCE["bf16"]) * 10
    yield Quantity("weights", ratio, last.step, 0, 0, min(tolerance, 0.5))


# A run on disk: its cell, its rollouts, and the policy that it started from.


class Run(NamedTuple):
    """A run with rollouts."""

    cell: Cell
    dialect: Dialect
    batches: tuple[RolloutBatch, ...]
    policy: Path
    """Folder of the policy that it started from."""
    weights: dict[int, Path]
    """Train step -> the policy that the run saved with its rollouts."""
    exports: dict[int, Path]
    """Train step -> a checkpoint that is a Hugging Face folder with fp32 weights."""

    def proof(self, dialect: Dialect | None = None) -> Proof:
        """Return the comparison of the run with its own dialect, or with another one."""
        return prove(
            self.cell.settings,
            dialect or self.dialect,
            self.batches,
            self.policy,
            self.exports | self.weights,
        )


def read_run(cell_dir: CellDir, policy: Path | None = None) -> Run:
    """Return a run from its cell's directory.

    policy: the folder of the policy that it started from, if that was moved. Raise EnvironmentFault
    for a run without rollouts or with damaged ones, and for a policy that is not there.
    """
    cell = cell_dir.read_cell()
    folders = [attempt.path / rollout_dump.FOLDER for attempt in cell_dir.attempts()]
    try:
        batches = tuple(rollout_dump.read(folders))
    except ValueError as error:
        raise EnvironmentFault(f"{error}. Remove the file, or train the cell again") from None
    if not batches:
        raise EnvironmentFault(
            f"{cell_dir.path} has no rollouts: only a run of the lab has them "
            "(`python -m lab prove LIBRARY@VERSION --keep FOLDER`, `python -m lab rehearse SPEC`)"
        )
    weights = {}
    for folder in folders:
        for batch in batches:
            path = rollout_dump.weights_path(folder, batch.step)
            if path.is_file():
                weights[batch.step] = path
    library = cell.settings.backend
    exports = {
        each.step: each.path
        for each in plugins.load(library.name).find_checkpoints(cell_dir.checkpoints)
        if not each.needs_export and _formats(each.path) == {"F32"}
    }
    dialect = plugins.load(library.name).semantics(library.version).dialect
    return Run(cell, dialect, batches, policy or _start(cell), weights, exports)


def _formats(folder: Path) -> set[str]:
    """Return the number formats of the weights in a Hugging Face folder."""
    formats = set()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            # The form of safetensors: eight bytes with the length of the header, then the header as
            # JSON.
            header = loads(opened.read(int.from_bytes(opened.read(8), "little")))
        formats |= {each["dtype"] for name, each in header.items() if name != "__metadata__"}
    return formats


def _start(cell: Cell) -> Path:
    path = cell.settings.model.path
    try:
        return base_model(path)
    except CheckpointError:
        raise EnvironmentFault(
            f"{path} is not on this machine; --policy names its folder"
        ) from None
