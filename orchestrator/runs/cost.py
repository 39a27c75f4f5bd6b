"""Costs of cells, measured if cells of their shape have run, else from a stated model; budgets.

On GPUs, hours = FLOPs / (peak x utilisation), with, per token of prompt and response,

    2N to generate + 2N for the rollout policy's log-probabilities
    + 2N for the reference policy's, where there is a KL term + 6N to train

for a model of N parameters. Responses are assumed to fill half of max_response_tokens, prompts to
have 200 tokens. Peaks are the vendor's for dense bf16. The utilisation of a whole RL loop, waiting
included, is an ASSUMPTION between 0.1 and 0.4; the point value is their geometric mean. Scoring a
checkpoint is 2N a token, at the same utilisation. Embedded
cells are counted in CPU seconds of one core.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from orchestrator import plugins
from orchestrator.errors import RunFolderError
from orchestrator.evaluate.survey import seeds_of, tasks_of
from orchestrator.files import read_json
from orchestrator.launch.slurm import submissions
from orchestrator.library.memory import saves
from orchestrator.library.model_size import declared_parameters
from orchestrator.records import ENDED, Cell, EvaluationSpec
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.runs.plan import Plan, PlanRow
from orchestrator.runs.watch import latest_metrics
from orchestrator.settings import without_seed

ASSUMED_UTILISATION = (0.1, 0.4)
ASSUMED_PROMPT_TOKENS = 200
ASSUMED_RESPONSE_SHARE = 0.5
PEAK_FLOPS: Mapping[str, float] = {
    "a100": 312e12,
    "h100": 989e12,
    "h200": 989e12,
    "b200": 2250e12,
    "l40s": 362e12,
    "a10": 125e12,
}
"""FLOP/s of one GPU, dense bf16, from the vendor's data sheets, by the start of its name."""
CPU_SECONDS_PER_UPDATE = 0.0033
"""One train step of the embedded trainer with its share of start and evaluations, on one core:
20.5 CPU seconds over the 6,300 train steps of the comedy grid's 61 cells (benchmarks/grid.py), with
the C kernels. Where there is no compiler, torch takes several times as long. Only for cells of
shapes not run yet."""

Basis = Literal["measured", "piloted", "declared", "model", "unknown"]

CellShape = tuple[object, ...]


class Cost(NamedTuple):
    """The expected cost of one cell. `low` and `high` bound gpu_hours under the model."""

    gpu_hours: float = 0.0
    cpu_seconds: float = 0.0
    basis: Basis = "model"
    low: float = 0.0
    high: float = 0.0

    def scaled(self, share: float) -> "Cost":
        """Return the cost of a share of the cell."""
        return Cost(
            self.gpu_hours * share,
            self.cpu_seconds * share,
            self.basis,
            self.low * share,
            self.high * share,
        )


class PilotCost(NamedTuple):
    """What a pilot measured of one shape of cells."""

    start_seconds: float
    """From the launch to the first train step, and from the last one to the end."""
    step_seconds: float
    cores: float
    """CPU seconds in a second."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean costs over the succeeded cells of a folder, per train step and shape."""

    gpu_hours: Mapping[CellShape, float]
    cpu_seconds: Mapping[CellShape, float]
    pilots: Mapping[CellShape, PilotCost]
    """Of shapes that only a pilot has run."""


class Bill(NamedTuple):
    """The cost of several cells together."""

    gpu_hours: float
    low: float
    high: float
    cpu_seconds: float
    cells: Mapping[Basis, int]
    """The numbers of cells priced in each way; those of `unknown` cost count as nothing."""

    def __str__(self) -> str:
        parts = []
        if self.gpu_hours:
            span = (
                f" ({_rounded(self.low)} to {_rounded(self.high)})" if self.low < self.high else ""
            )
            parts.append(f"{_rounded(self.gpu_hours)} GPU-hours{span}")
        if self.cpu_seconds or not parts:
            parts.append(f"{_rounded(self.cpu_seconds)} CPU-seconds")
        words = {
            "measured": "measured here",
            "piloted": "by the pilot",
            "declared": "declared",
            "model": "by the cost model",
            "unknown": "of unknown size, left out",
        }
        how = ", ".join(f"{count} {words[basis]}" for basis, count in self.cells.items())
        return f"{' + '.join(parts)} [{how}]" if how else parts[0]


def cost_shape(cell: Cell) -> CellShape:
    """Return the settings that decide the cost of a train step.

    Cells of one shape cost the same.
    """
    s = cell.settings
    return (
        s.backend.name,
        s.model.path,
        s.data.path,
        s.batch,
        s.rollout.group_size,
        s.rollout.max_response_tokens,
        s.kl.estimator == "none",
        s.lora,
    )


