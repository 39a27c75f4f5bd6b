"""Write a cell as Prime-RL's configuration: the manifest's keys, and those of machines and paths.

Keys are dotted, and become nested tables in the order of ORDER. [inference] is the server's own
file if the server runs on a second node.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from backends.prime_rl.launch import SERVER_HOST
from backends.prime_rl.manifest import ENVIRONMENT_ID, sequence_tokens
from backends.prime_rl.releases import CURRENT
from orchestrator.errors import UnsupportedSetting
from orchestrator.library import loggers
from orchestrator.records import AttemptPaths, Cell

Table = dict[str, object]
INTERVAL = "orchestrator.eval.interval"
VALIDATION_ENV = "validation"
"""The name of the environment of validation prompts, in Prime-RL's log."""
RL, INFERENCE, REFERENCE = "rl.toml", "inference.toml", "reference.toml"
PORT, REFERENCE_PORT, ENGINE_PORT = 8000, 8001, 8100
"""The ports of the router or server, of the reference policy's server, and of the engine behind a
router."""
_LISTS = (
    "orchestrator.env",
    "orchestrator.train.source",
    "orchestrator.eval.env",
    "orchestrator.eval.source",
)
"""Tables that are the one entry of a list."""
_SERVED = "inference."
ORDER = (
    "output_dir",
    "max_steps",
    "max_async_level",
    "seq_len",
    "model",
    "ckpt",
    "weight_broadcast",
    "trainer.model",
    "trainer.tokenizer",
    "trainer.optim.type",
    "trainer.optim",
    "trainer.scheduler.type",
    "trainer.scheduler.warmup_steps",
    "trainer.scheduler",
    "trainer.loss.type",
    "trainer.loss.import_path",
    "trainer.loss.kwargs.estimator",
    "trainer.loss.kwargs.placement",
    "trainer.loss.kwargs.beta",
    "trainer.loss.kwargs.clip_low",
    "trainer.loss.kwargs.clip_high",
    "trainer.loss.kwargs.clip_dual",
    "trainer.loss",
    "trainer",
    "orchestrator.batch_size",
    "orchestrator.rollouts_per_example",
    "orchestrator.group_size",
    "orchestrator.max_off_policy_steps",
    "orchestrator.strict_async_level",
    "orchestrator.algo",
    "orchestrator.renderer",
    "orchestrator.pre_batch_filters",
    "orchestrator.post_batch_filters",
    "orchestrator.file_monitor",
    "orchestrator.sampling.temperature",
    "orchestrator.sampling",
    "orchestrator.buffer",
    "orchestrator.advantage.type",
    "orchestrator.advantage",
    "orchestrator.env.id",
    "orchestrator.env.name",
    "orchestrator.env.args.path",
    "orchestrator.env.args.split",
    "orchestrator.env.args.reward",
    "orchestrator.env.args.instruction",
    "orchestrator.env",
    "orchestrator.train.sampling.temperature",
    "orchestrator.train.sampling",
    "orchestrator.train.source.name",
    "orchestrator.train.source.legacy.id",
    "orchestrator.train.source.legacy.args.path",
    "orchestrator.train.source.legacy.args.split",
    "orchestrator.train.source.legacy.args.reward",
    "orchestrator.train.source.legacy.args.instruction",
    "orchestrator.eval.interval",
    "orchestrator.eval.sampling",
    "orchestrator.eval",
    "orchestrator",
    "deployment",
    "inference.seed",
    "inference.server",
    "inference.parallel",
    "inference.model.name",
    "inference.model.max_model_len",
    "inference.model",
    "inference",
)
"""The order of keys in a file. A table also gives the place of its keys that are not listed."""


def all_keys(
    cell: Cell, paths: AttemptPaths, version: str, keys: Mapping[str, object]
) -> dict[str, object]:
    """Return all keys of a launch, in ORDER. `keys`: those that the manifest sends for the cell."""
    return ordered({**keys, **dict(_surroundings(cell, paths, version))})


def ordered(keys: Mapping[str, object]) -> dict[str, object]:
    """Return keys in ORDER; those of tables that are not in it come last."""
    return {key: keys[key] for key in sorted(keys, key=_position)}


