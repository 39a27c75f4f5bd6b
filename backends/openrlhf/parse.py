"""What a launch asks for: the reverse of plan.translate, for either spelling of the flags.

A flag that is not given has the library's default; a flag that orch does not know is a fault.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from backends.openrlhf.check import ADVANTAGES, AGGREGATIONS, SCHEDULES, UNBIASED
from backends.openrlhf.flags import FLAGS, FLAT, MODULE, NEWEST, Value, spelled, spellings
from backends.openrlhf.plan import NEEDS, NO_CLIP
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.settings import Settings


@dataclass(frozen=True)
class Flags:
    """A command line, read."""

    given: Mapping[str, Value]
    version: str

    def __getitem__(self, name: str) -> Any:
        """The value given, else the library's own."""
        return self.given.get(name, FLAGS[name].default)


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """The settings of a launch. Raises SpecError, with every fault of the command line at once."""
    faults: list[Fault] = []
    flags = read(argv, faults)
    faults += ignored(flags)
    needs = _needs(files, faults)
    if not faults or flags.given:
        faults += uncounted(flags, needs)
    if faults:
        raise SpecError(MODULE, faults)
    try:
        return Settings.model_validate(_settings(flags, needs))
    except (ValidationError, ArithmeticError, KeyError, TypeError) as error:
        told = (
            [
                f"{e['msg']} at {'.'.join(map(str, e['loc']))}, got {e['input']!r}"
                for e in error.errors()
            ]
            if isinstance(error, ValidationError)
            else [f"{type(error).__name__}: {error}"]
        )
        raise SpecError(MODULE, [Fault(f"the flags make no cell: {t}") for t in told]) from error


def read(argv: Sequence[str], faults: list[Fault]) -> Flags:
    """Flags by their dotted names. Whole names only, though the library takes any prefix."""
    if MODULE not in argv:
        faults.append(Fault(f"the launch does not run {MODULE}"))
        return Flags({}, NEWEST)
    rest = list(argv[list(argv).index(MODULE) + 1 :])
    version = max((NEWEST, FLAT), key=lambda v: sum(word in spellings(v) for word in rest))
    known, given = spellings(version), dict[str, Value]()
    while rest:
        word = rest.pop(0)
        if word not in known:
            hint = did_you_mean(word, known)
            faults.append(Fault(f"{word} is not a flag orch knows of OpenRLHF {version}{hint}"))
            continue
        name = known[word]
        taken = [rest.pop(0) for _ in range(_arity(name)) if rest]
        try:
            given[name] = _value(name, taken)
        except (ValueError, IndexError):
            faults.append(Fault(f"{word} takes {_arity(name)} x {FLAGS[name].kind}, got {taken}"))
    return Flags(given, version)


_WITHOUT: Mapping[str, str] = {
    "algo.kl.unbiased_gradient": "algo.kl.use_loss",
    "train.async_queue_size": "train.async_enable",
}
"""Flags that the library takes and ignores without another one."""


def uncounted(flags: Flags, needs: Mapping[str, Any]) -> Iterator[Fault]:
    """Where its loop would make another number of train steps than the flags seem to say, or
    train on something that no cell has. It takes all of this without a word."""
    version = flags.version
    rows, batch = flags["data.max_samples"], flags["rollout.batch_size"]
    per_step = flags["train.batch_size"]
    if batch < 1 or per_step < 1:
        return
    name = {n: spelled(n, version) for n in FLAGS}
    if "data.max_samples" not in flags.given:
        yield Fault(f"the number of train steps cannot be told: give {name['data.max_samples']}")
    elif rows % batch:
        yield Fault(
            f"{name['data.max_samples']} {rows} is no multiple of {name['rollout.batch_size']} "
            f"{batch}: the last batch is cut short or left out; give {rows - rows % batch}"
        )
    elif (there := _there(flags, needs)) is not None and there < rows:
        yield Fault(
            f"the files of {name['data.prompt_dataset']} hold {there} prompts together, and "
            f"{name['data.max_samples']} {rows} makes no more of them: training ends early; name "
            "the file more often"
        )
    if batch * flags["rollout.n_samples_per_prompt"] % per_step:
        yield Fault(
            f"{name['rollout.batch_size']} x {name['rollout.n_samples_per_prompt']} = "
            f"{batch * flags['rollout.n_samples_per_prompt']} rollouts are no multiple of "
            f"{name['train.batch_size']} {per_step}: what is left over makes no train step"
        )
    if flags["train.max_epochs"] != 1:
        yield Fault(
            f"{name['train.max_epochs']} {flags['train.max_epochs']}: no cell trains on a rollout "
            "batch more than once; give 1"
        )
    if flags["actor.entropy_coef"]:
        yield Fault(
            f"{name['actor.entropy_coef']} {flags['actor.entropy_coef']:g}: no cell has an entropy "
            "bonus; give 0, which logs the entropy"
        )


def _there(flags: Flags, needs: Mapping[str, Any]) -> int | None:
    """Prompts in all files named, where the launch says how many one has."""
    known = needs.get("prompts", {}).get("num_prompts")
    files = flags["data.prompt_dataset"] or ""
    return known * len(files.split(",")) if isinstance(known, int) else None


