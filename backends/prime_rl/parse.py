"""Read a launch of Prime-RL back as settings.

`faults` checks a configuration more strictly than the library does. keys/<release>.json lists the
keys of a release, their types and defaults. Further checks find settings that the library accepts
but ignores, or that fail only after a process has started.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from backends.prime_rl.config import INFERENCE, RL
from backends.prime_rl.manifest import ADVANTAGES, ENVIRONMENT_ID, HOOKS, MANIFEST, RECORD
from backends.prime_rl.releases import CURRENT, OLD, VERSIONS, keys
from backends.prime_rl.translate import sent
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.library.manifest import Values
from orchestrator.library.needs import name_of, passed_keys, settings_of, with_extra
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
    extra = passed_keys(files)
    launch = sent({RL: tree, INFERENCE: server}) | {RECORD: record}
    launch = {key: value for key, value in launch.items() if key not in extra}
    if wrong := faults(tree) or _missing(launch, version) or _foreign(tree, launch, version):
        raise SpecError(name, wrong)
    return settings_of(with_extra(_named(MANIFEST.read(launch, version)), extra), name)


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
        section["name"] = name_of(str(section.get("path", "")))
    return plain | sections


def _below(table: str) -> frozenset[str]:
    """Return the keys of a table that some launch of orch may have."""
    keys_sent = (key for version in VERSIONS for key in MANIFEST.keys(version))
    return frozenset(key.removeprefix(table) for key in keys_sent if key.startswith(table))


LOSS_KWARGS = _below("trainer.loss.kwargs.")
ENVIRONMENT_ARGS = _below("orchestrator.env.args.")
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
"""The model that 0.5.0 trains if a configuration names none."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "Path": (str,),
    "dict": (dict,),
    "list": (list,),
    "None": (),
}


def release_of(tree: Tree) -> str:
    """Return the release that a configuration is written for.

    Tables that only one release has show it.
    """
    orchestrator = tree.get("orchestrator", {})
    new = (
        isinstance(orchestrator, Mapping) and {"train", "algo", "group_size"} & orchestrator.keys()
    )
    return CURRENT if new or "file_monitor" in tree else OLD


def faults(tree: Tree, kind: str = "rl", version: str | None = None) -> list[Fault]:
    """Return every fault of a configuration. `kind`: `rl` or `inference`.

    `version`: the release; None: the one that the configuration is written for.
    """
    version = version or release_of(tree)
    wrong = list(_walk(tree, "", "$", Schema(kind, version)))
    if kind == "inference" or wrong:
        return wrong
    return list(_traps(tree) if version == OLD else _traps_of_current(tree))


class Schema(NamedTuple):
    """The keys of one program in one release."""

    kind: str
    version: str


@cache
def _children(schema: Schema) -> Mapping[str, frozenset[str]]:
    """Return the names in each table, by the table's prefix."""
    children: dict[str, set[str]] = {}
    for key in keys(*schema):
        parts = key.split(".")
        for depth, part in enumerate(parts):
            children.setdefault("".join(f"{p}." for p in parts[:depth]), set()).add(part)
    return {table: frozenset(names) for table, names in children.items()}


def _walk(tree: Tree, prefix: str, path: str, schema: Schema) -> Iterator[Fault]:
    tables = _children(schema)
    for name, value in tree.items():
        field, key = f"{path}.{name}", prefix + name
        if key in keys(*schema):
            yield from _typed(keys(*schema)[key][0], value, field)
            continue
        if value == [] and any(table.startswith((f"{key}.", f"{key}<")) for table in tables):
            continue  # no table of this list
        inner = _table(key, value, tables)
        if inner is None:
            known = {known.partition("<")[0] for known in tables[prefix]}
            why = (
                "has no such branch" if name in known else f"is no key of Prime-RL {schema.version}"
            )
            yield Fault(f"'{name}' {why}{did_you_mean(name, known - {name})}", field)
            continue
        for each in value if isinstance(value, list) else [value]:
            yield from _walk(each, inner, field, schema)


def _table(key: str, value: object, tables: Mapping[str, object]) -> str | None:
    """Return the prefix of the table that `value` is, or None.

    Its `type` selects among several tables.
    """
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, Mapping):
        return None
    if f"{key}." in tables:
        return f"{key}."
    branches = [table for table in tables if table.startswith(f"{key}<")]
    plain = [table for table in branches if table.count(".") == key.count(".") + 1]
    chosen = f"{key}<{first['type']}>." if "type" in first else next(iter(plain), None)
    return chosen if chosen in tables else None


def _typed(spelled: str, value: object, path: str) -> Iterator[Fault]:
    for word in spelled.split("|"):
        if word.startswith("'"):
            if word.strip("'") == value:
                return
        # A bool is an int for isinstance(), and no number in the configuration.
        elif isinstance(value, _KINDS.get(word, (object,))) and (
            word == "bool" or not isinstance(value, bool)
        ):
            return
    yield Fault(f"must be {spelled.replace('|', ' or ')}, got {value!r}", path)