def files(cell: Cell, version: str, ordered: Mapping[str, object]) -> dict[str, Table]:
    """Return the TOML files of a launch, by name. `ordered`: its keys."""
    if cell.resources.num_nodes == 1:
        return {RL: nested(ordered)}
    tables = {
        RL: nested({k: v for k, v in ordered.items() if not k.startswith(_SERVED)}),
        INFERENCE: nested(
            {k.removeprefix(_SERVED): v for k, v in ordered.items() if k.startswith(_SERVED)}
        ),
    }
    if _has_reference(cell, version):
        tables[REFERENCE] = _reference(cell, ordered)
    return tables


def nested(keys: Mapping[str, object]) -> Table:
    """Return dotted keys as nested tables, in their order."""
    tables: Table = {}
    by_name: dict[str, Table] = {"": tables}
    for key, value in keys.items():
        section, _, leaf = key.rpartition(".")
        table = by_name.get(section)
        if table is None:
            table = _table_of(section, by_name)
        if value == {}:
            table.setdefault(leaf, value)
        else:
            table[leaf] = value
    return tables


def _table_of(name: str, by_name: dict[str, Table]) -> Table:
    """Return the table of a dotted name. Make it and the tables around it if they are new."""
    if name in by_name:
        return by_name[name]
    around, _, leaf = name.rpartition(".")
    table: Table = {}
    inner = _table_of(around, by_name).setdefault(leaf, [table] if name in _LISTS else table)
    if not isinstance(inner, dict | list):
        raise TypeError(f"{name} is a value and a table")
    by_name[name] = inner[0] if isinstance(inner, list) else inner
    return by_name[name]


@lru_cache(maxsize=1024)
def _position(key: str) -> int:
    """Return the place of a key: its own, or that of the nearest table around it."""
    while key and key not in ORDER:
        key = key.rpartition(".")[0]
    return ORDER.index(key) if key else len(ORDER)


def _has_reference(cell: Cell, version: str) -> bool:
    return version != CURRENT and cell.settings.kl.estimator != "none"


def _surroundings(cell: Cell, paths: AttemptPaths, version: str) -> Iterator[tuple[str, object]]:
    """Yield the keys without effect on results: paths, cadence, GPUs, addresses."""
    yield "output_dir", str(paths.checkpoints_dir)
    every = cell.cadence.checkpoint_every_steps
    # an empty table, too, is what asks for checkpoints
    yield ("ckpt", {}) if every is None else ("ckpt.interval", every)
    if cell.settings.kl.placement is None and cell.settings.loss.clip is None:
        yield "trainer.loss.kwargs", {}
    yield from _validation(cell, version)
    yield from _gpus(cell, version)
    yield "inference.server.port", PORT
    if "wandb" in cell.loggers:
        yield "wandb.project", loggers.project(paths)
        yield "wandb.name", cell.slug
    if cell.resources.num_nodes == 2:
        yield from _addresses(cell, version)


def _validation(cell: Cell, version: str) -> Iterator[tuple[str, object]]:
    """Yield the keys of the evaluation while it trains: all validation prompts, sampled once."""
    settings, data = cell.settings, cell.settings.data
    table, sampling = "orchestrator.eval", settings.rollout
    longest = "max_completion_tokens" if version == CURRENT else "max_tokens"
    yield INTERVAL, cell.cadence.evaluate_every_steps or settings.num_train_steps
    yield f"{table}.sampling.temperature", sampling.temperature
    yield f"{table}.sampling.top_p", sampling.top_p
    yield f"{table}.sampling.{longest}", sampling.max_response_tokens
    environment = f"{table}.source" if version == CURRENT else f"{table}.env"
    inner = f"{environment}.legacy" if version == CURRENT else environment
    yield f"{environment}.name", VALIDATION_ENV
    yield f"{inner}.id", ENVIRONMENT_ID
    for name in ("path", "split", "reward", "instruction"):
        yield f"{inner}.args.{name}", getattr(data, name)
    yield f"{inner}.args.part", "validation"


