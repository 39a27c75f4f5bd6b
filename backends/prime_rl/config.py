"""Write a cell as Prime-RL's configuration: the manifest's keys, and those of machines and paths.

Keys are dotted, and become nested tables. [inference] is the server's own
file if the server runs on a second node.
"""

import json
from collections.abc import Iterator, Mapping

from backends.prime_rl.launch import SERVER_HOST
from backends.prime_rl.manifest import ENVIRONMENT_ID
from backends.prime_rl.releases import CURRENT
from orchestrator.library import loggers
from orchestrator.library.manifest import refuse_rest
from orchestrator.library.memory import longest_sequence
from orchestrator.records import AttemptPaths, Cell

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


def files(cell: Cell, version: str, keys: Mapping[str, object]) -> dict[str, str]:
    """Return the TOML files of a launch: name -> text. `keys`: its keys."""
    if cell.resources.num_nodes == 1:
        return {RL: dumps(keys)}
    served = {k.removeprefix(_SERVED): v for k, v in keys.items() if k.startswith(_SERVED)}
    texts = {
        RL: dumps({k: v for k, v in keys.items() if not k.startswith(_SERVED)}),
        INFERENCE: dumps(served),
    }
    if _has_reference(cell, version):
        texts[REFERENCE] = dumps(_reference(cell, served))
    return texts


def _has_reference(cell: Cell, version: str) -> bool:
    return version != CURRENT and cell.settings.kl.estimator != "none"


def surroundings(cell: Cell, paths: AttemptPaths, version: str) -> Iterator[tuple[str, object]]:
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
    why = f"Engines of {parallel} GPUs do not fill the {engines} GPUs that sample"
    refuse_rest(
        cell,
        "system.tensor_parallel",
        engines,
        parallel,
        why,
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


def _reference(cell: Cell, served: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of the second node's server of the reference policy.

    Its number format is that of the rollout policy's server, as the library copies it on one node.
    """
    own = {key: value for key, value in served.items() if key == "model.dtype"}
    return {
        "seed": cell.settings.seed,
        "server.port": REFERENCE_PORT,
        "parallel.dp": 1,
        "model.name": cell.settings.model.path,
        "model.max_model_len": longest_sequence(cell.settings),
        "weight_broadcast.type": "filesystem",
        **own,
    }


def dumps(keys: Mapping[str, object]) -> str:
    """Return dotted keys as a TOML document, sorted; the value {} is an empty table.

    Raise TypeError for a value that TOML cannot express.
    """
    tables: dict[str, list[str]] = {}
    for key, value in sorted(keys.items()):
        section, _, leaf = key.rpartition(".")
        if value == {}:
            tables.setdefault(key, [])
        else:
            tables.setdefault(section, []).append(f"{leaf} = {_value(value)}\n")
    for name, lines in tables.items():
        if name:
            lines.insert(0, f"[[{name}]]\n" if name in _LISTS else f"[{name}]\n")
    return "\n".join("".join(lines) for _, lines in sorted(tables.items()))


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
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(k)} = {_value(v)}" for k, v in value.items()) + "}"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _text(text: str) -> str:
    """Return a TOML string.

    JSON's escapes are valid in TOML, but the delete character needs one too.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