def _traps(tree: Tree) -> Iterator[Fault]:
    """Yield the faults that 0.5.0 accepts although it ignores them or fails later."""
    orchestrator, trainer = tree.get("orchestrator", {}), tree.get("trainer", {})
    broadcast = tree.get("weight_broadcast", {}).get("type", "filesystem")
    if broadcast == "nccl" and tree.get("max_async_level", 1) != 1:
        yield Fault(
            "nccl broadcasts only work at max_async_level 1 (the trainer would refuse after it has "
            f"started), got {tree['max_async_level']}; set it to filesystem",
            "$.weight_broadcast",
        )
    level, most = tree.get("max_async_level", 1), orchestrator.get("max_off_policy_steps", 8)
    if most < level:
        yield Fault(
            f"cancels rollouts that live through more than {most} updates, the long ones first, "
            f"though max_async_level is {level}; set it to {level}",
            "$.orchestrator.max_off_policy_steps",
        )
    yield from _loss_traps(tree, trainer.get("loss", {}))
    yield from _tokenizer_trap(tree, trainer)
    if "seed" in orchestrator:
        yield Fault(
            "Prime-RL does not read it; set orchestrator.buffer.seed", "$.orchestrator.seed"
        )
    if "seed" in orchestrator.get("sampling", {}):
        yield Fault(
            "gives every rollout of a group the same random numbers; leave it out",
            "$.orchestrator.sampling.seed",
        )
    if tree.get("deployment", {}).get("type") == "multi_node" and "slurm" not in tree:
        yield Fault("needs [slurm]; orch starts the nodes itself: use single_node", "$.deployment")


def _tokenizer_trap(tree: Tree, trainer: Tree) -> Iterator[Fault]:
    model = tree.get("model", {}).get("name", DEFAULT_MODEL)
    own = trainer.get("model", {}).get("name") or DEFAULT_MODEL
    tokenizer = trainer.get("tokenizer", {}).get("name") or own
    if tokenizer != model:
        yield Fault(
            f"the trainer would save the weights of {model} with the tokenizer of {tokenizer}: it "
            f"copies the name of its default model before model.name is set; set it to {model}",
            "$.trainer.tokenizer.name",
        )


def _traps_of_current(tree: Tree) -> Iterator[Fault]:
    """Yield the faults that 0.8.0 accepts although it ignores them or fails later."""
    orchestrator = tree.get("orchestrator", {})
    loss = tree.get("trainer", {}).get("loss", {})
    yield from _own_loss(loss)
    if loss.get("kwargs", {}).get("estimator", "none") != "none":
        yield Fault(
            "its RL loss is handed no reference log-probabilities, which this estimator needs: "
            "train with 0.5.0",
            "$.trainer.loss.kwargs.estimator",
        )
    for place in ("pre_batch_filters", "post_batch_filters"):
        if orchestrator.get(place) != []:
            yield Fault(
                "leaves out rollouts (by default those without an advantage) and their tokens of "
                "the mean; set it to []",
                f"$.orchestrator.{place}",
            )
    if orchestrator.get("renderer", {}).get("name", "auto") == "auto":
        yield Fault(
            "'auto' fails for a model that its list lacks; set it to 'default', which applies the "
            "model's chat template",
            "$.orchestrator.renderer.name",
        )
    if tree.get("deployment", {}).get("type") == "multi_node" and "slurm" not in tree:
        yield Fault("needs [slurm]; orch starts the nodes itself: use single_node", "$.deployment")


def _own_loss(loss: Tree) -> Iterator[Fault]:
    if loss.get("type", "default") != "custom":
        yield Fault(
            "its own loss clips no ratio and pulls to the rollout policy (kl_tau), which is no "
            "reference policy: it is no cell of orch; use type = 'custom'",
            "$.trainer.loss",
        )
        return
    for name in loss.get("kwargs", {}).keys() - LOSS_KWARGS:
        yield Fault(
            f"'{name}' is no argument of our loss{did_you_mean(name, LOSS_KWARGS)}",
            f"$.trainer.loss.kwargs.{name}",
        )


def _loss_traps(tree: Tree, loss: Tree) -> Iterator[Fault]:
    yield from _own_loss(loss)
    kwargs = loss.get("kwargs", {}) if loss.get("type") == "custom" else {}
    teacher = tree.get("deployment", {}).get("num_teacher_gpus") or tree.get(
        "orchestrator", {}
    ).get("teacher_model")
    if kwargs.get("estimator", "none") != "none" and not teacher:
        yield Fault(
            f"estimator '{kwargs['estimator']}' needs a reference policy: set "
            "deployment.num_teacher_gpus or orchestrator.teacher_model",
            "$.trainer.loss.kwargs",
        )
    temperature = tree.get("orchestrator", {}).get("sampling", {}).get("temperature", 1.0)
    if kwargs.get("estimator", "none") != "none" and temperature != 1.0:
        yield Fault(
            "the reference log-probabilities are always of temperature 1, the policy's of this "
            f"one: their difference is no KL; set it to 1.0, got {temperature}",
            "$.orchestrator.sampling.temperature",
        )
