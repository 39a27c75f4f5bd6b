"""Trim anybody's launch of verl until orch can read it, and add its overrides to orch's plan."""

from collections.abc import Mapping, Sequence

from backends.verl.cpu_launch import split
from backends.verl.manifest import ACTOR, MODEL, ROLLOUT, STEPS
from backends.verl.translate import MAIN
from orchestrator.library.cpu_launch import (
    CpuLaunch,
    Deviation,
    Trimmed,
    reason_to_leave_out,
    shortened,
)
from orchestrator.records import LaunchPlan

_REFERENCE = "actor_rollout_ref.ref"
_SHARDED = "one process holds the whole policy"
_OWN_SCORER = "the reward is the scorer's"
_FSDP = "verl's FSDP engine trains here"
_LORA = "the small policy is trained whole"
_ENGINE = "of the engine that samples"
_LEFT_OUT: Mapping[str, str] = {
    "model_engine": _FSDP,
    **{
        f"{role}.{name}": why
        for role in (ACTOR, _REFERENCE)
        for name, why in {
            "strategy": _FSDP,
            "megatron": _FSDP,
            "veomni": _FSDP,
            "fsdp_config.forward_prefetch": _SHARDED,
            "fsdp_config.fsdp_size": _SHARDED,
            "fsdp_config.optimizer_offload": _SHARDED,
            "fsdp_config.param_offload": _SHARDED,
            "fsdp_config.reshard_after_forward": _SHARDED,
            "ulysses_sequence_parallel_size": _SHARDED,
        }.items()
    },
    **{f"{MODEL}.{name}": _LORA for name in ("lora_rank", "lora_alpha", "target_modules", "lora")},
    **{
        f"{ROLLOUT}.{name}": _ENGINE
        for name in (
            "data_parallel_size",
            "dtype",
            "enable_chunked_prefill",
            "enforce_eager",
            "engine_kwargs",
            "expert_parallel_size",
            "free_cache_engine",
            "gpu_memory_utilization",
            "layered_summon",
            "load_format",
            "max_model_len",
            "max_num_batched_tokens",
            "max_num_seqs",
            "pipeline_model_parallel_size",
        )
    },
    "custom_reward_function": _OWN_SCORER,
    "reward_model": _OWN_SCORER,
    "reward": _OWN_SCORER,
    "data.custom_cls": "the prompts are the small policy's",
    "trainer.balance_batch": _SHARDED,
    "trainer.use_legacy_worker_impl": "0.9.1 has one kind of worker",
    "ray_kwargs": "Ray is on this machine",
    "critic": "rloo and grpo have no critic",
    "global_profiler": "nothing is profiled",
}
"""Key or section -> why a rehearsal leaves it out."""


def trimmed(argv: Sequence[str], batches: int) -> Trimmed:
    """Return a launch of `batches` rollout batches, without arguments for its machines."""
    if MAIN not in argv:
        return Trimmed(tuple(argv))
    start = list(argv).index(MAIN) + 1
    kept, deviations = [*argv[:start]], []
    with_critic = "gae" in split(argv).get("algorithm.adv_estimator", "gae")
    steps = None
    for word in argv[start:]:
        key, equals, value = word.lstrip("+~").partition("=")
        why = reason_to_leave_out(key, _LEFT_OUT) if equals else ""
        if key == STEPS:
            steps = value
        elif why and not (key.startswith("critic") and with_critic):
            deviations.append(Deviation("argument", key, value, None, why))
        else:
            kept.append(word)
    return shortened(kept, deviations, STEPS, steps, batches)


def adopt(plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch:
    """Return the plan with those overrides of a launch that it lacks. Keep Hydra's marks."""
    own, given = split(plan.argv), split(argv)
    words = list(argv[argv.index(MAIN) + 1 :]) if MAIN in argv else []
    added = [word for word in words if word.lstrip("+").partition("=")[0] not in own]
    changed = [
        Deviation("argument", key, given[key], own[key])
        for key in given.keys() & own.keys()
        if _value(given[key]) != _value(own[key])
    ]
    merged = plan.model_copy(update={"argv": (*plan.argv, *added)})
    return CpuLaunch(merged, tuple(sorted(changed)))


def _value(text: str) -> str:
    """Return a value without its quotes, and numbers in one spelling."""
    bare = text.strip("\"'")
    try:
        return repr(float(bare))
    except ValueError:
        return bare.lower()
