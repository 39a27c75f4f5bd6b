"""orch verify: the same spec, twice."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.analysis.repetition import Bounds, compare_runs
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, print_table, say
from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline import stages, training
from orchestrator.pipeline.messages import counted
from orchestrator.pipeline.run import plan_of
from orchestrator.rundir import RunFolder

if TYPE_CHECKING:
    from orchestrator.records import Cell, Record
    from orchestrator.runs.experiment import Experiment


@click.command(short_help="Run cells twice, and compare curves, checkpoints and scores.")
@common.cells
@click.option(
    "--cells",
    "count",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="How many of the chosen cells to run, spread evenly over them.",
)
@click.option(
    "--keep", is_flag=True, help="Keep both folders. They are always kept if the runs differ."
)
@click.option(
    "--first-step",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="If equal bytes are not promised: the relative difference that is allowed at the "
    "first step.",
)
@click.option(
    "--scores",
    type=click.FloatRange(0),
    default=3.0,
    show_default=True,
    help="If equal bytes are not promised: the difference of two scores that is allowed, in "
    "standard errors.",
)
@common.as_json
def command(
    choice: CellChoice,
    count: int,
    keep: bool,
    first_step: float,
    scores: float,
    as_json: bool,
) -> int:
    """Train and evaluate chosen cells twice in fresh folders, and compare the results.

    The embedded trainer promises equal bytes: curves (without wall-clock times), checkpoints,
    scores and responses. Libraries do not promise this: the bounds below apply to their first
    step and their final scores. On a cluster both runs are jobs. Exit code 1: a promise is
    broken.
    """
    selected = choice.chosen()
    cells = spread(selected.cells, count)
    home = _fresh_folder(Path(selected.spec.site.runs_dir))
    say(f"{counted(len(cells), 'cell')}, each run twice below {home}")
    records: list[list[Record]] = []
    for name in ("first", "second"):
        runs = _run(apart(selected, cells, home / name))
        if runs is None:
            say(f"stopped; what was run is in {home}")
            return 130
        records.append(runs)
    rows = compare_runs(records[0], records[1], Bounds(first_step, scores))
    kept = all(row.is_kept for row in rows)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(("cell", "what", "agreement", "compared"), rows)
    if kept and not keep:
        shutil.rmtree(home)
    else:
        say(f"both runs are in {home}")
    broken = sum(not row.is_kept for row in rows)
    say("same spec, same numbers" if kept else f"{broken} of {len(rows)} comparisons do not hold")
    return int(not kept)


def spread(cells: "Sequence[Cell]", count: int) -> "tuple[Cell, ...]":
    """Return so many of the cells, evenly spaced, the first one among them."""
    if count >= len(cells):
        return tuple(cells)
    return tuple(cells[index * len(cells) // count] for index in range(count))


def apart(experiment: "Experiment", cells: "tuple[Cell, ...]", runs_dir: Path) -> "Experiment":
    """Return these cells as an experiment of a runs folder of its own, without baselines."""
    from dataclasses import replace

    site = experiment.spec.site.model_copy(update={"runs_dir": str(runs_dir)})
    evaluation = experiment.spec.evaluation.model_copy(update={"baselines": ()})
    spec = experiment.spec.model_copy(update={"site": site, "evaluation": evaluation})
    folder = RunFolder.of(runs_dir, spec.name, experiment.scale)
    return replace(experiment, spec=spec, cells=cells, declared=(), folder=folder)


def _fresh_folder(runs_dir: Path) -> Path:
    import tempfile

    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="verify-", dir=runs_dir)).absolute()
    except OSError as error:
        raise EnvironmentFault(
            f"{runs_dir}: {error.strerror}; name a folder for both runs with site.runs_dir=..."
        ) from error


def _run(experiment: "Experiment") -> "list[Record] | None":
    """Train and evaluate; return the records, or None if it was stopped or jobs are still open."""
    plan = plan_of(experiment, experiment, ())
    if experiment.where == "slurm":
        code, over = training.on_cluster(experiment, experiment, plan, wait=True, budget=None)
    else:
        code, over = training.on_this_machine(experiment, plan), True
    if code == 130 or not over:
        return None
    records = stages.collect_records(experiment)
    stages.print_faults(records)
    wants = experiment.spec.evaluation.tasks
    if wants and (experiment.where != "slurm" or experiment.scale == "micro"):
        stages.evaluate_missing(experiment, records)
    return records
