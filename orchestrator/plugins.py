"""Find backends, estimators and tasks: orch's own, and those of other distributions.

A distribution adds to orch by entry points of its pyproject.toml:

    [project.entry-points."orch.backends"]
toytrl = "toytrl"              # a package that exports BACKEND

    [project.entry-points."orch.estimators"]
k4 = "toytrl.estimators:K4"    # an orchestrator.estimators.EstimatorEntry

    [project.entry-points."orch.tasks"]
toytrl = "toytrl.tasks"        # a package that holds lm-eval task files

orch's own backends are the packages in `backends/`. A folder that is no package and has an
`audit/reader.py` is a library that is only read: it trains no cells, and its name is in `readers()`
but not in `names()`. This module is the only one that imports them. Nothing of a plugin is imported
before it is asked for, and finding it imports only the packages that its module lies in.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.estimators import EstimatorEntry, register
from orchestrator.library.logged import LoggedMetrics
from orchestrator.library.protocol import (
    Backend,
    EmbeddedTrainer,
    LaunchReader,
    ShippedPrompts,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BACKENDS, ESTIMATORS, TASKS = "orch.backends", "orch.estimators", "orch.tasks"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all backends, sorted. Import none of them."""
    return tuple(sorted({*_own(), *_entry_points(BACKENDS)}))


@cache
def load(name: str) -> Backend:
    """Return the backend of that name.

    Raise EnvironmentFault if there is none, or if another distribution's cannot be used.
    """
    backend = _exported(name)
    if not isinstance(backend, Backend):
        raise EnvironmentFault(
            f"{_origin(name)} exports no BACKEND of a class that inherits "
            "orchestrator.library.protocol.Backend"
        )
    if backend.name != name:
        raise EnvironmentFault(
            f"{_origin(name)} calls itself '{backend.name}': name and entry point must be equal"
        )
    return backend


def load_embedded(name: str) -> EmbeddedTrainer | None:
    """Return the backend of that name if it is an embedded trainer, else None."""
    backend = load(name)
    return backend if isinstance(backend, EmbeddedTrainer) else None


@cache
def readers() -> tuple[str, ...]:
    """Return the names of all libraries whose launches can be read, sorted. Import none of them.

    They are the backends, and the libraries that are only read.
    """
    return tuple(sorted({*names(), *only_read()}))


@cache
def only_read() -> tuple[str, ...]:
    """Return the names of this tree's libraries that are read and not trained with, sorted."""
    folders = {path.parents[1].name for path in _root().glob("*/audit/reader.py")}
    return tuple(sorted(folders - _own()))


def reader_folder(name: str) -> Path:
    """Return the folder of a library of this tree that is only read."""
    return _root() / name


@cache
def load_reader(name: str) -> LaunchReader:
    """Return what reads the launches of a library.

    Raise EnvironmentFault if there is nothing of that name.
    """
    if name in only_read():
        reader: LaunchReader = import_module(f"backends.{name}.audit.reader").READER
        return reader
    return load(name)


def estimator_names() -> dict[str, str]:
    """Return every library's own names of estimators -> orch's."""
    return {
        theirs: ours
        for name in readers()
        for theirs, ours in load_reader(name).estimator_names.items()
    }


@cache
def logging() -> tuple[str, ...]:
    """Return the libraries whose metrics orch knows by name, sorted."""
    return tuple(name for name in readers() if logged_metrics(name) is not None)


def logged_metrics(name: str) -> LoggedMetrics | None:
    """Return the table of what a library logs; None for a library without one."""
    table: LoggedMetrics | None = None
    if name in readers():
        table = getattr(load_reader(name), "logged_metrics", None)
    return table


def folder(name: str) -> Path:
    """Return the folder of a backend: its data files lie there. Import it not."""
    if name in _own():
        return _root() / name
    point = _entry_points(BACKENDS).get(name)
    if point is None:
        raise _no_backend(name)
    return _folder_of(point)


def shipped_policy(path: str) -> Path | None:
    """Return the folder of `<backend>:<policy>`, a policy that ships with a backend.

    Return None for a path that names no backend. Raise EnvironmentFault for an unknown policy.
    """
    owner, colon, name = path.partition(":")
    if not colon or owner not in names():
        return None
    trainer = load_embedded(owner)
    policies = trainer.policies_dir if trainer else None
    if policies is None or not (policies / name).is_dir():
        raise EnvironmentFault(f"backend '{owner}' ships no policy '{name}' ({policies})")
    return policies / name


def shipped_prompts(path: str, count: int | None) -> ShippedPrompts | None:
    """Return the prompts of `<backend>:<task>`; None for a path that names no backend.

    Raise EnvironmentFault for an unknown task.
    """
    owner, colon, task = path.partition(":")
    if not colon or owner not in names():
        return None
    trainer = load_embedded(owner)
    prompts = trainer.prompts(task, count) if trainer else None
    if prompts is None:
        raise EnvironmentFault(f"backend '{owner}' ships no task '{task}'")
    return prompts


