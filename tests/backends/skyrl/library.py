"""Runs inside a SkyRL environment: SkyRL's own parser and validator over many launches.

Standard input: JSON, a list of argument lists. Standard output: one JSON object a launch,
{"config": the parsed configuration} or {"error": what SkyRL said}. What SkyRL imports and a
configuration does not need (torch, Ray, vLLM, ...) is replaced by something that accepts all.
"""

import abc
import dataclasses
import importlib.abc
import importlib.machinery
import json
import sys
import types
from unittest.mock import MagicMock

# Before anything absent is found: these try packages they can do without.
import loguru  # noqa: F401
import numpy as np  # noqa: F401
import omegaconf  # noqa: F401


class Kind(abc.ABCMeta):
    """Gives a class every attribute it is asked for."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith(("__", "_abc", "_mock", "_spec")):
            raise AttributeError(name)
        return MagicMock(name=name)


class Anything(MagicMock, metaclass=Kind):
    """A class that can be called, subclassed and subscribed with whatever."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


class Stand(types.ModuleType):
    """A module of anything: a name with a capital is a class, every other one a function."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Anything,), {}) if name[0].isupper() else MagicMock(name=name)
        setattr(self, name, value)
        return value


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds whatever nothing else found."""

    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        ours = name.split(".")[0] in {"skyrl", "skyrl_gym"}
        return None if ours else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return Stand(spec.name)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        pass


def main() -> None:
    sys.meta_path.append(Absent())
    import ray

    ray.is_initialized.return_value = False
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import validate_cfg

    for argv in json.load(sys.stdin):
        try:
            config = SkyRLTrainConfig.from_cli_overrides(argv)
            validate_cfg(config)
            answer = {"config": dataclasses.asdict(config)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print("ANSWER " + json.dumps(answer, default=str), flush=True)


main()
