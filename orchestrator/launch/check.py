"""Refuse, before a launch, all cells that cannot be launched.

A cell cannot be launched if its backend cannot express it, its model cannot fit on its GPUs, its
library has no environment on this machine, its prompts are not prepared, or its reward of the
user's own fails on three of them.

Cells that differ only in their seed are translated once, with the largest: a launch uses the seed
only as a number (`Backend.translate`). A launch that is started is translated for its own seed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from orchestrator import plugins
from orchestrator.data import prepared, try_reward
from orchestrator.environments.lock import Flavour, find_installed, has_lock
from orchestrator.errors import EnvironmentFault, OrchError, UnsupportedSetting
from orchestrator.launch import gpu_memory
from orchestrator.launch.node.environment import environment_fault as no_environment
from orchestrator.library import neighbour
from orchestrator.library.prompt_recipe import PLAN_FILE
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RunFolder
from orchestrator.settings import without_seed
from orchestrator.spec.site_options import NodeOptions


def check_launchable(
    cells: Sequence[Cell], folder: RunFolder, local: NodeOptions | None = None
) -> set[str]:
    """Return the modules of the cells' entries. Raise OrchError naming all cells that are refused.

    local: given if cells run on this machine. Their environments must then exist.
    """
    modules: set[str] = set()
    unprepared: dict[str, str | None] = {}
    refused: dict[str, list[str]] = {}
    for cell, plan in translations(cells, folder):
        try:
            if isinstance(plan, OrchError):
                raise plan
            recipe = plan.files.get(PLAN_FILE, "")
            if recipe not in unprepared:
                prepared.make_shipped(plan)
                unprepared[recipe] = prepared.missing(plan) or _reward_fault(plan)
            if fault := unprepared[recipe]:
                raise EnvironmentFault(fault)
        except OrchError as error:
            refused.setdefault(str(error), []).append(cell.slug)
        else:
            if fault := _without_environment(cell, plan, local) if local else "":
                refused.setdefault(fault, []).append(cell.slug)
            modules.add((plan.entry or "").partition(":")[0])
    if refused:
        count = sum(map(len, refused.values()))
        listed = "\n".join(
            f"  {fault} ({len(slugs)} cells: {slugs[0]}{', ...' if slugs[1:] else ''})"
            for fault, slugs in refused.items()
        )
        raise OrchError(f"{count} cells cannot be launched, so nothing was started\n{listed}")
    return modules - {""}


def _reward_fault(plan: LaunchPlan) -> str | None:
    try:
        try_reward.try_reward(plan, trainer_python(plan))
    except EnvironmentFault as error:
        return str(error)
    return None


def trainer_python(plan: LaunchPlan) -> Path | None:
    """Return the Python of an environment of the launch's library on this machine, or None."""
    for flavour in get_args(Flavour):
        environment = find_installed(plan.backend, plan.version, flavour)
        if environment is not None and environment.flavour != "contract":
            return environment.python
    return None


def reward_trials(cells: Sequence[Cell], folder: RunFolder) -> Iterator[try_reward.Trial]:
    """Yield what each reward of the user's own gives its first three rows.

    Raise EnvironmentFault if one fails.
    """
    tried_recipes: set[str] = set()
    for _, plan in translations(cells, folder):
        if (
            isinstance(plan, OrchError)
            or (recipe := plan.files.get(PLAN_FILE, "")) in tried_recipes
        ):
            continue
        tried_recipes.add(recipe)
        trial = try_reward.try_reward(plan, trainer_python(plan))
        if trial is not None:
            yield trial


def _without_environment(cell: Cell, plan: LaunchPlan, local: NodeOptions) -> str:
    """Return what to do if a library lacks the environment that it needs; empty if it has one."""
    if plan.entry is not None or not has_lock(plan.backend, plan.version):
        return ""
    gpus = cell.resources.gpus_per_node > 0
    return no_environment(plan.backend, plan.version, local, gpus=gpus)


def translations(
    cells: Sequence[Cell], folder: RunFolder
) -> Iterator[tuple[Cell, LaunchPlan | OrchError]]:
    """Yield each cell, in order, with its launch, or with the reason why it has none.

    The launch may be that of another seed.
    """
    keys = [(*without_seed(c.settings), id(c.resources), id(c.cadence)) for c in cells]
    by_seed = sorted(zip(keys, cells, strict=True), key=lambda pair: pair[1].settings.seed)
    answers = {key: _translated(cell, folder) for key, cell in dict(by_seed).items()}
    yield from ((cell, answers[key]) for key, cell in zip(keys, cells, strict=True))


def refusals(cells: Sequence[Cell], folder: RunFolder) -> dict[tuple[str, str], list[Cell]]:
    """Return each reason why a library cannot express cells, with its field -> these cells."""
    refused: dict[tuple[str, str], list[Cell]] = {}
    for cell, plan in translations(cells, folder):
        if isinstance(plan, OrchError):
            field = plan.field if isinstance(plan, UnsupportedSetting) else ""
            refused.setdefault((str(plan), field), []).append(cell)
    return refused


def _translated(cell: Cell, folder: RunFolder) -> LaunchPlan | OrchError:
    try:
        backend = plugins.load(cell.settings.backend.name)
        plan = neighbour.translated(backend, cell, folder.cell(cell).first_paths())
        return gpu_memory.refusal(cell) or plan
    except OrchError as error:
        return error
