"""Forecast of a spec at full scale: find its faults without running it."""

import math
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.data.prepared import missing
from orchestrator.data.recipe import PLAN_FILE
from orchestrator.errors import OrchError
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.cost import cost
from orchestrator.spec.site_options import SlurmOptions

_ASK_SECONDS = 30


class LibraryRefusal(NamedTuple):
    """One reason for which a library cannot run some cells."""

    sentence: str
    slugs: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.slugs) - 3} more" if len(self.slugs) > 3 else ""
        cells = "cell" if len(self.slugs) == 1 else "cells"
        return f"{self.sentence} ({len(self.slugs)} {cells}: {', '.join(self.slugs[:3])}{more})"


def library_refusals(cells: Sequence[Cell], folder: RunFolder) -> list[LibraryRefusal]:
    """Return the reasons for which libraries cannot express cells, with the cells of each."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        home = folder.cell(cell)
        place = home.first_paths()
        try:
            plugins.load(cell.settings.backend.name).translate(cell, place)
        except OrchError as error:
            found.setdefault(str(error), []).append(cell.slug)
    return [LibraryRefusal(sentence, tuple(slugs)) for sentence, slugs in found.items()]


def unprepared_cells(cells: Sequence[Cell], folder: RunFolder) -> list[LibraryRefusal]:
    """Return the cells whose prompts are not prepared, grouped by what to do."""
    known: dict[str, str | None] = {}
    found: dict[str, list[str]] = {}
    for cell in cells:
        home = folder.cell(cell)
        place = home.first_paths()
        try:
            plan = plugins.load(cell.settings.backend.name).translate(cell, place)
        except OrchError:
            continue  # it is among the refusals
        needs = plan.files.get(PLAN_FILE, "")
        if needs not in known:
            known[needs] = missing(plan)
        if told := known[needs]:
            found.setdefault(told, []).append(cell.slug)
    return [LibraryRefusal(sentence, tuple(slugs)) for sentence, slugs in found.items()]


def time_limit_warnings(cells: Sequence[Cell], options: SlurmOptions) -> Iterator[str]:
    """Yield a sentence on cells that take longer than one job's time limit.

    Such cells need a checkpoint to go on from.
    """
    limit, most = options.time_limit_hours, options.max_requeues + 1
    long: dict[int, list[Cell]] = {}
    for cell in cells:
        gpus = cell.resources.num_nodes * cell.resources.gpus_per_node
        hours = cell.resources.hours or (cost(cell).gpu_hours / gpus if gpus else 0.0)
        jobs = math.ceil(hours / limit) if hours == hours else 0  # NaN: unknown
        if jobs > 1:
            long.setdefault(jobs, []).append(cell)
    for jobs, held in sorted(long.items()):
        told = f"{len(held)} cells need about {jobs} jobs of {limit:g} h each ({held[0].slug}"
        told += ", ...)" if len(held) > 1 else ")"
        if jobs > most:
            yield f"{told}: more than site.options.max_requeues allows ({options.max_requeues})"
        if any(cell.cadence.checkpoint_every_steps is None for cell in held):
            yield (
                f"{told}, and write no checkpoint before their last step: they would begin anew "
                "each time. Set cadence.checkpoint_every_steps"
            )


def scheduler_verdicts(cells: Sequence[Cell], options: SlurmOptions) -> Iterator[tuple[str, bool]]:
    """Yield the scheduler's answer to a job of each shape: (sentence, True if it accepts the job).

    The jobs are asked for with --test-only, so nothing is submitted.
    """
    from orchestrator.launch.slurm import script

    shapes: dict[script.ArrayResources, int] = {}
    for cell in cells:
        shape = script.array_resources(cell)
        shapes[shape] = shapes.get(shape, 0) + 1
    for shape, count in shapes.items():
        what = f"{count} cells of {shape.num_nodes} x {shape.gpus_per_node} GPUs"
        yield _asked(
            script.text(script.ArrayJob("orch-rehearse", 1, shape), options), what, options
        )


def _asked(text: str, what: str, options: SlurmOptions) -> tuple[str, bool]:
    from orchestrator.launch.slurm.messages import refusal_of

    with tempfile.TemporaryDirectory() as folder:
        try:
            argv = ["sbatch", "--test-only", f"--chdir={folder}"]
            done = subprocess.run(
                argv,
                input=text,
                capture_output=True,
                text=True,
                check=False,
                timeout=_ASK_SECONDS,
                cwd=folder,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{what}: the scheduler could not be asked ({error})", False
    if done.returncode:
        return f"{what}: {refusal_of(done.stderr, options.model_dump(mode='json')).sentence}", False
    start = re.search(r"to start at (\S+)", done.stderr)
    return f"{what}: the scheduler would take them" + (
        f", the first at {start[1]} if submitted now" if start else ""
    ), True
