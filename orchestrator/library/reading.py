"""Functions that readers of launches share: flags of a command, the release, a fork's source.

A library that orch only reads exports a `ReadLibrary`. Its reader of one launch inherits
`ReleaseReader`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from orchestrator.library.key_tables import KeyTables, defaults, release_table
from orchestrator.library.launch_keys import KL_WEIGHTS, SWITCHES, Keys, unquoted
from orchestrator.library.launches import (
    UNKNOWN,
    CommandWord,
    Edit,
    Given,
    HeldKeys,
    Launch,
    LaunchReading,
    Possibility,
    TrainingRegime,
)
from orchestrator.library.logged import LoggedMetrics
from orchestrator.library.manifest import ReleaseTable
from orchestrator.library.releases import ReleaseMarks, numbers
from orchestrator.library.source_keys import KeyFact

_FLAG = re.compile(r"^--([A-Za-z_][\w.-]*)(?:=(.*))?$", re.DOTALL)


class Stock(NamedTuple):
    """The keys to check a launch against: those of a release, or of a fork's source."""

    version: str
    because: str
    facts: Mapping[str, KeyFact]
    table: ReleaseTable
    others: tuple[ReleaseTable, ...]
    named: str = ""
    """The release that something names and orch has no table of, or an empty text."""
    guessed: bool = False
    """True if nothing names the release."""

    @property
    def defaults(self) -> dict[str, str]:
        """Return the default of each key that has one."""
        return defaults(self.facts)

    def held(
        self,
        given: Mapping[str, Sequence[Given]],
        grammar: Literal["hydra", "structured", "argparse", "pydantic"],
        title: str,
        *,
        in_files: Iterable[str] = (),
        ignoring: tuple[str, ...] = (),
    ) -> HeldKeys:
        """Return the keys of a launch with the tables that the audit compares them with."""
        return HeldKeys(
            given,
            grammar,
            self.table,
            f"{title} {self.version}",
            exact=not self.named,
            others=self.others,
            defaults=self.defaults,
            in_files=frozenset(in_files),
            ignoring=ignoring,
            flag="--" if grammar == "argparse" else "",
            named=self.named,
            guessed=self.guessed,
        )


class ReadLibrary:
    """A library whose launches are read and which orch does not train with.

    The members are those of `orchestrator.library.protocol.LaunchReader`.
    """

    def __init__(
        self,
        name: str,
        title: str,
        release_marks: ReleaseMarks,
        estimator_names: Mapping[str, str],
        audit: Callable[[Launch], LaunchReading | None],
        logged_metrics: LoggedMetrics | None = None,
    ) -> None:
        self.name, self.title, self.release_marks = name, title, release_marks
        self.estimator_names = MappingProxyType(dict(estimator_names))
        self.logged_metrics = logged_metrics
        self._audit = audit

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return the reading of a launch; None if it does not start the library."""
        return self._audit(launch)


class ReleaseReader:
    """A reader of one launch under the rules of one release."""

    written = "{key}={value}"
    """The form of a key in the library's launches."""

    def __init__(self, launch: Launch, keys: Keys, basis: Stock) -> None:
        self.launch, self.keys, self.basis = launch, keys, basis
        self.unknown: list[str] = []
        """Reasons why the KL cannot be determined."""

    def number(self, key: str) -> float | None:
        """Return a number that decides the KL. If it is None, note that the KL is unknown."""
        number = self.keys.number(key)
        if number is None:
            self.unknown.append(self.keys.leave_open(key, KL_WEIGHTS))
        return number

    def switch(self, key: str) -> bool | None:
        """Return a switch that decides the KL. If it is None, note that the KL is unknown."""
        on = self.keys.switch(key)
        if on is None:
            self.unknown.append(self.keys.leave_open(key, SWITCHES))
        return on

    def estimator(self, key: str, names: Mapping[str, str]) -> str | None:
        """Return orch's name of an estimator, or None for a name that the library does not have.

        Note then that the KL is unknown.
        """
        name = self.keys.text(key) or ""
        if name not in names:
            self.unknown.append(self.keys.leave_open(key, {each: each for each in names}))
        return names.get(name)

    def possibilities(self) -> tuple[Possibility, ...]:
        """Return the possible values of the first key that decides the KL and is unknown."""
        return self.keys.possibilities(self.put)

    def put(self, key: str, value: str) -> Edit:
        """Return the edit that sets a key to this value, on the line that sets it now."""
        written = self.written.format(key=key, value=value)
        return Edit(key, written, self.keys.lines(key)[:1])

    def discounts(self, names: Mapping[str, str]) -> str:
        """Return the discounts that are not 1, in words. `names`: key -> its name for a user."""
        values = {shown: self.keys.number(key) for key, shown in names.items()}
        return ", ".join(f"{name} {v:g}" for name, v in values.items() if v not in (None, 1.0))


