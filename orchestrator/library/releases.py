"""Find the release that a launch runs on, from its text, from project files, and from its keys."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.library.launches import Given
from orchestrator.library.manifest import ReleaseTable

RELEASE_NUMBER = re.compile(
    r"^(?:version\s*=\s*[\"'])?v?(\d+\.\d+(?:\.\d+)?(?:\.(?:post|dev)\d+)?)", re.M
)
"""A release number alone on a line, or after `version =`."""


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A file of a project, by its path in the project, that holds a release."""

    key: str
    """Name in Launch.versions: the library's, or that of a fact besides its release."""
    path: str
    needs: str = ""
    """A folder next to `path` that marks the project as the library's."""
    pattern: re.Pattern[str] = RELEASE_NUMBER
    """The pattern whose first group is the release."""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A function of a library that starts a program with arguments in one string."""

    name: str
    arguments: str
    """The keyword that has the arguments; they may stand first without it."""
    program: str
    """The keyword that names the program."""
    usual: str
    """The program of a call that names none."""


@dataclass(frozen=True, slots=True)
class ReleaseMarks:
    """The marks by which orch recognises a library, and its release, in a text.

    Launch.versions holds the results: name -> the release, a space, and a sentence with the reason.
    """

    hint: str
    """Regular expression of words. A text without a match has no launch of the library. Words of
    several libraries (`use_kl`, `main_`) are known without it."""
    aliases: tuple[str, ...] = ()
    """Further names under which a release is given (`orch audit --library NAME@VERSION`)."""
    distributions: tuple[str, ...] = ()
    """Names of packages in requirements: `NAME[extra]==1.2`."""
    repositories: tuple[str, ...] = ()
    """Names of git repositories: `/NAME.git@v1.2`, `git clone -b v1.2 .../NAME`."""
    images: tuple[str, ...] = ()
    """Beginnings of container images, up to the release: `owner/image:tag-`."""
    files: tuple[ReleaseFile, ...] = ()
    configuration_classes: tuple[str, ...] = ()
    """Classes whose keyword arguments are the library's configuration: a call of one in a Python
    file is a launch, with a ConfigDocument of the kind `call`."""
    command_calls: tuple[CommandCall, ...] = ()
    """Functions that start the library's trainer from a Python file."""
    in_script: Callable[[str], Iterable[tuple[str, str]]] | None = None
    """Further entries of Launch.versions that the text of a launch script gives."""
    amended: (
        Callable[[Callable[[str], str | None], Mapping[str, str]], Iterable[tuple[str, str]]] | None
    ) = None
    """A function that returns entries of a project which replace those recognised so far. Its
    arguments are a reader of the project's files (None: no such file) and the entries so far."""


@dataclass(frozen=True, slots=True)
class Releases:
    """The keys of each release: `keys[name] = (first, last)`, indices of `versions`."""

    versions: Sequence[str]
    keys: Mapping[str, tuple[int, int]]

    def accepting(self, given: Mapping[str, Sequence[Given]]) -> tuple[list[int], list[str]]:
        """Return the indices of the releases that refuse the fewest keys, and the deciding keys.

        A key that no release takes is a fork's. A fork adds newer keys to an old release, and keeps
        no key that its release has dropped. So if releases that are not neighbours fit equally
        well, the older one is the fork's.
        """
        refused, dropped = [0] * len(self.versions), [0] * len(self.versions)
        telling = []
        for key, values in given.items():
            span = self.keys.get(key)
            if span is None or values[-1].mark in ("++", "~"):
                continue
            telling.append(key)
            added = values[-1].mark == "+"
            for i in range(len(self.versions)):
                # Hydra refuses `+key` where it has the key, and `key` where it does not.
                refused[i] += (span[0] <= i <= span[1]) == added
                dropped[i] += i > span[1] and not added
        least = min(refused)
        fitting = [i for i, count in enumerate(refused) if count == least]
        older = [i for i in fitting if dropped[i] == min(dropped[j] for j in fitting)]
        if least and older[-1] + 1 not in fitting:
            fitting = older
        return fitting, telling

    def table(self, version: str) -> ReleaseTable | None:
        """Return the table of a listed release, or None for another release."""
        if version not in self.versions:
            return None
        at = self.versions.index(version)
        keys = frozenset(k for k, (first, last) in self.keys.items() if first <= at <= last)
        return ReleaseTable(version, keys)

    def excluding(self, given: Mapping[str, Sequence[Given]], among: int) -> list[str]:
        """Return the given keys whose last release is the one with the index `among`."""
        return [
            key
            for key, values in given.items()
            if key in self.keys and values[-1].mark == "" and self.keys[key][1] == among
        ]


def load_releases(path: Path) -> Releases:
    """Return the table of releases in a backend's data file."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    return Releases(plain["versions"], {k: (v[0], v[1]) for k, v in plain["keys"].items()})


def merged_table(tables: Iterable[ReleaseTable], more: Iterable[str] = ()) -> ReleaseTable:
    """Return the table of every key that some release has."""
    listed = list(tables)
    keys = frozenset(more).union(*(table.keys for table in listed))
    added = tuple(dict.fromkeys(prefix for table in listed for prefix in table.added))
    return ReleaseTable("another release", keys, {}, added)


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared: `0.3.0.post1` -> (0, 3, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split(".post")[0])[:3])


def nearest(versions: Sequence[str], version: str) -> int:
    """Return the index in `versions` of a release, or of the listed release next to it.

    That is the newest listed release of the same minor version, else the newest of those that are
    not newer than `version`.
    """
    wanted = numbers(version)
    if wanted in (known := [numbers(each) for each in versions]):
        return known.index(wanted)
    same = [i for i, each in enumerate(versions) if numbers(each)[:2] == wanted[:2]]
    older = [i for i, each in enumerate(versions) if numbers(each) <= wanted]
    return (same or older or [0])[-1]
