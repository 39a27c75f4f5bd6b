"""What a cell costs: measured where cells of its shape have run, else a stated model.

On GPUs, hours = FLOPs / (peak x utilisation), with, per token of prompt and response,

    2N to generate + 2N for the rollout policy's log-probabilities
    + 2N for the reference policy's, where there is a KL term + 6N to train

for a model of N parameters. Responses are assumed to fill half of max_response_tokens, prompts to
have 200 tokens. Peaks are the vendor's for dense bf16. The utilisation of a whole RL loop, waiting
included, is an ASSUMPTION between 0.1 and 0.4; the point value is their geometric mean. Embedded
cells are counted in CPU seconds of one core.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from orchestrator.plan import Row
from orchestrator.types import Cell

ASSUMED_UTILISATION = (0.1, 0.4)
ASSUMED_PROMPT_TOKENS = 200
ASSUMED_RESPONSE_SHARE = 0.5
PEAK_FLOPS: Mapping[str, float] = {
    "a100": 312e12, "h100": 989e12, "h200": 989e12, "b200": 2250e12, "l40s": 362e12, "a10": 125e12,
}  # fmt: skip
"""FLOP/s of one GPU, dense bf16, from the vendor's data sheets, by the start of its name."""
CPU_SECONDS_PER_UPDATE = 0.016
"""One train step of the embedded trainer with its share of start and evaluations, on one core:
101.8 CPU seconds over the 6,300 train steps of the comedy grid's 61 cells (benchmarks/grid.py).
Only for cells of shapes not run yet."""

Basis = Literal["measured", "declared", "model", "unknown"]
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")

Shape = tuple[object, ...]


class Cost(NamedTuple):
    """What one cell is expected to take; `low` and `high` bound gpu_hours under the model."""

    gpu_hours: float = 0.0
    cpu_seconds: float = 0.0
    basis: Basis = "model"
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over the succeeded cells of a folder, per train step and shape."""

    gpu_hours: Mapping[Shape, float]
    cpu_seconds: Mapping[Shape, float]
    num_cells: int = 0


class Bill(NamedTuple):
    """The sum over cells."""

    gpu_hours: float
    low: float
    high: float
    cpu_seconds: float
    cells: Mapping[Basis, int]
    """How many cells were priced in which way; `unknown` ones count as nothing."""

    def __str__(self) -> str:
        parts = []
        if self.gpu_hours:
            span = f" ({_told(self.low)} to {_told(self.high)})" if self.low < self.high else ""
            parts.append(f"{_told(self.gpu_hours)} GPU-hours{span}")
        if self.cpu_seconds or not parts:
            parts.append(f"{_told(self.cpu_seconds)} CPU-seconds")
        words = {"measured": "measured here", "declared": "declared", "model": "by the cost model",
                 "unknown": "of unknown size, left out"}  # fmt: skip
        how = ", ".join(f"{count} {words[basis]}" for basis, count in self.cells.items())
        return f"{' + '.join(parts)} [{how}]" if how else parts[0]


def shape_of(cell: Cell) -> Shape:
    """What decides the cost of a train step; cells of one shape are priced alike."""
    s = cell.settings
    return (
        s.backend.name, s.model.path, s.data.path, s.batch, s.rollout.group_size,
        s.rollout.max_response_tokens, s.kl.estimator == "none",
    )  # fmt: skip


def measure(rows: Iterable[Row]) -> Measured:
    """Costs of the cells that succeeded in one attempt; the rest paid for something else."""
    gpu: dict[Shape, list[float]] = {}
    cpu: dict[Shape, list[float]] = {}
    count = 0
    for row in rows:
        if row.cell is None or row.exit is None or row.exit.state != "succeeded":
            continue
        if row.attempts != 1 or (row.exit.outcome and row.exit.outcome.kind != "trained"):
            continue
        steps, shape = row.cell.settings.num_train_steps, shape_of(row.cell)
        gpu.setdefault(shape, []).append(row.exit.gpu_hours / steps)
        cpu.setdefault(shape, []).append(row.exit.cpu_seconds / steps)
        count += 1
    return Measured(_means(gpu), _means(cpu), count)


def cost(cell: Cell, measured: Measured | None = None) -> Cost:
    """The cost of training a cell from its first step to its last."""
    steps, shape = cell.settings.num_train_steps, shape_of(cell)
    if measured is not None and shape in measured.cpu_seconds:
        hours = measured.gpu_hours[shape] * steps
        return Cost(hours, measured.cpu_seconds[shape] * steps, "measured", hours, hours)
    if cell.scale == "micro":
        return Cost(cpu_seconds=CPU_SECONDS_PER_UPDATE * steps)
    resources = cell.resources
    if resources.hours is not None:
        hours = resources.hours * resources.num_nodes * resources.gpus_per_node
        return Cost(hours, basis="declared", low=hours, high=hours)
    return _modelled(cell)


def gpu_hours(cell: Cell, measured: Measured | None = None) -> float:
    """GPU-hours of a cell; NaN where the size of its model or its GPU is not known."""
    priced = cost(cell, measured)
    return math.nan if priced.basis == "unknown" else priced.gpu_hours


def bill(cells: Iterable[Cell], measured: Measured | None = None) -> Bill:
    """What these cells cost together."""
    costs = [cost(cell, measured) for cell in cells]
    counts: dict[Basis, int] = {}
    for priced in costs:
        counts[priced.basis] = counts.get(priced.basis, 0) + 1
    return Bill(
        sum(c.gpu_hours for c in costs), sum(c.low for c in costs), sum(c.high for c in costs),
        sum(c.cpu_seconds for c in costs), counts,
    )  # fmt: skip


def num_parameters(cell: Cell) -> float | None:
    """Parameters of the policy, read from its name or path (`Qwen2.5-7B`); None if unsaid."""
    for text in (cell.settings.model.path, cell.settings.model.name):
        if found := _SIZE.search(text):
            return float(found[1]) * 1e9
    return None


def _told(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}"


def _modelled(cell: Cell) -> Cost:
    size = num_parameters(cell)
    gpu = cell.resources.gpu.lower()
    peak = next((flops for name, flops in PEAK_FLOPS.items() if gpu.startswith(name)), None)
    if size is None or peak is None:
        return Cost(basis="unknown")
    low, high = ASSUMED_UTILISATION
    exact = _flops(cell, size) / peak / 3600
    return Cost(exact / math.sqrt(low * high), low=exact / high, high=exact / low)


def _flops(cell: Cell, size: float) -> float:
    s = cell.settings
    prompt = min(ASSUMED_PROMPT_TOKENS, s.data.max_prompt_tokens)
    tokens = prompt + ASSUMED_RESPONSE_SHARE * s.rollout.max_response_tokens
    per_token = (2 + 2 + (0 if s.kl.estimator == "none" else 2) + 6) * size
    rollout_batches = s.num_train_steps / s.batch.num_minibatches
    return rollout_batches * s.batch.num_prompts * s.rollout.group_size * tokens * per_token


def _means(values: Mapping[Shape, list[float]]) -> dict[Shape, float]:
    return {shape: sum(costs) / len(costs) for shape, costs in values.items()}
