"""Stands in for what SkyRL imports and a question to it does not need (Ray, vLLM, ...)."""

import abc
import importlib.abc
import importlib.machinery
import types
from collections.abc import Container
from unittest.mock import MagicMock


class Kind(abc.ABCMeta):
    """Gives a class every attribute it is asked for."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith(("__", "_abc", "_mock", "_spec")):
            raise AttributeError(name)
        return MagicMock(name=name)


class Anything(MagicMock, metaclass=Kind):
    """A class that can be called, subclassed and subscribed with whatever."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()  # what it is called with would be taken for a specification

    def _get_child_mock(self, /, **keywords: object) -> MagicMock:
        return MagicMock(**keywords)

    def __class_getitem__(cls, item: object) -> type:
        return cls


class Stand(types.ModuleType):
    """A module of anything: a name with a capital is a class, every other one a function."""

    __path__: list[str] = []  # noqa: RUF012  (it is a package: any import below it is asked for)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Anything,), {}) if name[0].isupper() else MagicMock(name=name)
        setattr(self, name, value)
        return value


class AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds whatever nothing else found, or only the packages named."""

    def __init__(self, only: Container[str] | None = None):
        self.only = only

    def find_spec(
        self, name: str, _path: object, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a module of anything."""
        package = name.split(".")[0]
        if package in {"skyrl", "skyrl_gym"} or (self.only and package not in self.only):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Stand:
        """Return a module of anything."""
        return Stand(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Do nothing."""
