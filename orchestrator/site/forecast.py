"""Forecast of a spec at full scale: find its faults without running it."""

import math
from collections.abc import Iterator, Sequence

from orchestrator import plugins
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
    """Yield a sentence on cells that take longer than one job's time limit.

    Such cells need a checkpoint to go on from.
    """
    limit, most = options.time_limit_hours, options.max_requeues + 1
    long: dict[int, list[Cell]] = {}
    late: dict[float, list[Cell]] = {}
    for cell in cells:
        gpus = cell.resources.num_nodes * cell.resources.gpus_per_node
        priced = price(cell) if gpus else None
        hours = cell.resources.hours or (priced.hours / gpus if priced else 0.0)
        jobs = math.ceil(hours / limit)
        every = cell.cadence.checkpoint_every_steps
        if jobs > 1 and every is not None:
            first = hours * every / cell.settings.num_train_steps
            if first > limit - options.signal_seconds / 3600:
                late.setdefault(first, []).append(cell)
        if jobs > 1:
            long.setdefault(jobs, []).append(cell)
    for first, group in sorted(late.items()):
        yield (
            f"{len(group)} cells write their first checkpoint after about {first:.3g} h "
            f"({group[0].slug}), and a job may run for {limit:g} h: they would begin anew each "
            "time. Lower cadence.checkpoint_every_steps, or raise site.options.time_limit_hours"
        )
    for jobs, group in sorted(long.items()):
        sentence = f"{len(group)} cells need about {jobs} jobs of {limit:g} h each ({group[0].slug}"
        sentence += ", ...)" if len(group) > 1 else ")"
        if jobs > most:
            yield f"{sentence}: more than site.options.max_requeues allows ({options.max_requeues})"
        if any(cell.cadence.checkpoint_every_steps is None for cell in group):
            yield (
                f"{sentence}, and write no checkpoint before their last step: they would begin "
                "anew each time. Set cadence.checkpoint_every_steps"
            )


def release_of(cell: Cell) -> tuple[str, str]:
    """Return the library and release that a cell trains in."""
    ref = cell.settings.backend
    if ref.version:
        return ref.name, ref.version
    try:
        return ref.name, plugins.load(ref.name).versions[0]
    except OrchError:
        return ref.name, ""
