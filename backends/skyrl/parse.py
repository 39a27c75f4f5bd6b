"""A launch of SkyRL, read back: what it asks for, by whoever wrote it.

Everything SkyRL would take without a word, and do otherwise than it says, is a fault here: its
configuration checks the names of keys, not the types of their values.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from pydantic import ValidationError

from backends.skyrl import silent
from backends.skyrl.lines import NEEDS, clip_of
from backends.skyrl.overrides import read
from backends.skyrl.releases import (
    ADVANTAGES,
    AGGREGATIONS,
    ALGORITHM,
    ASYNC,
    CHOICES,
    DEFAULTS,
    OPTIMIZER,
    SAMPLING,
    SCHEDULES,
)
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.settings import Settings

_LOSSES = ("regular", "dual_clip", "orch_rollout_ppo", "orch_rollout_dual_clip")
_UNSET: Mapping[str, type] = {"trainer.max_training_steps": int, f"{ALGORITHM}.max_seq_len": int}
"""Keys whose default is null -> the type of what else they may hold."""


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """What a launch asks for. Raises SpecError with every fault found."""
    given = read(argument for argument in argv if "=" in argument)
    values = {**DEFAULTS, **given}
    needed = _needed(files)
    faults = list(_faults(values, given))
    known = needed.get("data", {}).get("num_prompts")
    faults += silent.faults(values, given, " ".join(argv), known)
    if faults:
        raise SpecError("SkyRL launch", faults)
    try:
        return Settings.model_validate(_settings(values, given, needed))
    except ValidationError as error:
        raise SpecError(
            "SkyRL launch",
            [Fault(e["msg"], f"$.{'.'.join(map(str, e['loc']))}") for e in error.errors()],
        ) from error


def _needed(files: Mapping[str, str]) -> Mapping[str, Mapping[str, object]]:
    if NEEDS not in files:
        return {}
    try:
        needed: Mapping[str, Mapping[str, object]] = json.loads(files[NEEDS])
    except ValueError as error:
        raise SpecError(NEEDS, [Fault(f"is not JSON: {error}")]) from error
    return needed


def _faults(values: Mapping[str, object], given: Mapping[str, object]) -> Iterator[Fault]:
    for key in given:
        if key.startswith("+"):
            yield Fault("SkyRL takes no `+`: it has the keys it has", key)
    wrong = [fault for key in DEFAULTS if (fault := _type_fault(key, values[key]))]
    yield from wrong
    if wrong:
        return
    for key, choices in {**CHOICES, **_checked()}.items():
        if values[key] not in choices:
            near = did_you_mean(str(values[key]), choices)
            yield Fault(f"'{values[key]}' is none of {', '.join(choices)}{near}", key)
    if values[f"{ALGORITHM}.use_kl_in_reward"] and values[f"{ALGORITHM}.use_kl_loss"]:
        yield Fault(
            "SkyRL refuses use_kl_in_reward with use_kl_loss, which is on unless told otherwise: "
            "add trainer.algorithm.use_kl_loss=false",
            f"{ALGORITHM}.use_kl_in_reward",
        )
    if values[f"{ALGORITHM}.kl_ctrl.type"] != "fixed":
        yield Fault(
            "orch has no coefficient that adapts; set it to fixed", f"{ALGORITHM}.kl_ctrl.type"
        )
    if not given.get("trainer.max_training_steps") and not given.get("orch.max_training_steps"):
        yield Fault(
            "the number of train steps cannot be told from epochs: set it",
            "trainer.max_training_steps",
        )
    prompts, minibatch = (
        _int(values, "trainer.train_batch_size"),
        _int(values, "trainer.policy_mini_batch_size"),
    )
    if minibatch < 1 or prompts % minibatch:
        yield Fault(
            f"{minibatch} must divide train_batch_size, {prompts}", "trainer.policy_mini_batch_size"
        )


def _checked() -> Mapping[str, tuple[str, ...]]:
    """Keys that SkyRL checks, and whose values orch has words for."""
    return {
        f"{ALGORITHM}.advantage_estimator": tuple(name for name, _ in ADVANTAGES.values()),
        f"{ALGORITHM}.loss_reduction": tuple(AGGREGATIONS.values()),
        f"{ALGORITHM}.policy_loss_type": _LOSSES,
    }


def _type_fault(key: str, value: object) -> Fault | None:
    default = DEFAULTS[key]
    wanted = _UNSET[key] if default is None else type(default)
    right = (
        type(value) is wanted
        or (value is None and default is None)
        or (wanted is float and type(value) is int)
    )
    if right:
        return None
    return Fault(f"must be {_a(wanted)}, got {value!r}; SkyRL would not notice", key)


def _a(wanted: type) -> str:
    return {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
        list: "a list",
    }[wanted]


def _int(values: Mapping[str, object], key: str) -> int:
    value = values[key]
    return value if isinstance(value, int) else 0


def _settings(
    values: Mapping[str, object],
    given: Mapping[str, object],
    needed: Mapping[str, Mapping[str, object]],
) -> dict[str, object]:
    path = str(values["trainer.policy.model.path"])
    prompts = _int(values, "trainer.train_batch_size")
    minibatches = prompts // _int(values, "trainer.policy_mini_batch_size")
    steps = "trainer.max_training_steps"
    batches = _int(values, steps if given.get(steps) else "orch.max_training_steps")
    asynchronous = silent.is_asynchronous(given)
    betas = values[f"{OPTIMIZER}.adam_betas"]
    first, second = betas if isinstance(betas, list) and len(betas) == 2 else (None, None)
    schedules = {**{theirs: ours for ours, theirs in SCHEDULES.items()}, "constant": "constant"}
    return {
        "model": {
            "name": needed.get("model", {}).get("name", _name(path)),
            "path": path,
            "chat_template": given.get("orch.chat_template", "default"),
        },
        "data": {
            **needed.get("data", _data(values)),
            "max_prompt_tokens": values["trainer.max_prompt_length"],
        },
        **_objective(values, given),
        "rollout": {
            "group_size": values["generator.n_samples_per_prompt"],
            "max_response_tokens": values[f"{SAMPLING}.max_generate_length"],
            "temperature": values[f"{SAMPLING}.temperature"],
            "top_p": values[f"{SAMPLING}.top_p"],
        },
        "batch": {"num_prompts": prompts, "num_minibatches": minibatches},
        "optimizer": {
            "learning_rate": values[f"{OPTIMIZER}.lr"],
            "weight_decay": values[f"{OPTIMIZER}.weight_decay"],
            "beta1": first,
            "beta2": second,
            "max_grad_norm": values[f"{OPTIMIZER}.max_grad_norm"] or None,
            "schedule": schedules[str(values[f"{OPTIMIZER}.scheduler"])],
            "num_warmup_steps": values[f"{OPTIMIZER}.num_warmup_steps"],
        },
        "num_train_steps": batches * minibatches,
        "max_staleness_steps": values[f"{ASYNC}.max_staleness_steps"] if asynchronous else 0,
        "backend": {"name": "skyrl", "version": needed.get("backend", {}).get("version")},
        "seed": values["trainer.seed"],
    }


def _objective(values: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    algorithm = {key.removeprefix(f"{ALGORITHM}."): value for key, value in values.items()}
    estimators = {theirs: ours for ours, theirs in ADVANTAGES.items()}
    name, by_std = str(algorithm["advantage_estimator"]), bool(algorithm["grpo_norm_by_std"])
    advantage = estimators[name, by_std if name == "grpo" else True]
    aggregations = {theirs: ours for ours, theirs in AGGREGATIONS.items()}
    aggregation = aggregations[str(algorithm["loss_reduction"])]
    low, high, cap = (
        float(str(algorithm[key])) for key in ("eps_clip_low", "eps_clip_high", "clip_ratio_c")
    )
    clip = clip_of(str(algorithm["policy_loss_type"]), low, high, cap)
    placement = _placement(algorithm, given)
    kl = {
        "estimator": algorithm["kl_estimator_type"],
        "placement": placement,
        "beta": algorithm["kl_loss_coef"],
    }
    return {
        "advantage": {"estimator": advantage},
        "loss": {
            "aggregation": aggregation,
            "constant_tokens": algorithm["max_seq_len"] if aggregation == "constant" else None,
            "clip": clip.model_dump() if clip else None,
        },
        "kl": kl if placement else {"estimator": "none"},
    }


def _placement(algorithm: Mapping[str, object], given: Mapping[str, object]) -> str | None:
    if algorithm["use_kl_in_reward"]:
        return "reward_and_loss" if given.get("orch.kl_in_loss_too") is True else "reward"
    return "loss" if algorithm["use_kl_loss"] else None


def _data(values: Mapping[str, object]) -> Mapping[str, object]:
    """Of a launch that orch did not write: the first file it trains on."""
    files = values["data.train_data"]
    path = str(files[0]) if isinstance(files, list) and files else "unknown"
    return {"name": _name(path), "path": path}


def _name(path: str) -> str:
    """A name of a path's last part."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", PurePath(path).name)[:64].lstrip("._+-") or "unknown"
