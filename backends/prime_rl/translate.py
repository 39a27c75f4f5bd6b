"""A cell as a launch of Prime-RL."""

import json
from functools import cache
from pathlib import Path

from backends.prime_rl import capabilities, config, current, ledger, toml
from orchestrator import scoring
from orchestrator.data import recipe
from orchestrator.identity import flatten
from orchestrator.records import AttemptPaths, Cell, LaunchPlan

RL, RECORD, PROMPTS_FORMAT = "rl.toml", "orch.json", "questions"


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """The launch of a cell. Raises UnsupportedSetting for what Prime-RL cannot express."""
    leaves = dict(flatten(cell.settings.model_dump()))
    version = cell.settings.backend.version or capabilities.VERSIONS[0]
    capabilities.check(cell, leaves)
    release = current if version == capabilities.CURRENT else config
    tables = {RL: release.rl(cell, place), **release.servers(cell)}
    return LaunchPlan(
        cell_id=cell.id,
        backend=capabilities.NAME,
        version=version,
        argv=(
            "python",
            str(place.plan_dir / f"{config.LAUNCHER}.py"),
            str(place.attempt_dir),
            "rl",
            "@",
            str(place.plan_dir / RL),
        ),
        files={
            **{name: toml.dumps(table) for name, table in tables.items()},
            **sources(),
            RECORD: _record(cell),
            **scoring.files(cell.settings.data.reward),
            **recipe.plan_file(cell.settings.data, PROMPTS_FORMAT),
        },
        ledger=ledger.entries(leaves, version) + ledger.of_cadence(cell.cadence),
        bring_up="ranks",
    )


@cache
def sources() -> dict[str, str]:
    """The modules that travel with a plan, under the names Prime-RL imports them by."""
    here = Path(__file__).parent
    names = {"hooks": config.HOOKS, "environment": config.ENVIRONMENT, "launch": config.LAUNCHER}
    return {
        f"{target}.py": (here / f"{name}.py").read_text(encoding="utf-8")
        for name, target in names.items()
    }


def _record(cell: Cell) -> str:
    """What the cell asked for and Prime-RL has no key for, so that a launch reads back whole."""
    loss = cell.settings.loss
    return (
        json.dumps(
            {
                "backend_version": cell.settings.backend.version,
                "loss_aggregation": loss.aggregation,
                "loss_constant_tokens": loss.constant_tokens,
            }
        )
        + "\n"
    )
