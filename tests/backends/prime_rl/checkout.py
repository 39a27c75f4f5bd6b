"""Runs Prime-RL's own configuration classes, in a process and an environment of their own.

stdin: JSON {"source": folder with prime_rl/, "files": [{"kind": "rl"|"inference", "path": ...}]};
stdout: JSON, one {"ok", "error", "resolved"} a file; or, without files, the table of its keys.
torch, wandb and the rest of what its configuration imports without use are replaced by stand-ins.
"""

import json
import sys
import tomllib
import types
import typing
from pathlib import Path
from unittest.mock import MagicMock

from pydantic import BaseModel


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        return MagicMock()


for name in (
    "torch",
    "torch.distributed",
    "wandb",
    "loguru",
    "loguru._logger",
    "torch.nn",
    "torch.distributed.tensor",
):
    sys.modules.setdefault(name, StandIn(name))


def models(annotation):
    """The configuration classes an annotation can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in models(inner)]


def spelled(annotation):
    """A type in words: `int`, `int|None`, `filesystem|nccl`."""
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return "|".join(repr(x) for x in arguments)
    if origin in (list, dict):
        return origin.__name__
    if origin is typing.Annotated:
        return spelled(arguments[0])
    if arguments:
        return "|".join(spelled(inner) for inner in arguments)
    return "None" if annotation is type(None) else getattr(annotation, "__name__", "any")


def default(field):
    value = field.get_default(call_default_factory=True)
    return value if isinstance(value, int | float | str | bool | None) else None


def merge(found, more):
    """Tables without a `type` to tell them apart are one: each key takes what any of them does."""
    for key, (kinds, value) in more.items():
        before, first = found.get(key, (kinds, value))
        words = dict.fromkeys([*before.split("|"), *kinds.split("|")])
        found[key] = ["|".join(words), first]


def table(model, prefix=""):
    found = {}
    for name, field in model.model_fields.items():
        inside = models(field.annotation)
        if inside:
            for inner in inside:
                tag = inner.model_fields.get("type")
                label = f"<{tag.default}>" if tag is not None and len(inside) > 1 else ""
                merge(found, table(inner, f"{prefix}{name}{label}."))
        else:
            found[prefix + name] = [spelled(field.annotation), default(field)]
    return found


def validated(kind, path):
    from prime_rl.configs.inference import InferenceConfig
    from prime_rl.configs.orchestrator import OrchestratorConfig
    from prime_rl.configs.rl import RLConfig
    from prime_rl.configs.trainer import TrainerConfig

    config = {"rl": RLConfig, "inference": InferenceConfig}[kind]
    tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    try:
        made = config.model_validate(tree)
        resolved = made.model_dump(mode="json", exclude_none=True)
        if kind == "rl":  # as its own processes read what `rl` writes for them
            read = {"trainer": TrainerConfig, "orchestrator": OrchestratorConfig}
            read |= {"inference": InferenceConfig, "teacher_inference": InferenceConfig}
            for name in read.keys() & resolved.keys():
                own = read[name].model_validate(resolved[name])
                resolved[name] = own.model_dump(mode="json", exclude_none=True)
    except Exception as error:
        return {"ok": False, "error": str(error), "resolved": None}
    return {"ok": True, "error": "", "resolved": resolved}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["source"])
    if "files" in asked:
        answers = [validated(f["kind"], f["path"]) for f in asked["files"]]
        json.dump(answers, sys.stdout, default=str)
    else:
        from prime_rl.configs.inference import InferenceConfig
        from prime_rl.configs.rl import RLConfig

        json.dump({"rl": table(RLConfig), "inference": table(InferenceConfig)}, sys.stdout)
