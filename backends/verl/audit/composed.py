"""The keys that Hydra composes from YAML files and their defaults lists, read by their text.

(hydra/_internal/defaults_list.py and hydra/core/default_element.py of Hydra 1.3)
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import yaml

from orchestrator.audit.documents import section_below, section_of
from orchestrator.library.launches import Given

_CHOICE = re.compile(r"\$\{([^{}]+)\}")


class _Default(NamedTuple):
    """An entry of a defaults list: the files `names` of the folder `group`, below `section`."""

    names: Sequence[object]
    group: str = ""
    section: str = ""
    words: Sequence[str] = ()
    """`override`, `optional`."""
    key: str = ""
    """By which other files and the launch name the group; empty: they cannot."""
    is_placed: bool = True
    """True if the entry says its section, so that the file's header does not count."""


class ComposedKeys:
    """The dotted keys of a configuration, sections among them, with their values."""

    def __init__(
        self,
        folders: Sequence[str],
        name: str,
        files: Mapping[str, str],
        given: Mapping[str, Sequence[Given]],
    ) -> None:
        """`folders`: Hydra's search path. `name`: of the first file. `given`: a launch, which may
        choose groups."""
        self.folders, self._files, self._given = folders, files, given
        self._chosen: dict[str, object] = {
            key: None if each[-1].text == "null" else each[-1].text for key, each in given.items()
        }
        self._seen: set[tuple[str, str]] = set()
        self._unread: set[str] = set()
        self.lost: list[str] = []
        """Files that a defaults list of a file here names and that no folder has."""
        self.values: dict[str, tuple[object, str]] = {}
        """Key -> its value, and the file that gives it."""
        self._add(_Default([name]))
        for key, each in given.items():
            if each[-1].mark == "+" and ("@" in key or "/" in key):
                self._add(_default({key: each[-1].text}, "", ""))

    def is_whole(self) -> bool:
        """Return True if no key of the launch may be in a file that could not be followed."""
        return not any(f"{key}.".startswith(each) for key in self._given for each in self._unread)

    def with_values(self) -> set[str]:
        """Return the keys that are not null: Hydra refuses to add them with a `+`."""
        return {key for key, (value, _) in self.values.items() if value is not None}

    def _add(self, default: _Default) -> None:
        for name in default.names:
            path = f"{default.group}/{name}".lstrip("/")
            files = [posixpath.join(folder, f"{path}.yaml") for folder in self.folders]
            file = next((each for each in files if each in self._files), "")
            if file:
                self._add_file(path, file, default)
            elif name is not None and "optional" not in default.words:
                self._unread.add(_prefix(default.section))
                if self.values and re.fullmatch(r"[\w./-]+", path):
                    self.lost.append(f"{path}.yaml")

    def _add_file(self, path: str, file: str, default: _Default) -> None:
        text, section = self._files[file], default.section
        if not default.is_placed:
            section = section_of(text, default.group, section)
        if (path, section) in self._seen:
            return
        self._seen.add((path, section))
        try:
            keys, entries = _file(text)
            groups = (each for each in entries if each != "_self_")
            defaults = [_default(each, default.group, section) for each in groups]
        except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError):
            self._unread.add(_prefix(section))
            return
        own: dict[str, tuple[object, str]] = {
            section[: dot.start()]: ({}, file) for dot in re.finditer(r"\.|(?<=.)$", section)
        }
        own |= {_prefix(section) + key: (value, file) for key, value in keys.items()}
        self.values |= own
        for each in defaults:
            if "override" in each.words:
                self._chosen.setdefault(each.key, each.names[0])
        # A name with ${group} waits for the choice of that group.
        for each in sorted(defaults, key=lambda each: "${" in str(each.names)):
            if "override" not in each.words:
                self._add(each._replace(names=self._names(each)))
        if entries[:1] != ("_self_",):
            self.values |= own

    def _names(self, default: _Default) -> Sequence[object]:
        """Return the files that a launch takes for an entry."""
        if not default.key or len(default.names) != 1:
            return default.names
        name = self._chosen.get(default.key, default.names[0])
        if isinstance(name, str):
            name = _CHOICE.sub(lambda match: str(self._chosen.get(match[1], match[0])), name)
        self._chosen[default.key] = name
        return [name]


@lru_cache(maxsize=64)  # the launches of a folder have one configuration
def _file(text: str) -> tuple[Mapping[str, object], tuple[object, ...]]:
    """Return the dotted keys of a file, sections among them, with their values; and its defaults
    list."""
    tree = yaml.safe_load(text) or {}
    entries = tuple(tree.pop("defaults", None) or ())
    return dict(_keys(tree, "")), entries


def _keys(value: object, prefix: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}", inner
            yield from _keys(inner, f"{prefix}{key}.")


def _default(entry: object, folder: str, section: str) -> _Default:
    """Return an entry of the list of a file in `folder` that Hydra puts below `section`."""
    is_group = isinstance(entry, dict)
    ((text, names),) = entry.items() if isinstance(entry, dict) else ((str(entry), None),)
    *words, text = text.split()
    text, is_placed, package = text.partition("@")
    if not is_group:
        text, names = posixpath.split(text)
    group = posixpath.normpath(posixpath.join("/", folder, text)).strip("/")
    plain = group.replace("/", ".")
    package = package if is_placed else text.strip("/").replace("/", ".")
    below = section_below(section, package, group)
    key = group if below == plain else f"{group}@{below or '_global_'}"
    several = names if isinstance(names, list) else [names]
    return _Default(several, group, below, words, key if is_group else "", bool(is_placed))


def _prefix(section: str) -> str:
    return f"{section}." if section else ""