def pilot_shape(cell: Cell) -> CellShape:
    """Return the settings and the layout that decide the cost of a train step on its nodes."""
    return (*cost_shape(cell), cell.settings.backend.version, cell.resources)


def measure(
    rows: Iterable[PlanRow], pilots: Mapping[CellShape, PilotCost] | None = None
) -> Measured:
    """Return the mean cost of a train step, from the cells that succeeded in one attempt.

    Cells that collapsed or were retried are left out: their cost is not that of their train
    steps. pilots: what a pilot measured (runs/pilot.py).
    """
    gpu: dict[CellShape, list[float]] = {}
    cpu: dict[CellShape, list[float]] = {}
    for row in rows:
        if row.cell is None or row.exit is None or row.exit.state != "succeeded":
            continue
        if row.attempts != 1 or (row.exit.outcome and row.exit.outcome.kind != "trained"):
            continue
        steps, shape = row.cell.settings.num_train_steps, cost_shape(row.cell)
        gpu.setdefault(shape, []).append(row.exit.gpu_hours / steps)
        cpu.setdefault(shape, []).append(row.exit.cpu_seconds / steps)
    return Measured(_means(gpu), _means(cpu), pilots or {})


def cost(cell: Cell, measured: Measured | None = None) -> Cost:
    """Return the cost of training a cell from its first step to its last."""
    steps, shape = cell.settings.num_train_steps, cost_shape(cell)
    if measured is not None and shape in measured.cpu_seconds:
        hours = measured.gpu_hours[shape] * steps
        return Cost(hours, measured.cpu_seconds[shape] * steps, "measured", hours, hours)
    if cell.scale == "micro":
        return Cost(cpu_seconds=CPU_SECONDS_PER_UPDATE * steps)
    resources = cell.resources
    if measured is not None and (pilot := measured.pilots.get(pilot_shape(cell))) is not None:
        seconds = pilot.start_seconds + pilot.step_seconds * steps
        hours = seconds * resources.reserved_gpus / 3600
        cpu = 0.0 if hours else seconds * pilot.cores
        return Cost(hours, cpu, "piloted", hours, hours)
    if resources.hours is not None:
        hours = resources.hours * resources.reserved_gpus
        return Cost(hours, basis="declared", low=hours, high=hours)
    return _modelled(cell)


def gpu_hours(cell: Cell, measured: Measured | None = None) -> float:
    """Return the GPU-hours of a cell; NaN if the size of its model or its GPU is not known."""
    priced = cost(cell, measured)
    return math.nan if priced.basis == "unknown" else priced.gpu_hours


def bill(cells: Iterable[Cell], measured: Measured | None = None) -> Bill:
    """Return the cost of these cells together."""
    prices: dict[tuple[object, ...], Cost] = {}
    costs = []
    cells = list(cells)  # alive, as `id` needs it
    for cell in cells:
        key = (without_seed(cell.settings), id(cell.resources))
        price = prices.get(key)
        if price is None:
            price = prices[key] = cost(cell, measured)
        costs.append(price)
    return _sum_of(costs)


def _sum_of(prices: Iterable[Cost]) -> Bill:
    costs = list(prices)
    counts: dict[Basis, int] = {}
    for priced in costs:
        counts[priced.basis] = counts.get(priced.basis, 0) + 1
    return Bill(
        sum(c.gpu_hours for c in costs),
        sum(c.low for c in costs),
        sum(c.high for c in costs),
        sum(c.cpu_seconds for c in costs),
        counts,
    )


def used_cpu_seconds(rows: Iterable[PlanRow]) -> float:
    """Return the CPU seconds of all attempts of these cells.

    An attempt without an exit record counts until its last heartbeat, as one core. Attempts that
    one process trained together share that core.
    """
    used = 0.0
    killed: dict[object, float] = {}
    for row in rows:
        if row.cell is None or _has_not_begun(row):
            continue
        if row.attempts == 1 and row.exit is not None and row.exit.state in ENDED:
            used += row.exit.cpu_seconds  # the plan has read it: open no file
        else:
            for attempt in row.directory.attempts():
                ended = attempt.known_exit()
                if ended is not None:
                    used += ended.cpu_seconds
                else:
                    process, seconds = _process_alive(attempt)
                    killed[process] = max(killed.get(process, 0.0), seconds)
    return used + sum(killed.values())


def _has_not_begun(row: PlanRow) -> bool:
    """Return True if the state alone shows that no attempt of the cell has begun."""
    waits = row.state in ("planned", "submitted", "pending")
    return waits and row.attempts <= 1 and row.exit is None


def _process_alive(attempt: AttemptDir) -> tuple[object, float]:
    """Return the attempt's process, and the seconds from the attempt's start to its last sign of
    life; 0 if it has not begun.

    A worker on this machine has no heartbeat: its metrics are its sign of life.
    """
    job = read_json(attempt.job) or {}
    times = []
    for sign in (attempt.heartbeat, attempt.metrics):
        with suppress(FileNotFoundError):
            times.append(sign.stat().st_mtime)
    last = max(times, default=0.0)
    process = tuple(job.get(key) for key in ("host", "pid", "birth")) if "pid" in job else attempt
    return process, max(0.0, last - float(job.get("started", last)))


