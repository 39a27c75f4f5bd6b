"""Read a launch of TRL, with its YAML file, back as settings."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil

import yaml

from backends.trl.manifest import CHAT, ESTIMATOR, MANIFEST, PLACEMENT, PROCESSES, SCRIPT, WEIGHT
from backends.trl.options import OLD_NAMES, SCRIPTS, VERSIONS, Script, defaults
from backends.trl.processes import number_of_processes
from backends.trl.translate import CONFIG, flag
from orchestrator.library.needs import NEEDS, read_back
from orchestrator.settings import Settings


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. Raise SpecError for one that makes no cell."""
    script = next(name for name in SCRIPTS if name in argv)
    needs = json.loads(files[NEEDS])
    version = needs["asked"].get("backend.version", VERSIONS[0])
    following = dict(pairwise(argv))
    kl = {name: following[flag(name)] for name in (ESTIMATOR, PLACEMENT) if flag(name) in argv}
    launch = {
        # TRL weighs against vLLM unless told not to.
        **{key: value for key, value in defaults(script, version).items() if key in WEIGHT},
        **yaml.safe_load(files[CONFIG.format(script)]),
        NEEDS: needs,
        SCRIPT: script,
        CHAT: "--chat" in argv,
        PROCESSES: number_of_processes(argv),
        **kl,
    }
    return read_back(MANIFEST, launch, version, files)


def values_of_anybody(
    program: Sequence[str], given: Mapping[str, object], version: str
) -> Mapping[str, object]:
    """Return the values of a launch that others wrote: the options of its script with their
    defaults, the script, the model and the prompts.

    TRL's own programs make each prompt a user's message, as `--chat` does.
    """
    called = " ".join(program).lower()
    script: Script = "rloo" if "rloo" in called else "grpo"
    given = {OLD_NAMES.get(key, key): value for key, value in given.items()}
    given = {**defaults(script, version), **given, SCRIPT: script}
    if isinstance(scale := given.get("scale_rewards"), bool):  # as in GRPOConfig.__post_init__
        given["scale_rewards"] = "group" if scale else "none"
    sampled = given["generation_kwargs"] or {}
    if isinstance(sampled, Mapping):  # where the engine samples, they win over the options
        given |= {key: sampled[key] for key in ("top_p", "top_k", "min_p") if key in sampled}
        if sampled.get("temperature", given["temperature"]) != given["temperature"]:
            given["temperature"] = "another one in the loss than in generation_kwargs"
    prompts = {
        "path": given.get("dataset_name"),
        "split": given.get("dataset_train_split"),
        "max_prompt_tokens": given.get("max_prompt_length"),
    }
    warmup: dict[str, object] = {}
    ratio, steps = given.get("warmup_ratio"), given.get("max_steps")
    if isinstance(ratio, float) and ratio and not given.get("warmup_steps"):
        whole = ceil(ratio * steps) if isinstance(steps, int) else 0
        warmup["warmup_steps"] = whole if whole > 0 else f"{ratio} of its steps"
    return {
        **given,
        **warmup,
        CHAT: True,
        PROCESSES: number_of_processes(program),
        NEEDS: {
            "prompts": {name: value for name, value in prompts.items() if value is not None},
            "asked": {"model.path": given.get("model_name_or_path")},
        },
    }
