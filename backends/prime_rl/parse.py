"""Read a launch of Prime-RL back as the settings that it asks for."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from backends.prime_rl.check import ENVIRONMENT_ARGS, faults, release_of
from backends.prime_rl.config import ENVIRONMENT_ID
from backends.prime_rl.manifest import ADVANTAGES, HOOKS, NO_CLIP_NORM
from backends.prime_rl.releases import CURRENT, NAME
from backends.prime_rl.translate import RECORD, RL
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.settings import Settings

Tree = Mapping[str, Any]


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. `files`: name -> text. Raise SpecError with every fault."""
    name = next((Path(arg).name for arg in argv if arg.endswith(".toml")), RL)
    text = files.get(name)
    if text is None:
        raise SpecError(name, [Fault(f"the launch has no file {name}")])
    try:
        tree: Tree = tomllib.loads(text)
        record = json.loads(files.get(RECORD, "{}"))
        server = tomllib.loads(files.get("inference.toml", ""))
    except ValueError as error:
        raise SpecError(name, [Fault(f"cannot be read: {error}")]) from None
    found = faults(tree)
    if not found and release_of(tree) == CURRENT:
        tree = as_before(tree, server)
        record = {"backend_version": CURRENT} | record
    found = found or _missing(tree) or _foreign(tree)
    if found:
        raise SpecError(name, found)
    try:
        return Settings.model_validate(_settings(tree, record))
    except ValidationError as error:
        raise SpecError(
            name,
            [Fault(each["msg"], "$." + ".".join(map(str, each["loc"]))) for each in error.errors()],
        ) from None


_NEEDED = (
    "max_steps",
    "max_async_level",
    "seq_len",
    "model.name",
    "trainer.optim.lr",
    "orchestrator.batch_size",
    "orchestrator.rollouts_per_example",
    "orchestrator.sampling.max_tokens",
    "orchestrator.buffer.seed",
    "orchestrator.env",
)


def as_before(tree: Tree, server: Tree) -> Tree:
    """Return a configuration of 0.8.0 in the tables of 0.5.0: the same settings under other names.

    `server`: the second node's inference.toml, if any; it has the seed.
    """
    orchestrator = tree.get("orchestrator", {})
    sampling = orchestrator.get("train", {}).get("sampling", {})
    sources = orchestrator.get("train", {}).get("source", [])
    seed = tree.get("inference", server).get("seed", 0)
    size = orchestrator.get("group_size", 1)
    scale = tree.get("trainer", {}).get("loss", {}).get("kwargs", {}).get("advantage_scale", 1.0)
    hook = {1.0: None, size / max(size - 1, 1): "leave_one_out"}.get(scale, "rescaled")
    return {
        **tree,
        "max_async_level": orchestrator.get("max_off_policy_steps", 8),
        "orchestrator": {
            "batch_size": orchestrator.get("batch_size"),
            "rollouts_per_example": size,
            "sampling": {"max_tokens": sampling.get("max_completion_tokens")}
            | {k: sampling[k] for k in ("temperature",) if k in sampling},
            "buffer": {"seed": seed},
            "advantage": {"import_path": f"{HOOKS}.{hook}"} if hook else {},
            "env": [source.get("legacy", {}) for source in sources] or None,
        },
    }


def _missing(tree: Tree) -> list[Fault]:
    """Return a fault for each needed key that is absent. The library's default fits no cell."""
    found = []
    for key in _NEEDED:
        at: Any = tree
        for part in key.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        if at is None:
            found.append(Fault("is not set, and its default is no cell's", f"$.{key}"))
    return found


