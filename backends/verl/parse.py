"""A launch of verl, ours or somebody else's, as the settings it asks for."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import ValidationError

from backends.verl import checks
from backends.verl.arguments import (
    ACTOR,
    ADVANTAGES,
    AGGREGATIONS,
    DEFAULTS,
    KL_NAMES,
    MAIN,
    MODEL,
    NEWEST,
    OFF,
    OPTIMIZER,
    PLAIN_TEMPLATE,
    REWARD,
    ROLLOUT,
    SEPARATE,
    VERSIONS,
)
from backends.verl.overrides import read
from orchestrator.errors import Fault, SpecError
from orchestrator.settings import Settings

Values = Mapping[str, object]
SOURCE = "launch of verl"
DATA = "data.json"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """What a launch asks for: overrides after `-m verl.trainer.main_ppo`, over verl's defaults.

    `data.json` among the files tells what the training file is made of; without it, data.path is
    the training file itself, with orch's default rule of reward, and a launch without a seed
    reads as seed 0. Raises SpecError, with every fault.
    """
    given, faults = _given(argv)
    data = _data(files, faults)
    version = _version(given, faults)
    release = version or NEWEST
    values = {**DEFAULTS[release], **given}
    faults += checks.faults(checks.Launch(given, values, release, data.get("num_prompts")))
    if faults:
        raise SpecError(SOURCE, faults)
    try:
        return Settings.model_validate(_settings(values, data, version))
    except ValidationError as error:
        raise SpecError(
            SOURCE,
            [
                Fault(
                    f"{each['msg']}, got {str(each['input'])[:80]!r}",
                    "$" + "".join(f".{part}" for part in each["loc"]),
                )
                for each in error.errors()
            ],
        ) from error


def _given(argv: Sequence[str]) -> tuple[dict[str, object], list[Fault]]:
    """The overrides of a command line, a later one over an earlier one."""
    if MAIN not in argv:
        return {}, [Fault(f"{MAIN} is not what this launch runs; it is all that is read here")]
    given: dict[str, object] = {}
    faults = []
    for text in argv[list(argv).index(MAIN) + 1 :]:
        try:
            key, value = read(text)
            given[key] = value
        except ValueError as error:
            faults.append(Fault(str(error)))
    return given, faults


def _data(files: Mapping[str, str], faults: list[Fault]) -> dict[str, object]:
    if DATA not in files:
        return {}
    try:
        return dict(json.loads(files[DATA]))
    except (ValueError, TypeError) as error:
        faults.append(Fault(f"{DATA} is not a JSON object: {error}"))
        return {}


def _version(given: Values, faults: list[Fault]) -> str | None:
    """From trainer.project_name, where translate writes it."""
    name, _, version = str(given.get("trainer.project_name", "")).partition("@")
    if name != "verl" or not version:
        return None
    if version not in VERSIONS:
        faults.append(
            Fault(
                f"verl {version} is not driven by orch, which knows {', '.join(VERSIONS)}",
                "$.trainer.project_name",
            )
        )
        return None
    return version


def _settings(values: Values, data: Values, version: str | None) -> dict[str, object]:
    # That these are numbers is among what checks.faults has seen to.
    batch = cast("int", values["data.train_batch_size"])
    minibatch = cast("int", values[f"{ACTOR}.ppo_mini_batch_size"])
    steps = cast("int", values["trainer.total_training_steps"])
    updates = batch // minibatch
    lag = values.get(f"{SEPARATE}.num_warmup_batches", 0)
    asynchronous = values.get("trainer.v1.trainer_mode") == "separate_async"
    return {
        "model": _model(values),
        "data": _prompts(values, data),
        "advantage": {"estimator": _advantage(values)},
        "loss": _loss(values),
        "kl": _kl(values),
        "rollout": {
            "group_size": values[f"{ROLLOUT}.n"],
            "max_response_tokens": values["data.max_response_length"],
            "temperature": values[f"{ROLLOUT}.temperature"],
            "top_p": values[f"{ROLLOUT}.top_p"],
        },
        "batch": {"num_prompts": batch, "num_minibatches": updates},
        "optimizer": _optimizer(values, 1 if asynchronous else updates, steps * updates),
        "num_train_steps": steps * updates,
        "backend": {"name": "verl", "version": version},
        "max_staleness_steps": lag * updates if asynchronous and isinstance(lag, int) else 0,
        "seed": values["data.seed"] or 0,
    }


def _model(values: Values) -> dict[str, object]:
    path = str(values[f"{MODEL}.path"])
    template = values[f"{MODEL}.custom_chat_template"]
    chat = "none" if template == PLAIN_TEMPLATE else "default"
    return {"name": _name(path), "path": path, "chat_template": chat}


def _prompts(values: Values, data: Values) -> dict[str, object]:
    longest = values["data.max_prompt_length"]
    if data:
        return {**data, "max_prompt_tokens": longest}
    path = str(values["data.train_files"])
    rule = values.get(f"{REWARD}.reward_kwargs.rule")
    found: dict[str, object] = {"name": _name(path), "path": path, "max_prompt_tokens": longest}
    return found if rule is None else {**found, "reward": rule}


def _name(path: str) -> str:
    """A label from the last part of a path."""
    return _NOT_IN_NAMES.sub("-", path.rstrip("/").rpartition("/")[2]).lstrip("._+-")[:64] or "verl"


def _advantage(values: Values) -> str:
    name, by_std = values["algorithm.adv_estimator"], values["algorithm.norm_adv_by_std_in_grpo"]
    return next(
        ours
        for ours, (theirs, std) in ADVANTAGES.items()
        if theirs == name and (std == by_std or theirs != "grpo")
    )


def _loss(values: Values) -> dict[str, object]:
    mode = values[f"{ACTOR}.loss_agg_mode"]
    aggregation = next(ours for ours, theirs in AGGREGATIONS.items() if theirs == mode)
    low, high, dual = (values[f"{ACTOR}.clip_ratio_{bound}"] for bound in ("low", "high", "c"))
    clip = {"low": low, "high": high, "dual": None if dual == OFF else dual}
    constant = values[f"{ACTOR}.loss_scale_factor"] if aggregation == "constant" else None
    return {
        "aggregation": aggregation,
        "constant_tokens": constant,
        "clip": None if high == OFF else clip,
    }


def _kl(values: Values) -> dict[str, object]:
    in_reward, in_loss = values["algorithm.use_kl_in_reward"], values[f"{ACTOR}.use_kl_loss"]
    if not in_reward and not in_loss:
        return {"estimator": "none"}
    name = str(values[f"{ACTOR}.kl_loss_type" if in_loss else "algorithm.kl_penalty"])
    beta = values[f"{ACTOR}.kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef"]
    both = "reward_and_loss" if in_reward else "loss"
    return {
        "estimator": KL_NAMES.get(name, name),
        "placement": both if in_loss else "reward",
        "beta": beta,
    }


def _optimizer(values: Values, updates_per_tick: int, num_train_steps: int) -> dict[str, object]:
    extra, betas = values[f"{OPTIMIZER}.override_optimizer_config"], values[f"{OPTIMIZER}.betas"]
    beta1, beta2 = betas if isinstance(betas, list) and len(betas) == 2 else (None, None)
    ticks, ratio = (values[f"{OPTIMIZER}.lr_warmup_steps{end}"] for end in ("", "_ratio"))
    warmup = ticks * updates_per_tick if isinstance(ticks, int) and ticks > 0 else 0
    if not warmup and isinstance(ratio, float):
        warmup = int(ratio * num_train_steps / updates_per_tick) * updates_per_tick
    clip = values[f"{OPTIMIZER}.clip_grad"]
    return {
        "learning_rate": values[f"{OPTIMIZER}.lr"],
        "weight_decay": values[f"{OPTIMIZER}.weight_decay"],
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": extra.get("eps", 1e-8) if isinstance(extra, Mapping) else 1e-8,
        "max_grad_norm": None if clip == OFF else clip,
        "schedule": values[f"{OPTIMIZER}.lr_scheduler_type"],
        "num_warmup_steps": warmup,
    }
