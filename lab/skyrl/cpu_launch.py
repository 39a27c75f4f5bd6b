"""Turn a plan for SkyRL into one on a CPU: entry point, Ray, FSDP workers, generator, no GPU."""

from collections.abc import Mapping

from backends.skyrl.manifest import is_read
from backends.skyrl.overrides import read, write
from lab import cpu
from lab.cpu import CpuLaunch, Deviation, differences
from orchestrator.records import AttemptPaths, LaunchPlan

MODULE = "orch_cpu_skyrl"
_CHANGED: Mapping[str, tuple[object, str]] = {
    "trainer.flash_attn": (False, "flash attention needs a GPU"),
    "trainer.remove_microbatch_padding": (False, "flash attention packs sequences"),
    "generator.inference_engine.enable_ray_prometheus_stats": (False, "they are vLLM's"),
    "data.dataloader.num_workers": (0, "processes for a few prompts"),
}
_PARTS = (
    Deviation("part", "vLLM's servers", None, "transformers behind the same HTTP interface"),
    Deviation("part", "build_trainer_engine", "CUDA's IPC or NCCL", "a file in memory"),
    Deviation("part", "flash_attn, vllm, vllm_router", None, "names that refuse to be called"),
    Deviation("part", "PromptDataset", "8 processes", "this one", "for a few prompts"),
    Deviation("part", "Ray's dashboard", None, "off", "its agent starts late on few cores"),
)
_IN_FP32 = (
    Deviation("part", "torch.autocast", "bfloat16", "off: passes are in fp32"),
    Deviation("part", "MixedPrecisionPolicy", "bfloat16", "FSDP gathers parameters in fp32"),
    Deviation("part", "HFModelWrapper", "bfloat16", "the reference policy is loaded in fp32"),
    Deviation("part", "the sampler", "bfloat16", "in fp32"),
)


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return the launch on a CPU, or None for a release before 0.4.0."""
    if not is_read(plan.version):
        return None
    overrides = [write(key, value) for key, (value, _) in _CHANGED.items()]
    changed = plan.model_copy(
        update={
            "argv": (*plan.argv, *overrides),
            "files": {**plan.files, **cpu.files("skyrl")},
            "env": {
                **plan.env,
                **cpu.variables(paths, MODULE),
                **cpu.RAY,
                "SKYRL_PYTHONPATH_EXPORT": "1",
            },
            "bring_up": "program",
        }
    )
    why = {key: reason for key, (_, reason) in _CHANGED.items()}
    deviations = differences(
        plan,
        changed,
        lambda each: {key: str(value) for key, value in read(each.argv).items()},
        why,
    )
    return CpuLaunch(changed, (*deviations, *cpu.PARTS, *_PARTS), _IN_FP32)
