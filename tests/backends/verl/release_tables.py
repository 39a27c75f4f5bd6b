"""What each release of verl takes, read from its own configuration and source.

`python -m tests.backends.verl.release_tables` writes backends/verl/options.json; a test compares.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.identity import flatten
from orchestrator.library import key_tables
from tests.backends.verl import library

FILE = Path(__file__).parents[3] / "backends" / "verl" / "options.json"
ACTOR = "actor_rollout_ref.actor"
CORE = "trainer/ppo/core_algos.py"
SWITCHES = (
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.use_kl_in_reward",
    f"{ACTOR}.use_kl_loss",
    "actor_rollout_ref.hybrid_engine",
)


def text() -> str:
    """Return the file: every key of both releases with its default and closed list of values."""
    return key_tables.written_options(
        {version: options(version) for version in sorted(library.VERSIONS)}
    )


def options(version: str) -> dict[str, key_tables.Option]:
    """Return each key of a release. Its configuration is YAML without types: every kind is any."""
    closed = values_of(version)
    return {
        key: key_tables.Option("any", default, tuple(closed[key]) if key in closed else None)
        for key, default in keys_of(version).items()
    }


def keys_of(version: str) -> dict[str, Any]:
    """Return every key of the composed ppo_trainer with its default, `${...}` unresolved."""
    composed = library.configuration(version)
    leaves = dict(flatten(composed))
    return {key: leaves[key] for key in sorted(leaves)}


def values_of(version: str) -> dict[str, list[Any]]:
    """Return the values that verl's code distinguishes, for the keys that have a closed list."""
    kl = [*_compared(version, CORE, "kl_penalty_forward", "kl_penalty")]
    kl.remove("full")  # has a name, and raises NotImplementedError
    kl = sorted([*kl, *(f"{name}+" for name in kl)])
    closed = {
        "algorithm.adv_estimator": sorted(_enumerated(version, CORE, "AdvantageEstimator")),
        "algorithm.kl_ctrl.type": sorted(_compared(version, CORE, "get_kl_controller", "type")),
        "algorithm.kl_penalty": kl,
        f"{ACTOR}.kl_loss_type": kl,
        f"{ACTOR}.loss_agg_mode": sorted(_compared(version, CORE, "agg_loss", "loss_agg_mode")),
        f"{ACTOR}.optim.lr_scheduler_type": sorted(
            _asserted(version, "workers/config/optimizer.py", "FSDPOptimizerConfig")
        ),
        f"{ACTOR}.policy_loss.loss_mode": sorted(
            _registered(version, CORE, "register_policy_loss")
        ),
        "actor_rollout_ref.rollout.checkpoint_engine.backend": sorted(
            {
                name
                for path in (library.root(version) / "checkpoint_engine").glob("*.py")
                for name in _registered(version, f"checkpoint_engine/{path.name}", "register")
            }
        ),
        "actor_rollout_ref.rollout.name": sorted(
            key[0] for key in _literal(version, "workers/rollout/base.py", "_ROLLOUT_REGISTRY")
        ),
        "trainer.logger": sorted(_literal(version, "utils/tracking.py", "supported_backend")),
        "trainer.resume_mode": sorted(
            _compared(version, "trainer/ppo/ray_trainer.py", "_load_checkpoint", "resume_mode")
            | {"auto"}
        ),
    }
    modes = {
        name
        for path in (library.root(version) / "trainer/ppo/v1").glob("*.py")
        for name in _registered(version, f"trainer/ppo/v1/{path.name}", "register_trainer")
    }
    if modes:
        closed["trainer.v1.trainer_mode"] = sorted(modes)
        closed["trainer.v1.sampler.max_off_policy_strategy"] = sorted(
            _compared(
                version, "trainer/ppo/v1/replay_buffer.py", "__init__", "max_off_policy_strategy"
            )
        )
        closed["trainer.use_v1"] = [False, True]
    closed |= {key: [False, True] for key in SWITCHES}
    return dict(sorted(closed.items()))


def _tree(version: str, path: str) -> ast.Module:
    return ast.parse((library.root(version) / path).read_text(encoding="utf-8"))


def _strings(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _compared(version: str, path: str, function: str, name: str) -> set[str]:
    """Return the texts that functions of this name compare a variable or attribute with."""
    return {
        text
        for top in ast.walk(_tree(version, path))
        if isinstance(top, ast.FunctionDef) and top.name == function
        for node in ast.walk(top)
        if isinstance(node, ast.Compare) and ast.unparse(node.left).rpartition(".")[2] == name
        for right in node.comparators
        for text in _strings(right)
    }


def _enumerated(version: str, path: str, name: str) -> set[str]:
    """Return the values of an enumeration."""
    return {
        text
        for top in ast.walk(_tree(version, path))
        if isinstance(top, ast.ClassDef) and top.name == name
        for node in top.body
        if isinstance(node, ast.Assign)
        for text in _strings(node.value)
    }


def _asserted(version: str, path: str, name: str) -> set[str]:
    """Return the learning-rate schedules that a class of configuration asserts."""
    return {
        text
        for top in ast.walk(_tree(version, path))
        if isinstance(top, ast.ClassDef) and top.name == name
        for node in ast.walk(top)
        if isinstance(node, ast.Assert) and "lr_scheduler_type" in ast.unparse(node.test)
        for text in _strings(node.test)
    }


def _registered(version: str, path: str, decorator: str) -> set[str]:
    """Return the names that decorators of this name register."""
    return {
        text
        for top in ast.walk(_tree(version, path))
        if isinstance(top, ast.FunctionDef | ast.ClassDef)
        for each in top.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] == decorator
        for argument in each.args
        for text in _strings(argument)
    }


def _literal(version: str, path: str, name: str) -> Any:
    """Return the value of an assignment, anywhere in a file."""
    return next(
        ast.literal_eval(node.value)
        for node in ast.walk(_tree(version, path))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
