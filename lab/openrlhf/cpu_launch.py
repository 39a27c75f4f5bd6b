"""Turn a plan for OpenRLHF into one on a CPU: its program, Ray, DeepSpeed, trainer; no vLLM."""

from backends.openrlhf.flags import is_read
from lab import cpu
from lab.cpu import CpuLaunch, Deviation, differences
from orchestrator.records import AttemptPaths, LaunchPlan

STAND_IN = "orch_cpu_openrlhf"
_NEEDS_GPU = ("--ds.packing_samples",)
_ADDED = ("--ds.attn_implementation", "eager", "--vllm.sync_backend", "gloo")
_WHY = {
    "--ds.packing_samples": "flash attention packs",
    "--ds.attn_implementation": "flash attention needs a GPU",
    "--vllm.sync_backend": "its default sends weights by CUDA's IPC or NCCL",
}
_PARTS = (
    Deviation("part", "vllm", None, "transformers behind the same engine calls"),
    Deviation("part", "flash_attn", None, "names that refuse to be called"),
    Deviation("part", "DeepSpeed's accelerator", None, "cpu", "its own, with its own AdamW"),
    Deviation("part", "deepspeed.comm.torch.build_shm_op", None, "gloo alone", "it is compiled"),
    Deviation("part", "Ray's dashboard", None, "off", "its agent starts late on few cores"),
)
_IN_FP32 = (
    Deviation("part", "convert_to_torch_dtype", "bfloat16", "models are loaded in fp32"),
    Deviation("part", "DeepSpeed's bf16", "on", "off: passes and gradients are in fp32"),
    Deviation("part", "the sampler", "bfloat16", "in fp32"),
)


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return the launch on a CPU, or None for a release before 0.11.2."""
    if not is_read(plan.version):
        return None
    changed = plan.model_copy(
        update={
            "argv": (*(word for word in plan.argv if word not in _NEEDS_GPU), *_ADDED),
            "files": {**plan.files, **cpu.files("openrlhf")},
            "env": {
                **plan.env,
                **cpu.variables(paths, STAND_IN),
                **cpu.RAY,
                "DS_ACCELERATOR": "cpu",
            },
            "bring_up": "program",
        }
    )
    deviations = differences(plan, changed, _flags, _WHY)
    return CpuLaunch(changed, (*deviations, *cpu.PARTS, *_PARTS), _IN_FP32)


def _flags(plan: LaunchPlan) -> dict[str, str]:
    """Return each flag and the words after it."""
    flags: dict[str, str] = {}
    last = ""
    for word in plan.argv:
        if word.startswith("--"):
            last, flags[word] = word, ""
        elif last:
            flags[last] = f"{flags[last]} {word}".strip()
    return flags