def _gpus(cell: Cell, version: str) -> Iterator[tuple[str, object]]:
    """Yield the number of GPUs for each program.

    0.5.0 leaves one for the reference policy even without a KL, so that staleness is comparable.
    """
    gpus, alone = cell.resources.gpus_per_node, cell.resources.num_nodes == 1
    free = gpus if version == CURRENT else gpus - 1
    served = free // 2 if alone else 0
    yield "deployment.type", "single_node"
    yield "deployment.gpus_per_node", gpus
    yield "deployment.num_train_gpus", trainer_gpus(cell, version)
    yield "deployment.num_infer_gpus", served
    if alone and _has_reference(cell, version):
        yield "deployment.num_teacher_gpus", 1
    engines, parallel = served if alone else free, cell.system.tensor_parallel or 1
    if engines % parallel:
        raise UnsupportedSetting(
            f"prime_rl {version}",
            "system.tensor_parallel",
            parallel,
            (f"divisors of {engines}",),
            f"Engines of {parallel} GPUs do not fill the {engines} GPUs that sample: take a "
            "divisor.",
        )
    if parallel > 1:
        yield "inference.parallel.tp", parallel
    yield "inference.parallel.dp", engines // parallel


def trainer_gpus(cell: Cell, version: str) -> int:
    """Return the number of GPUs that train."""
    gpus = cell.resources.gpus_per_node
    if cell.resources.num_nodes > 1:
        return gpus
    free = gpus if version == CURRENT else gpus - 1
    return free - free // 2


def _addresses(cell: Cell, version: str) -> Iterator[tuple[str, object]]:
    """Yield the keys with addresses and models of the second node's servers."""
    server, name = f"http://{SERVER_HOST}", cell.settings.model.path
    yield "inference.model.name", name
    if (adapter := cell.settings.lora) is not None:  # rl.toml says it to a server of its own only
        yield "inference.enable_lora", True
        yield "inference.max_lora_rank", adapter.rank
    if version == CURRENT:
        yield "inference.backend_port", ENGINE_PORT
        yield "orchestrator.model.client.base_url", [f"{server}:{PORT}/v1"]
        yield "orchestrator.model.client.admin_base_url", [f"{server}:{ENGINE_PORT}/v1"]
        return
    yield "orchestrator.client.base_url", [f"{server}:{PORT}/v1"]
    yield "orchestrator.client.dp_rank_count", cell.resources.gpus_per_node - 1
    if _has_reference(cell, version):
        yield "orchestrator.teacher_model.model.name", name
        yield "orchestrator.teacher_model.client.base_url", [f"{server}:{REFERENCE_PORT}/v1"]


def _reference(cell: Cell, keys: Mapping[str, object]) -> Table:
    """Return reference.toml of the second node: the server of the reference policy.

    Its number format is that of the rollout policy's server, as the library copies it on one node.
    """
    settings, dtype = cell.settings, f"{_SERVED}model.dtype"
    model: Table = {"name": settings.model.path, "max_model_len": sequence_tokens(settings)}
    if dtype in keys:
        model["dtype"] = keys[dtype]
    return {
        "seed": settings.seed,
        "server": {"port": REFERENCE_PORT},
        "parallel": {"dp": 1},
        "model": model,
        "weight_broadcast": {"type": "filesystem"},
    }


Tree = Mapping[str, object]
_PLAIN = frozenset({str, int, float, bool, list})
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(tree: Tree) -> str:
    """Return a tree as a TOML document. Raise TypeError for a value that TOML cannot express."""
    lines: list[str] = []
    _add_table(lines, tree, "")
    return "\n".join(lines).lstrip("\n") + "\n"


def _add_table(lines: list[str], table: Tree, path: str) -> None:
    """Add a table's plain keys to the lines, then its tables. `path`: its dotted name."""
    inner = {name: value for name, value in table.items() if _is_table(value) or _is_tables(value)}
    if path and (len(inner) < len(table) or not table):
        lines.append(f"\n[{path}]")
    lines += [
        f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner
    ]
    for name, value in inner.items():
        dotted = f"{path}.{_key(name)}" if path else _key(name)
        if isinstance(value, Mapping):
            _add_table(lines, value, dotted)
        elif isinstance(value, Sequence):
            for each in value:
                lines.append(f"\n[[{dotted}]]")
                flat = {k: v for k, v in each.items() if not isinstance(v, Mapping)}
                lines += [f"{_key(k)} = {_value(v)}" for k, v in flat.items()]
                for key in each.keys() - flat.keys():
                    _add_table(lines, each[key], f"{dotted}.{_key(key)}")


def _is_table(value: object) -> bool:
    """Return True for a mapping. Test plain types first: isinstance of Mapping is slow."""
    return type(value) not in _PLAIN and isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and _is_table(value[0])


@lru_cache(maxsize=1024)
def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _text(text: str) -> str:
    """Return a TOML string.

    JSON's escapes are valid in TOML, but the delete character needs one too.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
