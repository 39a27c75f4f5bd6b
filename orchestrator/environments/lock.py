"""Locks, which name the exact versions of an environment; and the environments that exist.

A lock is a file `environments/<version>.<flavour>.txt` in the backend's folder, or, for an engine
that scores checkpoints, `engines/<name>/<version>.<flavour>.txt` beside this module. The flavours:
`gpu` trains, `cpu` trains or scores on a machine without a GPU, `contract` holds the library
without its heavy dependencies. A lock is requirements (`name==version`) below a head of
`# key: words`:

    asked      requirements that were resolved
    python     releases of Python it is for, the first that is found is taken
    platform   platform that it was resolved for
    import     modules that must import in it
    build      packages that exist as source only: built last, against the torch installed by then
    alone      packages without their dependencies, added to the resolved ones: plain Python, which
               is installed whatever Python it requires
    override   a version other than the packages ask for, with the reason in brackets
    without    a package left out, with the reason in brackets
    checkout   commit of a git repository with its own uv.lock, for a library on no registry
    variable   environment variable that points to that repository

To add a lock, write its head into such a file; `orch env lock LIBRARY@VERSION --cpu` prints the
file with the packages resolved. A lock names no registry and no path.

$ORCH_ENVIRONMENTS, or ~/.local/share/orch/environments, holds one folder an environment:
<library>-<version> for training, <library>-<version>.contract for the contract tests,
<library>-<version>.cpu-<digest> for training without a GPU, with the first ten digits of the
lock's digest: a cache of such folders never mixes two locks. One that was finished has an
environment.json.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault, did_you_mean

Flavour = Literal["gpu", "cpu", "contract"]
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)

ENGINES: Mapping[str, tuple[str, ...]] = {"vllm": ("0.31.0",), "lm-eval": ("0.4.13",)}
"""Engine that scores checkpoints -> releases with a lock in `engines/<name>/`, newest first.
`evaluation.engine.python` names the Python of such an environment. Tasks that the harness has by
name are scored in that of `lm-eval` where it is made."""

_HEAD = re.compile(r"# ([a-z]+): (.*)")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_KEYS = frozenset(
    {
        "asked",
        "python",
        "platform",
        "import",
        "build",
        "alone",
        "override",
        "without",
        "checkout",
        "variable",
    }
)


@dataclass(frozen=True)
class Lock:
    """One lock file."""

    library: str
    version: str
    flavour: Flavour
    text: str

    @cached_property
    def head(self) -> Mapping[str, tuple[str, ...]]:
        """Return the head of the file: key -> its lines."""
        lines: dict[str, tuple[str, ...]] = {}
        for line in self.text.splitlines():
            if match := _HEAD.fullmatch(line.strip()):
                lines[match[1]] = (*lines.get(match[1], ()), match[2].strip())
        return lines

    def words(self, key: str) -> tuple[str, ...]:
        """Return the words of a key, of all its lines."""
        return tuple(word for line in self.head.get(key, ()) for word in line.split())

    @cached_property
    def pins(self) -> Mapping[str, str]:
        """Return package -> version, by normalised name. Raise EnvironmentFault for an open one."""
        pins: dict[str, str] = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            stated = line.partition("#")[0].strip()
            if not stated:
                continue
            match = _PIN.match(stated)
            if match is None:
                raise EnvironmentFault(
                    f"the lock of {self.library} {self.version} ({self.flavour}) must name exact "
                    f"versions (name==version), got '{stated}' in line {number}"
                )
            pins[plain_name(match[1])] = match[2]
        return pins

    @property
    def digest(self) -> str:
        """Return a digest of the packages, the checkout and the Python releases in the lock.

        Comments and the order of packages do not change it.
        """
        lines = sorted(f"{name}=={version}" for name, version in self.pins.items())
        text = "\n".join([*lines, *self.words("checkout"), *self.words("python")])
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def folder(self) -> str:
        """Return the name of its environment's folder."""
        if self.flavour == "gpu":
            return f"{self.library}-{self.version}"
        # A CPU environment is named by its lock.
        digest = f"-{self.digest.removeprefix('sha256:')[:10]}" if self.flavour == "cpu" else ""
        return f"{self.library}-{self.version}.{self.flavour}{digest}"


