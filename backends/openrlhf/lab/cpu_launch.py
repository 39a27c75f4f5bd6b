"""Turn a plan for OpenRLHF into one on a CPU: its program, Ray, DeepSpeed, trainer; no vLLM.

`trimmed` and `adopt` do the same for anybody's launch: they leave out what belongs to its machines
until orch can read it, and compare its flags with those of orch's plan.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.openrlhf.flags import (
    MODULE,
    CommandLine,
    arity,
    default,
    grouped,
    is_read,
    own_tables,
    read,
    spelled,
    spellings,
    words,
)
from orchestrator.errors import Fault
from orchestrator.lab import cpu
from orchestrator.lab.cpu import CpuLaunch, Deviation, Trimmed, differences, reason_to_leave_out
from orchestrator.library.manifest import equal
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
            "files": {**plan.files, **cpu.files(Path(__file__).parent)},
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


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Return each flag and the words after it."""
    flags: dict[str, str] = {}
    last = ""
    for word in argv:
        if word.startswith("--"):
            last, flags[word] = word, ""
        elif last:
            flags[last] = f"{flags[last]} {word}".strip()
    return flags


_ONE_PROCESS = "one process holds the whole policy"
_SCORER = "the reward is the scorer's"
_PROMPTS = "the prompts are the small policy's"
_SMALL = "batches are small"
_WHOLE = "the small policy is trained whole"
_LEFT_OUT: Mapping[str, str] = {
    "algo.dynamic_filtering_enable": "every group is trained on",
    "algo.dynamic_filtering_range": "every group is trained on",
    "algo.kl.horizon": "it acts with --algo.kl.target alone",
    "ckpt": "checkpoints are the rehearsal's own",
    "critic": "the advantages of a cell have no critic",
    "data": _PROMPTS,
    "ds": _ONE_PROCESS,
    "ds.lora": _WHOLE,
    "eval": "a rehearsal does not evaluate",
    "local_rank": _ONE_PROCESS,
    "logger": "orch reads TensorBoard's files",
    "ref": _ONE_PROCESS,
    "reward": _SCORER,
    "rollout.max_tokens_per_gpu": _SMALL,
    "rollout.vllm_generate_batch_size": _SMALL,
    "train.colocate_critic_reward": "there are none",
    "train.dynamic_batch_enable": _SMALL,
    "train.full_determinism_enable": "a CPU computes the same again",
    "train.max_tokens_per_gpu": _SMALL,
    "use_ms": "models are on disk",
    "vllm": "of the engine that samples",
}
"""Flag or section -> why a rehearsal leaves it out, if no cell has it."""
_COUNTED = ("data.max_samples", "train.num_episodes")
"""Flags that set the length of a run."""


def trimmed(argv: Sequence[str], batches: int) -> Trimmed:
    """Return a launch of `batches` rollout batches, without flags for its machines."""
    if MODULE not in argv:
        return Trimmed(tuple(argv))
    start = list(argv).index(MODULE) + 1
    line = read(argv, list[Fault]())
    known, every = spellings(line.version), own_tables()[line.version]
    kept, deviations = [*argv[:start]], list[Deviation]()
    for flag, values in grouped(argv[start:], line.version):
        name, text = flag.removeprefix("--"), " ".join(values)
        if known.get(flag) in _COUNTED:
            continue
        if flag in known and len(values) < arity(known[flag], line.version):
            deviations.append(Deviation("argument", flag, "?", None, "only a shell would know it"))
            continue
        if flag not in known and name in every.keys:
            if why := reason_to_leave_out(name, _LEFT_OUT):
                deviations.append(Deviation("argument", flag, text, None, why))
                continue
            if text and _same(text, default(name, line.version)):
                continue
        kept += [flag, *values]
    requested = str(batches * line["rollout.batch_size"])
    samples, episodes = (line.given.get(name) for name in _COUNTED)
    count = spelled(_COUNTED[0], line.version) or ""
    if str(samples) != requested or episodes not in (None, 1):
        was = None if samples is None else f"{samples} in {episodes or 1} episodes"
        why = "a rehearsal is short" if samples else "the data set decides in the launch"
        deviations.append(Deviation("argument", count, was, requested, why))
    kept += [count, requested]
    if line["rollout.max_new_tokens"] is None:
        longest, room = spelled("rollout.max_new_tokens", line.version), line["data.max_len"] // 2
        why = "what --data.max_len leaves, in the launch"
        deviations.append(Deviation("argument", longest or "", None, str(room), why))
        kept += [longest or "", str(room)]
    kept += _constant(line, deviations)
    return Trimmed(tuple(kept), tuple(deviations))


def _constant(line: CommandLine, deviations: list[Deviation]) -> list[str]:
    """Return the words of a constant learning rate, which a rehearsal has; nothing if it is so."""
    name, constant = "actor.lr_scheduler", "constant_with_warmup"
    given = line.given.get(name) or default(name, line.version)
    if given == constant:
        return []
    flag = spelled(name, line.version) or ""
    deviations.append(
        Deviation("argument", flag, str(given), constant, "a rehearsal is too short to decay")
    )
    return [flag, constant]


def adopt(plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch:
    """Return the plan: it has each flag that a cell can come from. List those of other values."""
    own, given = (read(each, list[Fault]()).given for each in (plan.argv, argv))
    changed = [
        Deviation("argument", f"--{name}", _shown(given[name]), _shown(own.get(name)))
        for name in sorted(given)
        if not equal(given[name], own.get(name))
    ]
    return CpuLaunch(plan, tuple(changed))


def _same(text: str, default: object) -> bool:
    """Return True if a flag's words are its default, with numbers in any spelling."""
    try:
        return float(text) == float(str(default))
    except ValueError:
        return text == str(default)


def _shown(value: object) -> str | None:
    """Return a value as on a command line, or None for an absent flag."""
    return None if value is None else " ".join(words(value))
