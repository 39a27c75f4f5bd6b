"""Run cells of an experiment once more, in a folder of their own: what `orch verify` compares."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline import stages, training
from orchestrator.pipeline.messages import counted, say
from orchestrator.records import Cell, Record
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import plan as plan_cells


def fresh_folder(runs_dir: Path) -> Path:
    """Return a new folder for runs. Raise EnvironmentFault if none can be made."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="verify-", dir=runs_dir)).absolute()
    except OSError as error:
        raise EnvironmentFault(
            f"{runs_dir}: {error.strerror}; name a folder for both runs with site.runs_dir=..."
        ) from error


def run_twice(
    experiment: Experiment, count: int, home: Path
) -> tuple[list[Record], list[Record]] | None:
    """Train and evaluate some cells twice, in two folders of `home`. Return the records of both
    runs, or None if it was stopped or jobs are still open.

    count: how many cells, evenly spaced.
    """
    cells = spread(experiment.cells, count)
    say(f"{counted(len(cells), 'cell')}, each run twice below {home}")
    first = _run_apart(_apart(experiment, cells, home / "first"))
    second = None if first is None else _run_apart(_apart(experiment, cells, home / "second"))
    return None if first is None or second is None else (first, second)


def spread(cells: Sequence[Cell], count: int) -> tuple[Cell, ...]:
    """Return so many of the cells, evenly spaced, the first one among them."""
    if count >= len(cells):
        return tuple(cells)
    return tuple(cells[index * len(cells) // count] for index in range(count))


def _apart(experiment: Experiment, cells: tuple[Cell, ...], runs_dir: Path) -> Experiment:
    """Return these cells as an experiment of a runs folder of its own, without baselines."""
    site = experiment.spec.site.model_copy(update={"runs_dir": str(runs_dir)})
    evaluation = experiment.spec.evaluation.model_copy(update={"baselines": ()})
    spec = experiment.spec.model_copy(update={"site": site, "evaluation": evaluation})
    folder = RunFolder.of(runs_dir, spec.name, experiment.scale)
    return replace(experiment, spec=spec, cells=cells, declared=(), folder=folder)


def _run_apart(experiment: Experiment) -> list[Record] | None:
    """Train and evaluate; return the records, or None if it was stopped or jobs are still open."""
    plan = plan_cells(experiment.cells, experiment.folder)
    code, over = training.train(experiment, experiment, plan, wait=True)
    if code == 130 or not over:
        return None
    records = stages.collect_records(experiment)
    stages.print_faults(records)
    wants = experiment.spec.evaluation.tasks
    if wants and (experiment.where != "slurm" or experiment.scale == "micro"):
        stages.evaluate_missing(experiment, records)
    return records