def plain_name(name: str) -> str:
    """Return a package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names() -> list[str]:
    """Return all names that may have locks: every backend, then engines that score."""
    return [*plugins.names(), *ENGINES]


def locks() -> list[Lock]:
    """Return every lock of every backend and engine, by name."""
    return [lock for library in names() for lock in locks_of(library)]


def locks_of(library: str) -> list[Lock]:
    """Return the locks of one name: the releases orch drives, newest first, then others."""
    locks_ = [read_lock(path, library) for path in sorted(_folder(library).glob("*.txt"))]
    driven = _versions(library)
    rank = {version: number for number, version in enumerate(driven)}
    return sorted(
        locks_, key=lambda lock: (rank.get(lock.version, len(rank)), FLAVOURS.index(lock.flavour))
    )


def lock_of(library: str, version: str | None, flavour: Flavour) -> Lock:
    """Return the lock of a release; for None, of the newest that orch drives.

    Raise EnvironmentFault, with the names of the existing locks, if there is no such lock.
    """
    if library not in names():
        near = did_you_mean(library, names())
        raise EnvironmentFault(
            f"there is no backend or engine '{library}'{near} (there are: {', '.join(names())})"
        )
    version = version or _versions(library)[0]
    path = _path(library, version, flavour)
    if path.is_file():
        return read_lock(path, library)
    locks_ = locks_of(library)
    if not locks_:
        raise EnvironmentFault(f"{library} needs no environment of its own: it runs in orch's")
    offered = ", ".join(f"{library}@{lock.version} --{lock.flavour}" for lock in locks_)
    raise EnvironmentFault(
        f"there is no lock for {library}@{version} --{flavour} (there are: {offered}). Choose one "
        f"of these, or write {path}"
    )


def lock_named(release: str, flavour: Flavour) -> Lock:
    """Return the lock of `LIBRARY@VERSION`, or of `LIBRARY`. Raise as `lock_of` does."""
    library, _, version = release.partition("@")
    return lock_of(library, version or None, flavour)


def has_lock(library: str, version: str) -> bool:
    """Return True if this release trains in an environment of its own. Import no backend."""
    return library in plugins.names() and _path(library, version, "gpu").is_file()


def read_lock(path: Path, library: str) -> Lock:
    """Return the lock in a file. Raise EnvironmentFault for a name or a head of no lock."""
    version, _, suffix = path.name.removesuffix(".txt").rpartition(".")
    flavours: dict[str, Flavour] = {each: each for each in FLAVOURS}
    lock = Lock(library, version, flavours.get(suffix, "gpu"), path.read_text("utf-8"))
    for word, known in ((suffix, FLAVOURS), *((key, _KEYS) for key in lock.head)):
        if word not in known:
            raise EnvironmentFault(f"{path}: a lock has no '{word}'{did_you_mean(word, known)}")
    return lock


def _path(library: str, version: str, flavour: Flavour) -> Path:
    return _folder(library) / f"{version}.{flavour}.txt"


def _folder(library: str) -> Path:
    if library in ENGINES:
        return Path(__file__).with_name("engines") / library
    return plugins.folder(library) / "environments"


def _versions(library: str) -> tuple[str, ...]:
    return ENGINES.get(library) or tuple(plugins.load(library).versions)


MARKER = "environment.json"
VARIABLE = "ORCH_ENVIRONMENTS"


@dataclass(frozen=True)
class Environment:
    """A finished environment: a virtual environment in `path`."""

    library: str
    version: str
    flavour: Flavour
    path: Path
    lock: str
    """Digest of the lock it was made from."""

    @property
    def bin(self) -> Path:
        """Return the folder of the environment's programs."""
        return self.path / "bin"

    @property
    def python(self) -> Path:
        """Return the path of the environment's Python."""
        return self.bin / "python"

    @property
    def name(self) -> str:
        """Return the library and its release, such as `verl@0.9.1`."""
        return f"{self.library}@{self.version}"

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a program that runs in the environment.

        The environment's own programs come first on PATH.
        """
        path = os.pathsep.join(filter(None, [str(self.bin), inherited.get("PATH", os.defpath)]))
        return {"PATH": path, "VIRTUAL_ENV": str(self.path), "PYTHONNOUSERSITE": "1"}

    def record(self) -> dict[str, str]:
        """Return the environment as the record of a job keeps it."""
        return {**asdict(self), "path": str(self.path)}


def root() -> Path:
    """Return the folder of all environments."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".local/share/orch/environments"


def find_installed(
    library: str, version: str, flavour: Flavour = "gpu", within: Path | None = None
) -> Environment | None:
    """Return the environment of that release, or None if no finished one exists.

    The folder of flavour `cpu` is named by its lock: one that an older lock left is not found.
    """
    name = Lock(library, version, flavour, "").folder
    if flavour == "cpu":
        known = library in ENGINES or library in plugins.names()
        path = _path(library, version, flavour) if known else None
        if path is None or not path.is_file():
            return None
        name = read_lock(path, library).folder
    return read_environment((within or root()) / name)


def installed(within: Path | None = None) -> list[Environment]:
    """Return every finished environment, by name."""
    each = (read_environment(path) for path in sorted((within or root()).glob("*/")))
    return [environment for environment in each if environment is not None]


def environment_rows(within: Path | None) -> list[dict[str, object]]:
    """Return each lock as plain data, with the state of its environment: `ready`, ..."""
    rows: list[dict[str, object]] = []
    for lock in locks():
        environment = find_installed(lock.library, lock.version, lock.flavour, within)
        state = "not made"
        if environment is not None:
            state = "ready" if environment.lock == lock.digest else "made from another lock"
        rows.append(
            {
                "release": f"{lock.library}@{lock.version}",
                "flavour": lock.flavour,
                "state": state,
                "python": " ".join(lock.words("python")),
                "packages": len(lock.pins) or None,
                "path": str((within or root()) / lock.folder),
            }
        )
    return rows


def read_environment(path: Path) -> Environment | None:
    """Return the environment in that folder, or None if none was finished."""
    try:
        plain = json.loads((path / MARKER).read_text(encoding="utf-8"))
        return Environment(
            plain["library"], plain["version"], plain["flavour"], path.absolute(), plain["lock"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