def clip_range(
    low: float | None, high: float | None, *, symmetric: bool = False
) -> tuple[float, float] | None:
    """Return the bounds of a clip, or None if one is unknown.

    `symmetric`: without an upper bound, the lower one counts for both.
    """
    if symmetric and high is None:
        high = low
    return None if low is None or high is None else (low, high)


def regime_of_sizes(keys: Keys, batch: str, minibatch: str, epochs: str = "") -> TrainingRegime:
    """Return the regime of a batch of rollouts that is split into minibatches.

    Each argument is the key of a size; both sizes are in the same unit, prompts or responses.
    """
    names = (batch, minibatch, *([epochs] if epochs else []))
    sizes = {name: keys.number(name) for name in names}
    known = [size for size in sizes.values() if size]
    if len(known) < len(sizes):
        return TrainingRegime.unread(name for name, size in sizes.items() if not size)
    steps = max(known[0] // known[1], 1) * (known[2] if epochs else 1)
    return TrainingRegime.of_steps(steps, ", ".join(f"{n} {size:g}" for n, size in sizes.items()))


def stock(
    launch: Launch,
    library: str,
    tables: KeyTables,
    keys: Iterable[str],
    own: Sequence[str] = (),
    facts_of: Callable[[str], Mapping[str, KeyFact]] | None = None,
) -> Stock:
    """Return the keys to check a launch against.

    The release is the one that something names, else the newest that has the launch's keys;
    `because` is the reason. `own`: paths, in a project, of the source of the library's parser. If
    the launch's project has one of these files, the keys that `facts_of` reads from it replace the
    release's.
    """
    pinned, named, guessed = launch.versions.get(library), "", False
    if pinned is not None:
        pin, _, why = pinned.partition(" ")
        version, because = tables.nearest(pin), f"{pin}: {why}"
        named = "" if numbers(pin) == numbers(version) else pin
    else:
        version, telling = tables.fitting(keys)
        guessed = True
        because = (
            f"the newest release that has {', '.join(telling[:2])}"
            if telling
            else "nothing says which release: the newest that orch has read, as it was published"
        )
    facts, table = tables.facts_of(version), tables.table(version)
    for path in own if facts_of is not None else ():
        text = launch.beside.get(path)
        if text is None:
            continue
        read = facts_of(text) if facts_of is not None else {}
        if read:
            facts = {**facts, **read}
            table = release_table(f"{version} with {path}", facts, tables.passed, tables.added)
            because = f"{because}; keys and defaults are those of {path} beside it"
            named, guessed = "", False
            break
    return Stock(version, because, facts, table, tables.others(version), named, guessed)


def written_flags(
    words: Sequence[CommandWord], switches: Iterable[str] = (), *, dashes: bool = True
) -> dict[str, list[Given]]:
    """Return each flag with its value: the word after it, unless that is a flag.

    `switches`: flags without a value, whose value is then `true`. `dashes`: keep `-` in names;
    else they become `_`.
    """
    alone = frozenset(switches)
    flags: dict[str, list[Given]] = {}
    for i, word in enumerate(words):
        match = _FLAG.match(word.text)
        if match is None:
            continue
        name = match[1] if dashes else match[1].replace("-", "_")
        value: str | None = match[2]
        lines, why, default_of = word.lines, word.why, word.default_of
        following = words[i + 1] if i + 1 < len(words) else None
        takes = value is None and name not in alone and following is not None
        if takes and following is not None and not _FLAG.match(following.text):
            value, why, default_of = following.text, following.why, following.default_of
            lines = (*lines, *following.lines)
        given = Given(
            unquoted(value if value is not None else "true"),
            tuple(dict.fromkeys(lines)),
            why,
            "=" if match[2] is not None else "",
            default_of,
        )
        flags.setdefault(name, []).append(given)
    return flags


def has_hole(words: Sequence[CommandWord]) -> str:
    """Return why some words of a command are unknown, or an empty text if all are known."""
    for word in words:
        if word.text.strip(UNKNOWN) == "" and UNKNOWN in word.text:
            return f"it may come from {word.why[0] if word.why else 'outside the script'}"
    return ""
