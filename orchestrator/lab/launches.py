"""What a backend's `lab/cpu_launch.py` knows: its launches without a GPU, and those of others.

The module has the function `cpu_launch`, and `trimmed` and `adopt` if orch can run anybody's script
of the library at small scale. All are pure.
"""

from collections.abc import Sequence
from types import ModuleType

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.cpu import CpuLaunch, Trimmed
from orchestrator.records import AttemptPaths, LaunchPlan

MODULE = "lab.cpu_launch"
PROGRAMS = "lab.program"


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return a plan of `translate` as it runs on a machine without an accelerator.

    paths: those for which the plan was made. Every difference is listed (orchestrator.lab.cpu).
    Return None for a release that orch cannot run so.
    """
    module = plugins.part(plan.backend, MODULE)
    launch: CpuLaunch | None = None if module is None else module.cpu_launch(plan, paths)
    return launch


def adopts_scripts(library: str) -> bool:
    """Return True if `adopt` puts anybody's arguments into the library's launches."""
    return hasattr(plugins.part(library, MODULE), "adopt")


def trimmed(library: str, argv: Sequence[str], batches: int) -> Trimmed:
    """Return anybody's launch, of `batches` rollout batches, as `parse` can read it.

    Arguments that belong only to its machines, its logs or its evaluation are left out and listed.
    Arguments that decide the objective are kept, even if no cell can have them: `parse` then
    refuses them.
    """
    shorter: Trimmed = _adopting(library).trimmed(argv, batches)
    return shorter


def adopt(plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch:
    """Return a plan of `translate` with the arguments of anybody's launch that it lacks.

    The plan's values win: every argument of `argv` with another value in the plan is listed as a
    deviation.
    """
    adopted: CpuLaunch = _adopting(plan.backend).adopt(plan, argv)
    return adopted


def _adopting(library: str) -> ModuleType:
    """Return the module. Raise EnvironmentFault for a library that adopts no scripts."""
    module = plugins.part(library, MODULE)
    if module is None or not adopts_scripts(library):
        raise EnvironmentFault(
            f"orch cannot put the arguments of a script into a launch of "
            f"{plugins.load(library).title}"
        )
    return module


def programs(library: str) -> ModuleType | None:
    """Return the module that runs others' Python programs with the library; None without one.

    launch(words, version, place, policy, batches) returns the LaunchPlan of a run at small scale,
    with the small policy in the folder `policy`. LAUNCHERS are the commands that it takes apart.
    result(attempt_dir, version, policy) returns the ProgramResult of what the run left.
    """
    return plugins.part(library, PROGRAMS)


def with_programs() -> dict[str, ModuleType]:
    """Return library -> the module of `programs`, for the libraries that have one."""
    modules = {name: programs(name) for name in plugins.names()}
    return {name: module for name, module in modules.items() if module is not None}
