"""Finds backends: every folder of `backends/` that exports BACKEND. The only importer of it."""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.estimators import EstimatorEntry, register
from orchestrator.library.protocol import Backend


@cache
def names() -> tuple[str, ...]:
    """Names of the backends in this installation, sorted. Imports none of them."""
    root = _root()
    return tuple(sorted(p.parent.name for p in root.glob("*/__init__.py")))


@cache
def load(name: str) -> Backend:
    """The backend of that name. Raises EnvironmentFault if there is none."""
    if name not in names():
        raise EnvironmentFault(
            f"backend '{name}' is not part of this orch{did_you_mean(name, names())} "
            f"(it has: {', '.join(names())}). Adding one is adding a folder to backends/."
        )
    backend = import_module(f"backends.{name}").BACKEND
    if not isinstance(backend, Backend):
        raise TypeError(
            f"backends.{name}.BACKEND lacks a member of orchestrator.library.protocol.Backend"
        )
    return backend


def folder(name: str) -> Path:
    """The folder of a backend: its data files lie there."""
    return _root() / name


def _root() -> Path:
    backends = import_module("backends")
    if not getattr(backends, "ORCH_BACKENDS", False) or backends.__file__ is None:
        raise EnvironmentFault(
            f"'import backends' found {backends.__file__}, which is not orch's backends/ folder: "
            "another distribution in this environment installs a package of that name. "
            "Install orch in an environment of its own."
        )
    return Path(backends.__file__).parent


def probes_file(name: str) -> Path:
    """The module of a backend that runs its library's own functions (orchestrator.probes).

    Raises EnvironmentFault if the backend has none, as the embedded trainer has none.
    """
    path = _root() / name / "probes.py"
    if not path.exists():
        having = [each for each in names() if (_root() / each / "probes.py").exists()]
        raise EnvironmentFault(
            f"backend '{name}' has no library whose functions could be asked (there are: "
            f"{', '.join(having)})"
        )
    return path


def has_probes(name: str) -> bool:
    """Whether the backend drives a library whose functions can be asked."""
    return (_root() / name / "probes.py").exists()


def probes(name: str) -> ModuleType:
    """The module probes_file names, for what it says about its library; it loads no torch."""
    probes_file(name)
    return import_module(f"backends.{name}.probes")


def evidence_dir(name: str) -> Path:
    """Where a backend keeps what was measured in its library, one file a release."""
    return _root() / name / "evidence"


def load_estimators() -> None:
    """Register the KL estimators of other packages: entry points of the group `orch.estimators`.

    Each names an EstimatorEntry or a sequence of them. Raise EnvironmentFault on anything else.
    """
    for point in entry_points(group="orch.estimators"):
        given = point.load()
        for each in (given,) if isinstance(given, EstimatorEntry) else given:
            if not isinstance(each, EstimatorEntry):
                raise EnvironmentFault(
                    f"the entry point '{point.name}' of orch.estimators ({point.value}) names "
                    f"{each!r}; it must name an orchestrator.estimators.EstimatorEntry, or several"
                )
            register(each)
