"""Translate a cell to a launch of Prime-RL, or refuse it.

The manifest refuses values of single fields. `check` refuses combinations that Prime-RL cannot run:
schedules, and GPUs that do not fit.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from backends.prime_rl import config
from backends.prime_rl.config import INFERENCE, RL
from backends.prime_rl.manifest import ENVIRONMENT, HOOKS, LAUNCHER, MANIFEST
from backends.prime_rl.releases import CURRENT, NAME, OLD, VERSIONS
from orchestrator.errors import UnsupportedSetting
from orchestrator.library import loggers
from orchestrator.library.manifest import Carried, refuse_if, validation
from orchestrator.library.needs import NEEDS, needs, shared_files, text_of
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry

PROMPTS_FORMAT = "questions"


def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a cell Prime-RL cannot train."""
    loggers.refuse(cell, ("wandb",), "Prime-RL logs to W&B alone.")
    carried = _carried(cell)
    check(cell)
    version = cell.settings.backend.version or VERSIONS[0]
    assigned = MANIFEST.assignments(cell.settings, carried)
    assigned |= dict(config.surroundings(cell, paths, version))
    keys, own = MANIFEST.finished(cell.settings, cell.system, assigned)
    needed = needs(
        cell.settings,
        version,
        *("backend.version", "loss.aggregation", "loss.constant_tokens"),
        *("precision.training", "precision.checkpoint"),
    )
    return LaunchPlan(
        cell_id=cell.id,
        backend=NAME,
        version=version,
        argv=(
            "python",
            str(paths.plan_dir / f"{LAUNCHER}.py"),
            str(paths.attempt_dir),
            "rl",
            "@",
            str(paths.plan_dir / RL),
        ),
        files={
            **config.files(cell, version, keys),
            **sources(),
            **shared_files(cell, PROMPTS_FORMAT, needed),
        },
        # its trainer and its orchestrator log to a run each
        env=loggers.variables(cell, paths, one_run=False),
        ledger=MANIFEST.ledger(cell.settings, keys | {NEEDS: needed}, carried)
        + own
        + (_validation(cell, version, keys),),
        bring_up="ranks",
    )


def _validation(cell: Cell, version: str, keys: Mapping[str, object]) -> LedgerEntry:
    """Return the ledger entry of the validation.

    orchestrator/orchestrator.py and eval_source.py of 0.5.0 and 0.8.0.
    """
    every = cell.cadence.evaluate_every_steps or cell.settings.num_train_steps
    differs = (
        "it evaluates the newest policy that it serves, and the point is that policy's train step; "
        "not the last policy: "
    )
    differs += (
        "the log of its final evaluation names no policy, and is not read"
        if version == OLD
        else "it is trained after the last evaluation has begun"
    )
    return validation(cell, config.INTERVAL, keys[config.INTERVAL], every, differs)


def _carried(cell: Cell) -> tuple[Carried, ...]:
    """Return each field with its row. Raise UnsupportedSetting that names the release."""
    try:
        return MANIFEST.carry(cell.settings)
    except UnsupportedSetting as refused:
        raise UnsupportedSetting(
            named(cell), refused.field, refused.value, refused.offered, refused.advice
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
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def sources() -> dict[str, str]:
    """Return the modules shipped with a plan, by the names that Prime-RL imports."""
    folder = Path(__file__).parent
    names = {"hooks": HOOKS, "environment": ENVIRONMENT, "launch": LAUNCHER}
    return {f"{target}.py": text_of(folder, f"{name}.py") for name, target in names.items()}


def check(cell: Cell) -> None:
    """Raise UnsupportedSetting for the first combination that Prime-RL cannot express."""
    refuse = partial(refuse_if, cell, library=named(cell))
    optimizer, steps = cell.settings.optimizer, cell.settings.num_train_steps
    refuse(
        optimizer.num_warmup_steps and optimizer.num_warmup_steps >= steps,
        "optimizer.num_warmup_steps",
        f"0 to {steps - 1}",
        "Its schedule must leave a step after the warm-up.",
    )
    refuse(
        optimizer.schedule == "linear" and steps - optimizer.num_warmup_steps < 2,
        "optimizer.schedule",
        "constant, cosine",
        "Its linear decay divides by the decay steps less one. Train at least two steps after "
        "the warm-up.",
    )
    nodes, gpus = cell.resources.num_nodes, cell.resources.gpus_per_node
    refuse(
        nodes > 2,
        "resources.num_nodes",
        "1, 2",
        "One node trains and one serves. Use nodes with more GPUs, or train with verl.",
    )
    current = cell.settings.backend.version == CURRENT
    least = (1 if current else 2) + (nodes == 1)
    refuse(
        gpus < least,
        "resources.gpus_per_node",
        f"{least} or more",
        "The trainer and the rollout policy each need a GPU."
        if current
        else "The trainer, the rollout policy and the reference policy each need a GPU (the same "
        "split is kept without KL, so that the lag of the policies compares).",
    )


def named(cell: Cell) -> str:
    """Return the library with the release that the cell would train in, if orch knows it."""
    version = cell.settings.backend.version or VERSIONS[0]
    return f"{NAME} {version}" if version in VERSIONS else NAME
