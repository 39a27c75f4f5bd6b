"""The price of a cell in hours, and where it comes from; what was used.

A price is measured where cells of this shape have run, or a pilot of them. Else it is what
`resources.hours` declares, else an estimate. On GPUs that is FLOPs / (peak x utilisation), with,
per token of prompt and response,

    2N to generate + 2N for the rollout policy's log-probabilities
    + 2N for the reference policy's, where there is a KL term + 6N to train

and 2N a token of the responses to validation prompts, for a model of N parameters. Responses are
assumed to fill half of max_response_tokens, prompts to have 200 tokens. Peaks are the vendor's for
dense bf16. The utilisation of a whole RL loop, waiting included, is ASSUMED to be 0.2, and may be
0.1 or 0.4. Hours are those of a GPU. Cells without a GPU, embedded ones among them, are counted in
hours of one core.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Literal, NamedTuple

from orchestrator import plugins
from orchestrator.data.source import num_validation
from orchestrator.errors import RunFolderError
from orchestrator.evaluate.survey import seeds_of, tasks_of
from orchestrator.files import read_json
from orchestrator.launch.slurm import submissions
from orchestrator.library.memory import saves
from orchestrator.library.model_size import declared_parameters
from orchestrator.records import Cell, EvaluationSpec
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.runs.plan import PlanRow
from orchestrator.runs.watch import latest_metrics

ASSUMED_UTILISATION = 0.2
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
CPU_SECONDS_PER_UPDATE = 0.0072
"""One train step of the embedded trainer with its share of start and evaluations, on one core: 49
CPU seconds over the 6,800 train steps of 68 cells of the comedy grid, with the C kernels and six
evaluations a cell. Where there is no compiler, torch takes several times as long."""

Source = Literal["measured", "declared", "estimated"]
CellShape = tuple[object, ...]


class Price(NamedTuple):
    """The hours of a cell from its first train step to its last: of a GPU, or of a core."""

    hours: float
    source: Source


class StepRate(NamedTuple):
    """What was measured of the cells of one shape."""

    step_hours: float
    start_hours: float = 0.0
    """Beside the train steps, where it was measured apart."""
    with_validation: bool = True
    """False: of a pilot, which validates at its start and its end alone."""


_UNSIZED = "of unknown size, left out"


class Total(NamedTuple):
    """The prices of several cells together."""

    gpu_hours: float
    cpu_hours: float
    cells: Mapping[str, int]
    """The numbers of cells by the source of their price; `unknown` ones count as nothing."""

    def __str__(self) -> str:
        if self.cells.keys() == {_UNSIZED}:
            return f"unknown, as is the size of {self.cells[_UNSIZED]}"
        parts = [f"{_rounded(self.gpu_hours)} GPU-hours"] if self.gpu_hours else []
        if self.cpu_hours or not parts:
            parts.append(f"{_rounded(3600 * self.cpu_hours)} CPU-seconds")
        how = ", ".join(f"{count} {source}" for source, count in self.cells.items())
        return f"{' + '.join(parts)} [{how}]" if how else parts[0]


def cost_shape(cell: Cell) -> CellShape:
    """Return the settings and the layout that decide the price of a train step."""
    s = cell.settings
    return (
        s.backend.name,
        s.backend.version,
        s.model.path,
        s.data.path,
        s.batch,
        s.rollout.group_size,
        s.rollout.max_response_tokens,
        s.kl.estimator == "none",
        s.lora,
        cell.resources,
    )


def measured_rates(rows: Iterable[PlanRow]) -> dict[CellShape, StepRate]:
    """Return the rate of each shape that has run: the mean of its cells.

    Cells that collapsed or were retried are left out: their hours are not those of their train
    steps.
    """
    rates: dict[CellShape, list[float]] = {}
    for row in rows:
        if row.cell is None or row.exit is None or row.exit.state != "succeeded":
            continue
        if row.attempts != 1 or (row.exit.outcome and row.exit.outcome.kind == "collapsed"):
            continue
        hours = row.exit.gpu_hours if _gpus(row.cell) else row.exit.cpu_seconds / 3600
        rates.setdefault(cost_shape(row.cell), []).append(hours / row.cell.settings.num_train_steps)
    return {shape: StepRate(sum(each) / len(each)) for shape, each in rates.items()}


def price(cell: Cell, rates: Mapping[CellShape, StepRate] | None = None) -> Price | None:
    """Return the price of a cell; None if the size of its model or its GPU is not known."""
    steps, resources = cell.settings.num_train_steps, cell.resources
    if rates and (rate := rates.get(cost_shape(cell))) is not None:
        more = 0.0
        if not rate.with_validation and (responses := validation_responses(cell)):
            beyond = responses - 2 * (num_validation(cell.settings.data) or 0)
            more = _estimated(cell, 2.0 * max(0, beyond)) or 0.0
        return Price(rate.start_hours + rate.step_hours * steps + more, "measured")
    if cell.scale == "micro":
        return Price(CPU_SECONDS_PER_UPDATE * steps / 3600, "estimated")
    if resources.hours is not None:
        return Price(resources.hours * max(1, resources.reserved_gpus), "declared")
    s = cell.settings
    rollouts = s.num_train_steps / s.batch.num_minibatches * s.batch.num_prompts
    per_token = 2 + 2 + (0 if s.kl.estimator == "none" else 2) + 6
    trained = _estimated(cell, rollouts * s.rollout.group_size * per_token)
    validated = _estimated(cell, 2.0 * (validation_responses(cell) or 0))
    return None if trained is None else Price(trained + (validated or 0.0), "estimated")


def _estimated(cell: Cell, passes: float, longest: int | None = None) -> float | None:
    """Return the GPU-hours of `passes` times N FLOPs for each token of a prompt and a response.

    longest: the most tokens of a response; None: those of a rollout.
    """
    s, resources = cell.settings, cell.resources
    size, gpu = declared_parameters(s.model), resources.gpu.lower()
    peak = next((flops for name, flops in PEAK_FLOPS.items() if gpu.startswith(name)), None)
    used = resources.num_nodes * resources.gpus_per_node
    if size is None or peak is None or not used:
        return None
    prompt = min(ASSUMED_PROMPT_TOKENS, s.data.max_prompt_tokens)
    longest = longest or s.rollout.max_response_tokens
    tokens = prompt + ASSUMED_RESPONSE_SHARE * longest
    hours = passes * tokens * size / (peak * ASSUMED_UTILISATION) / 3600
    return hours * resources.reserved_gpus / used


def validation_responses(cell: Cell) -> int | None:
    """Return the responses of the library's own validation; None for prompts of unknown number."""
    prompts, steps = num_validation(cell.settings.data), cell.settings.num_train_steps
    times = steps // (cell.cadence.evaluate_every_steps or steps) + 1
    return None if prompts is None else prompts * times


