"""Where environments lie, and which are there.

$ORCH_ENVIRONMENTS, or ~/.local/share/orch/environments, holds one folder an environment:
<library>-<version> for training, <library>-<version>.contract for the contract tests. One that is
whole has an environment.json.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.environments.lock import Flavour

MARKER = "environment.json"
VARIABLE = "ORCH_ENVIRONMENTS"


@dataclass(frozen=True)
class Environment:
    """One that was made whole: a virtual environment in `path`."""

    library: str
    version: str
    flavour: Flavour
    path: Path
    lock: str
    """Digest of the lock it was made from."""

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def name(self) -> str:
        return f"{self.library}@{self.version}"

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What a program needs of it: its programs first on PATH, nothing of another one."""
        path = os.pathsep.join(filter(None, [str(self.bin), inherited.get("PATH", os.defpath)]))
        return {"PATH": path, "VIRTUAL_ENV": str(self.path), "PYTHONNOUSERSITE": "1"}

    def record(self) -> dict[str, str]:
        """What a job's record keeps of it."""
        return {
            "library": self.library, "version": self.version, "flavour": self.flavour,
            "path": str(self.path), "lock": self.lock,
        }  # fmt: skip


def root() -> Path:
    """The folder of all environments."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".local/share/orch/environments"


def name_of(library: str, version: str, flavour: Flavour) -> str:
    """The name of its folder."""
    return f"{library}-{version}" + ("" if flavour == "gpu" else f".{flavour}")


def find(
    library: str, version: str, flavour: Flavour = "gpu", within: Path | None = None
) -> Environment | None:
    """The environment of that release, or None where there is no whole one."""
    return read((within or root()) / name_of(library, version, flavour))


def found(within: Path | None = None) -> list[Environment]:
    """Every whole environment, by name."""
    each = (read(path) for path in sorted((within or root()).glob("*/")))
    return [environment for environment in each if environment is not None]


def read(path: Path) -> Environment | None:
    """The environment in that folder, or None where none was finished."""
    try:
        plain = json.loads((path / MARKER).read_text(encoding="utf-8"))
        return Environment(
            plain["library"], plain["version"], plain["flavour"], path.absolute(), plain["lock"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
