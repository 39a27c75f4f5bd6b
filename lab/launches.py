"""A library's launches without a GPU: `lab/<library>/cpu_launch.py`, if it has one. Pure."""

from lab.cpu import CpuLaunch
from lab.libraries import part
from orchestrator.records import AttemptPaths, LaunchPlan


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return a plan of `translate` as it runs on a machine without an accelerator.

    paths: those for which the plan was made. Every difference is listed (lab.cpu). Return None for
    a release that the lab cannot run so.
    """
    module = part(plan.backend, "cpu_launch")
    launch: CpuLaunch | None = None if module is None else module.cpu_launch(plan, paths)
    return launch