def evidence_dir(name: str) -> Path:
    """Return where a backend keeps what was measured in its library, one file a release."""
    return folder(name) / "evidence"


TASKS_FOLDER = Path(__file__).parent / "evaluate" / "tasks"
"""Task files that orch brings for any policy."""


@cache
def task_names() -> frozenset[str]:
    """Return the names of all evaluation tasks: orch's, other distributions', backends' own."""
    folders = [TASKS_FOLDER, *task_folders(), *own_task_folders(names())]
    return frozenset(path.stem for folder in folders for path in folder.rglob("*.yaml"))


def own_task_folders(backends: Iterable[str]) -> list[Path]:
    """Return the folders of tasks that only these backends' policies understand."""
    trainers = filter(None, map(load_embedded, backends))
    return [each.tasks_dir for each in trainers if each.tasks_dir is not None]


@cache
def task_folders() -> tuple[Path, ...]:
    """Return the folders of evaluation tasks that other distributions bring."""
    return tuple(_folder_of(point) for point in _entry_points(TASKS).values())


def load_estimators() -> None:
    """Register the KL estimators of other distributions in the table of orchestrator.estimators.

    Each entry point names an EstimatorEntry or a sequence of them. Raise EnvironmentFault on
    anything else.
    """
    for point in _entry_points(ESTIMATORS).values():
        loaded = _loaded(point)
        for entry in loaded if isinstance(loaded, list | tuple) else (loaded,):
            if not isinstance(entry, EstimatorEntry):
                raise EnvironmentFault(
                    f"{_origin_of(point)} is {entry!r}; it must be an "
                    "orchestrator.estimators.EstimatorEntry, or a sequence of them"
                )
            register(entry)


def _exported(name: str) -> object:
    if name in _own():
        return import_module(f"backends.{name}").BACKEND
    point = _entry_points(BACKENDS).get(name)
    if point is None:
        raise _no_backend(name)
    loaded = _loaded(point)
    if isinstance(loaded, ModuleType):
        loaded = getattr(loaded, "BACKEND", None)
    return loaded


def _no_backend(name: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"backend '{name}' is not part of this orch{did_you_mean(name, names())} "
        f"(it has: {', '.join(names())}). Another distribution adds one by an entry point "
        f"'{BACKENDS}'; see CONTRIBUTING.md."
    )


@cache
def _own() -> frozenset[str]:
    """Return the folders of `backends/` that train cells."""
    return frozenset(path.parent.name for path in _root().glob("*/__init__.py"))


def _root() -> Path:
    backends = import_module("backends")
    if not getattr(backends, "ORCH_BACKENDS", False) or backends.__file__ is None:
        raise EnvironmentFault(
            f"'import backends' found {backends.__file__}, which is not orch's backends/ folder: "
            "another distribution in this environment installs a package of that name. "
            "Install orch in an environment of its own."
        )
    return Path(backends.__file__).parent


@cache
def _entry_points(group: str) -> Mapping[str, "EntryPoint"]:
    """Return the entry points of a group by name. Raise EnvironmentFault for a name given twice."""
    from importlib.metadata import entry_points

    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda each: each.name):
        before = points.get(point.name)
        taken = _distribution(before) if before is not None else "orch"
        ours = group == BACKENDS and point.name in _own()
        if ours or (before is not None and before.value != point.value):
            raise EnvironmentFault(
                f"{_distribution(point)} and {taken} both register '{point.name}' in '{group}': "
                "uninstall one of them, or rename its entry point"
            )
        points[point.name] = point
    return points


def _loaded(point: "EntryPoint") -> object:
    try:
        return point.load()
    except Exception as error:
        raise EnvironmentFault(
            f"{_origin_of(point)} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _folder_of(point: "EntryPoint") -> Path:
    """Return the folder of an entry point's package, or of the package that its module is in."""
    try:
        spec = find_spec(point.module)
    except ImportError as error:
        raise EnvironmentFault(
            f"{_origin_of(point)} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places and spec is not None and spec.origin is not None and "." in point.module:
        places = [str(Path(spec.origin).parent)]
    if not places:
        raise EnvironmentFault(
            f"{_origin_of(point)} is no package, so its files have no folder of their own"
        )
    return Path(places[0])


def _origin(name: str) -> str:
    if name in _own():
        return f"backends.{name}.BACKEND"
    return _origin_of(_entry_points(BACKENDS)[name])


def _origin_of(point: "EntryPoint") -> str:
    return f"'{point.name}' of {_distribution(point)} ({point.group}: {point.value})"


def _distribution(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a distribution"
