"""Somebody's launch of TRL, or program that builds its trainer: its run at small scale."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from backends.trl import parse
from backends.trl.manifest import PROMPTS
from backends.trl.options import Script, defaults, script_table
from backends.trl.translate import CONFIG, PROGRAM, as_yaml, shipped
from orchestrator.errors import SpecError
from orchestrator.files import read_json
from orchestrator.lab.cpu import Deviation, ProgramResult
from orchestrator.library import rollout_dump
from orchestrator.library.needs import NEEDS, needs_file
from orchestrator.records import AttemptPaths, LaunchPlan
from orchestrator.settings import Data

RUNNER = "orch_trl_script.py"
LAUNCHERS = ("trl", "accelerate", "accelerate-launch", "torchrun", "python", "python3")
"""The programs whose command lines the runner takes apart."""
CONFIGURATION, DEVIATIONS = "configuration.json", "deviations.jsonl"
_GPU, _SMALL, _OTHER = "it needs a GPU", "a rehearsal is small", "it is of other machines or runs"
_LOGGED = "orch reads every train step"
_SAMPLES = "the policy itself samples, with transformers"
_WHY: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "fp16", "use_cpu", "torch_compile", "use_liger_kernel"), _GPU),
    **dict.fromkeys(("deepspeed", "fsdp"), "one process holds the whole policy"),
    **dict.fromkeys(("use_vllm", "use_transformers_paged"), _SAMPLES),
    "gradient_checkpointing": "it trades time for a GPU's memory, and changes no number",
    **dict.fromkeys(
        (
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "steps_per_generation",
            "generation_batch_size",
            "num_generations",
            "max_completion_length",
            "max_steps",
            "save_steps",
            "dataloader_num_workers",
        ),
        _SMALL,
    ),
    **dict.fromkeys(
        ("learning_rate", "warmup_steps", "warmup_ratio"), "a small policy learns in few steps"
    ),
    **dict.fromkeys(("logging_steps", "logging_strategy", "report_to"), _LOGGED),
    **dict.fromkeys(
        ("push_to_hub", "resume_from_checkpoint", "load_best_model_at_end", "eval_strategy"), _OTHER
    ),
    "output_dir": "real policies may lie there",
    "model": "the small policy, whole",
    "model_init_kwargs": "the small policy, in fp32",
    "processing_class": "the small policy's tokenizer",
    **dict.fromkeys(("peft_config", "quantization_config"), "the small policy is trained whole"),
    "eval_dataset": "nothing is evaluated",
    "optim": "it runs on GPUs alone, or has other packages",
    "optimizers": "made for another policy",
}


def launch(
    words: Sequence[str], version: str, paths: AttemptPaths, policy: Path, batches: int
) -> LaunchPlan:
    """Return the run of a command with a policy of `policy`, for `batches` rollout batches.

    words: a program's file with its arguments, or a command of LAUNCHERS.
    """
    folder = Path(__file__).parents[1] / "launch"
    own = {RUNNER: (folder / RUNNER).read_text(encoding="utf-8")}
    files = {name: text for name, text in shipped(True, False).items() if name != "orch_reward.py"}
    return LaunchPlan(
        cell_id="program",
        backend="trl",
        version=version,
        argv=(
            "python3",
            str(paths.plan_dir / RUNNER),
            *("--policy", str(policy)),
            *("--place", str(paths.attempt_dir)),
            *("--checkpoints", str(paths.checkpoints_dir)),
            *("--batches", str(batches)),
            *words,
        ),
        files={**own, **files},
        env={
            rollout_dump.VARIABLE: str(paths.attempt_dir / rollout_dump.FOLDER),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        ledger=(),
    )


def result(attempt_dir: Path, version: str, policy: Path) -> ProgramResult:
    """Return what a program trained, read from what its run left."""
    deviations = tuple(_deviations(attempt_dir))
    resolved = read_json(attempt_dir / CONFIGURATION)
    if resolved is None:
        return ProgramResult(None, "the program built no trainer of TRL", deviations)
    script = cast("Script", resolved["script"])
    options = _options(script, version, resolved["options"])
    options["model_name_or_path"] = str(policy)
    data = Data(name="program", path="the program", reward="exact")
    requested = (
        ("backend.version", version),
        ("model.name", policy.name),
        ("model.path", str(policy)),
    )
    _, needed = needs_file(f"trl=={version}", {"file": PROMPTS, **data.model_dump()}, requested)
    name = CONFIG.format(script)
    files = {name: as_yaml(options), NEEDS: needed}
    try:
        settings = parse.parse(("python3", PROGRAM, script, "--config", name), files)
    except SpecError as error:
        faults = "; ".join(str(each) for each in error.faults)
        return ProgramResult(None, f"no cell describes the program: {faults}", deviations)
    return ProgramResult(settings, "", deviations)


def _options(script: Script, version: str, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the configuration class holds, as options that a script would take."""
    table, usual = script_table(script, version), defaults(script, version)
    if resolved.get("epsilon_high") is None:
        resolved = {**resolved, "epsilon_high": resolved["epsilon"]}  # as the trainer does
    return {
        key: value
        for key, value in resolved.items()
        if value is not None
        and table.has(key)
        and not (value == usual.get(key) and table.objection(key, value))
        and key != "generation_batch_size"
    }


def _deviations(attempt_dir: Path) -> Iterator[Deviation]:
    path = attempt_dir / DEVIATIONS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        plain = json.loads(line)
        kind, name, launched, value = (plain[key] for key in ("kind", "name", "launch", "here"))
        if kind == "part" and launched:
            value = f"{value} (was: {launched})"
        why = _WHY.get(name, "")
        if name.startswith(("accelerate --", "torchrun --")):
            why = "one process on a CPU: nothing is started beside it"
        yield Deviation(kind, name, launched, value, why)
