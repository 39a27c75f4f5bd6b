"""Translate a cell to a launch of Prime-RL."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from backends.prime_rl import config, limits, toml
from backends.prime_rl.config import INFERENCE, RL
from backends.prime_rl.manifest import ENVIRONMENT, HOOKS, LAUNCHER, MANIFEST, RECORD
from backends.prime_rl.releases import NAME, OLD, VERSIONS
from orchestrator import scoring
from orchestrator.errors import UnsupportedSetting
from orchestrator.library import prompt_recipe, rollout_dump
from orchestrator.library.manifest import Carried, without_evaluation
from orchestrator.records import AttemptPaths, Cell, LaunchPlan

PROMPTS_FORMAT = "questions"
ROLLOUTS = "orch_prime_rl_rollouts"


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a cell Prime-RL cannot train."""
    carried = _carried(cell)
    limits.check(cell)
    version = cell.settings.backend.version or VERSIONS[0]
    assigned = MANIFEST.assignments(cell.settings, carried)
    keys = config.all_keys(cell, place, version, assigned)
    record = _record(cell)
    dumps = cell.cadence.dump_rollouts
    if dumps and version != OLD:
        raise _no_dump(cell)
    folder = str(place.attempt_dir / rollout_dump.FOLDER)
    return LaunchPlan(
        cell_id=cell.id,
        backend=NAME,
        version=version,
        argv=(
            "python",
            str(place.plan_dir / f"{LAUNCHER}.py"),
            str(place.attempt_dir),
            "rl",
            "@",
            str(place.plan_dir / RL),
        ),
        files={
            **{
                name: toml.dumps(table) for name, table in config.files(cell, version, keys).items()
            },
            **sources(),
            **(rollout_files() if dumps else {}),
            RECORD: json.dumps(record) + "\n",
            **scoring.files(cell.settings.data.reward),
            **prompt_recipe.plan_file(cell.settings.data, PROMPTS_FORMAT),
        },
        env={rollout_dump.VARIABLE: folder} if dumps else {},
        ledger=MANIFEST.ledger(cell.settings, keys | {RECORD: record}, carried)
        + without_evaluation(cell.cadence),
        bring_up="ranks",
    )


def _carried(cell: Cell) -> tuple[Carried, ...]:
    """Return each field with its row. Raise UnsupportedSetting that names the release."""
    try:
        return MANIFEST.carry(cell.settings)
    except UnsupportedSetting as refused:
        raise limits.refuse(
            cell, refused.field, refused.value, refused.offered, refused.advice
        ) from None


def sent(tables: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Return every key of a launch's TOML files, dotted, with its value.

    The server's own file is the table [inference]. A table in a list has the key of the list.
    """
    keys = dict(_leaves(tables[RL], ""))
    for key, value in _leaves(tables.get(INFERENCE, {}), "inference."):
        keys.setdefault(key, value)
    return keys


def _leaves(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def sources() -> dict[str, str]:
    """Return the modules shipped with a plan, by the names that Prime-RL imports."""
    folder = Path(__file__).parent
    names = {"hooks": HOOKS, "environment": ENVIRONMENT, "launch": LAUNCHER}
    return {
        f"{target}.py": (folder / f"{name}.py").read_text(encoding="utf-8")
        for name, target in names.items()
    }


def rollout_files() -> dict[str, str]:
    """Return the modules that write rollouts, for launches whose cells ask for them."""
    own = Path(__file__).with_name("rollouts.py").read_text(encoding="utf-8")
    return {f"{ROLLOUTS}.py": own, f"{rollout_dump.MODULE}.py": rollout_dump.source()}


def _no_dump(cell: Cell) -> UnsupportedSetting:
    return limits.refuse(
        cell,
        "cadence.dump_rollouts",
        True,
        (False,),
        f"The hook is written for the trainer and the orchestrator of {OLD}; this release has "
        "others.",
    )


def _record(cell: Cell) -> dict[str, object]:
    """Return the settings that Prime-RL has no key for, so that a launch can be read back."""
    loss, precision = cell.settings.loss, cell.settings.precision
    record: dict[str, object] = {
        "backend_version": cell.settings.backend.version,
        "loss_aggregation": loss.aggregation,
        "loss_constant_tokens": loss.constant_tokens,
    }
    keyless = {"training": precision.training, "checkpoint": precision.checkpoint}
    return record | {f"precision_{name}": value for name, value in keyless.items() if value}
