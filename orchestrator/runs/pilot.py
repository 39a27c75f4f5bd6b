"""A pilot: a short cell of each library and shape on the real nodes, and what it measured.

It trains two rollout batches and scores a few items, in a folder beside the experiment's
(NAME.pilot). None of it is a result: no report, claim or MLflow run reads that folder. Its cells
have ids of their own, since they train fewer steps.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from orchestrator.errors import SelectionError
from orchestrator.identity import fingerprint
from orchestrator.launch.disk_use import shown
from orchestrator.library.neighbour import library_name
from orchestrator.records import Cell, EvaluationSpec, Record
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.cost import CellShape, StepRate, cost_shape, measured_rates
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import PlanRow
from orchestrator.runs.watch import duration
from orchestrator.settings import Cadence

ROLLOUT_BATCHES = 2
"""The second one is timed: the first has the start of engines and compilation in it."""
ITEMS = 8
"""Items of each task that are scored, at most."""


class _Timed(NamedTuple):
    """The seconds of one trained cell."""

    start_seconds: float
    """From the launch to the first train step, and from the last one to the end."""
    step_seconds: float
    cores: float
    """CPU seconds in a second."""


def pilot_of(chosen: Experiment) -> Experiment:
    """Return the pilot of chosen cells: the first of each library, shape and layout.

    Raise SelectionError at micro scale, where no library runs.
    """
    if chosen.scale == "micro":
        raise SelectionError(
            "--pilot measures libraries on their nodes, and without a cluster the grid is "
            "rehearsed by the embedded trainer: choose a site with a cluster (site=...)"
        )
    first: dict[CellShape, Cell] = {}
    for cell in chosen.cells:
        if cell.scale == "full":
            first.setdefault(cost_shape(cell), cell)
    cells = tuple(map(_short, first.values()))
    # what a command says names the pilot's commands: `orch retry SPEC --pilot`
    own = {
        "evaluation": _small(chosen.spec.evaluation),
        "source": f"{chosen.spec.source or chosen.spec.name} --pilot",
    }
    spec = chosen.spec.model_copy(update=own)
    folder = pilot_folder(chosen.folder)
    return replace(chosen, spec=spec, declared=cells, cells=cells, folder=folder)


def pilot_folder(folder: RunFolder) -> RunFolder:
    """Return the folder of an experiment's pilot, on disk or not."""
    return RunFolder(folder.path.with_name(f"{folder.experiment}.pilot"))


def _short(cell: Cell) -> Cell:
    batches = cell.settings.batch.num_minibatches
    steps = min(cell.settings.num_train_steps, ROLLOUT_BATCHES * batches)
    settings = cell.settings.but(num_train_steps=steps)
    return cell.but(id=fingerprint(settings), settings=settings, cadence=Cadence(), studies=())


def _small(evaluation: EvaluationSpec) -> EvaluationSpec:
    tasks = tuple(
        task.model_copy(update={"max_items": min(ITEMS, task.max_items or ITEMS)})
        for task in evaluation.tasks
    )
    changes = {"tasks": tasks, "baselines": (), "seeds": evaluation.seeds[:1], "divergence": None}
    return evaluation.model_copy(update=changes)


def pilot_rates(folder: RunFolder) -> dict[CellShape, StepRate]:
    """Return what the pilot of an experiment measured, by the shape of its cells; {} without one.

    folder: the experiment's. Only cells that succeeded in one attempt count.
    """
    rates = {}
    for record, timed in _measured(pilot_folder(folder)):
        units = (record.cell.resources.reserved_gpus or timed.cores) / 3600
        shape = cost_shape(record.cell)
        rates[shape] = StepRate(timed.step_seconds * units, timed.start_seconds * units, False)
    return rates


def known_rates(rows: Iterable[PlanRow], folder: RunFolder) -> dict[CellShape, StepRate]:
    """Return the rate of each shape that has run: the mean of its cells, else its pilot's."""
    return pilot_rates(folder) | measured_rates(rows)


def pilot_lines(folder: RunFolder) -> list[str]:
    """Return what a pilot measured, a sentence a cell. folder: the pilot's own."""
    return [_sentence(record, cost) for record, cost in _measured(folder)]


def _measured(folder: RunFolder) -> list[tuple[Record, _Timed]]:
    if not folder.cells_path.is_dir():
        return []
    records = collect([directory.read_cell() for directory in folder.cells()], folder)
    costs = ((record, _cost(record)) for record in records if record.state == "succeeded")
    return [(record, cost) for record, cost in costs if cost is not None]


def _cost(record: Record) -> _Timed | None:
    """Return the seconds of a trained cell; None for one that was retried or logged one step."""
    first, last = record.metrics[:1], record.metrics[-1:]
    ended = record.attempts[-1] if len(record.attempts) == 1 else None
    if ended is None or not first or first[0].step >= last[0].step:
        return None
    step = (last[0].time - first[0].time) / (last[0].step - first[0].step)
    whole = ended.ended - ended.started
    start = max(0.0, whole - step * record.cell.settings.num_train_steps)
    return _Timed(start, step, ended.cpu_seconds / whole if whole else 0.0)


def _sentence(record: Record, cost: _Timed) -> str:
    cell = record.cell
    parts = [
        f"{cost.step_seconds:.3g} s a train step",
        f"{duration(cost.start_seconds)} to start and end",
    ]
    if record.checkpoints:
        files = (p for p in record.checkpoints[-1].path.rglob("*") if p.is_file())
        parts.append(f"{shown(sum(path.stat().st_size for path in files))} a checkpoint")
    scored = len(list((record.directory / "eval").glob("*.json")))
    parts.append("scored" if scored else "not scored")
    gpus = cell.resources.gpus_per_node
    nodes = f" on {cell.resources.num_nodes} x {gpus} GPUs" if gpus else ""
    library = library_name(cell.settings.backend)
    return f"{library} {cell.settings.model.name}{nodes}: {', '.join(parts)}"
