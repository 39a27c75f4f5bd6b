"""Runs inside a verl environment: prints ANSWER and the keys of its ppo_trainer, as JSON.

{key: {"kind", "default", "values"}}: keys and defaults are those that Hydra composes, `${...}`
unresolved. The configuration is YAML without types, so the kind is `any`, or `section` for a key
that has keys below it and none by default. `values` is there where verl's source distinguishes
these only.
"""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ACTOR = "actor_rollout_ref.actor"
CORE = "trainer/ppo/core_algos.py"
SWITCHES = (
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.use_kl_in_reward",
    f"{ACTOR}.use_kl_loss",
    "actor_rollout_ref.hybrid_engine",
)


def main() -> None:
    """Print the keys."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl")
    root = Path(spec.submodule_search_locations[0])
    config = root / "trainer" / "config"
    with initialize_config_dir(config_dir=str(config), version_base=None):
        composed: Any = OmegaConf.to_container(compose("ppo_trainer"), resolve=False)
    closed = values_of(root)
    keys = {}
    for key, default in sorted(leaves(composed, "")):
        facts = {"kind": "section" if default == {} else "any", "default": default}
        keys[key] = {**facts, "values": closed[key]} if key in closed else facts
    sys.stdout.write("ANSWER " + json.dumps(keys) + "\n")


def leaves(section: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield each key below a section, with its default."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def values_of(root: Path) -> dict[str, list[Any]]:
    """Return the values that verl's code distinguishes, for the keys that have a closed list."""
    kl = [*_compared(root, CORE, "kl_penalty_forward", "kl_penalty")]
    kl.remove("full")  # has a name, and raises NotImplementedError
    kl = sorted([*kl, *(f"{name}+" for name in kl)])
    closed = {
        "algorithm.adv_estimator": sorted(_enumerated(root, CORE, "AdvantageEstimator")),
        "algorithm.kl_ctrl.type": sorted(_compared(root, CORE, "get_kl_controller", "type")),
        "algorithm.kl_penalty": kl,
        f"{ACTOR}.kl_loss_type": kl,
        f"{ACTOR}.loss_agg_mode": sorted(_compared(root, CORE, "agg_loss", "loss_agg_mode")),
        f"{ACTOR}.optim.lr_scheduler_type": sorted(
            _compared(
                root,
                "workers/config/optimizer.py",
                "FSDPOptimizerConfig",
                "lr_scheduler_type",
            )
        ),
        f"{ACTOR}.policy_loss.loss_mode": sorted(_registered(root, CORE, "register_policy_loss")),
        "actor_rollout_ref.rollout.checkpoint_engine.backend": sorted(
            {
                name
                for path in (root / "checkpoint_engine").glob("*.py")
                for name in _registered(root, f"checkpoint_engine/{path.name}", "register")
            }
        ),
        "actor_rollout_ref.rollout.name": sorted(
            key[0] for key in _literal(root, "workers/rollout/base.py", "_ROLLOUT_REGISTRY")
        ),
        "trainer.logger": sorted(_literal(root, "utils/tracking.py", "supported_backend")),
        "trainer.resume_mode": sorted(
            _compared(root, "trainer/ppo/ray_trainer.py", "_load_checkpoint", "resume_mode")
            | {"auto"}
        ),
    }
    modes = {
        name
        for path in (root / "trainer/ppo/v1").glob("*.py")
        for name in _registered(root, f"trainer/ppo/v1/{path.name}", "register_trainer")
    }
    if modes:
        closed["trainer.v1.trainer_mode"] = sorted(modes)
        closed["trainer.v1.sampler.max_off_policy_strategy"] = sorted(
            _compared(
                root, "trainer/ppo/v1/replay_buffer.py", "__init__", "max_off_policy_strategy"
            )
        )
        closed["trainer.use_v1"] = [False, True]
    closed |= {key: [False, True] for key in SWITCHES}
    return dict(sorted(closed.items()))


def _tree(root: Path, path: str) -> ast.Module:
    return ast.parse((root / path).read_text(encoding="utf-8"))


def _strings(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _compared(root: Path, path: str, owner: str, name: str) -> set[str]:
    """Return the texts with which functions or a class compare a variable or attribute."""
    return {
        text
        for top in ast.walk(_tree(root, path))
        if isinstance(top, ast.FunctionDef | ast.ClassDef) and top.name == owner
        for node in ast.walk(top)
        if isinstance(node, ast.Compare) and ast.unparse(node.left).rpartition(".")[2] == name
        for right in node.comparators
        for text in _strings(right)
    }


def _enumerated(root: Path, path: str, name: str) -> set[str]:
    """Return the values of an enumeration."""
    return {
        text
        for top in ast.walk(_tree(root, path))
        if isinstance(top, ast.ClassDef) and top.name == name
        for node in top.body
        if isinstance(node, ast.Assign)
        for text in _strings(node.value)
    }


def _registered(root: Path, path: str, decorator: str) -> set[str]:
    """Return the names that decorators of this name register."""
    return {
        text
        for top in ast.walk(_tree(root, path))
        if isinstance(top, ast.FunctionDef | ast.ClassDef)
        for each in top.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] == decorator
        for argument in each.args
        for text in _strings(argument)
    }


def _literal(root: Path, path: str, name: str) -> Any:
    """Return the value of an assignment, anywhere in a file."""
    return next(
        ast.literal_eval(node.value)
        for node in ast.walk(_tree(root, path))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )


main()
