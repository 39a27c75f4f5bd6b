"""Task files: `<task>.yaml`, anywhere below a tasks folder, in lm-evaluation-harness's format.

The folders are orch's own, the one of the cell's backend, and those that other distributions name
in the entry-point group `orch.tasks`.

A task is a folder, shared with its kin: what its YAML includes and the functions it names lie
beside it. Code of ours that it uses from elsewhere is listed in its `metadata.sources`, relative to
the YAML. All of it but the kin's YAML makes the task's version, so that no score outlives the task
it was made with.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import yaml

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.harness_tasks import TaskLoader

OWN_TASKS = plugins.TASKS_FOLDER


@lru_cache
def find_task(name: str, folders: tuple[Path, ...]) -> Path:
    """Return the task's YAML. Raise EnvironmentFault if no folder has it, or two have it."""
    known: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        if path.stem == name and name in known:
            raise EnvironmentFault(
                f"evaluation task '{name}' has two task files, {known[name]} and {path}: rename one"
            )
        known[path.stem] = path
    if name not in known:
        raise EnvironmentFault(
            f"evaluation task '{name}' has no task file{did_you_mean(name, known) or '.'} There is "
            f"one for: {', '.join(sorted(known)) or 'nothing'}. Write {name}.yaml below one of "
            f"{', '.join(map(str, folders))}, or take the task out of evaluation.tasks"
        )
    return known[name]


@lru_cache
def version(path: Path) -> str:
    """Return 12 hexadecimal digits of all that the task is made of."""
    total = hashlib.sha256()
    for part in _parts(path):
        body = part.read_bytes()
        total.update(f"{part.name}\n{len(body)}\n".encode() + body)
    return total.hexdigest()[:12]


def _parts(path: Path) -> Iterator[Path]:
    for file in sorted(path.parent.rglob("*")):
        kin = file.suffix == ".yaml" and file != path
        if file.is_file() and not kin and "__pycache__" not in file.parts:
            yield file
    plain = yaml.load(path.read_text(encoding="utf-8"), TaskLoader)  # noqa: S506  (a SafeLoader)
    for source in (plain.get("metadata") or {}).get("sources", ()):
        yield path.parent / source