def remaining_bill(rows: Iterable[PlanRow], measured: Measured | None = None) -> Bill:
    """Return the cost of these cells from the train steps they have reached to their end."""
    return _sum_of(
        cost(row.cell, measured).scaled(
            1.0 if _has_not_begun(row) else _share_left(row.cell, row.directory)
        )
        for row in rows
        if row.cell is not None
    )


def _share_left(cell: Cell, directory: CellDir) -> float:
    step = max((latest_metrics(a.path).step for a in directory.attempts()), default=0)
    return max(0.0, 1 - step / cell.settings.num_train_steps)


def _rounded(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}"


def _modelled(cell: Cell) -> Cost:
    machine = _machine(cell)
    if machine is None:
        return Cost(basis="unknown")
    size, peak = machine
    low, high = ASSUMED_UTILISATION
    used = cell.resources.num_nodes * cell.resources.gpus_per_node
    exact = _flops(cell, size) / peak / 3600 * (cell.resources.reserved_gpus / used if used else 1)
    # The geometric mean of the two assumed utilisations.
    return Cost(exact / math.sqrt(low * high), low=exact / high, high=exact / low)


def _flops(cell: Cell, size: float) -> float:
    s = cell.settings
    prompt = min(ASSUMED_PROMPT_TOKENS, s.data.max_prompt_tokens)
    tokens = prompt + ASSUMED_RESPONSE_SHARE * s.rollout.max_response_tokens
    per_token = (2 + 2 + (0 if s.kl.estimator == "none" else 2) + 6) * size
    rollout_batches = s.num_train_steps / s.batch.num_minibatches
    return rollout_batches * s.batch.num_prompts * s.rollout.group_size * tokens * per_token


class EvaluationBill(NamedTuple):
    """The cost of evaluation jobs under the model: 2N FLOPs a token of prompt and response."""

    gpu_hours: float
    low: float
    high: float
    uncounted: tuple[str, ...]
    """Tasks whose number of items no file declares."""

    def __str__(self) -> str:
        hours = f"{_rounded(self.gpu_hours)} GPU-hours"
        span = f" ({_rounded(self.low)} to {_rounded(self.high)})"
        without = f", without {', '.join(self.uncounted)} (items not known)"
        return f"{hours}{span} by the cost model{without if self.uncounted else ''}"


def evaluation_bill(cells: Iterable[Cell], evaluation: EvaluationSpec) -> EvaluationBill | None:
    """Return the cost of scoring the checkpoints of cells; None where nothing can be priced."""
    low, high = ASSUMED_UTILISATION
    hours, uncounted = 0.0, dict[str, None]()
    for cell in cells:
        machine = _machine(cell) if cell.scale == "full" else None
        if machine is None:
            continue
        size, peak = machine
        prompt = min(ASSUMED_PROMPT_TOKENS, cell.settings.data.max_prompt_tokens)
        tokens = prompt + ASSUMED_RESPONSE_SHARE * evaluation.sampling.max_response_tokens
        is_all = evaluation.checkpoints == "all"
        checkpoints = saves(cell.cadence, cell.settings.num_train_steps) if is_all else 1
        for task in tasks_of(cell, evaluation):
            items = plugins.task_items(task.name)
            items = task.max_items if items is None else min(items, task.max_items or items)
            if items is None:
                uncounted[task.name] = None
                continue
            responses = items * task.repeats * len(seeds_of(evaluation)) * checkpoints
            hours += responses * tokens * 2 * size / peak / 3600
    if not hours:
        return None
    mean = math.sqrt(low * high)
    return EvaluationBill(hours / mean, hours / high, hours / low, tuple(uncounted))


def _machine(cell: Cell) -> tuple[float, float] | None:
    """Return the parameters of the model and the FLOP/s of the GPU; None if one is not known."""
    size = declared_parameters(cell.settings.model)
    gpu = cell.resources.gpu.lower()
    peak = next((flops for name, flops in PEAK_FLOPS.items() if gpu.startswith(name)), None)
    return None if size is None or peak is None else (size, peak)


def _means(values: Mapping[CellShape, list[float]]) -> dict[CellShape, float]:
    return {shape: sum(costs) / len(costs) for shape, costs in values.items()}


BUSY: frozenset[str] = frozenset({"submitted", "pending", "running", "unknown"})


class EvaluationSpending(NamedTuple):
    """The GPU-hours that evaluation jobs have used."""

    used: float = 0.0
    """GPU-hours of evaluation jobs that ended."""
    each: float = 0.0
    """Expected GPU-hours of one more evaluation job; 0 before the first one has ended."""
    cells: int = 0
    """Cells that have a score."""


