"""A launch on a machine without an accelerator: its differences, and the stand-ins that it loads.

A backend's `lab/cpu_launch.py` takes a plan of `translate` and returns the plan that runs without a
GPU. The trainer, its loss, its optimizer, its data path and its files are the library's own. Only
the device and the inference engine have stand-ins, loaded by the library's own registries where it
has some.

Each difference is a `Deviation`: an argument, an environment variable, a file that was added, or a
part of the library that a file replaces. `differences` yields those of arguments, variables and
files by comparing the two plans, so that none is forgotten. A backend writes the reasons, and lists
the parts that its files replace.

The other files of this folder are stand-ins that several libraries share. They run in a library's
own environment, which has no orch. A plan has them, and those of the backend's own folder `cpu/`,
in its folder `cpu/`, which lies on PYTHONPATH.

    sitecustomize       loads the rest in every process; ORCH_CPU names the library's module
    orch_cpu_device     code that names CUDA runs on the CPU, NCCL is gloo
    orch_cpu_sampler    samples responses with transformers
    orch_cpu_server     answers HTTP requests with a sampler
    orch_rollout_dump   the form in which rollouts are written, by `lab/<library>/rollouts.py`
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from lab.cpu import orch_rollout_dump as rollout_dump
from lab.cpu.orch_rollout_dump import PASSES
from lab.libraries import folder, part
from orchestrator.records import AttemptPaths, LaunchPlan

ENGINE_ROUNDS = "ORCH_CPU_ENGINE_ROUNDS"
"""Environment variable: set where the stand-in of an engine samples in the engine's own format, so
that the policy that sampled is another than the trainer's."""


class Deviation(NamedTuple):
    """One difference between a launch and its run on this machine."""

    kind: Literal["argument", "variable", "file", "part", "setting"]
    """`part`: code of the library or of a package, which a stand-in replaces in the process.
    `setting`: a field of the cell, where a smaller cell is trained."""
    name: str
    launch: str | None
    """The value in the launch, or None if it has none."""
    here: str | None
    """The value in the run on this machine, or None if it has none."""
    why: str = ""


class CpuLaunch(NamedTuple):
    """A launch that runs on this machine, and every difference from the requested one."""

    plan: LaunchPlan
    deviations: tuple[Deviation, ...]
    fp32_parts: tuple[Deviation, ...] = ()
    """Parts that the stand-ins also replace if the variable PASSES asks for fp32. Empty if they
    replace none, or if the library has an argument for fp32."""

    def in_fp32(self) -> "CpuLaunch":
        """Return the launch with its passes in fp32, or the launch itself if no stand-in can.

        A library that rounds to bf16 can then be compared with a prediction in fp32: the rest of
        the difference is the library's own arithmetic.
        """
        if not self.fp32_parts:
            return self
        plan = self.plan.model_copy(update={"env": {**self.plan.env, PASSES: "fp32"}})
        variable = Deviation("variable", PASSES, None, "fp32", "no rounding in what is compared")
        return CpuLaunch(plan, (*self.deviations, variable, *self.fp32_parts))


Split = Callable[[LaunchPlan], Mapping[str, str]]
"""A function of a plan that returns its arguments, key -> value as the library reads them. Of
several values of one key the last counts."""


def differences(
    launch: LaunchPlan, on_cpu: LaunchPlan, split: Split, why: Mapping[str, str]
) -> Iterator[Deviation]:
    """Yield every argument, variable and file in which two plans differ, by name.

    why: name -> reason.
    """
    parts: tuple[
        tuple[Literal["argument", "variable", "file"], Mapping[str, str], Mapping[str, str]], ...
    ] = (
        ("argument", split(launch), split(on_cpu)),
        ("variable", launch.env, on_cpu.env),
        ("file", dict.fromkeys(launch.files, ""), dict.fromkeys(on_cpu.files, "added")),
    )
    for kind, before, after in parts:
        for name in sorted(before.keys() | after.keys()):
            if kind == "file" and name in before and name in after:
                if launch.files[name] != on_cpu.files[name]:
                    yield Deviation(kind, name, "", "changed", why.get(name, ""))
            elif before.get(name) != after.get(name):
                yield Deviation(kind, name, before.get(name), after.get(name), why.get(name, ""))


FOLDER = "cpu"
"""Folder of a launch plan that holds the stand-ins."""


@cache
def files(library: str = "", place: str = FOLDER) -> Mapping[str, str]:
    """Return the stand-ins as files of a plan's folder, name -> text: the shared ones and those of
    a library."""
    own = [folder(library) / "cpu"] if library else []
    return {
        f"{place}/{path.name}": path.read_text(encoding="utf-8")
        for each in (Path(__file__).parent, *own)
        for path in sorted(each.glob("*.py"))
        if path.name != "__init__.py"
    }


def variables(paths: AttemptPaths, module: str) -> dict[str, str]:
    """Return the environment variables that load the stand-ins, `module` of the backend's."""
    return {
        "PYTHONPATH": str(paths.plan_dir / FOLDER),
        "ORCH_CPU": module,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


RAY = {
    "RAY_ADDRESS": "local",
    "RAY_OVERRIDE_RESOURCES": '{"GPU": 8, "CPU": 8}',
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # its own 15 starves on a machine that does anything else
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of a launch that starts its own Ray and declares one GPU that does not exist."""

PARTS = (
    Deviation("part", "torch.cuda", None, "the CPU, named as one GPU", "there is no GPU"),
    Deviation("part", "NCCL", None, "gloo", "NCCL needs GPUs"),
    Deviation("part", "torch.compile", None, "off", "inductor asks for the GPU's properties"),
)
"""Parts that the shared stand-ins replace."""


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return a plan of `translate` as it runs on a machine without an accelerator.

    paths: those for which the plan was made. Every difference is listed (lab.cpu). Return None for
    a release that the lab cannot run so.
    """
    module = part(plan.backend, "cpu_launch")
    launch: CpuLaunch | None = None if module is None else module.cpu_launch(plan, paths)
    return launch


HOOK = "orch_rollout_hook.py"
"""Name of `lab/<library>/rollouts.py` in a launch."""


def recording(launch: CpuLaunch, paths: AttemptPaths) -> CpuLaunch:
    """Return a launch of `cpu_launch` that writes its rollouts, for `python -m lab prove`.

    The library and its launch know nothing of it: `sitecustomize` loads the hook, from the folder
    of the stand-ins, or from another one that the launch has on PYTHONPATH.
    """
    plan = launch.plan
    place = Path(plan.env.get("PYTHONPATH", FOLDER)).name
    hook = (folder(plan.backend) / "rollouts.py").read_text(encoding="utf-8")
    recorded = plan.model_copy(
        update={
            "files": {**plan.files, **files(place=place), f"{place}/{HOOK}": hook},
            "env": {
                **plan.env,
                "PYTHONPATH": str(paths.plan_dir / place),
                rollout_dump.VARIABLE: str(paths.attempt_dir / rollout_dump.FOLDER),
            },
        }
    )
    why = dict.fromkeys(recorded.env, "the proof replays its rollouts")
    more = differences(plan, recorded, lambda _: {}, why)
    return launch._replace(plan=recorded, deviations=(*launch.deviations, *more))
