"""Read a launch of Prime-RL back as settings."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from backends.prime_rl.check import ENVIRONMENT_ARGS, faults, release_of
from backends.prime_rl.config import INFERENCE, RL
from backends.prime_rl.manifest import ADVANTAGES, ENVIRONMENT_ID, HOOKS, MANIFEST, RECORD
from backends.prime_rl.releases import CURRENT, OLD
from backends.prime_rl.translate import sent
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.library.manifest import Values
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
        server = tomllib.loads(files.get(INFERENCE, ""))
    except ValueError as error:
        raise SpecError(name, [Fault(f"cannot be read: {error}")]) from None
    version = release_of(tree)
    launch = sent({RL: tree, INFERENCE: server}) | {RECORD: record}
    if wrong := faults(tree) or _missing(launch, version) or _foreign(tree, launch, version):
        raise SpecError(name, wrong)
    try:
        return Settings.model_validate(_named(MANIFEST.read(launch, version)))
    except ValidationError as error:
        raise SpecError(
            name,
            [Fault(each["msg"], "$." + ".".join(map(str, each["loc"]))) for each in error.errors()],
        ) from None


_NEEDED: Mapping[str, tuple[str, ...]] = {
    OLD: (
        "max_steps",
        "max_async_level",
        "seq_len",
        "model.name",
        "trainer.optim.lr",
        "orchestrator.batch_size",
        "orchestrator.rollouts_per_example",
        "orchestrator.sampling.max_tokens",
        "orchestrator.buffer.seed",
        "orchestrator.env.id",
    ),
    CURRENT: (
        "max_steps",
        "seq_len",
        "model.name",
        "trainer.optim.lr",
        "orchestrator.batch_size",
        "orchestrator.train.sampling.max_completion_tokens",
        "orchestrator.train.source.legacy.id",
    ),
}
"""Keys that a launch must have, because no cell has their defaults."""


def _missing(launch: Values, version: str) -> list[Fault]:
    """Return a fault for each needed key that is absent."""
    return [
        Fault("is not set, and its default is no cell's", f"$.{key}")
        for key in _NEEDED[version]
        if key not in launch
    ]


_SOURCES = {
    OLD: ("orchestrator.env", "orchestrator.env"),
    CURRENT: ("orchestrator.train.source", "orchestrator.train.source.legacy"),
}
"""Release -> its list of environments, and the table in it that names one."""


def _foreign(tree: Tree, launch: Values, version: str) -> list[Fault]:
    """Return a fault for each setting that names code from others, or that no cell has.

    The effect of foreign code cannot be read from the launch.
    """
    wrong: list[Fault] = []
    loss = launch.get("trainer.loss.import_path")
    if loss != f"{HOOKS}.loss":
        wrong.append(Fault(f"'{loss}' is not our loss", "$.trainer.loss"))
    advantage, own = "orchestrator.advantage", {f"{HOOKS}.{x}" for x in ADVANTAGES.values() if x}
    if launch.get(f"{advantage}.import_path") not in {*own, None}:
        wrong.append(Fault("is not our advantage function", f"$.{advantage}"))
    if f"{advantage}.length_shaping_alpha" in launch:
        wrong.append(Fault("length shaping is no setting of a cell", f"$.{advantage}"))
    sources, table = _SOURCES[version]
    if _length(tree, sources) != 1 or launch.get(f"{table}.id") != ENVIRONMENT_ID:
        wrong.append(Fault(f"must be the one environment '{ENVIRONMENT_ID}'", f"$.{sources}"))
    arguments = f"{table}.args."
    given = {key.removeprefix(arguments) for key in launch if key.startswith(arguments)}
    wrong += [
        Fault(
            f"'{name}' is no argument of it{did_you_mean(name, ENVIRONMENT_ARGS)}",
            f"$.{arguments}{name}",
        )
        for name in sorted(given - ENVIRONMENT_ARGS)
    ]
    if launch.get("trainer.optim.type", "adamw") != "adamw":
        wrong.append(Fault("must be adamw", "$.trainer.optim.type"))
    return wrong + _numbers(launch, version)


def _length(tree: Tree, key: str) -> int:
    at: Any = tree
    for part in key.split("."):
        at = at.get(part, ()) if isinstance(at, Mapping) else ()
    return len(at)


def _numbers(launch: Any, version: str) -> list[Fault]:
    """Return a fault for each pair of numbers that no cell has."""
    wrong = []
    size = "rollouts_per_example" if version == OLD else "group_size"
    if launch["orchestrator.batch_size"] % launch.get(f"orchestrator.{size}", 1):
        wrong.append(Fault(f"must be a multiple of {size}", "$.orchestrator.batch_size"))
    if launch.get("trainer.scheduler.type") == "linear":
        warmup = launch.get("trainer.scheduler.warmup_steps", 10)
        decay, steps = launch.get("trainer.scheduler.decay_steps", 10), launch["max_steps"]
        if decay not in (0, steps - warmup):
            wrong.append(
                Fault(
                    "a plateau between warm-up and decay is no schedule of a cell; decay_steps "
                    f"must be 0 or {steps - warmup}",
                    "$.trainer.scheduler.decay_steps",
                )
            )
    return wrong


def _named(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with display names of model and data, made from their paths."""
    sections = {section: dict(plain.get(section, {})) for section in ("model", "data")}
    for section in sections.values():
        section["name"] = _name(str(section.get("path", "")))
    return plain | sections


def _name(path: str) -> str:
    """Return a display name made from a path."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", PurePosixPath(path).name).strip("-._+")[:64]
    return name or "unnamed"
