"""A cell as a launch of SkyRL."""

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from backends.skyrl.check import check, check_shards
from backends.skyrl.layout import checkpoints_of, exports_of, tensorboard_of
from backends.skyrl.lines import NEEDS, Line, lines
from backends.skyrl.overrides import write
from backends.skyrl.releases import ENGINE, EVAL_SAMPLING, FIXED, PLACEMENT
from backends.skyrl.topology import Topology, micro_batch, topology
from orchestrator import scoring
from orchestrator.data import recipe
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Cadence, Settings

ENTRY, REWARD = "orch_skyrl.py", "reward.py"
PROMPTS_FORMAT = "chat"
PYTHON = "python"
"""Of SkyRL's environment, first on PATH where the launch runs."""


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """The launch of a cell. Raises UnsupportedSetting for what SkyRL cannot express."""
    settings = cell.settings
    version = check(settings)
    top = topology(cell.resources, asynchronous=settings.max_staleness_steps > 0)
    sequences = check_shards(settings, top)
    told = tuple(lines(settings, version))
    overrides = {
        **FIXED,
        **_place(place, settings),
        **dict(_machines(top)),
        **dict(_micro_batches(settings, sequences)),
        **dict(_cadence(cell.cadence, settings)),
        **{key: value for line in told for key, value in line.overrides.items()},
    }
    return LaunchPlan(
        cell_id=cell.id,
        backend="skyrl",
        version=version,
        argv=(
            PYTHON,
            str(place.plan_dir / ENTRY),
            *(write(key, value) for key, value in overrides.items()),
        ),
        files={
            NEEDS: needs(settings),
            ENTRY: _text(ENTRY),
            REWARD: _text(REWARD),
            **scoring.files(settings.data.reward),
            **recipe.plan_file(settings.data, PROMPTS_FORMAT),
        },
        env={
            "TENSORBOARD_DIR": str(
                tensorboard_of(place.attempt_dir, settings.batch.num_minibatches)
            )
        },
        ledger=tuple(_entry(line, settings) for line in told),
        bring_up="ray",
    )


def needs(settings: Settings) -> str:
    """What `data/train.parquet` beside it is to be made of, and names that no flag carries."""
    return (
        json.dumps(
            {
                "data": settings.data.model_dump(),
                "model": {"name": settings.model.name},
                "backend": {"version": settings.backend.version},
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _place(place: AttemptPaths, settings: Settings) -> dict[str, object]:
    data, updates = place.plan_dir / "data", settings.batch.num_minibatches
    return {
        "data.train_data": [str(data / "train.parquet")],
        "data.val_data": [str(data / "validation.parquet")],
        "trainer.ckpt_path": str(checkpoints_of(place.checkpoints_dir)),
        "trainer.export_path": str(exports_of(place.checkpoints_dir, updates)),
        "trainer.log_path": str(place.attempt_dir / "infrastructure"),
        f"{EVAL_SAMPLING}.temperature": settings.rollout.temperature,
        f"{EVAL_SAMPLING}.top_p": settings.rollout.top_p,
        f"{EVAL_SAMPLING}.max_generate_length": settings.rollout.max_response_tokens,
    }


def _micro_batches(settings: Settings, sequences: int) -> Iterator[tuple[str, object]]:
    tokens = settings.data.max_prompt_tokens + settings.rollout.max_response_tokens
    for phase in ("train", "forward"):
        yield f"trainer.micro_{phase}_batch_size_per_gpu", micro_batch(sequences, tokens)


def _machines(top: Topology) -> Iterator[tuple[str, object]]:
    yield f"{PLACEMENT}.colocate_all", top.colocated
    yield f"{PLACEMENT}.colocate_policy_ref", True
    for model in ("policy", "ref"):
        yield f"{PLACEMENT}.{model}_num_nodes", top.num_nodes
        yield f"{PLACEMENT}.{model}_num_gpus_per_node", top.gpus_per_node
    yield f"{ENGINE}.num_engines", top.num_engines
    yield f"{ENGINE}.tensor_parallel_size", 1


def _cadence(cadence: Cadence, settings: Settings) -> Iterator[tuple[str, object]]:
    """In rollout batches, rounded up to whole ones; SkyRL does both after the last one, too."""
    updates = settings.batch.num_minibatches
    steps = settings.num_train_steps
    save = -(-(cadence.checkpoint_every_steps or steps) // updates)
    yield "trainer.ckpt_interval", save
    yield "trainer.hf_save_interval", save
    yield "trainer.eval_interval", -(-(cadence.evaluate_every_steps or steps) // updates)


def _entry(line: Line, settings: Settings) -> LedgerEntry:
    section, _, name = line.field.partition(".")
    value = getattr(settings, section)
    if name:
        value = getattr(value, name)
    key = ", ".join(line.overrides) or (NEEDS if line.field.startswith("data.") else "")
    return _ledger(line.field, line.status, key, str(value), line.note)


@lru_cache(maxsize=4096)
def _ledger(field: str, status: str, key: str, value: str, note: str) -> LedgerEntry:
    return LedgerEntry.model_validate(
        {"field": field, "status": status, "key": key, "value": value, "note": note}
    )


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / "launch" / name).read_text(encoding="utf-8")
