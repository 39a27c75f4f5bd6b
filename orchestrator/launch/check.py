"""Before a launch: every cell that its backend cannot express, or that has no environment or no
prompts to train with, is told, at once."""

from collections.abc import Sequence

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.data.recipe import PLAN_FILE
from orchestrator.environments.lock import has_lock
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.launch.node.environment import environment_fault as no_environment
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import NodeOptions


def check_launchable(
    cells: Sequence[Cell], folder: RunFolder, here: NodeOptions | None = None
) -> set[str]:
    """Modules of the cells' entries. Raises OrchError naming each cell that cannot be launched.

    here: given where cells run on this machine, whose environments must then be there.
    """
    modules: set[str] = set()
    prompts: dict[str, str | None] = {}
    refused: dict[str, list[str]] = {}
    for cell in cells:
        cell_dir = folder.cell(cell)
        place = cell_dir.first_paths()
        try:
            plan = plugins.load(cell.settings.backend.name).translate(cell, place)
            needs = plan.files.get(PLAN_FILE, "")
            if needs not in prompts:
                prompts[needs] = prepared.missing(plan)
            if without := prompts[needs]:
                raise EnvironmentFault(without)
        except OrchError as error:
            refused.setdefault(str(error), []).append(cell.slug)
        else:
            if absent := _without_environment(plan, here) if here else "":
                refused.setdefault(absent, []).append(cell.slug)
            modules.add((plan.entry or "").partition(":")[0])
    if refused:
        count = sum(map(len, refused.values()))
        listed = "\n".join(
            f"  {told} ({len(slugs)} cells: {slugs[0]}{', ...' if slugs[1:] else ''})"
            for told, slugs in refused.items()
        )
        raise OrchError(f"{count} cells cannot be launched, so nothing was started\n{listed}")
    return modules - {""}


def _without_environment(plan: LaunchPlan, here: NodeOptions) -> str:
    """A library never runs in orch's environment: what to do where its own is not there."""
    if plan.entry is not None or not has_lock(plan.backend, plan.version):
        return ""
    return no_environment(plan.backend, plan.version, here)
