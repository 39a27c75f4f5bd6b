"""The nouns of an audit: what is read (Launch), what a library makes of it (Reading), and what is
said (Finding). Frozen, and without anything heavy: backends import this file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.errors import OrchError

AuditVerdict = Literal[
    "no_kl",
    "unbiased_reverse_kl",
    "zero_mean_noise",
    "token_forward_kl",
    "token_reverse_kl",
    "biased_reward",
    "both",
    "rollout_policy_kl_only",
    "undetermined",
]


class UnreadableScript(OrchError):
    """A file in which there is nothing to judge: one sentence says why."""


UNKNOWN = "\x00"
"""Stands, in a word, for what only running the script would tell."""
UNSET = "\x01"
"""Stands, in a word, for a variable that the script uses and nobody sets: empty, unless the
environment has it."""


@dataclass(frozen=True, slots=True)
class CommandWord:
    """One word of a command line. `why`: reasons of its UNKNOWNs, names of its UNSETs."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A value somebody wrote. `text` may hold UNKNOWN and UNSET."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    mark: str = ""
    """Hydra's prefix of an override: `+`, `++`, `~` or nothing."""


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A YAML or TOML file: dotted key -> value; `defaults`: files it says it builds on."""

    name: str
    values: Mapping[str, Given]
    builds_on: tuple[str, ...] = ()
    kind: Literal["yaml", "toml"] = "yaml"


@dataclass(frozen=True, slots=True)
class Launch:
    """What one command, or one configuration file on its own, asks for."""

    words: tuple[CommandWord, ...] = ()
    """The command line, wrappers (`srun`, `uv run`, `ray job submit --`) included."""
    documents: tuple[ConfigDocument, ...] = ()
    """Configuration files that apply, the weakest first."""
    line: int = 1
    case: str | None = None
    """Which way the script went to come here, in words."""
    usual: bool = True
    """Whether it is the way taken without arguments and with nothing in the environment."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> release, where something says so, the reason after a space."""
    caveats: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Configuration files it names that could not be read."""
    lost: tuple[int, tuple[str, ...]] | None = None
    """The line from which flags follow that the shell does not hand to it, and those flags."""
    more: str = ""
    """Why there may be words that are not in `words`; empty where there are none."""


@dataclass(frozen=True, slots=True)
class InReward:
    """The KL in the reward. None: not known, or, where it is not active, not there."""

    active: bool | None
    estimator: str | None = None
    beta: float | None = None


@dataclass(frozen=True, slots=True)
class InLoss:
    """The KL in the loss. `straight_through`: k2's gradient whatever the estimator's value."""

    active: bool | None
    estimator: str | None = None
    beta: float | None = None
    straight_through: bool = False


@dataclass(frozen=True, slots=True)
class ReadSetting:
    """One key that was read: given at those lines, or the release's default (no lines)."""

    key: str
    value: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Inactive:
    """A flag that is set and does nothing, and the rule by which it does not."""

    flag: str
    why: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditNote:
    """Something to be told, and where it comes from."""

    text: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A fact of a library's release: what it does, and which function of which file does it."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the launch: `text` in place of the words on `lines`, or, without lines, a word
    to be added; text None takes the words away. `key`: whose value it is."""

    key: str
    text: str | None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a library's release makes of a launch."""

    library: str
    version: str
    version_because: str
    entry_point: str | None
    in_reward: InReward
    in_loss: InLoss
    advantage_estimator: str | None = None
    reference_policy_loaded: bool | None = None
    group_size: int | None = None
    rollout_kl: float | None = None
    """Weight of a KL to the policy that sampled, which is no KL to a reference policy."""
    inactive: tuple[Inactive, ...] = ()
    contradictions: tuple[AuditNote, ...] = ()
    settings: tuple[ReadSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    change: tuple[Edit, ...] = ()
    change_note: str = ""
    """What to do where no change of the launch does it."""
    assumes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why the KL cannot be determined; empty where it can."""
    no_gradient: str = ""
    """Why the term in the loss has no gradient in this release, if it has none."""
    told: tuple[AuditVerdict, str] | None = None
    """The verdict and its reason, where an entry point makes something else of the term."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The answer for one launch of a file, in one case it can take."""

    file: str
    line: int
    case: str | None
    usual: bool
    library: str
    version: str
    version_because: str
    entry_point: str | None
    kl_in_reward: InReward
    kl_in_loss: InLoss
    advantage_estimator: str | None
    reference_policy_loaded: bool | None
    group_size: int | None
    inactive_flags: tuple[Inactive, ...]
    contradictions: tuple[AuditNote, ...]
    verdict: AuditVerdict
    why: str
    lines: tuple[int, ...]
    """Lines of the file that the verdict stands on, ascending."""
    rollout_kl: float | None = None
    settings: tuple[ReadSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    measured: str = ""
    """The laboratory's gradient of this term."""
    change: tuple[Edit, ...] = ()
    change_note: str = ""
    assumes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def confidence(self) -> Literal["certain", "assumed", "none"]:
        """`none`: undetermined; `assumed`: it hangs on what `assumes` says; `certain`: on the file
        and the release alone."""
        if self.verdict == "undetermined":
            return "none"
        return "assumed" if self.assumes else "certain"

    @property
    def problem(self) -> bool:
        """Whether the KL term does not do what its name says, or the file contradicts itself."""
        return self.verdict in PROBLEMS or bool(self.contradictions)


PROBLEMS = frozenset({"zero_mean_noise", "biased_reward", "token_forward_kl", "both"})


# What backends share in reading a launch: keys with their last values, types and releases.


OVERRIDE = re.compile(r"^(\+\+|\+|~)?([A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)=(.*)$", re.DOTALL)
PRIME_RL_TAU = "prime_rl kl_tau"
"""Among a launch's versions, though no release: the default of kl_tau in Prime-RL's own source
beside it. It changed between two releases, and checkouts are of commits between them."""
LONGEST_ENTRY, LONGEST_SHOWN = 300, 200
"""Characters of a word that may name an entry point, and of a value that is shown."""
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "null", "none", "")


def split_override(word: CommandWord) -> tuple[str, Given] | None:
    """`+a.b=c` as key and value; None where the word is something else."""
    match = OVERRIDE.match(word.text)
    if match is None:
        return None
    return match[2], Given(unquoted(match[3]), word.lines, word.why, match[1] or "")


def unquoted(text: str) -> str:
    """A value without the quotes around the whole of it."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


@dataclass(slots=True)
class Keys:
    """Keys of one launch. Every value asked for is noted as a setting, with where it is from."""

    defaults: Mapping[str, str]
    given: dict[str, list[Given]] = field(default_factory=dict)
    settings: list[ReadSetting] = field(default_factory=list)
    assumes: list[str] = field(default_factory=list)
    opaque: str = ""
    """Why keys that are not given are not known to have the release's default."""

    def add(self, key: str, given: Given) -> None:
        self.given.setdefault(key, []).append(given)

    def add_documents(self, documents: Iterable[ConfigDocument]) -> None:
        for document in documents:
            for key, given in document.values.items():
                self.add(key, given)

    def has(self, key: str) -> bool:
        return key in self.given

    def last(self, key: str) -> Given | None:
        found = self.given.get(key)
        return found[-1] if found else None

    def text(self, key: str) -> str | None:
        """The value, or the release's default; None where it is not known."""
        given = self.last(key)
        if given is None:
            if self.opaque or key not in self.defaults:
                return None
            self._note(ReadSetting(key, self.defaults[key]))
            return self.defaults[key]
        self._note(ReadSetting(key, shown(given.text), given.lines))
        if UNKNOWN in given.text:
            return None
        if UNSET in given.text:
            told = given.why[0] if given.why else "a variable"
            said = f"{told} is not set in the environment ({key} is then empty)"
            if said not in self.assumes:
                self.assumes.append(said)
        return given.text.replace(UNSET, "")

    def _note(self, setting: ReadSetting) -> None:
        if all(each.key != setting.key for each in self.settings):
            self.settings.append(setting)

    def switch(self, key: str) -> bool | None:
        """A boolean, as YAML and Hydra have it; any other text counts as true, as in Python."""
        text = self.text(key)
        if text is None:
            return None
        return text.strip().lower() not in _FALSE

    def number(self, key: str) -> float | None:
        """A number; None where it is not known or not a number."""
        text = self.text(key)
        return None if text is None else as_number(text)

    def integer(self, key: str) -> int | None:
        found = self.number(key)
        return int(found) if found is not None and found == int(found) else None

    def lines(self, *keys: str) -> tuple[int, ...]:
        return tuple(sorted({n for k in keys for g in self.given.get(k, [])[-1:] for n in g.lines}))

    def why_unknown(self, key: str) -> str:
        """Why `text` gave None, for people."""
        given = self.last(key)
        if given is None:
            return f"{key} is not given here, and {self.opaque or 'its default is not known'}"
        if UNKNOWN in given.text or UNSET in given.text:
            return f"{key} comes from {given.why[0] if given.why else 'outside the script'}"
        return f"{key} is '{shown(given.text)[:60]}', which is not a value of it"

    def inert(self, key: str, why: str) -> Iterator[Inactive]:
        """The flag as one without effect, if it is given."""
        if key in self.given:
            yield Inactive(key, why, self.lines(key))

    def doubled(self, keys: Iterable[str]) -> Iterator[AuditNote]:
        """Keys given several times with different values."""
        for key in keys:
            texts = [g.text for g in self.given.get(key, [])]
            if len(set(texts)) > 1:
                told = ", then ".join(shown(text) for text in texts)
                lines = tuple(sorted({n for g in self.given[key] for n in g.lines}))
                yield AuditNote(
                    f"{key} is given {len(texts)} times ({told}); the last one wins", lines
                )

    def edit(self, key: str, value: str, written: str) -> Edit | None:
        """The change that gives a key this value; None where it has it."""
        given = self.last(key)
        if given is not None and given.text.strip().lower() == value.lower():
            return None
        default = "" if self.opaque else self.defaults.get(key, "")
        if given is None and default.lower() == value.lower():
            return None
        return Edit(key, written, given.lines[:1] if given is not None else ())


def shown(text: str) -> str:
    """A value for people."""
    told = text.replace(UNKNOWN, "…").replace(UNSET, "")
    return told if len(told) <= LONGEST_SHOWN else told[:LONGEST_SHOWN] + "…"


def as_number(text: str) -> float | None:
    try:
        found = float(text.strip().replace("_", ""))
    except ValueError:
        return None
    return found if found == found and abs(found) != float("inf") else None


# Which release a launch runs on: what a text, or a file beside it, says of that.

RELEASE_NUMBER = re.compile(
    r"^(?:version\s*=\s*[\"'])?v?(\d+\.\d+(?:\.\d+)?(?:\.(?:post|dev)\d+)?)", re.M
)
"""A release alone on a line, or after `version =`."""


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A file of a project, by its path in it, that holds a release."""

    key: str
    """Name in Launch.versions: the library's, or that of a fact besides its release."""
    path: str
    needs: str = ""
    """A folder beside `path` that marks the project as the library's."""
    pattern: re.Pattern[str] = RELEASE_NUMBER
    """Its first group is the value."""


@dataclass(frozen=True, slots=True)
class ReleaseMarks:
    """By what a text says that it means a library, and which release of it.

    Launch.versions holds what was recognised: name -> release, a space, and the sentence why.
    """

    hint: str
    """Regular expression of words without which a text holds no launch of the library. Words of
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
    in_script: Callable[[str], Iterable[tuple[str, str]]] | None = None
    """Further entries of Launch.versions that the text of a launch script gives."""
    amended: (
        Callable[[Callable[[str], str | None], Mapping[str, str]], Iterable[tuple[str, str]]] | None
    ) = None
    """Entries that replace those recognised so far in a project. Called with a reader of the
    project's files (None: no such file) and these entries."""


@dataclass(frozen=True, slots=True)
class Releases:
    """Which release has which keys: `keys[name] = (first, last)`, for those that came or went."""

    versions: Sequence[str]
    keys: Mapping[str, tuple[int, int]]

    def accepting(self, given: Mapping[str, Sequence[Given]]) -> tuple[list[int], list[str]]:
        """Releases that refuse the fewest of the keys, and the keys that tell them apart."""
        refused = [0] * len(self.versions)
        telling = []
        for key, values in given.items():
            span = self.keys.get(key)
            if span is None or values[-1].mark in ("++", "~"):
                continue
            telling.append(key)
            added = values[-1].mark == "+"
            for i in range(len(self.versions)):
                refused[i] += (span[0] <= i <= span[1]) == added
        least = min(refused)
        return [i for i, count in enumerate(refused) if count == least], telling

    def excluding(self, given: Mapping[str, Sequence[Given]], among: int) -> list[str]:
        """Keys that `among` is the last release to have."""
        return [
            key
            for key, values in given.items()
            if key in self.keys and values[-1].mark == "" and self.keys[key][1] == among
        ]


def load_releases(path: Path) -> Releases:
    """Facts as kept beside a backend."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    return Releases(plain["versions"], {k: (v[0], v[1]) for k, v in plain["keys"].items()})


def numbers(version: str) -> tuple[int, ...]:
    """A version for comparing: `0.3.0.post1` -> (0, 3, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split(".post")[0])[:3])


def nearest(versions: Sequence[str], asked: str) -> int:
    """The index of the release itself, else of the listed one of the same minor, else of the newest
    that is not newer."""
    wanted = numbers(asked)
    if wanted in (known := [numbers(each) for each in versions]):
        return known.index(wanted)
    same = [i for i, each in enumerate(versions) if numbers(each)[:2] == wanted[:2]]
    older = [i for i, each in enumerate(versions) if numbers(each) <= wanted]
    return (same or older or [0])[-1]