def _foreign(tree: Tree) -> list[Fault]:
    """Return a fault for each setting that names code which is not orch's, or that no cell has.

    The effect of foreign code cannot be read from the launch.
    """
    found, orchestrator = [], tree["orchestrator"]
    loss, advantage = tree["trainer"]["loss"], orchestrator.get("advantage", {})
    known = {f"{HOOKS}.{name}" for name in ADVANTAGES.values() if name} | {None}
    if loss["import_path"] != f"{HOOKS}.loss":
        found.append(Fault(f"'{loss['import_path']}' is not our loss", "$.trainer.loss"))
    if advantage.get("import_path") not in known:
        found.append(Fault("is not our advantage function", "$.orchestrator.advantage"))
    if advantage.get("length_shaping_alpha") is not None:
        found.append(Fault("length shaping is no setting of a cell", "$.orchestrator.advantage"))
    environments = orchestrator["env"]
    if len(environments) != 1 or environments[0].get("id") != ENVIRONMENT_ID:
        found.append(Fault(f"must be the one environment '{ENVIRONMENT_ID}'", "$.orchestrator.env"))
    found += [
        Fault(
            f"'{name}' is no argument of it{did_you_mean(name, ENVIRONMENT_ARGS)}",
            f"$.orchestrator.env.args.{name}",
        )
        for name in environments[0].get("args", {}).keys() - ENVIRONMENT_ARGS
    ]
    if tree["trainer"]["optim"].get("type", "adamw") != "adamw":
        found.append(Fault("must be adamw", "$.trainer.optim.type"))
    if orchestrator["batch_size"] % orchestrator["rollouts_per_example"]:
        found.append(
            Fault("must be a multiple of rollouts_per_example", "$.orchestrator.batch_size")
        )
    return found


def _settings(tree: Tree, record: Tree) -> dict[str, Any]:
    orchestrator, kwargs = tree["orchestrator"], tree["trainer"]["loss"].get("kwargs", {})
    sampling, group = orchestrator["sampling"], orchestrator["rollouts_per_example"]
    arguments = dict(orchestrator["env"][0].get("args", {}))
    hook = orchestrator.get("advantage", {}).get("import_path", "").rpartition(".")[2]
    names = {function: name for name, function in ADVANTAGES.items()}
    clip = {
        ours: kwargs[f"clip_{ours}"] for ours in ("low", "high", "dual") if f"clip_{ours}" in kwargs
    }
    return {
        "model": {"name": _name(tree["model"]["name"]), "path": tree["model"]["name"]},
        "data": arguments
        | {
            "name": _name(arguments.get("path", "")),
            "max_prompt_tokens": tree["seq_len"] - sampling["max_tokens"],
        },
        "advantage": {"estimator": names[hook]},
        "loss": {
            "aggregation": record.get("loss_aggregation", "token_mean"),
            "constant_tokens": record.get("loss_constant_tokens"),
            "clip": clip or None,
        },
        "kl": {k: kwargs[k] for k in ("estimator", "placement", "beta") if k in kwargs}
        or {"estimator": "none"},
        "rollout": {
            "group_size": group,
            "max_response_tokens": sampling["max_tokens"],
            "temperature": sampling.get("temperature", 1.0),
        },
        "batch": {"num_prompts": orchestrator["batch_size"] // group},
        "optimizer": _optimizer(tree["trainer"], tree["max_steps"]),
        "num_train_steps": tree["max_steps"],
        "backend": {"name": NAME, "version": record.get("backend_version")},
        "max_staleness_steps": tree["max_async_level"],
        "seed": orchestrator["buffer"]["seed"],
    }


def _optimizer(trainer: Tree, steps: int) -> dict[str, Any]:
    """Return the optimizer's settings.

    An absent key has the library's default, which may not be orch's.
    """
    optim, scheduler = trainer["optim"], trainer.get("scheduler", {"type": "constant"})
    norm, schedule = optim.get("max_norm", 1.0), scheduler["type"]
    warmup = scheduler.get("warmup_steps", 0 if schedule == "constant" else 10)
    if schedule == "linear" and scheduler.get("decay_steps", 10) == 0:
        schedule = "constant"
    elif schedule == "linear" and scheduler.get("decay_steps", 10) != steps - warmup:
        raise SpecError(
            RL,
            [
                Fault(
                    "a plateau between warm-up and decay is no schedule of a cell; decay_steps "
                    "must be "
                    f"0 or {steps - warmup}",
                    "$.trainer.scheduler.decay_steps",
                )
            ],
        )
    return {
        "learning_rate": optim["lr"],
        "weight_decay": optim.get("weight_decay", 0.01),
        "beta1": optim.get("betas1", 0.9),
        "beta2": optim.get("betas2", 0.999),
        "max_grad_norm": None if norm == NO_CLIP_NORM else norm,
        "schedule": schedule,
        "num_warmup_steps": warmup,
    }


def _name(path: str) -> str:
    """Return a display name made from a path."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", PurePosixPath(path).name).strip("-._+")[:64]
    return name or "unnamed"