SCORING_START_SECONDS, SCORING_SECONDS = 16.0, 0.85
"""CPU seconds to score, copy to MLflow and report a rehearsal: once, and for each cell. Measured on
the 372 cells of the comedy grid (330 beside training)."""


def scoring_line(cells: Iterable[Cell], evaluation: EvaluationSpec) -> str:
    """Return what scoring the trained cells takes; empty where nothing is scored.

    2N FLOPs for each token of a prompt and a response, at the utilisation of training.
    """
    small, hours, unknown = 0, 0.0, dict[str, None]()
    for cell in cells:
        tasks = tasks_of(cell, evaluation)
        small += bool(tasks) and cell.scale == "micro"
        checkpoints = saves(cell.cadence, cell.settings.num_train_steps)
        draws = len(seeds_of(evaluation)) * (checkpoints if evaluation.checkpoints == "all" else 1)
        for task in tasks if cell.scale == "full" else ():
            declared = task_items(task.name)
            items = min(filter(None, (declared, task.max_items)), default=0)
            passes = 2.0 * items * task.repeats * draws
            one = _estimated(cell, passes, evaluation.sampling.max_response_tokens)
            if one and items:
                hours += one
            else:
                unknown[task.name] = None
    parts = []
    if small:
        seconds = SCORING_START_SECONDS + SCORING_SECONDS * small
        parts.append(f"about {_rounded(seconds)} CPU-seconds with MLflow and the report")
    if hours:
        parts.append(f"{_rounded(hours)} GPU-hours estimated")
    if unknown:
        parts.append(f"without {', '.join(unknown)}, whose items or model are not counted")
    return ", ".join(parts)


