"""Imports that lm-eval makes at its start and a process may never use: made at their first use.

lm-eval imports Hugging Face's datasets (with pandas and pyarrow) and accelerate, which took a
second. The items of the embedded tasks come from the tasks themselves, and nothing of a policy on
the CPU needs accelerate.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MODULES = (
    "accelerate",
    "accelerate.utils",
    "datasets",
    "datasets.utils",
    "datasets.utils.metadata",
    "pandas",
)


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Let imports of MODULES inside the context be made when a name of theirs is first used.

    For imports of lm-eval alone: a class cannot inherit from a name that stands for another.
    """
    absent = [name for name in MODULES if name.partition(".")[0] not in sys.modules]
    stand_ins = {name: _Module(name) for name in absent}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Module(ModuleType):
    """Stands for a module. Its names stand for the module's names."""

    def __init__(self, name: str):
        super().__init__(name)
        # Libraries look here for whether the module is installed.
        self.__spec__ = find_spec(name) if "." not in name else None
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return version(self.__name__)
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            return _Name(self.__name__, name)
        return getattr(import_module(self.__name__), name)


class _Name:
    """Stands for a function or a class of a module, which its first use imports."""

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def _real(self) -> Any:
        return getattr(import_module(self._module), self._name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._real()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)
