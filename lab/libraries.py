"""The lab's part of each library: the folder `lab/<library>/`, and what orch knows of it."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from orchestrator import plugins


def folder(library: str) -> Path:
    """Return the lab's folder of a library, which may be missing."""
    return Path(__file__).parent / library


def part(library: str, module: str) -> ModuleType | None:
    """Import a module of the lab's folder of a library, such as `probes`; None if it has none."""
    if not (folder(library) / f"{module}.py").is_file():
        return None
    return import_module(f"lab.{library}.{module}")


def with_file(name: str) -> tuple[str, ...]:
    """Return the libraries that orch drives whose folder has such a file, sorted."""
    return tuple(each for each in plugins.names() if (folder(each) / name).is_file())
