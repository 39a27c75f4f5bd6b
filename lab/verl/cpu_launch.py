"""Turn a plan for verl into one that runs without an accelerator. List the differences. Pure."""

import json
from collections.abc import Mapping, Sequence

from backends.verl.manifest import (
    ACTOR,
    MODE,
    MODEL,
    ROLLOUT,
    TABLES,
    WORKER_ENV,
    is_corrected,
    is_read,
)
from backends.verl.overrides import read, write
from backends.verl.translate import MAIN
from lab import cpu
from lab.cpu import ENGINE_ROUNDS, CpuLaunch, Deviation, differences
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths, LaunchPlan

DEVICE = "orch_verl_cpu"
FOLDER = "extension"

_NO_ACCELERATOR = "there is no accelerator"
_NO_FLASH = "flash-attn needs a GPU"
_ARGUMENTS: Mapping[str, tuple[object, str]] = {
    "trainer.device": ("cpu", _NO_ACCELERATOR),
    "trainer.nnodes": (1, "one machine"),
    "trainer.n_gpus_per_node": (1, "one process takes the place of one GPU"),
    f"{ROLLOUT}.n_gpus_per_node": (1, "one process takes the place of one GPU"),
    f"{ROLLOUT}.tensor_model_parallel_size": (1, "the sampler is not split"),
    f"{ROLLOUT}.agent.num_workers": (1, "one worker hands out all prompts"),
    "reward.num_workers": (1, "one worker computes all rewards"),
    "data.dataloader_num_workers": (0, "a process more gains nothing for so few prompts"),
    f"{MODEL}.override_config.attn_implementation": ("sdpa", _NO_FLASH),
    f"{MODEL}.use_remove_padding": (False, _NO_FLASH),
    f"{ACTOR}.fsdp_config.use_torch_compile": (False, "compiling takes longer than the run"),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": (
        1,
        "each is a process, and a batch is small",
    ),
    "ray_kwargs.ray_init.include_dashboard": (False, "its agent starts late on few cores"),
    "ray_kwargs.ray_init.object_store_memory": (2**28, "bytes: a batch is small"),
}
"""Key -> its value without an accelerator, and the reason."""
_VARIABLES: Mapping[str, tuple[str, str]] = {
    "VERL_PLATFORM": ("cpu", "the platform that orch_verl_cpu.py registers"),
    "VERL_ENGINE_DEVICE": ("cuda", "verl registers its FSDP engine for GPUs and NPUs only"),
    "OMP_NUM_THREADS": ("1", "equal sums in every run"),
    "HF_HUB_OFFLINE": ("1", "nothing is fetched"),
    "TORCHDYNAMO_DISABLE": ("1", "compiling takes longer than the run"),
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": ("0", "Ray hides devices from workers without a GPU"),
}
_ROUNDED: Mapping[str, tuple[str, str]] = {
    ENGINE_ROUNDS: ("1", "a correction is of an engine that rounds: it samples in its own format"),
}
"""The variables of a launch with a correction of the engine's mismatch."""
_PARTS = (
    Deviation(
        "part",
        "rollout engine",
        None,
        "transformers in the place of vLLM, on the trainer's weights after each step; in float32, "
        "but for a launch with a correction",
    ),
    Deviation("part", "torch.distributed", None, "gloo in the place of NCCL"),
    Deviation(
        "part",
        "torch.distributed.fsdp",
        None,
        "the check that refuses to broadcast CPU tensors is off; no CPU offload; no move to a GPU",
    ),
)


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return the plan that runs without an accelerator, or None for a release before 0.9.1.

    0.8.0 has no registries of devices and samplers. It runs over a Ray of its own, on a machine
    with few CPUs. Raise UnsupportedSetting for an asynchronous cell.
    """
    if not is_read(plan.version):
        return None
    if "separate_async" in split(plan.argv).get(MODE, ""):
        raise UnsupportedSetting(
            "verl",
            "max_staleness_steps",
            "more than 0",
            (0,),
            "Its asynchronous trainer gives the sampler GPUs of its own and NCCL to send weights.",
        )
    variables = {
        **cpu.RAY,
        **_variables(plan),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": 1, "CPU": plan.ray_cpus or 1}),
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_worker_register_timeout_seconds": "300",
    }
    on_cpu = _changed(plan, paths, variables)
    reasons = {
        name: why
        for table in (_ARGUMENTS, _ROUNDED, _VARIABLES)
        for name, (_, why) in table.items()
    }
    reasons |= {name: "Ray on few CPUs, without GPUs" for name in cpu.RAY if name not in reasons}
    reasons |= {name: "a busy CPU is slow" for name in variables if name not in reasons}
    reasons |= {
        "VERL_USE_EXTERNAL_MODULES": "the CPU as verl's device, and the sampler",
        "PYTHONPATH": "where those modules are",
    }
    reasons |= {f"{WORKER_ENV}.{name}": why for name, why in reasons.items()}
    return CpuLaunch(on_cpu, (*differences(plan, on_cpu, _arguments, reasons), *_PARTS))


def _changed(
    plan: LaunchPlan,
    paths: AttemptPaths,
    variables: Mapping[str, str],
) -> LaunchPlan:
    """Return a plan with stand-ins, arguments and these variables.

    Workers of Ray get the same variables as the driver where the launch gives them any.
    """
    external = filter(None, [DEVICE, plan.env.get("VERL_USE_EXTERNAL_MODULES")])
    env = {
        **plan.env,
        **variables,
        "VERL_USE_EXTERNAL_MODULES": ",".join(external),
        "PYTHONPATH": str(paths.plan_dir / FOLDER),
    }
    wanted: dict[str, object] = {key: value for key, (value, _) in _ARGUMENTS.items()}
    wanted |= _for_workers(plan.argv, env)
    keys = TABLES[plan.version].keys
    added = [write(key if key in keys else f"++{key}", value) for key, value in wanted.items()]
    return plan.model_copy(
        update={
            "argv": (*_without_twins(plan.argv, wanted), *added),
            "env": env,
            "files": {**plan.files, **cpu.files("verl", FOLDER)},
            "bring_up": "program",
        }
    )


def _for_workers(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that give variables to Ray's workers, each with its value in `env`.

    A worker inherits the driver's variables; an argument for one of them wins over that.
    """
    prefix = f"{WORKER_ENV}."
    return {key: env[key.removeprefix(prefix)] for key in split(argv) if key.startswith(prefix)}


def _variables(plan: LaunchPlan) -> dict[str, str]:
    """Return the variables of a plan without an accelerator."""
    table = {**_VARIABLES, **(_ROUNDED if is_corrected(split(plan.argv)) else {})}
    return {name: value for name, (value, _) in table.items()}


def _arguments(plan: LaunchPlan) -> dict[str, str]:
    return split(plan.argv)


def split(argv: Sequence[str]) -> dict[str, str]:
    """Return key -> value of Hydra's overrides, without their marks. The last of a key counts."""
    arguments = {}
    for word in argv[argv.index(MAIN) + 1 :] if MAIN in argv else ():
        key, _, value = word.lstrip("+").partition("=")
        arguments[key] = value
    return arguments


def _without_twins(argv: Sequence[str], wanted: Mapping[str, object]) -> list[str]:
    """Return argv without overrides of the wanted keys, because Hydra refuses a second `+key`."""
    start = argv.index(MAIN) + 1
    return [*argv[:start], *(word for word in argv[start:] if read(word)[0] not in wanted)]
