"""The lab's part of each library: the folder `lab/<library>/`, and what orch knows of it."""

from importlib import import_module
from pathlib import Path
from types import ModuleType


def folder(library: str) -> Path:
    """Return the lab's folder of a library, which may be missing."""
    return Path(__file__).parent / library


def part(library: str, module: str) -> ModuleType | None:
    """Import a module of the lab's folder of a library, such as `probes`; None if it has none."""
    if not (folder(library) / f"{module}.py").is_file():
        return None
    return import_module(f"lab.{library}.{module}")
