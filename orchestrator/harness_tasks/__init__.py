"""lm-evaluation-harness's tasks by name, and tasks of a user's own by the path of their YAML.

Names come from a stored list, `<version>.json.xz`, because the harness needs 20 s of CPU to read
its 14,000 files. Nothing here imports the harness or runs a file of a task: YAML is read safely,
and `!function` is only a text.

A task's name in a spec is one of
    NAME            a task, group or tag of the harness, where orch has no task of this name
    lm-eval:NAME    the same, also where orch has one
    FILE.yaml       a task of one's own; relative to the folder where orch is started
"""

import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.errors import EnvironmentFault, did_you_mean

VERSION = "0.4.13"
"""The release whose list is read."""
PREFIX = "lm-eval:"
YAML = (".yaml", ".yml")
LIKELIHOODS = frozenset({"multiple_choice", "loglikelihood", "loglikelihood_rolling"})
"""Output types that score given texts. They generate nothing, so k responses would be equal."""
NLTK = "nltk data "


class Leaf(NamedTuple):
    """One task: no group, no tag."""

    name: str
    output_type: str
    """`generate_until`, one of LIKELIHOODS, or empty where only its Python code says it."""
    dataset: str
    """The data set's name on the hub, or `json`, `csv`, ... for files."""
    needs: Sequence[str]
    """Requirements beyond lm-eval[hf,api], and `nltk data NAME`."""
    repeats: int
    """Responses to each item that the task itself asks for."""
    path: str
    """Its YAML, relative to the harness's `tasks` folder."""


class NamedTask(NamedTuple):
    """What a name in a spec stands for."""

    title: str
    """The harness's own name of the task, group or tag."""
    leaves: tuple[Leaf, ...]
    file: Path | None
    """A YAML of one's own."""
    version: str
    """Changes with the harness's release, or with the files of a task of one's own."""
    folders: tuple[str, ...]
    """Folders of the harness that have it and its parts, relative to its `tasks` folder."""

    @property
    def only_likelihoods(self) -> bool:
        """Return True if no part of it generates text."""
        return all(leaf.output_type in LIKELIHOODS for leaf in self.leaves)

    @property
    def needs(self) -> tuple[str, ...]:
        """Return all needs of its parts, sorted."""
        return tuple(sorted({need for leaf in self.leaves for need in leaf.needs}))

    @property
    def gated(self) -> tuple[str, ...]:
        """Return its data sets whose terms must be accepted on the hub.

        They are those that the harness's own pages call gated.
        """
        return tuple(sorted({leaf.dataset for leaf in self.leaves} & set(_stored()["gated"])))


def label(name: str) -> str:
    """Return the name of a task in scores and files: no path, no colon."""
    plain = Path(name).stem if name.endswith(YAML) else name.replace(PREFIX, "lm-eval.")
    return re.sub(r"[^A-Za-z0-9._+-]", "_", plain).lstrip("._+-")[:120]


def is_known(name: str) -> bool:
    """Return True if the harness has a task, group or tag of that name."""
    stored = _stored()
    return name in stored["tasks"] or name in stored["groups"]


def nearest(name: str, others: Iterable[str] = ()) -> str:
    """Return `; did you mean ...?` over the harness's names and others; empty if none is near."""
    stored = _stored()
    return did_you_mean(name.removeprefix(PREFIX), [*others, *stored["tasks"], *stored["groups"]])


def find(name: str) -> NamedTask:
    """Return the task of a spec's name. Raise EnvironmentFault, with what to do, if none is."""
    if name.endswith(YAML):
        return _own(Path(name).expanduser().absolute())
    plain = name.removeprefix(PREFIX)
    if not is_known(plain):
        raise EnvironmentFault(
            f"lm-evaluation-harness {VERSION} has no task '{plain}'{nearest(plain)}"
        )
    return _listed(plain)


@lru_cache
def _listed(name: str) -> NamedTask:
    stored = _stored()
    tasks, groups = stored["tasks"], stored["groups"]
    names = dict.fromkeys(_parts(name))
    leaves = [Leaf(part, *tasks[part]) for part in names if part in tasks and part not in groups]
    files = [leaf.path for leaf in leaves]
    files += [groups[part][0] for part in names if part in groups and groups[part][0]]
    folders = tuple(sorted({str(Path(file).parent) for file in files}))
    return NamedTask(name, tuple(leaves), None, f"lm-eval-{VERSION}", folders)


def _parts(name: str) -> Iterator[str]:
    """Yield a name and its members' names; what a group defines in its own file is not listed."""
    yield name
    for member in _stored()["groups"].get(name, ("", ()))[1]:
        if member != name:
            yield from _parts(member)


@cache
def _stored() -> Mapping[str, Any]:
    """Return {tasks: {name: [output type, data set, needs, repeats, path]},
    groups: {name: [path, members]}, gated: [data set]}; a tag is a group without a path."""
    stored: Mapping[str, Any] = json.loads(lzma.decompress(list_path(VERSION).read_bytes()))
    return stored


def list_path(release: str) -> Path:
    """Return the file of the list of a release."""
    return Path(__file__).with_name(f"{release}.json.xz")


# A task of one's own, by the path of its YAML.


def _own(path: Path) -> NamedTask:
    config = read_yaml(path)
    title = config.get("task")
    if not isinstance(title, str):
        raise EnvironmentFault(f"{path} must name its `task`; tasks of a group go one by one")
    output_type = str(config.get("output_type") or "generate_until")
    dataset = str(config.get("dataset_path") or "")
    leaf = Leaf(title, output_type, dataset, (), int(config.get("repeats") or 1), "")
    return NamedTask(title, (leaf,), path, _version(path, config), ())


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a task's YAML with what it includes. Raise EnvironmentFault if it cannot be read."""
    try:
        plain = yaml.load(path.read_text(encoding="utf-8"), TaskLoader)  # noqa: S506  (a SafeLoader)
        if not isinstance(plain, dict):
            raise EnvironmentFault(f"the task file {path} must be a mapping with `task`")
        below = plain.pop("include", [])
        merged: dict[str, Any] = {}
        for each in below if isinstance(below, list) else [below]:
            merged |= read_yaml(path.parent / each)
    except (OSError, yaml.YAMLError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise EnvironmentFault(f"the task file {path} cannot be read: {what}") from error
    return merged | plain


class TaskLoader(yaml.SafeLoader):
    """Safe YAML in which the harness's `!function` is only a text."""


TaskLoader.add_constructor("!function", lambda _loader, node: str(node.value))


def _version(path: Path, config: Mapping[str, Any]) -> str:
    """Return a hash of the task with what it includes, of the Python files beside it, and of the
    data files that it names."""
    files = [*sorted(path.parent.glob("*.py")), *_data_files(config)]
    parts = [json.dumps(config, sort_keys=True, default=str)]
    parts += [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _data_files(config: Mapping[str, Any]) -> Iterator[Path]:
    named = (config.get("dataset_kwargs") or {}).get("data_files") or ()
    for value in named.values() if isinstance(named, Mapping) else [named]:
        for each in [value] if isinstance(value, str) else value:
            if Path(each).is_file():
                yield Path(each)


# What a task needs on this machine.


def lacking(needs: Iterable[str]) -> list[str]:
    """Return the requirements among needs that this Python's packages do not meet."""
    from packaging.requirements import Requirement

    missing = []
    for need in needs:
        if need.startswith(NLTK):
            continue
        requirement = Requirement(need)
        try:
            met = requirement.specifier.contains(version(requirement.name), prereleases=True)
        except PackageNotFoundError:
            met = False
        missing += [] if met else [need]
    return missing
