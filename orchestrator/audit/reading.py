"""Read one launch: its keys, flags and release, and a fork's source beside it.

`Keys` has the keys of a launch with their values: given, default, or unknown. It records every
value that was read, so that a finding can name the lines and the defaults that it rests on. A
library that orch only reads exports a `ReadLibrary`. Its reader of one launch inherits
`ReleaseReader`.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import yaml

from orchestrator.kl.estimators import Ratio
from orchestrator.library.key_tables import (
    KeyTables,
    Option,
    defaults,
    flags,
    is_since,
    release_table,
    version_tuple,
)
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    AuditNote,
    CommandWord,
    ConfigDocument,
    Decided,
    Edit,
    Given,
    HeldKeys,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Possibility,
    Range,
    ReadSetting,
    Rule,
    TrainingRegime,
)
from orchestrator.library.logged import LoggedMetrics
from orchestrator.library.manifest import ReleaseTable
from orchestrator.library.release_marks import ReleaseMarks
from orchestrator.losses.table import LOSS_STEPS

OVERRIDE = re.compile(r"^(\+\+|\+|~)?([A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)=(.*)$", re.DOTALL)
_DELETION = re.compile(r"^~([A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)(?:=.*)?$", re.DOTALL)
LONGEST_ENTRY, LONGEST_SHOWN = 300, 200
"""Most characters of a word that may name an entry point, and of a value that is shown."""
BOOLEANS, QUOTED = ("true", "false", "yes", "no", "on", "off"), "quoted"
"""Words that YAML reads as booleans without quotes, and the mark of such a word in quotes."""
KL_WEIGHTS: Mapping[str, str] = {"0": "0", "above 0": "0.001"}
"""Kinds of weights of a KL -> a value of each. The size of a weight changes no verdict."""
SWITCHES: Mapping[str, str] = {"true": "True", "false": "False"}
"""States of a switch -> the value of each."""
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "null", "none", "")


def split_override(word: CommandWord) -> tuple[str, Given] | None:
    """Return the key and value of `+a.b=c`, or None for another word."""
    match = OVERRIDE.match(word.text)
    if match is None:
        return None
    return match[2], _given(word, unquoted(match[3]), match[1] or "")


def _given(word: CommandWord, text: str, mark: str = "") -> Given:
    return Given(text, word.lines, word.why, mark, word.default_of, word.file, word.choices)


def hydra_overrides(words: Sequence[CommandWord]) -> Iterator[tuple[str, Given]]:
    """Yield each key with its value, as Hydra reads a command's words.

    `~a.b` takes a key out. `a.b={c: 1}` gives `a.b.c`. Only true and false are switches: `off`,
    `no` and a quoted 'False' are texts, which Python takes for true. With --multirun, a value with
    commas is a sweep. (hydra/grammar/OverrideLexer.g4 and OverrideParser.g4)
    """
    sweeps = any(word.text in ("-m", "--multirun") for word in words)
    for word in words:
        if deleted := _DELETION.match(word.text):
            yield deleted[1], Given(UNKNOWN, word.lines, ("its deletion by ~",), "~")
            continue
        match = OVERRIDE.match(word.text)
        if match is None:
            continue
        key, raw, mark = match[2], match[3].strip(), match[1] or ""
        if raw.startswith("{") and raw.endswith("}") and (parts := _leaves(raw)):
            for name, value in parts.items():
                yield f"{key}.{name}", _given(word, value, mark)
        elif sweeps and "," in raw and raw[:1] not in ("[", "(", "{", "'", '"'):
            choices = tuple((f"{key} (the sweep {raw}) is {each}", each) for each in raw.split(","))
            yield key, Given(UNKNOWN, word.lines, (f"the sweep {raw}",), mark, choices=choices)
        else:
            text = unquoted(raw)
            is_text = text != raw or text.lower() in ("off", "no", "on", "yes")
            if is_text and text.lower() in (*_TRUE, *_FALSE) and text:
                # In quotes: the mark by which `switch` takes the word for a text, which is true.
                text = f"'{text}'"
            yield key, _given(word, text, mark)


def _leaves(text: str) -> dict[str, str]:
    """Return dotted name -> value of a text such as `{a: 1, b: {c: 2}}`; {} for any other text."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    leaves: dict[str, str] = {}
    todo = [("", tree)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{name}.{key}" if name else str(key), each) for key, each in value.items()]
        elif name:
            leaves[name] = "null" if value is None else str(value)
    return leaves


def unquoted(text: str) -> str:
    """Return a value without the quotes around it."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


@dataclass(slots=True)
class Keys:
    """The keys of one launch. Every value that is read is recorded as a setting, with its lines."""

    defaults: Mapping[str, str]
    given: dict[str, list[Given]] = field(default_factory=dict)
    settings: list[ReadSetting] = field(default_factory=list)
    assumes: list[str] = field(default_factory=list)
    opaque: str = ""
    """Why keys without a value here may still differ from the release's default; usually empty."""
    open_values: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Key of unknown value that decides the KL -> its possible values: words for a user -> text."""

    def add(self, key: str, given: Given) -> None:
        """Add a value of a key. The last value of a key wins."""
        self.given.setdefault(key, []).append(given)

    def add_documents(self, documents: Iterable[ConfigDocument], *, untyped: bool = False) -> None:
        """Add the values of configuration files, in ascending priority.

        `untyped`: the library converts no value, so that the text "False" in quotes is true. With
        types (pydantic, OmegaConf's dataclasses, argparse) it is the boolean.
        """
        for document in documents:
            for key, given in document.values.items():
                is_switch = self.defaults.get(key, "").lower() in ("true", "false")
                is_text = untyped and is_switch and given.mark == QUOTED
                shown_in = given.file or ("" if given.lines else document.name)
                text = f"'{given.text}'" if is_text else given.text
                self.add(key, replace(given, text=text, file=shown_in))

    def has(self, key: str) -> bool:
        """Return True if a key is given."""
        return key in self.given

    def last(self, key: str) -> Given | None:
        """Return the last value of a key, which wins, or None if the key has none."""
        values = self.given.get(key)
        return values[-1] if values else None

    def own_reference(self, reference: str, model: str) -> str:
        """Return the key and value of the reference policy's model, if it is not the policy's."""
        named, policy = self.last(reference), self.last(model)
        if named is None or named.text in ("", "null", "None"):
            return ""
        is_same = policy is not None and (named.text, named.why) == (policy.text, policy.why)
        return "" if is_same else f"{reference} {shown(named.text)}"

    def are_one_variable(self, one: str, other: str) -> bool:
        """Return True if two keys of unknown value are both the same variable, so equal."""
        first, second = self.last(one) or Given(""), self.last(other) or Given("")
        is_variable = re.match(r"(argument )?\$(?!RANDOM)", "".join(first.why[:1]))
        return bool(is_variable) and (first.text, first.why) == (second.text, second.why)

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return the value of a key, else `default`, else the release's default.

        Return None if none of them is known.
        """
        given = self.last(key)
        if given is None and default is not None:
            return default
        if given is None:
            if self.opaque or key not in self.defaults:
                return None
            self._note(ReadSetting(key, self.defaults[key]))
            return self.defaults[key]
        self._note(ReadSetting(key, shown(given.text), given.lines, given.default_of, given.file))
        if UNKNOWN in given.text:
            return None
        if UNSET in given.text:
            variable = given.why[0] if given.why else "a variable"
            assumption = f"{variable} is not set in the environment ({key} is then empty)"
            if assumption not in self.assumes:
                self.assumes.append(assumption)
        return given.text.replace(UNSET, "")

    def _note(self, setting: ReadSetting) -> None:
        if all(each.key != setting.key for each in self.settings):
            self.settings.append(setting)

    def switch(self, key: str, *, default: bool | None = None) -> bool | None:
        """Return a boolean as YAML and Hydra read it. Any other text is True, as in Python."""
        text = self.text(key, None if default is None else str(default))
        if text is None:
            return None
        return text.strip().lower() not in _FALSE

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return a number; None if the value is unknown or not a number."""
        text = self.text(key, None if default is None else str(default))
        return None if text is None else as_number(text)

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number; None if the value is unknown or not whole."""
        number = self.number(key, default)
        return int(number) if number is not None and number == int(number) else None

    def lines(self, *keys: str) -> tuple[int, ...]:
        """Return the lines of the values of these keys, ascending."""
        return tuple(sorted({n for k in keys for g in self.given.get(k, [])[-1:] for n in g.lines}))

    def why_unknown(self, key: str) -> str:
        """Return why `text` returned None, in words for a user."""
        given = self.last(key)
        if given is None:
            return f"{key} is not given here, and {self.opaque or 'its default is not known'}"
        if UNKNOWN in given.text or UNSET in given.text:
            return f"{key} comes from {given.why[0] if given.why else 'outside the script'}"
        return f"{key} is '{shown(given.text)[:60]}', which is not a value of it"

    def leave_open(self, key: str, values: Mapping[str, str]) -> str:
        """Note that the KL depends on the unknown value of a key, and return why it is unknown.

        `values`: everything that it may be, as words for a user -> a text of that kind. They count
        for a value that the launch gives and only its run would show: `$KL`, a sweep.
        """
        given = self.last(key)
        hidden = given is not None and (UNKNOWN in given.text or UNSET in given.text)
        if hidden and given is not None and given.mark != "~":
            self.open_values.setdefault(key, {} if given.choices else values)
        return self.why_unknown(key)

    def possibilities(self, put: Callable[[str, str], Edit]) -> tuple[Possibility, ...]:
        """Return the possible values of the first key that was left open, or nothing.

        `put` returns the edit that gives a key a value. Keys that one condition decides have their
        values together.
        """
        for key, values in self.open_values.items():
            given = self.given[key][-1]
            if given.choices:
                return tuple(self._together([label for label, _ in given.choices], put))
            why = f" ({given.why[0]})" if given.why else ""
            return tuple(
                Possibility(f"{key}{why} is {words}", (put(key, text),))
                for words, text in values.items()
            )
        return ()

    def _together(
        self, labels: Sequence[str], put: Callable[[str, str], Edit]
    ) -> Iterator[Possibility]:
        lasts = {key: each[-1] for key, each in self.given.items()}
        same = [key for key, g in lasts.items() if [label for label, _ in g.choices] == labels]
        for at, label in enumerate(labels):
            texts = {k: lasts[k].text.replace(UNKNOWN, lasts[k].choices[at][1]) for k in same}
            yield Possibility(label, tuple(put(key, text) for key, text in texts.items()))

    def inert(self, why: str, *keys: str, flag: str = "") -> Iterator[Inactive]:
        """Yield each of the keys that has a value as a flag without effect. flag: what it begins
        with."""
        for key in keys:
            if key in self.given:
                yield Inactive(f"{flag}{key}", why, self.lines(key))

    def doubled(self, keys: Iterable[str], flag: str = "") -> Iterator[AuditNote]:
        """Yield a note on each key that has several different values. flag: what it begins with.

        A value without a line comes from another file and does not count.
        """
        for key in keys:
            texts = [g.text for g in self.given.get(key, []) if g.lines]
            if len(set(texts)) > 1:
                values = ", then ".join(shown(text) for text in texts)
                lines = tuple(sorted({n for g in self.given[key] for n in g.lines}))
                yield AuditNote(
                    f"{flag}{key} is given {len(texts)} times ({values}); the last one wins", lines
                )

    def edit(self, key: str, value: str, written: str) -> Edit | None:
        """Return the edit that sets a key to this value, or None if the key has it already."""
        given = self.last(key)
        if given is not None and given.text.strip().lower() == value.lower():
            return None
        default = "" if self.opaque else self.defaults.get(key, "")
        if given is None and default.lower() == value.lower():
            return None
        return self.put(key, written)

    def put(self, key: str, written: str) -> Edit:
        """Return the edit that writes this where a key is set now, or adds it."""
        given = self.last(key) or Given("")
        return Edit(key, written, given.lines[:1], given.file * given.file.endswith(".sh"))

    def change(self, words: str, *wanted: tuple[str, str], also: str = "") -> LaunchChange:
        """Return the change that sets each key to its value by an override `key=value`.

        words: what the change leads to. also: a consequence that a user must know.
        """
        edits = (self.edit(key, value, f"{key}={value}") for key, value in wanted)
        return LaunchChange(words, tuple(each for each in edits if each is not None), also)


def shown(text: str) -> str:
    """Return a value as text for a user."""
    text = text.replace(UNKNOWN, "…").replace(UNSET, "")
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def as_number(text: str) -> float | None:
    """Return a finite number, or None for other text."""
    try:
        number = float(text.strip().replace("_", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_FLAG = re.compile(r"^--([A-Za-z_][\w.-]*)(?:=(.*))?$", re.DOTALL)


class Stock(NamedTuple):
    """The keys to check a launch against: those of a release, or of a fork's source."""

    version: str
    because: str
    facts: Mapping[str, Option]
    table: ReleaseTable
    others: tuple[ReleaseTable, ...]
    named: str = ""
    """The release that something names and orch has no table of, or an empty text."""
    guessed: bool = False
    """True if nothing names the release."""
    is_own: bool = False
    """True if the table is that of the project's own source."""

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


class ReadLibrary(NamedTuple):
    """A library whose launches are read and which orch does not train with.

    The members are those of `orchestrator.library.protocol.LaunchReader`.
    """

    name: str
    title: str
    release_marks: ReleaseMarks
    estimator_names: Mapping[str, str]
    audit: Callable[[Launch], LaunchReading | None]
    """A function that returns the reading of a launch; None if it does not start the library."""
    logged_metrics: LoggedMetrics | None = None


class ReleaseReader:
    """A reader of one launch under the rules of one release.

    entry: the program that the launch runs; empty for a configuration file alone. because: why it
    is read as of this release.
    """

    library = ""
    title = ""
    """The library's name before a release, in the source of a rule."""
    written = "{key}={value}"
    """The form of a key in the library's launches."""

    def __init__(
        self, launch: Launch, keys: Keys, entry: str | None, version: str, because: str
    ) -> None:
        self.launch, self.keys, self.entry = launch, keys, entry or ""
        self.version, self.because = version, because
        self.unknown: list[str] = []
        """Reasons why the KL cannot be determined."""
        self.sources: dict[str, str] = {}
        """`reward`, `loss` -> the file and function of the library that make the KL there."""
        self.rules: list[Rule] = []
        self.notes: list[AuditNote] = []
        """Contradictions in the launch."""
        self.unread: list[str] = []
        """What is taken for granted of the KL's surroundings."""

    def found(self, in_reward: InReward, in_loss: InLoss, **facts: Any) -> LaunchReading:
        """Return the reading with these facts, and with all that was noted so far."""
        for place, term in (("reward", in_reward), ("loss", in_loss)):
            if term.active and place in self.sources:
                self.rule(f"the KL in the {place} is made there", self.sources[place])
        noted = {
            "settings": tuple(self.keys.settings),
            "contradictions": tuple(self.notes),
            "rules": tuple(self.rules),
            "assumes": tuple(self.keys.assumes),
            "unknown": tuple(self.unknown),
            "possibilities": self.keys.possibilities(self.put),
        }
        read: dict[str, Any] = {
            name: tuple(fact) if isinstance(fact, Iterator) else fact
            for name, fact in (noted | facts).items()
        }
        return LaunchReading(
            self.library,
            self.version,
            self.because,
            self.entry or None,
            in_reward,
            in_loss,
            **read,
        )

    def since(self, first: str) -> bool:
        """Return True for a release that is not older than `first`."""
        return is_since(self.version, first)

    def rule(self, text: str, source: str) -> None:
        """Note a rule of this release, with its file and function."""
        self.rules.append(Rule(text, f"{self.title} {self.version}, {source}"))

    def note(self, text: str, *names: str, **marks: bool) -> None:
        """Note a contradiction in the launch. names: the keys that it comes from."""
        self.notes.append(AuditNote(text, self.keys.lines(*names), **marks))

    def stops(self, why: str, source: str, *names: str) -> None:
        """Note that the release refuses the launch. names: the keys that decide it."""
        self.note(f"{why} ({source})", *names, stops=True)

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

    def estimator(
        self, key: str, meanings: Mapping[Any, Any], names: Iterable[str] = ()
    ) -> str | None:
        """Return orch's name of an estimator, or None for a name that the library does not have.

        Note then that the KL is unknown. names: the library's own, one for each estimator; all that
        have a meaning unless given.
        """
        name = self.keys.text(key) or ""
        if name not in meanings:
            plain = {each: each for each in names or meanings}
            self.unknown.append(self.keys.leave_open(key, plain))
        return str(meanings[name]) if name in meanings else None

    def read(self, key: str, otherwise: str) -> str:
        """Return the value of a key around the KL, else `otherwise`, which is then noted."""
        text = self.keys.text(key)
        if text is None:
            self.unread.append(f"{key} is {otherwise or 'unset'}: {self.keys.why_unknown(key)}")
        return otherwise if text is None else text

    def ratio(self, loss: str, name: str) -> Ratio | None:
        """Return the ratio of a policy loss, or None, which is noted, for one that orch does not
        know. name: the library's own."""
        if loss in LOSS_STEPS:
            return LOSS_STEPS[loss].ratio
        text = f"the policy loss '{shown(name) or '…'}' has PPO's ratio: orch does not know it"
        self.unread.append(text)
        return None

    def unknown_advantage(self, name: str) -> None:
        """Note that orch does not know what an advantage estimator is divided by."""
        self.unread.append(
            f"the advantage estimator '{name or '…'}' does not rescale the KL: it is not in orch's "
            f"table of {self.title}'s"
        )

    def put(self, key: str, value: str) -> Edit:
        """Return the edit that sets a key to this value, on the line that sets it now."""
        written = self.written.format(key=key, value=value)
        return self.keys.put(key, written)

    def discounts(self, names: Mapping[str, str]) -> str:
        """Return the discounts that are not 1, in words. `names`: key -> its name for a user."""
        values = {shown: self.keys.number(key) for key, shown in names.items()}
        return ", ".join(f"{name} {v:g}" for name, v in values.items() if v not in (None, 1.0))


def from_old_samples(loss: InLoss, why: str) -> Decided:
    """Return the verdict on a KL in the loss whose ratio is not to the policy that sampled, and
    its reason. `why`: what makes samples old."""
    return "other_objective", (
        f"{loss.estimator} in the loss, β = {loss.beta:g}, from old samples ({why}): the gradient "
        "is (k + k') ∇log π without a ratio to the policy that sampled, which is a KL's on-policy "
        "only"
    )


def off_its_own_token(reward: InReward, advantage: str) -> Decided:
    """Return the verdict on k1 in the reward that only its own token's advantage contains."""
    return "token_reverse_kl", (
        f"k1 in the reward, β = {reward.beta:g}: {advantage} takes each token's KL off that "
        "token's advantage and no other's: the gradient of each token's reverse KL, not of the "
        "sequence's"
    )


class StockReader(ReleaseReader):
    """A reader that checks its keys against the tables of `stock`."""

    def __init__(self, launch: Launch, keys: Keys, entry: str, basis: Stock) -> None:
        super().__init__(launch, keys, entry, basis.version, basis.because)
        self.basis = basis


def clip_range(low: float | None, high: float | None, *, symmetric: bool = False) -> Range | None:
    """Return the bounds of a clip, or None if one is unknown.

    `symmetric`: without an upper bound, the lower one counts for both.
    """
    if symmetric and high is None:
        high = low
    return None if low is None or high is None else (low, high)


def regime_of_sizes(keys: Keys, batch: str, minibatch: str, epochs: str) -> TrainingRegime:
    """Return the regime of a batch of rollouts that is split into minibatches.

    Each argument is the key of a size; both sizes are in the same unit, prompts or responses.
    """
    return regime_of_rollouts(keys, batch, "", minibatch, epochs)


def regime_of_rollouts(
    keys: Keys,
    prompts: str,
    group: str,
    batch: str,
    epochs: str = "",
    *,
    flag: str = "",
    number: Callable[[str], float | None] | None = None,
) -> TrainingRegime:
    """Return the regime of prompts × a group's rollouts that are split into batches of rollouts.

    prompts, group, batch, epochs: the keys. flag: what stands before a key. number: reads a size.
    """
    names = [name for name in (prompts, group, batch, epochs) if name]
    sizes = {name: (number or keys.number)(name) for name in names}
    known = {name: size for name, size in sizes.items() if size}
    if not group and len(known) == len(names) - 2 and keys.are_one_variable(prompts, batch):
        return TrainingRegime.of_steps(known.get(epochs, 1), f"{prompts} is {batch}")
    if len(known) < len(names):
        return TrainingRegime.unread(f"{flag}{name}" for name in names if name not in known)
    of = known.get
    steps = max(known[prompts] * of(group, 1) // known[batch], 1) * of(epochs, 1)
    first, *words = [f"{flag}{name} {size:g}" for name, size in known.items()]
    return TrainingRegime.of_steps(steps, f"{first}{' ×' if group else ','} {', '.join(words)}")


NOT_RESCALED = (
    "the task reward is not divided by the group's standard deviation any more: its gradient "
    "changes in size, so choose the learning rate anew"
)
"""What a user must know of a change that takes the division away."""


def truncated(keys: Keys, *, top_p: str = "", top_k: str = "", min_p: str = "") -> Iterator[str]:
    """Yield what is assumed where the engine leaves out tokens of the policy: the samples are of
    the truncated policy, and an identity of the policy's own samples does not hold for them."""
    for key, most in ((top_p, 1.0), (top_k, math.inf), (min_p, math.inf)):
        value = keys.number(key) if key and keys.has(key) else None
        if value is not None and 0 < value < most:
            yield (
                f"the tokens that {key} {value:g} leaves out do not matter: samples are of the "
                "truncated policy, so a KL of samples is unbiased for that one, not for the policy"
            )


def two_temperatures(
    keys: Keys, temperature: str, because: str, instead: str, *names: str
) -> Iterator[AuditNote]:
    """Yield a remark on a ratio of the trainer's probabilities at a temperature to the engine's.

    The engine's are raw, so of temperature 1. `temperature`, `names`: keys. `because`: why they are
    raw. `instead`: what to write.
    """
    at = keys.number(temperature) if keys.has(temperature) else None
    if at is None or at in (0, 1):
        return
    text = (
        f"the ratio to the engine is of two temperatures: the trainer's probabilities are at "
        f"{temperature} {at:g}, the engine's are raw, of temperature 1 ({because}). It is not 1 "
        "for an unchanged policy: what it multiplies, reward or KL, is not unbiased"
    )
    yield AuditNote(f"{text}. Write {instead}", keys.lines(temperature, *names))


def reference_at_one(keys: Keys, temperature: str, source: str) -> Iterator[AuditNote]:
    """Yield a remark on a KL of the policy at a temperature to a reference policy at 1.

    `temperature`: the key of the policy's. `source`: the function that has the reference policy's.
    """
    at = keys.number(temperature) if keys.has(temperature) else None
    if at is not None and at not in (0, 1):
        yield AuditNote(
            f"the KL is of two temperatures: the policy's log-probabilities are at {at:g} "
            f"({temperature}), the reference policy's at 1 ({source}). It is not 0 where the two "
            f"are equal, and is least where the policy's logits are {at:g} times the "
            f"reference's. Write {temperature}=1.0",
            keys.lines(temperature),
        )


def group_of_one(
    keys: Keys, advantage: str, group: str, estimators: Iterable[str]
) -> list[AuditNote]:
    """Return the remark on groups of one rollout under an advantage that compares a group's.

    advantage, group: the keys of both. estimators: those that compare.
    """
    named = keys.text(advantage) if keys.integer(group) == 1 else None
    if named is None or named not in estimators:
        return []
    text = f"{advantage} {named} with {group} 1: a group of one rollout has no baseline"
    return [AuditNote(text, keys.lines(advantage, group), apart=True, of_advantage=True)]


def stock(
    launch: Launch,
    library: str,
    tables: KeyTables,
    given: Mapping[str, Sequence[Given]],
    own: str = "",
    facts_of: Callable[[str], Mapping[str, Option]] = flags,
) -> Stock:
    """Return the keys to check a launch against.

    The release is the one that something names, else the newest that has the launch's keys;
    `because` is the reason. `own`: the path, in a project, of the source of the library's parser.
    If the launch's project has it, the keys that `facts_of` reads from it replace the release's.
    """
    pin, because = launch.release(library)
    if pin:
        version = tables.nearest(pin)
    else:
        at = tables.accepting(given)[-1]
        version, because = tables.versions[at], tables.why(given, at)
    others = tables.others(version)
    facts = tables.facts_of(version)
    if read := facts_of(launch.beside.get(own) or ""):
        facts = {**facts, **read}
        table = release_table(f"{version} with {own}", facts, tables.passed, tables.added)
        because = f"{because}; keys and defaults are those of {own} beside it"
        return Stock(version, because, facts, table, others, is_own=True)
    named = pin if version_tuple(pin) != version_tuple(version) else ""
    return Stock(version, because, facts, tables.table(version), others, named, guessed=not pin)


def written_flags(
    words: Sequence[CommandWord],
    switches: Container[str] = (),
    *,
    dashes: bool = True,
    several: Container[str] = (),
) -> dict[str, list[Given]]:
    """Return each flag with all its values. The arguments are those of `flags_in_order`."""
    written: dict[str, list[Given]] = {}
    for name, given in flags_in_order(words, switches, dashes=dashes, several=several):
        written.setdefault(name, []).append(given)
    return written


def flags_in_order(
    words: Sequence[CommandWord],
    switches: Container[str] = (),
    *,
    dashes: bool = True,
    several: Container[str] = (),
) -> Iterator[tuple[str, Given]]:
    """Yield each flag with its value: the word after it, unless that word is a flag.

    `switches`: flags without a value, whose value is then `true`. `several`: flags that take all
    words up to the next flag. `dashes`: keep `-` in names; else they become `_`.
    """
    for i, word in enumerate(words):
        match = _FLAG.match(word.text)
        if match is None:
            continue
        name = match[1] if dashes else match[1].replace("-", "_")
        after = takewhile(lambda each: not _FLAG.match(each.text), words[i + 1 :])
        if match[2] is not None:
            given = replace(_given(word, unquoted(match[2])), mark="=")
        elif name in switches or not (values := [*after]):
            given = _given(word, "true")
        else:
            text = " ".join(each.text for each in values) if name in several else values[0].text
            lines = tuple(dict.fromkeys((*word.lines, *values[0].lines)))
            given = replace(_given(values[0], unquoted(text)), lines=lines)
        yield name, given


def program_of(
    words: Sequence[CommandWord], name: re.Pattern[str]
) -> tuple[str, Sequence[CommandWord]]:
    """Return the program of this name and the words after it; an empty text without one."""
    for i, word in enumerate(words):
        if name.search(word.text) and not word.text.startswith("-"):
            return word.text, words[i + 1 :]
    return "", ()


def program_with_keys(
    words: Sequence[CommandWord], is_program: Callable[[str], bool], keys: re.Pattern[str]
) -> tuple[str | None, Sequence[CommandWord]]:
    """Return the library's program and the words after it; (None, ()) without one.

    Where no word is its program, somebody's own program gets the library's keys: the last file or
    module before the first of them.
    """
    for i, word in enumerate(words):
        if is_program(word.text):
            return word.text, words[i + 1 :]
    first = next((i for i, word in enumerate(words) if keys.match(word.text)), None)
    if first is None:
        return None, ()
    for i in range(first - 1, -1, -1):
        text = words[i].text
        is_file = text.endswith((".py", ".sh")) and "=" not in text
        if is_file or (i and words[i - 1].text in ("-m", "--module")):
            return text, words[i + 1 :]
    before = words[first - 1].text if first else ""
    return (None if OVERRIDE.match(before) else before or None), words[first:]


def has_hole(words: Sequence[CommandWord]) -> str:
    """Return why some words of a command are unknown, or an empty text if all are known."""
    for word in words:
        if word.text.strip(UNKNOWN) == "" and UNKNOWN in word.text:
            return f"it may come from {word.why[0] if word.why else 'outside the script'}"
    return ""