@cache
def task_items(name: str) -> int | None:
    """Return the items that a task's file declares, or None for a task that declares none."""
    for folder in (plugins.TASKS_FOLDER, *plugins.task_folders()):
        for path in folder.rglob(f"{name}.yaml"):
            if found := _NUM_ITEMS.search(path.read_text(encoding="utf-8")):
                return int(found[1])
    return None


_NUM_ITEMS = re.compile(r"^\s*num_items: (\d+)", re.MULTILINE)


def total(cells: Iterable[Cell], rates: Mapping[CellShape, StepRate] | None = None) -> Total:
    """Return the price of whole cells together."""
    return _total((cell, price(cell, rates), 1.0) for cell in cells)


def total_left(rows: Iterable[PlanRow], rates: Mapping[CellShape, StepRate] | None = None) -> Total:
    """Return the price of these cells from the train steps they have reached to their end."""
    return _total(
        (
            row.cell,
            price(row.cell, rates),
            1.0 if _has_not_begun(row) else _share_left(row.cell, row.directory),
        )
        for row in rows
        if row.cell is not None
    )


def _total(priced: Iterable[tuple[Cell, Price | None, float]]) -> Total:
    hours = {True: 0.0, False: 0.0}
    sources: Counter[str] = Counter()
    for cell, one, share in priced:
        sources[_UNSIZED if one is None else one.source] += 1
        hours[_gpus(cell) > 0] += 0.0 if one is None else one.hours * share
    return Total(hours[True], hours[False], dict(sources))


def _share_left(cell: Cell, directory: CellDir) -> float:
    step = max((latest_metrics(a.path).step for a in directory.attempts()), default=0)
    return max(0.0, 1 - step / cell.settings.num_train_steps)


def _gpus(cell: Cell) -> int:
    return cell.resources.reserved_gpus if cell.scale == "full" else 0


def _rounded(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}"


# ---------------------------------------------------------------- what was used


def used(rows: Iterable[PlanRow]) -> tuple[float, float]:
    """Return the GPU-hours and the CPU seconds that all attempts of these cells have used.

    An attempt without an exit record counts in GPU-hours until its last heartbeat.
    """
    gpu_hours = cpu_seconds = 0.0
    for row in rows:
        if row.cell is None or _has_not_begun(row):
            continue
        for attempt in row.directory.attempts():
            if (end := attempt.known_exit()) is not None:
                gpu_hours += end.gpu_hours
                cpu_seconds += end.cpu_seconds
            else:
                gpu_hours += _gpus(row.cell) * _seconds_alive(attempt) / 3600
    return gpu_hours, cpu_seconds


def evaluation_hours(folder: RunFolder) -> float:
    """Return the GPU-hours of all evaluation jobs of an experiment that have ended."""
    hours = 0.0
    for path in [*folder.path.glob("slurm/*/ends/*.json"), *folder.path.glob("ray/*/ends/*.json")]:
        with suppress(RunFolderError):  # the file is cut: it has no hours
            end = submissions.read_end(path)
            hours += end.gpu_hours if end else 0.0
    return hours


def _has_not_begun(row: PlanRow) -> bool:
    """Return True if the state alone shows that no attempt of the cell has begun."""
    waits = row.state in ("planned", "submitted", "pending")
    return waits and row.attempts <= 1 and row.exit is None


def _seconds_alive(attempt: AttemptDir) -> float:
    """Return the seconds from the attempt's start to its last sign of life; 0 if it has not begun.

    A worker on this machine has no heartbeat: its metrics are its sign of life.
    """
    times = []
    for sign in (attempt.heartbeat, attempt.metrics):
        with suppress(FileNotFoundError):
            times.append(sign.stat().st_mtime)
    last = max(times, default=0.0)
    started = float((read_json(attempt.job) or {}).get("started", last))
    return max(0.0, last - started)
