"""Runs inside a SkyRL environment: prints ANSWER and its configuration's keys, as JSON.

{key: {"kind", "default", "values"}}: types and defaults are those of its dataclasses. Values are in
its registries, in its validator and in the function that computes the KL, which compare with them.
"""

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything absent is found: these try packages they can do without.
import loguru
import numpy as np  # noqa: F401  (see above)
import omegaconf  # noqa: F401  (see above)
from absent import AbsentModules


def leaves(section: Any, prefix: str, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key below a section, with its type and its default."""
    hints = typing.get_type_hints(section)
    for each in dataclasses.fields(section):
        kind, value = hints[each.name], getattr(default, each.name)
        inner = [k for k in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(k)]
        if inner:
            at = unset(inner[0]) if value is None else value
            yield from leaves(inner[0], f"{prefix}{each.name}.", at)
        else:
            yield f"{prefix}{each.name}", kind, value


def unset(section: Any) -> types.SimpleNamespace:
    """Return the defaults of a section that is off by default; None for a key without one."""
    return types.SimpleNamespace(
        **{
            each.name: each.default_factory()
            if each.default_factory is not dataclasses.MISSING
            else None
            if each.default is dataclasses.MISSING
            else each.default
            for each in dataclasses.fields(section)
        }
    )


def named(kind: Any) -> str:
    """Return the name of a type."""
    plain = isinstance(kind, type) and not typing.get_args(kind)
    return (kind.__name__ if plain else str(kind)).replace("typing.", "")


def compared(function: Any, name: str) -> list[Any]:
    """Return the constants with which a function compares something of that name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    values: dict[Any, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(name):
            for other in node.comparators:
                constants = other.elts if isinstance(other, ast.Tuple) else [other]
                values |= {c.value: None for c in constants if isinstance(c, ast.Constant)}
    return sorted(values)


def main() -> None:
    """Print the keys."""
    loguru.logger.remove()
    sys.meta_path.append(AbsentModules())
    import ray

    ray.is_initialized.return_value = False
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import utils

    home = str(Path.home())
    keys: dict[str, dict[str, Any]] = {}
    for key, kind, value in leaves(SkyRLTrainConfig, "", SkyRLTrainConfig()):
        default = json.loads(json.dumps(value, default=str).replace(home, "~"))
        keys[key] = {"kind": named(kind), "default": default}
    closed = {
        "advantage_estimator": ppo_utils.AdvantageEstimatorRegistry.list_available(),
        "policy_loss_type": ppo_utils.PolicyLossRegistry.list_available(),
        "loss_reduction": compared(utils.validate_cfg, "algorithm.loss_reduction"),
        "kl_estimator_type": compared(ppo_utils.compute_approx_kl, "kl_estimator_type"),
    }
    for name, values in closed.items():
        keys[f"trainer.algorithm.{name}"]["values"] = sorted(values)
    sys.stdout.write("ANSWER " + json.dumps(keys) + "\n")


main()