NO_EVALUATIONS = EvaluationSpending()


def evaluation_spending(folder: RunFolder) -> EvaluationSpending:
    """Return the spending of all evaluation jobs of an experiment that have ended."""
    hours, cells = [], set()
    for place in [*folder.path.glob("slurm/*/ends"), *folder.path.glob("ray/*/ends")]:
        elements = submissions.elements(folder, place.parent.name)
        for path in place.glob("*.json"):
            with suppress(RunFolderError):  # the file is cut: it has no hours
                end = submissions.read_end(path)
                hours += [end.gpu_hours] if end and end.gpu_hours else []
            index, _, state = path.stem.partition(".")
            if state == "succeeded" and index.isdigit() and int(index) < len(elements):
                cells.add(elements[int(index)][0])
    return EvaluationSpending(sum(hours), sum(hours) / max(1, len(hours)), len(cells))


class Afforded(NamedTuple):
    """The cells that a budget covers and those that it does not cover, in the order of the spec."""

    paid: tuple[Cell, ...]
    unpaid: tuple[Cell, ...]
    sentence: str
    """The part of the budget that is used, and what remains of it or of the cells."""


def used_gpu_hours(rows: Iterable[PlanRow]) -> float:
    """Return the GPU-hours that all attempts of these cells have used.

    An attempt without an exit record counts until its last heartbeat.
    """
    return sum(
        _hours(attempt, row.cell)
        for row in rows
        if row.cell is not None and _gpus(row.cell)
        for attempt in row.directory.attempts()
    )


def remaining_gpu_hours(cell: Cell, directory: CellDir, measured: Measured | None) -> float:
    """Return the GPU-hours that a cell needs from its last reported step to its end.

    NaN if its size is unknown.
    """
    return gpu_hours(cell, measured) * _share_left(cell, directory)


def afford(
    wanted: Plan,
    budget: float,
    whole: Plan,
    scored: EvaluationSpending = NO_EVALUATIONS,
    pilots: Mapping[CellShape, PilotCost] | None = None,
) -> Afforded:
    """Return which cells of `wanted` fit into a budget for the whole experiment.

    The hours that are used, and those of submitted cells, are subtracted first. A cell of unknown
    size is never paid for: its size would be a guess.

    wanted: cells to train or to try again; rows at work or over are left out. scored:
    evaluations that have ended; each cell is expected to need another like them. pilots: what a
    pilot measured.
    """
    measured = measure(whole.rows, pilots)
    spent = used_gpu_hours(whole.rows) + scored.used
    committed = _sum(
        remaining_gpu_hours(row.cell, row.directory, measured)
        for row in whole.rows
        if row.cell is not None and row.state in BUSY
    )
    trained = sum(row.state in BUSY or row.state == "succeeded" for row in whole.rows)
    committed += scored.each * max(0, trained - scored.cells)
    room = budget - spent - committed
    paid: list[Cell] = []
    unpaid: list[Cell] = []
    more: list[float] = []
    for row in wanted.rows:
        if row.cell is None or row.state in BUSY or row.state in ("succeeded", "cancelled"):
            continue
        hours = remaining_gpu_hours(row.cell, row.directory, measured) + scored.each
        if not unpaid and hours <= room:
            paid.append(row.cell)
            room -= hours
        else:
            unpaid.append(row.cell)
            more.append(hours)
    by_jobs = f" ({scored.used:.3g} by evaluations)" if scored.used else ""
    known = f"{spent:.3g} used{by_jobs}, {committed:.3g} with the scheduler, "
    known += f"{budget - spent - committed - room:.3g} to be submitted"
    if not unpaid:
        return Afforded(
            tuple(paid), (), f"budget of {budget:g} GPU-hours: {known}, {room:.3g} left"
        )
    wants = "an unknown number of" if math.isnan(sum(more)) else f"{sum(more):.3g}"
    sentence = (
        f"the budget of {budget:g} GPU-hours is reached: {known}; {_cells(len(unpaid))} left, "
        f"which want{'s' if len(unpaid) == 1 else ''} {wants} GPU-hours more"
    )
    return Afforded(tuple(paid), tuple(unpaid), sentence)


def _sum(hours: Iterable[float]) -> float:
    """Return the sum of hours. A cell of unknown size counts as 0."""
    return sum((each for each in hours if not math.isnan(each)), start=0.0)


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count} cells are"


def _gpus(cell: Cell) -> int:
    return cell.resources.reserved_gpus if cell.scale == "full" else 0


def _hours(attempt: AttemptDir, cell: Cell) -> float:
    ended = attempt.known_exit()
    if ended is not None:
        return ended.gpu_hours
    return _process_alive(attempt)[1] * _gpus(cell) / 3600
