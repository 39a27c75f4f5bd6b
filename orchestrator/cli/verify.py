"""orch verify: the same spec, twice."""

import shutil
from pathlib import Path

import click

from orchestrator.analysis.repetition import Bounds, compare_runs
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, print_table, say
from orchestrator.pipeline.repetition import fresh_folder, run_twice


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
    home = fresh_folder(Path(selected.spec.site.runs_dir))
    runs = run_twice(selected, count, home)
    if runs is None:
        say(f"stopped; what was run is in {home}")
        return 130
    rows = compare_runs(*runs, Bounds(first_step, scores))
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
