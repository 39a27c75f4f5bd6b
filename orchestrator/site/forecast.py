"""Forecast of a spec at full scale: find its faults without running it."""

import math
from collections.abc import Iterator, Sequence

from orchestrator.data.prepared import missing
from orchestrator.errors import OrchError
from orchestrator.launch.check import translations
from orchestrator.library.prompt_recipe import PLAN_FILE
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.cost import price
from orchestrator.spec.sentences import counted, few
from orchestrator.spec.site_options import SlurmOptions


def unprepared_cells(cells: Sequence[Cell], folder: RunFolder) -> list[str]:
    """Return the cells whose prompts are not prepared, grouped by what to do. Others report the
    cells that their library refuses."""
    known: dict[str, str | None] = {}
    slugs: dict[str, list[str]] = {}
    for cell, plan in translations(cells, folder):
        if isinstance(plan, OrchError):
            continue
        prompts = plan.files.get(PLAN_FILE, "")
        if prompts not in known:
            known[prompts] = missing(plan)
        if need := known[prompts]:
            slugs.setdefault(need, []).append(cell.slug)
    return [
        f"{need} ({counted(len(names), 'cell')}: {few(names)})" for need, names in slugs.items()
    ]


def time_limit_warnings(cells: Sequence[Cell], options: SlurmOptions) -> Iterator[str]:
    """Yield a sentence on cells that take longer than one job's time limit, and have no checkpoint
    by then to go on from, or need too many jobs."""
    limit, most = options.time_limit_hours, options.max_requeues + 1
    late: dict[float, list[Cell]] = {}
    long: dict[int, list[Cell]] = {}
    for cell in cells:
        gpus = cell.resources.num_nodes * cell.resources.gpus_per_node
        priced = price(cell) if gpus else None
        hours = cell.resources.hours or (priced.hours / gpus if priced else 0.0)
        steps = cell.settings.num_train_steps
        first = hours * (cell.cadence.checkpoint_every_steps or steps) / steps
        if (jobs := math.ceil(hours / limit)) > most:
            long.setdefault(jobs, []).append(cell)
        if jobs > 1 and first > limit - options.signal_seconds / 3600:
            late.setdefault(first, []).append(cell)
    for first, group in sorted(late.items()):
        yield (
            f"{len(group)} cells write their first checkpoint after about {first:.3g} h "
            f"({group[0].slug}), and a job may run for {limit:g} h: they would begin anew each "
            "time. Lower cadence.checkpoint_every_steps, or raise site.options.time_limit_hours"
        )
    for jobs, group in sorted(long.items()):
        yield (
            f"{len(group)} cells need about {jobs} jobs of {limit:g} h each ({group[0].slug}): "
            f"more than site.options.max_requeues allows ({options.max_requeues})"
        )
