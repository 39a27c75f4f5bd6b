"""orch's Python on the nodes of a Ray without GPUs: `python on_cpu.py -P -m MODULE ...`.

A library's launch is the one that runs without an accelerator, with the library's own processes,
and it joins the Ray of its job. The rest is orch's own.
"""

import copy
import runpy
import sys
from functools import cache

from lab.cpu import cpu_launch
from orchestrator import plugins
from orchestrator.library.protocol import Backend
from orchestrator.records import AttemptPaths, Cell, LaunchPlan

as_it_is = plugins.load

LIBRARIES = ("skyrl", "verl")
_OF_A_RAY_OF_ITS_OWN = (
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.object_store_memory",
)
"""Arguments of verl that Ray refuses from a program that joins one that runs."""


@cache
def load(name: str) -> Backend:
    """The backend, with launches for a CPU if it is one of LIBRARIES."""
    if name not in LIBRARIES:
        return as_it_is(name)
    backend = copy.copy(as_it_is(name))

    def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
        asked = as_it_is(name).translate(cell, paths)
        launch = cpu_launch(asked, paths)
        assert launch is not None
        plan = launch.in_processes().plan
        argv = [word for word in plan.argv if not word.lstrip("+").startswith(_OF_A_RAY_OF_ITS_OWN)]
        own = ("RAY_ADDRESS", "RAY_OVERRIDE_RESOURCES")
        env = {key: value for key, value in plan.env.items() if key not in own}
        return plan.model_copy(update={"argv": tuple(argv), "env": env, "bring_up": "ray"})

    vars(backend)["translate"] = translate
    return backend


if __name__ == "__main__":
    plugins.load = load
    sys.argv = sys.argv[sys.argv.index("-m") + 1 :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