def ignored(flags: Flags) -> list[Fault]:
    """What was asked for and will not happen."""
    return [
        Fault(
            f"{spelled(name, flags.version)} is ignored without {spelled(other, flags.version)}: "
            "give both or neither"
        )
        for name, other in _WITHOUT.items()
        if flags.given.get(name) and not flags.given.get(other)
    ]


def _arity(name: str) -> int:
    return {"switch": 0, "pair": 2}.get(FLAGS[name].kind, 1)


def _value(name: str, taken: Sequence[str]) -> Value:
    kind = FLAGS[name].kind
    if kind == "switch":
        return True
    if kind == "pair":
        return float(taken[0]), float(taken[1])
    if kind == "int":
        return int(taken[0])
    return float(taken[0]) if kind == "float" else taken[0]


def _needs(files: Mapping[str, str], faults: list[Fault]) -> Mapping[str, Any]:
    try:
        plain = json.loads(files[NEEDS])
        prompts, asked = plain["prompts"], plain["asked"]
        if not (isinstance(prompts, dict) and isinstance(asked, dict)):
            raise TypeError
    except (KeyError, ValueError, TypeError):
        faults.append(
            Fault(f"{NEEDS} does not say which prompts and which reward the launch is for")
        )
        return {}
    return {"prompts": prompts, "asked": asked}


def _settings(flags: Flags, needs: Mapping[str, Any]) -> dict[str, Any]:
    samples = flags["rollout.batch_size"] * flags["rollout.n_samples_per_prompt"]
    minibatches = samples // flags["train.batch_size"]
    batches = flags["data.max_samples"] // flags["rollout.batch_size"]
    steps = batches * minibatches * flags["train.num_episodes"] * flags["train.max_epochs"]
    asked, data = needs["asked"], needs["prompts"]
    response = flags["rollout.max_new_tokens"]
    return {
        "model": {
            "name": asked["model.name"],
            "path": flags["actor.model_name_or_path"],
            "chat_template": "default" if flags["data.apply_chat_template"] else "none",
        },
        "data": {
            **{
                k: data[k]
                for k in ("name", "path", "split", "num_prompts", "instruction", "reward")
            },
            "max_prompt_tokens": flags["data.max_len"] - response,
        },
        "advantage": {"estimator": _reverse(ADVANTAGES, flags["algo.advantage.estimator"])},
        "loss": _loss(flags),
        "kl": _kl(flags, asked),
        "rollout": {
            "group_size": flags["rollout.n_samples_per_prompt"],
            "max_response_tokens": response,
            "temperature": flags["rollout.temperature"],
            "top_p": flags["rollout.top_p"],
        },
        "batch": {"num_prompts": flags["rollout.batch_size"], "num_minibatches": minibatches},
        "optimizer": _optimizer(flags, steps),
        "num_train_steps": steps,
        "backend": {"name": "openrlhf", "version": asked["backend.version"]},
        "max_staleness_steps": (
            flags["train.async_queue_size"] * minibatches if flags["train.async_enable"] else 0
        ),
        "seed": flags["train.seed"],
    }


def _loss(flags: Flags) -> dict[str, Any]:
    low, high = flags["actor.eps_clip_low_high"]
    aggregation = _reverse(AGGREGATIONS, flags["actor.loss_agg_mode"])
    if flags.version == FLAT and flags["train.micro_batch_size"] == 1:
        aggregation = "sequence_mean"
    unclipped = (low, high) == NO_CLIP
    return {
        "aggregation": aggregation,
        "clip": None if unclipped else {"low": low, "high": high, "dual": flags["actor.dual_clip"]},
    }


def _kl(flags: Flags, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The KL term. Not asked for an estimator and at coefficient 0, there is none."""
    beta, estimator = flags["algo.kl.init_coef"], flags["algo.kl.estimator"]
    if beta == 0 and "algo.kl.estimator" not in flags.given:
        return {"estimator": "none"}
    in_loss = flags["algo.kl.use_loss"]
    if in_loss and flags["algo.kl.unbiased_gradient"]:
        named = asked.get("kl.estimator", f"{estimator}+")
        if UNBIASED.get(named) != estimator:
            raise KeyError(f"{NEEDS} asks for {named}, the flags for the value of {estimator}")
        estimator = named
    return {"estimator": estimator, "placement": "loss" if in_loss else "reward", "beta": beta}


def _optimizer(flags: Flags, steps: int) -> dict[str, Any]:
    beta1, beta2 = flags["actor.adam.betas"]
    norm = flags["actor.max_norm"]
    return {
        "learning_rate": flags["actor.adam.lr"],
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": flags["actor.adam.eps"],
        "weight_decay": flags["actor.adam.weight_decay"],
        "max_grad_norm": norm if norm > 0 else None,
        "schedule": _reverse(SCHEDULES, flags["actor.lr_scheduler"]),
        "num_warmup_steps": math.ceil(steps * flags["actor.lr_warmup_ratio"]),
    }


def _reverse(names: Mapping[str, str], value: str) -> str:
    for ours, theirs in names.items():
        if theirs == value:
            return ours
    raise KeyError(f"orch has no word for '{value}' (it knows: {', '.join(names.values())})")
