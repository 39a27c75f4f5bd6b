"""orch's Python on the nodes of a Ray without GPUs: `python on_cpu.py -P -m MODULE ...`.

verl's launch is the one that runs without an accelerator, with verl's own processes, and it joins
the Ray of its job. The rest is orch's own.
"""

import runpy
import sys

from backends.verl import BACKEND, VerlBackend
from backends.verl.lab.cpu_launch import cpu_launch
from orchestrator import plugins
from orchestrator.library.protocol import Backend
from orchestrator.records import AttemptPaths, Cell, LaunchPlan

_OF_A_RAY_OF_ITS_OWN = (
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.object_store_memory",
)
"""Arguments that Ray refuses from a program that joins one that runs."""


class VerlOnCpu(VerlBackend):
    @staticmethod
    def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
        launch = cpu_launch(BACKEND.translate(cell, paths), paths)
        assert launch is not None
        plan = launch.in_processes().plan
        argv = [word for word in plan.argv if not word.lstrip("+").startswith(_OF_A_RAY_OF_ITS_OWN)]
        own = ("RAY_ADDRESS", "RAY_OVERRIDE_RESOURCES")
        env = {name: value for name, value in plan.env.items() if name not in own}
        return plan.model_copy(update={"argv": tuple(argv), "env": env, "bring_up": "ray"})


ON_CPU = VerlOnCpu()
as_it_is = plugins.load


def load(name: str) -> Backend:
    return ON_CPU if name == "verl" else as_it_is(name)


if __name__ == "__main__":
    plugins.load = load  # type: ignore[assignment]  (a cached function)
    sys.argv = sys.argv[sys.argv.index("-m") + 1 :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
