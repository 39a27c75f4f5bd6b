"""Turn a plan for SkyRL into one on a CPU: entry point, Ray, FSDP workers, generator, no GPU.

`trimmed` and `adopt` do the same for anybody's launch: they leave out what belongs to its machines
until orch can read it, and add its overrides to orch's plan.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.skyrl.manifest import ENGINE, OUR_STEPS, STEPS, is_read
from backends.skyrl.overrides import read, write, written
from orchestrator.lab import cpu
from orchestrator.lab.cpu import (
    CpuLaunch,
    Deviation,
    Trimmed,
    differences,
    reason_to_leave_out,
    shortened,
)
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
            "files": {**plan.files, **cpu.files(Path(__file__).parent)},
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
        lambda argv: {key: str(value) for key, value in read(argv).items()},
        why,
    )
    return CpuLaunch(changed, (*deviations, *cpu.PARTS, *_PARTS), _IN_FP32)


_SHARDED = "one process holds the whole policy"
_ENGINE = "of the engine that samples"
_LOGS = "orch reads TensorBoard's files"
_FSDP = "SkyRL's FSDP trainer trains here"
_LEFT_OUT: Mapping[str, str] = {
    "environment": "the reward is the scorer's",
    "trainer.strategy": _FSDP,
    "trainer.logger": _LOGS,
    "trainer.project_name": _LOGS,
    "trainer.run_name": _LOGS,
    "trainer.log_path": _LOGS,
    "trainer.resume_mode": "a rehearsal begins anew",
    "trainer.export_path": "checkpoints are the rehearsal's own",
    "trainer.critic": "the advantages of a cell have no critic",
    **{
        f"trainer.{role}.{name}": why
        for role in ("policy", "ref")
        for name, why in {
            "megatron_config": _FSDP,
            "fsdp_config": _SHARDED,
            "sequence_parallel_size": _SHARDED,
            "model.lora": "the small policy is trained whole",
        }.items()
    },
    "trainer.use_sample_packing": "flash attention packs sequences",
    "trainer.remove_microbatch_padding": "flash attention packs sequences",
    "trainer.max_tokens_per_microbatch": "batches are small",
    "generator.batched": "the sampler is asked response by response",
    "generator.eval_sampling_params": "a rehearsal's validation is short",
    "generator.eval_n_samples_per_prompt": "a rehearsal's validation is short",
    ENGINE: _ENGINE,
    **{
        f"generator.{name}": _ENGINE
        for name in ("async_engine", "backend", "gpu_memory_utilization", "num_inference_engines")
    },
}
"""Key or section -> why a rehearsal leaves it out."""
_ENTRIES = ("skyrl.train.entrypoints.main_base", "skyrl_train.entrypoints.main_base")


def trimmed(argv: Sequence[str], batches: int) -> Trimmed:
    """Return a launch of `batches` rollout batches, without arguments for its machines."""
    kept, deviations, steps = list[str](), list[Deviation](), None
    for word in argv:
        key, equals, value = word.partition("=")
        why = reason_to_leave_out(key, _LEFT_OUT) if equals else ""
        if equals and key in (STEPS, OUR_STEPS):
            steps = value
        elif why:
            deviations.append(Deviation("argument", key, value, None, why))
        else:
            kept.append(word)
    return shortened(kept, deviations, STEPS, steps, batches)


def adopt(plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch:
    """Return the plan with those overrides of a launch that it lacks."""
    own, given = read(_overrides(plan.argv)), read(_overrides(argv))
    added = [word for word in _overrides(argv) if word.partition("=")[0] not in own]
    changed = [
        Deviation("argument", key, written(given[key]), written(own[key]))
        for key in given.keys() & own.keys()
        if given[key] != own[key]
    ]
    entries = [word for word in argv if word in _ENTRIES]
    entry = Deviation(
        "argument",
        "entry point",
        " ".join(entries) or "another",
        "orch_skyrl.py",
        "its own, around SkyRL's",
    )
    merged = plan.model_copy(update={"argv": (*plan.argv, *added)})
    return CpuLaunch(merged, (entry, *sorted(changed)))


def _overrides(argv: Sequence[str]) -> list[str]:
    return [word for word in argv if "=" in word and not word.startswith("-")]
