"""Refuse, before a launch, all cells that cannot be launched.

A cell cannot be launched if its backend cannot express it, its library has no environment on this
machine, or its prompts are not prepared.
"""

from collections.abc import Sequence

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.environments.lock import has_lock
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.launch.node.environment import environment_fault as no_environment
from orchestrator.launch.translations import translations
from orchestrator.library.prompt_recipe import PLAN_FILE
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RunFolder
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
            backend = plugins.load(cell.settings.backend.name)
            if cell.cadence.dump_rollouts and not backend.dumps_rollouts:
                raise EnvironmentFault(
                    f"cadence.dump_rollouts: orch has no hook that writes the rollouts of "
                    f"{backend.title}; leave it out"
                )
            if isinstance(plan, OrchError):
                raise plan
            recipe = plan.files.get(PLAN_FILE, "")
            if recipe not in unprepared:
                prepared.make_shipped(plan)
                unprepared[recipe] = prepared.missing(plan)
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


def _without_environment(cell: Cell, plan: LaunchPlan, local: NodeOptions) -> str:
    """Return what to do if a library lacks the environment that it needs; empty if it has one."""
    if plan.entry is not None or not has_lock(plan.backend, plan.version):
        return ""
    gpus = cell.resources.gpus_per_node > 0
    return no_environment(plan.backend, plan.version, local, gpus=gpus)
