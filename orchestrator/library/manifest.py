"""The manifest of a library: one table of how each field of a cell reaches the library.

A backend writes its manifest as rows. A row carries one field to one key of the library, for some
cells and releases. It lists the values of the key with the meaning of each. The rest is derived
from the rows:

    capabilities   field -> the values that some row offers
    refusal        a value that no row carries raises UnsupportedSetting, with the nearest one
    translation    key -> value of a launch
    ledger         one entry for each field: exact, approximated, or through an extension of orch
    parse          the fields that a launch asks for
    audit          the meaning of a written value (`low_var_kl` is k3)

Tables are allow-lists: a value without a row is refused. An entry is `exact` only if two checks
pass. First, the release's own table has the sent key and accepts the sent value. Second, reading
the launch back, with the function that also reads a stranger's launch, gives the field's value.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, Protocol, get_args

from packaging.version import Version

from orchestrator import scoring
from orchestrator.errors import Fault, SpecError, UnsupportedSetting, did_you_mean
from orchestrator.estimators import TABLE
from orchestrator.identity import BIRTH_VALUES
from orchestrator.kl.table import Case, best
from orchestrator.records import Cell, LedgerEntry
from orchestrator.settings import Frozen, Settings, System

Status = Literal["exact", "approximated", "extension", "not judged"]
Account = tuple[Status, str]
"""The status of a row (how exactly it carries its field), and a note for a user."""
Values = Mapping[str, object]
"""Keys of a library -> their values in one launch."""
When = Mapping[str, Container[object]] | Callable[[Settings], bool]
"""Cells that a row is for: fields and the values they must have, or a function of the settings.

Only the first kind can be used to read a launch; prefer it.
"""


class ManifestError(Exception):
    """Raised if a manifest contradicts itself or its release's table.

    It is a bug: keep the traceback.
    """


class AllBut:
    """An offer: every value except these."""

    def __init__(self, excluded: Container[object]) -> None:
        self.excluded = excluded

    def __contains__(self, value: object) -> bool:
        return value not in self.excluded


class Absent:
    """The value of a key that a launch leaves out, and of a field that a launch does not give."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Meaning:
    """One value of a field, and the value of a key that has the same meaning."""

    ours: object
    theirs: object
    """The value that a launch sends; ABSENT where it leaves the key out."""
    status: Status = "exact"
    note: str = ""
    spellings: tuple[object, ...] = ()
    """Other values of the key that the release takes and that mean the same."""
    also: Values = field(default_factory=dict)
    """Further keys that belong to this meaning. They are sent, and must match to read it."""


@dataclass(frozen=True, slots=True)
class Number:
    """An offer: numbers from `least` to `most` (exclusive); with `null` None too, sent as `off`."""

    least: float = float("-inf")
    most: float = float("inf")
    null: bool = False
    off: object = None
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        if value is None:
            return self.null
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.least <= value < self.most and (not self.whole or value % 1 == 0)

    def __str__(self) -> str:
        kind = "whole numbers" if self.whole else "numbers"
        bounds = [f"from {_shown(self.least)}"] * (self.least != float("-inf"))
        last = f"to {_shown(self.most - 1)}" if self.whole else f"below {_shown(self.most)}"
        bounds += [last] * (self.most != float("inf"))
        return " ".join([kind, *bounds]) + (" or null" if self.null else "")


def _shown(bound: float) -> str:
    return str(int(bound)) if bound % 1 == 0 else f"{bound:g}"


COUNT = Number(least=1, whole=True)
WHOLE = Number(least=0, whole=True)


@dataclass(frozen=True, slots=True)
class Such:
    """An offer: the values that pass a test, and those values in words."""

    words: str
    passes: Callable[[object], bool]

    def __contains__(self, value: object) -> bool:
        return self.passes(value)

    def __str__(self) -> str:
        return self.words


_SHIPPED = re.compile(r"[a-z]\w*:(?!//)")
TEXT = Such("any text", lambda value: value is None or isinstance(value, str))
OWN_PATH = Such(
    "a Hugging Face id, a path",
    lambda value: isinstance(value, str) and _SHIPPED.match(value) is None,
)
"""Every path but `<backend>:<name>`, of a policy or of data that ships with orch."""
SHIPPED_ADVICE = "That ships with orch for backend=micro: name a policy or data of your own."
REWARD_RULES = Such(
    f"{', '.join(scoring.MODULES)}, a file of your own",
    lambda value: isinstance(value, str) and (scoring.is_own(value) or value in scoring.MODULES),
)


class OpenOffer(Protocol):
    """An offer without a list. It contains the values that can be sent; `str` describes them."""

    def __contains__(self, value: object) -> bool: ...


Offer = tuple[Meaning, ...] | OpenOffer

EXTRA, EXTRA_FILE = "backend.extra", "extra.json"
"""The field with the library's own keys, and the file of a launch that lists them."""
NEEDS = "needs.json"
"""The file of a launch with what no key of its library carries; see orchestrator.library.needs."""


def asked(launch: Values, name: str) -> Any:
    """Return a field that needs.json has; None if it leaves it out, ABSENT without that file."""
    plain: Any = launch.get(NEEDS) or {}
    return plain.get("asked", {}).get(name, None if "library" in plain else ABSENT)


def refuse_if(
    cell: Cell,
    broken: object,
    field: str,
    offered: object,
    advice: str,
    value: object = ABSENT,
    library: str = "",
) -> None:
    """Raise UnsupportedSetting if a cell breaks a rule over several of its fields.

    value: that of the field, if it is not to be looked up.
    """
    if broken:
        holder = cell if field.startswith(("resources.", "system.")) else cell.settings
        found = reduce(getattr, field.split("."), holder) if value is ABSENT else value
        name = library or cell.settings.backend.name
        raise UnsupportedSetting(name, field, found, (offered,), advice)


def refuse_rest(cell: Cell, field: str, whole: int, part: int | None, why: str) -> None:
    """Raise UnsupportedSetting if a setting of `system` does not divide a number.

    part: its value, or None for a cell without it. why: the advice, before `take a divisor`.
    """
    words = f"divisors of {whole}"
    refuse_if(cell, whole % (part or 1), field, words, f"{why}: take a divisor.", part)


def rollouts_each(cell: Cell, gpus: int) -> int:
    """Return the rollouts of a minibatch on each GPU that trains.

    Raise UnsupportedSetting if they do not divide: some GPUs would have fewer, and others wait.
    """
    batch = cell.settings.batch
    rollouts = batch.num_prompts // batch.num_minibatches * cell.settings.rollout.group_size
    refuse_if(
        cell,
        rollouts % gpus,
        "batch.num_prompts",
        f"num_prompts x group_size / num_minibatches a multiple of {gpus}",
        f"A minibatch has {rollouts} rollouts, which {gpus} GPUs cannot share evenly: change "
        "batch.num_prompts, rollout.group_size or the resources.",
    )
    return rollouts // gpus


def same(*values: object, status: Status = "exact", note: str = "") -> tuple[Meaning, ...]:
    """Return the meanings of values for which the library uses orch's names."""
    return tuple(Meaning(value, value, status, note) for value in values)


def fixed(value: object, note: str = "", status: Status = "exact") -> tuple[Meaning, ...]:
    """Return the meaning of the one value that a library has, whatever its keys say."""
    return (Meaning(value, ABSENT, status, note),)


def named(names: Mapping[Any, object]) -> tuple[Meaning, ...]:
    """Return the meanings in a mapping: orch's value -> the library's value."""
    return tuple(Meaning(ours, theirs) for ours, theirs in names.items())


def approximated_if(when: bool, note: str, exact: str = "") -> Account:
    """Return the account of a row that carries its field exactly unless `when` is true.

    note, exact: the note of either status.
    """
    return ("approximated", note) if when else ("exact", exact)


def validation(cell: Cell, key: str, value: object, every: int, differs: str = "") -> LedgerEntry:
    """Return the ledger entry of the library's own validation (metrics.names.VALIDATION).

    It asks each validation prompt of the training data for one response. value: what `key` says;
    every: the train steps that this makes. differs: what of it the library leaves out or adds.
    """
    declared, rollout = cell.cadence.evaluate_every_steps, cell.settings.rollout
    note = (
        f"one response to each validation prompt, not greedy: sampled as in training (temperature "
        f"{rollout.temperature:g}, top_p {rollout.top_p:g})"
    )
    rounded = (
        f"every {every} train steps: whole rollout batches" if declared not in (None, every) else ""
    )
    return LedgerEntry(
        field="cadence.evaluate_every_steps",
        status="approximated" if differs or rounded else "exact",
        key=key,
        value=str(value),
        note="; ".join(filter(None, (note, rounded, differs))),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One way for a field to reach the library, for some cells and releases.

    A row sends its field under `key`. If it has `carried_by`, the field's value is elsewhere: in a
    file that orch writes, or in a fixed value of the library. If it has both, the key holds
    something else, such as the path of that file. `field` may be a whole section of the settings
    (`loss.clip`) if no row has a field of the section. Its value is then the section or None.
    """

    field: str
    key: str = ""
    offer: Offer = TEXT
    carried_by: str = ""
    """The file of the launch that holds the field, or why the launch need not hold it. A field in
    NEEDS is read there."""
    write: Callable[[Settings], object] | None = None
    """A function that returns the value to send, if `offer` does not give it (such as a path)."""
    read: Callable[[Values], object] | None = None
    """A function that returns the field's value in a launch, if `offer` does not give it.

    It may return ABSENT (the launch does not give this field) and raise KeyError (unreadable).
    """
    adds: Callable[[Settings], Values] | None = None
    """Further keys that carry the field together with `key`."""
    when: When | None = None
    """Cells that the row is for; None: every cell."""
    since: str = ""
    until: str = ""
    """First release with the row and first release without it; empty: unbounded."""
    status: Status = "exact"
    note: str = ""
    """Status and note of the entry, unless the meaning has a note or is not exact."""
    account: Callable[[Settings], Account] | None = None
    """A function that returns both, where they depend on the cell's other fields."""
    advice: str | Callable[[Settings], str] = ""
    """Advice if a value is refused."""

    def meaning(self, value: object) -> Meaning | None:
        """Return the entry of the allow-list for a value of the field, or None if it has none."""
        if isinstance(self.offer, tuple):
            return next((each for each in self.offer if equal(each.ours, value)), None)
        if value not in self.offer:
            return None
        if isinstance(self.offer, Number) and value is None:
            return Meaning(value, self.offer.off)
        return Meaning(value, value)

    def back(self, launch: Values, effective: Values) -> object:
        """Return the field's value in a launch, or ABSENT if the row does not determine it.

        `effective`: the launch over the release's defaults. Raise KeyError for a value of the key
        that has no meaning.
        """
        if self.read is not None:
            return self.read(effective)
        if self.carried_by == NEEDS:
            return asked(effective, self.field)
        left_out = isinstance(self.offer, tuple) and any(e.theirs is ABSENT for e in self.offer)
        if left_out and self.key not in launch:
            return self.ours(ABSENT, effective)
        theirs = effective.get(self.key, ABSENT) if self.key else ABSENT
        return ABSENT if theirs is ABSENT else self.ours(theirs, effective)

    def ours(self, theirs: object, launch: Values | None = None) -> object:
        """Return the field's value for a value of the key. Raise KeyError if it has no meaning.

        `launch` gives the further keys that some meanings need.
        """
        if isinstance(self.offer, tuple):
            known = launch or {}
            for each in self.offer:
                spelled = any(equal(theirs, name) for name in (each.theirs, *each.spellings))
                if spelled and all(equal(known.get(k, ABSENT), v) for k, v in each.also.items()):
                    return each.ours
            raise KeyError(theirs)
        if isinstance(self.offer, Number) and equal(theirs, self.offer.off):
            return None if self.offer.null else theirs
        if theirs in self.offer:
            return theirs
        raise KeyError(theirs)


@dataclass(frozen=True, slots=True)
class Constant:
    """A key that every launch sends and that no field varies, unless a row sends it too."""

    key: str
    value: object
    accepts: tuple[object, ...] = ()
    """Values that a cell may have in a stranger's launch. Empty: every value is accepted."""
    when: When | None = None
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One setting of `system`, and the keys of the library that it becomes.

    The row claims that the setting cannot change the mathematics of a cell: it is in no identity.
    """

    field: str
    """The field of System, such as micro_batch."""
    keys: tuple[str, ...]
    """The keys that it becomes. The ledger shows the first."""
    note: str
    """Why the mathematics stays the same."""
    measured: str = ""
    """The release in which gradients with two values were compared (`system.json` beside the
    manifest); empty: the library's own code says so, as `note` names it."""
    send: Callable[[Any, Settings], Values] | None = None
    """Return the keys for a value. None: each key has the value."""
    by_layout: bool = False
    """True if `translate` sends the keys, because the layout of the GPUs decides."""
    changes: Callable[[Settings], str] = lambda _: ""
    """Return why it would change the mathematics of a cell; empty where it cannot."""
    since: str = ""
    until: str = ""


def of_engine(field: str, key: str, *, by_layout: bool = False) -> SystemRow:
    """Return the row of a setting of the inference engine."""
    note = "vLLM's own; it moves no probability but by rounding"
    return SystemRow(field, (key,), note, by_layout=by_layout)


def of_checkpointing(key: str, measured: str) -> SystemRow:
    """Return the row of the setting that keeps no activations."""
    note = "activations are computed again, by the same operations"
    return SystemRow("gradient_checkpointing", (key,), note, measured)


@dataclass(frozen=True, slots=True)
class ReleaseTable:
    """The keys of one release's own parser, with their defaults and their closed lists of values.

    These are facts about the library, read from its own configuration and source.
    """

    version: str
    keys: frozenset[str]
    values: Mapping[str, frozenset[object]] = field(default_factory=dict)
    """Key -> the only values that the release takes. For a key with a list, the only items."""
    added: tuple[str, ...] = ()
    """Prefixes of keys that a launch may add (Hydra's `+`), such as a worker's environment."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Key -> its type, as annotations of Python name it; `float x 2`: two words of a command."""
    defaults: Values = field(default_factory=dict)
    """Key -> its value in a launch that leaves it out. Empty if launches are read without them."""

    def has(self, key: str) -> bool:
        """Return True if a launch of the release may send a key."""
        return key in self.keys or key.startswith(self.added)

    def objection(self, key: str, value: object) -> str:
        """Return the reason why the release refuses this key or value, or an empty text."""
        if not self.has(key):
            return f"{self.version} has no key {key}{did_you_mean(key, self.keys)}"
        taken = self.values.get(key)
        if taken is not None:
            for item in value if isinstance(value, list) else [value]:
                if not any(equal(item, each) for each in taken):
                    names = ", ".join(sorted(map(str, taken)))
                    return f"{key} of {self.version} takes {names}; not {item}"
        kind = self.kinds.get(key)
        if kind is not None and not fits(kind, value):
            return f"{key} of {self.version} is of type {kind}; {value!r} is not"
        return ""


_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "switch": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
}


def fits(kind: str, value: object) -> bool:
    """Return True if a value has this type. Every value fits a type that is not in `_TYPES`.

    An integer is also a float. `switch` and `bool` are one type, and so are `float x 2` and a list
    of two floats.
    """
    types = _TYPES.get(kind)
    if types is not None:
        return type(value) in types
    if kind.startswith("Optional["):
        return value is None or fits(kind[len("Optional[") : -1], value)
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        return isinstance(value, list | tuple) and all(fits(inner, each) for each in value)
    inner, times, count = kind.partition(" x ")
    if times and count.isdecimal():
        return fits(f"List[{inner}]", value) and len(value) == int(count)  # type: ignore[arg-type]  # a list
    return True


class UnreadField(NamedTuple):
    """A field that no row reads of a launch, because the value of a key has no meaning there."""

    field: str
    key: str
    value: object
    fault: Fault


class Carried(NamedTuple):
    """One field of a cell, the row that carries it, and the keys that this row sends."""

    row: Row
    value: object
    meaning: Meaning
    sent: Values


def sampling_rows(
    temperature: str,
    top_p: str,
    note: str = "log-probabilities are at this temperature",
    *,
    stale_by_engine: bool = False,
    reference_at_one: str = "",
) -> tuple[Row, Row]:
    """Return the rows of a library that samples at a temperature and truncates by top_p.

    Both arguments are keys of the library; `note` says at which temperature it computes the
    log-probabilities that it trains on. stale_by_engine: an asynchronous launch has its ratios to
    the engine's log-probabilities. `loss.correction` has them in every launch.
    reference_at_one: where the library has the reference policy's log-probabilities at temperature
    1; empty if nowhere.
    """

    def at_temperature(settings: Settings) -> Account:
        has_kl = settings.kl.estimator != "none"
        if reference_at_one and has_kl and settings.rollout.temperature != 1:
            return (
                "approximated",
                (
                    "the policy's log-probabilities are at it, the reference policy's at 1 "
                    f"({reference_at_one}): the KL is not 0 where the policies are equal, and is "
                    "least where the policy's logits are the reference's times the temperature. "
                    "Set rollout.temperature=1.0"
                ),
            )
        return "exact", note

    def truncates(settings: Settings) -> Account:
        stale = stale_by_engine and settings.max_staleness_steps
        to_engine = stale or settings.loss.correction is not None
        if to_engine and settings.rollout.top_p < 1:
            return (
                "approximated",
                (
                    "the engine's log-probabilities are of the kept tokens, the trainer's of all: "
                    "the ratio of an unchanged policy is the kept mass, "
                    f"{settings.rollout.top_p:g} to 1; a bound may cut it. Set rollout.top_p=1.0"
                ),
            )
        return "exact", "truncates sampling only; log-probabilities are of the whole distribution"

    return (
        Row("rollout.temperature", temperature, offer=Number(), account=at_temperature),
        Row("rollout.top_p", top_p, offer=Number(), account=truncates),
    )


def beta_rows(key: str, make: Callable[[Sequence[float]], object] = list) -> tuple[Row, Row]:
    """Return the rows of AdamW's betas in a library that has them as a pair under one key.

    make: the pair as a launch sends it.
    """

    def one_of(at: int) -> Callable[[Values], object]:
        def read(launch: Values) -> object:
            pair = launch[key]
            if not isinstance(pair, list | tuple) or len(pair) != len(("beta1", "beta2")):
                raise KeyError(str(pair))
            return pair[at]

        return read

    def pair(settings: Settings) -> object:
        return make((settings.optimizer.beta1, settings.optimizer.beta2))

    first, second = (one_of(at) for at in (0, 1))
    return (
        Row("optimizer.beta1", key, Number(), write=pair, read=first),
        Row("optimizer.beta2", key, Number(), write=pair, read=second),
    )


def weighs_policy_loss(library: str, is_on: Callable[[Values], bool]) -> Row:
    """Return the row of a library whose correction weights the policy loss, and no KL in the loss.

    is_on: returns True for a launch with a correction.
    """
    return Row(
        "loss.correction.applies_to",
        carried_by=f"{library} itself: the KL in the loss is not weighted",
        offer=same("policy_loss"),
        read=lambda launch: "policy_loss" if is_on(launch) else ABSENT,
        advice=f"{library} weights its policy loss and never the KL in the loss: set "
        "loss.correction.applies_to=policy_loss.",
    )


def one_format(name: str, its_format: str, notes: tuple[str, str], advice: str) -> Row:
    """Return the row of a number format of which a library has one, and no key.

    notes: of a cell that leaves it to the library, and of one that asks for it.
    """
    own, asked_for = notes
    return Row(
        f"precision.{name}",
        carried_by=NEEDS,
        offer=(*fixed(None, own), *fixed(its_format, asked_for)),
        advice=advice,
    )


@dataclass(frozen=True)
class Manifest:
    """All rows of one library, and the tables of its releases."""

    library: str
    versions: tuple[str, ...]
    """The library's releases, newest first."""
    rows: tuple[Row, ...]
    tables: Mapping[str, ReleaseTable]
    default: str = ""
    """The release of a cell that names none; empty: the newest."""
    constants: tuple[Constant, ...] = ()
    extensions: Mapping[str, Container[object]] = field(default_factory=dict)
    """Key -> values that a module of orch, shipped with the launch, adds to the library."""
    spelled: Callable[[str, object, str], str] = lambda key, _value, _version: key
    """A function that returns the name of a key with this value in the launch of a release; empty:
    the launch leaves it out."""
    version_advice: str = ""
    """Advice if a release is unknown."""
    system: tuple[SystemRow, ...] = ()
    """The rows of `system`. A setting without a row is refused."""
    passes_keys: bool = False
    """True if launches pass on the keys of `backend.extra` (`finished`). Else they are refused."""
    adds_keys: bool = False
    """True if a key that a release does not know is added by a `+` before it (Hydra)."""
    held: Values = field(default_factory=dict)
    """Key that the launch sends beside rows and constants -> the only value with which the ledger
    of a cell is true."""
    fields_of_keys: Mapping[str, str] = field(default_factory=dict)
    """Key that the launch sends and no row has -> the field of a cell that decides it."""

    # translation

    def version_of(self, settings: Settings) -> str:
        """Return the release that trains a cell. Raise UnsupportedSetting for an unknown one."""
        return self.release(settings.backend.version)

    def release(self, version: str | None) -> str:
        """Return a release by its name; None: the default. Raise UnsupportedSetting for others."""
        newest = self.default or self.versions[0]
        if version is None or version in self.versions:
            return version or newest
        raise UnsupportedSetting(
            self.library,
            "backend.version",
            version,
            self.versions,
            self.version_advice or f"Set backend.version={newest}.",
        )

    def fields(self, settings: Settings) -> dict[str, object]:
        """Return every field of a cell and its value, in order: leaves, and undivided sections."""
        return dict(self._divided(settings, ""))

    def _divided(self, section: Frozen, prefix: str) -> Iterator[tuple[str, object]]:
        for key, value in section:
            name = f"{prefix}{key}"
            if isinstance(value, Frozen) and name not in self._sections:
                yield from self._divided(value, f"{name}.")
            elif name != EXTRA:
                yield name, value

    @cached_property
    def _sections(self) -> frozenset[str]:
        """Return the sections of the settings that have a row, and whose fields have none."""
        return frozenset(
            name
            for name in _section_names(Settings)
            if name in self._fields and not any(x.startswith(f"{name}.") for x in self._fields)
        )

    def carry(self, settings: Settings) -> tuple[Carried, ...]:
        """Return each field of a cell with its row and sent keys, in the order of the settings.

        Raise UnsupportedSetting for the first field that no row carries. Raise ManifestError for a
        field that several rows carry, or that the table does not have.
        """
        version = self.version_of(settings)
        if settings.backend.extra and not self.passes_keys:
            raise UnsupportedSetting(
                self.library, EXTRA, settings.backend.passed, ("no key",), "Leave it out."
            )
        values = self.fields(settings)
        return tuple(
            Carried(row, value, meaning, _sent(row, meaning, settings))
            for name, value in values.items()
            for row, meaning in [self._choose(settings, values, name, version)]
        )

    def row(self, settings: Settings, name: str, value: object) -> Row:
        """Return the row that carries a value of a field, given the cell's other fields.

        Raise as `carry` does.
        """
        values = self.fields(settings) | {name: value}
        return self._choose(settings, values, name, self.version_of(settings))[0]

    def _choose(
        self, settings: Settings, values: Values, name: str, version: str
    ) -> tuple[Row, Meaning]:
        value, rows = values[name], self.rows_of(name, version)
        if not rows and (born := _born(name)) is not None:
            rows = (_unasked(born),)
            if born != name:
                raise self._refusal(settings, born, _plain_section(values, born), rows, rows)
        if not rows:
            missing = [e for e in values if not self.rows_of(e, version) and _born(e) is None]
            raise ManifestError(
                f"{self.library} {version}: no row accounts for {', '.join(missing)}. Write rows; "
                "a field that the library lacks has the one value that means so, such as same(None)"
            )
        fitting = [
            (row, meaning)
            for row in rows
            if _applies(row.when, settings, values) and (meaning := row.meaning(value)) is not None
        ]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise ManifestError(
                f"{self.library} {version}: {len(fitting)} rows carry {name}={value}"
            )
        meant = [row for row in rows if _applies(row.when, settings, values)] or list(rows)
        # A field on which the rows depend may be the cause: first a value that no cell may have,
        # then one that this cell may not have.
        conditions = (row.when for row in rows if isinstance(row.when, Mapping))
        causes = {each: self.rows_of(each, version) for when in conditions for each in when}
        for of_cell in (False, True):
            for other, every in causes.items():
                asked_of = [r for r in every if not of_cell or _applies(r.when, settings, values)]
                cause = values.get(other)
                if every and all(row.meaning(cause) is None for row in asked_of):
                    raise self._refusal(settings, other, cause, asked_of or every, every)
        raise self._refusal(settings, name, value, meant, rows)

    def _refusal(
        self,
        settings: Settings,
        name: str,
        value: object,
        meant: Sequence[Row],
        rows: Sequence[Row],
    ) -> UnsupportedSetting:
        if isinstance(value, Frozen):
            value = _plain_section({f".{key}": part for key, part in value}, "")
        offered = tuple(dict.fromkeys(v for row in meant for v in _offered(row)))
        advice = next((row.advice for row in (*meant, *rows) if row.advice), "")
        advice = advice if isinstance(advice, str) else advice(settings)
        if name == "kl.estimator" and f"{name}=" not in advice:
            advice = f"{advice} {self._sound_estimator(settings, offered)}".strip()
        return UnsupportedSetting(
            self.library, name, value, offered, advice or _nearest(name, value, offered)
        )

    def _sound_estimator(self, settings: Settings, offered: Sequence[object]) -> str:
        """Return the advice on the best offered estimator that this cell can have, or no text.

        An estimator with k2's gradient is replaced by k2. Else the table of verdicts decides, and
        not the spelling: no advice leads to noise.
        """
        kl, form = settings.kl, TABLE.get(settings.kl.estimator)
        if kl.placement is None:
            return ""
        case = Case(
            on_policy=settings.batch.num_minibatches == 1 and settings.max_staleness_steps == 0,
            advantage=settings.advantage.estimator,
            group_size=settings.rollout.group_size,
        )
        candidates = [str(each) for each in offered if each in TABLE]
        in_loss = form is not None and form.is_straight_through and kl.placement != "reward"
        while candidates:
            chosen = best(((each, kl.placement) for each in candidates), case)
            if in_loss and "k2" in candidates:
                estimator = "k2"
            elif chosen is None:
                break
            else:
                estimator = chosen.row.estimator
            other = {"kl": kl.model_copy(update={"estimator": estimator})}
            with suppress(UnsupportedSetting):
                self.row(settings.model_copy(update=other), "kl.estimator", estimator)
                return f"Set kl.estimator={estimator}."
            candidates.remove(estimator)
        return ""

    def assignments(
        self, settings: Settings, carried: Sequence[Carried] | None = None
    ) -> dict[str, object]:
        """Return all keys that a cell sends: the constants, replaced by the keys of the rows.

        `carried`: the result of `carry`, if the caller has it. Raise as `carry` does.
        """
        carried = self.carry(settings) if carried is None else carried
        values = {each.row.field: each.value for each in carried}
        sent = {
            each.key: each.value
            for each in self._constants_of[self.version_of(settings)]
            if each.when is None or _applies(each.when, settings, values)
        }
        by_rows: dict[str, object] = {}
        for _, _, _, keys in carried:
            for key, theirs in keys.items():
                if key in by_rows and not equal(by_rows[key], theirs):
                    raise ManifestError(
                        f"{self.library}: {key} is to be both {by_rows[key]} and {theirs}"
                    )
                by_rows[key] = theirs
        return {key: theirs for key, theirs in (sent | by_rows).items() if theirs is not ABSENT}

    # the machine's settings, and keys that are passed on

    def finished(
        self,
        settings: Settings,
        system: System,
        sent: Values,
        *,
        table: ReleaseTable | None = None,
        constants: Container[str] = (),
        names: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, object], tuple[LedgerEntry, ...]]:
        """Return the keys of a launch with those of `system` and `backend.extra`, and the ledger
        entries of both.

        sent: all other keys of the launch. table: that of the launch's own parser, if it is not
        the release's. constants: keys of `sent` that extra may replace, beside the manifest's own.
        names: the launch's own name of a key -> its name in `sent`, where they differ.
        Raise UnsupportedSetting for a setting that the release lacks or that would change the
        mathematics, for a key that a field decides, and for a key that the release would refuse.
        """
        launch, entries = dict(sent), []
        for name, value in system:
            if value is not None:
                row = self._system_row(name, value, settings)
                if not row.by_layout:
                    keys = dict.fromkeys(row.keys, value)
                    launch |= keys if row.send is None else row.send(value, settings)
                grade = f"measured in {row.measured}" if row.measured else "by source"
                note = f"not part of the cell's id, {grade}: {row.note}"
                shown = row.keys[0] if row.keys[0] in launch else ""
                text = str(launch.get(shown, value))
                entries.append(_entry(f"system.{name}", "exact", shown, text, note))
        launch = {key: value for key, value in launch.items() if value is not ABSENT}
        if settings.backend.extra:
            known = table or self.tables[self.version_of(settings)]
            for key, value in settings.backend.passed.items():
                plain = key.lstrip("+") if self.adds_keys else key
                plain = (names or {}).get(plain, plain)
                why = self._decided(plain, value, settings, sent, constants)
                why = why or self._refused_by_release(key, value, known)
                if why:
                    raise UnsupportedSetting(
                        f"{self.library} {known.version}",
                        f"{EXTRA}.{key}",
                        value,
                        ("the library's keys that no field has",),
                        f"{why}.",
                    )
                launch.pop(plain, None)
                launch[key] = value
                entries.append(
                    _entry(
                        f"{EXTRA}.{key}",
                        "not judged",
                        key,
                        str(value),
                        "passed on as it is written; part of the cell's id",
                    )
                )
        return launch, tuple(entries)

    def _system_row(self, name: str, value: object, settings: Settings) -> SystemRow:
        """Return the row of a setting. Raise UnsupportedSetting if it is refused for this cell."""
        version = self.version_of(settings)
        rows = [row for row in self.system if _spans(row, version)]
        row = next((row for row in rows if row.field == name), None)
        if row is not None and not (why := row.changes(settings)):
            return row
        known = ", ".join(f"system.{row.field}" for row in rows)
        raise UnsupportedSetting(
            f"{self.library} {version}",
            f"system.{name}",
            value,
            (None,),
            f"Leave it out; this release has {known or 'no setting of the machine'}."
            if row is None
            else f"{why}. So it is mathematics here, and part of the cell's id: set the library's "
            "own key in backend.extra.",
        )

    def lower_memory(self, settings: Settings, system: System) -> tuple[str, ...]:
        """Return two settings of `system` that lower the memory of a launch, as overrides."""
        version = self.version_of(settings)
        rows = {row.field for row in self.system if _spans(row, version)}
        wanted: dict[str, object] = {
            "micro_batch": 1,
            "engine_memory": 0.3,
            "offload": True,
            "gradient_checkpointing": True,
        }
        able = [
            f"system.{name}={str(value).lower()}"
            for name, value in wanted.items()
            if name in rows
            and getattr(system, name) != value
            and not any(r.changes(settings) for r in self.system if r.field == name)
        ]
        return tuple(able[:2])

    @cached_property
    def system_keys(self) -> frozenset[str]:
        """Return every key of `system`. A row may read it although `backend.extra` gives it."""
        return frozenset(key for row in self.system for key in row.keys)

    def _is_mathematics(self, key: str, settings: Settings) -> bool:
        """Return True for a key of `system` that would change the mathematics of a cell: only
        `backend.extra` may give it."""
        version = self.version_of(settings)
        return any(
            key in row.keys and _spans(row, version) and bool(row.changes(settings))
            for row in self.system
        )

    def micro_batch(self, settings: Settings, system: System, key: str) -> int | None:
        """Return the micro batch that a cell asks for, for a layout: of `system`, or, where it is
        mathematics, of the library's own key in `backend.extra`. None: it asks for none."""
        given = settings.backend.passed.get(key)
        return given if type(given) is int and given > 0 else system.micro_batch

    def _decided(
        self,
        key: str,
        value: object,
        settings: Settings,
        sent: Values,
        constants: Container[str],
    ) -> str:
        """Return why a key of extra is decided elsewhere in a launch, or an empty text."""
        if field_ := self._field_of(key, settings):
            return f"Set {field_}, the field for it"
        if self._is_mathematics(key, settings):
            return ""
        if key in self.held and not equal(value, self.held[key]):
            return (
                f"With another value than {self.held[key]} the ledger of this cell would be false"
            )
        if key not in sent or key in constants:
            return ""
        version = self.version_of(settings)
        constant = next((each for each in self._constants_of[version] if each.key == key), None)
        if constant is None:
            return "Orch sets it itself: it is a path, a name or a place of the launch"
        if constant.accepts and not any(equal(value, each) for each in constant.accepts):
            taken = ", ".join(map(str, constant.accepts))
            return f"With another value than {taken} the ledger of this cell would be false"
        return ""

    def _field_of(self, key: str, settings: Settings) -> str:
        """Return the field that decides a key, or an empty text."""
        version = self.version_of(settings)
        if self._is_mathematics(key, settings):
            return ""
        name = self.fields_of_keys.get(key, "")
        for each in self.system:
            if key in each.keys and _spans(each, version) and not each.changes(settings):
                name = f"system.{each.field}"
        for row in self._rows_in(version):
            also = (each.also for each in row.offer) if isinstance(row.offer, tuple) else ()
            if key == row.key or any(key in keys for keys in also):
                name = row.field
        for carried in self.carry(settings):
            if key in carried.sent:
                name = carried.row.field
        return name

    def _refused_by_release(self, key: str, value: object, table: ReleaseTable) -> str:
        """Return why the release's own parser refuses a key, or an empty text."""
        if table.kinds.get(key) == "switch" and value is not True:
            return f"It is a switch of {table.version}: give true, or leave it out"
        if not self.adds_keys:
            return table.objection(key, value)
        plain = key.lstrip("+")
        marks = key[: len(key) - len(plain)]
        if marks == "" and plain not in table.keys and not plain.startswith("hydra."):
            hint = did_you_mean(plain, table.keys)
            return f"{table.version} has no key {plain}{hint}; to add it, write +{plain}"
        if marks == "+" and plain in table.keys:
            return f"{table.version} has the key {plain}, and Hydra refuses to add it: leave out +"
        return table.objection(plain, value) if table.has(plain) else ""

    # ledger

    def ledger(
        self, settings: Settings, launch: Values, carried: Sequence[Carried] | None = None
    ) -> tuple[LedgerEntry, ...]:
        """Return one entry for every field of a cell. `launch`: every key that the launch sends.

        Raise ManifestError if the launch lacks a key that a row sends, if the release's own table
        refuses it, or if a row says `exact` and reading back gives another value.
        """
        table = self.tables[self.version_of(settings)]
        effective = {**table.defaults, **launch}
        entries = []
        for each in self.carry(settings) if carried is None else carried:
            for key, theirs in each.sent.items():
                launched = launch.get(key, ABSENT)
                if launched is not theirs and not equal(launched, theirs):
                    raise ManifestError(
                        f"{self.library}: {key} is {launched} in the launch, not {theirs}"
                    )
            entries.append(self._entry(each, settings, table, launch, effective))
        return tuple(entries)

    def _entry(
        self,
        carried: Carried,
        settings: Settings,
        table: ReleaseTable,
        launch: Values,
        effective: Values,
    ) -> LedgerEntry:
        row, value, meaning, sent = carried
        status, note = meaning.status, meaning.note
        if status == "exact" and not note:
            status, note = row.account(settings) if row.account else (row.status, row.note)
        shown = sent if not (row.key and row.carried_by) else {row.key: launch.get(row.key)}
        for key, theirs in shown.items():
            taught = status == "extension" and theirs in self.extensions.get(key, ())
            if theirs is not ABSENT and not taught and (why := table.objection(key, theirs)):
                raise ManifestError(f"{self.library}: {row.field}={value} cannot be sent: {why}")
        if status in ("exact", "not judged"):
            self._check_meaning(carried, launch, effective)
        given = {
            name: " ".join(map(str, theirs)) if isinstance(theirs, tuple) else str(theirs)
            for key, theirs in shown.items()
            if theirs is not ABSENT and (name := self.spelled(key, theirs, table.version))
        }
        text = ", ".join(given.values()) if given else str(value)
        return _entry(row.field, status, ", ".join(given), text, note)

    def _check_meaning(self, carried: Carried, launch: Values, effective: Values) -> None:
        row, value, meaning, _ = carried
        if not (row.key or row.read or row.carried_by == NEEDS or meaning.also):
            if not row.carried_by:
                raise ManifestError(f"{self.library}: nothing carries {row.field}={value}")
            return
        try:
            back = row.back(launch, effective)
        except KeyError as error:
            raise ManifestError(
                f"{self.library}: {row.key}={error} means no {row.field}"
            ) from error
        if not equal(back, value):
            raise ManifestError(f"{self.library}: {row.field}={value} reads back as {back}")

    # reading

    def read(self, launch: Values, version: str) -> dict[str, object]:
        """Return the settings, nested, that a launch requests from a release: `assignments`
        reversed.

        A row is skipped if the launch's other fields do not meet its condition. The first row of a
        field that determines the value counts. A field that no row determines is left out. Raise
        SpecError with every key whose value has no meaning.
        """
        nested, unread = self.read_in_part(launch, version)
        if unread:
            raise SpecError(f"{self.library} launch", [each.fault for each in unread])
        return nested

    def read_in_part(
        self, launch: Values, version: str
    ) -> tuple[dict[str, object], tuple[UnreadField, ...]]:
        """Return what `read` does, without the fields whose keys have no meaning, and those."""
        effective = {**self.tables[version].defaults, **launch}
        unread: list[UnreadField] = []
        known: dict[str, object] = {}

        def value_of(name: str) -> object:
            if name not in known:
                known[name] = ABSENT  # no condition on the field itself may hold while it is read
                known[name] = self._value(name, launch, effective, version, value_of, unread)
            return known[name]

        nested: dict[str, object] = {}
        for name in self._fields:
            value = value_of(name)
            if value is not ABSENT:
                _put(nested, name, value)
        return nested, tuple(unread)

    def _value(
        self,
        name: str,
        launch: Values,
        effective: Values,
        version: str,
        value_of: Callable[[str], object],
        unread: list[UnreadField],
    ) -> object:
        rows = [
            row
            for row in self.rows_of(name, version)
            if not isinstance(row.when, Mapping)
            or all(value_of(other) in allowed for other, allowed in row.when.items())
        ]
        refused: list[tuple[str, object]] = []
        for row in rows:
            try:
                back = row.back(launch, effective)
            except KeyError as error:
                refused += [(row.key, error.args[0])] if row.key else []
                continue
            except (ArithmeticError, TypeError, ValueError):
                continue  # it counts with a key that this launch leaves out, or with a 0
            if back is not ABSENT:
                return back
        unread += [
            UnreadField(name, key, value, _meaningless(name, key, value, rows))
            for key, value in refused[:1]
        ]
        return ABSENT

    # derived from the rows, once for each manifest

    @cached_property
    def _fields(self) -> Mapping[str, tuple[Row, ...]]:
        grouped: dict[str, list[Row]] = {}
        for row in self.rows:
            grouped.setdefault(row.field, []).append(row)
        return {name: tuple(rows) for name, rows in grouped.items()}

    @cached_property
    def _by_release(self) -> Mapping[tuple[str, str], tuple[Row, ...]]:
        return {
            (name, version): tuple(row for row in rows if _spans(row, version))
            for name, rows in self._fields.items()
            for version in self.versions
        }

    def constants_of(self, version: str) -> Mapping[str, Constant]:
        """Return key -> the constant that every launch of a release sends."""
        return {each.key: each for each in self._constants_of[version] if each.when is None}

    def rows_of(self, name: str, version: str) -> tuple[Row, ...]:
        """Return the rows of a field that a release has."""
        return self._by_release.get((name, version), ())

    def _rows_in(self, version: str) -> Iterator[Row]:
        return (row for name in self._fields for row in self.rows_of(name, version))

    @cached_property
    def _constants_of(self) -> Mapping[str, tuple[Constant, ...]]:
        return {
            version: tuple(each for each in self.constants if _spans(each, version))
            for version in self.versions
        }

    def capabilities(self) -> dict[str, tuple[object, ...]]:
        """Return, for each field with a closed list, the values that some release offers."""
        offers: dict[str, tuple[object, ...]] = {"backend.version": (None, *self.versions)}
        for name in self._fields:
            values: dict[object, None] = {}
            closed = not any(other.startswith(f"{name}.") for other in self._fields)
            for release in self.versions:
                for row in self.rows_of(name, release):
                    closed &= isinstance(row.offer, tuple)
                    values |= dict.fromkeys(_offered(row))
            if closed and values:
                offers[name] = tuple(values)
        return offers

    def meanings(self, key: str, version: str) -> dict[object, object]:
        """Return the meaning of each listed value of a key in a release, in every spelling."""
        return {
            spelling: each.ours
            for row in self._rows_in(version)
            if row.key == key and isinstance(row.offer, tuple)
            for each in row.offer
            for spelling in (each.theirs, *each.spellings)
        }


def _section_names(model: type[Frozen], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the fields that are sections, optional ones included."""
    for name, info in model.model_fields.items():
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, Frozen):
                yield f"{prefix}{name}"
                yield from _section_names(kind, f"{prefix}{name}.")


def _applies(when: When | None, settings: Settings, values: Values) -> bool:
    if when is None:
        return True
    if callable(when):
        return when(settings)
    return all(values.get(name, ABSENT) in allowed for name, allowed in when.items())


def _born(name: str) -> str | None:
    """Return the entry of BIRTH_VALUES that is `name` or a section around it, or None."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in BIRTH_VALUES), None)


def _plain_section(values: Values, section: str) -> str:
    """Return the fields of a section that are set, as a user writes them."""
    inside = f"{section}."
    parts = (
        f"{name.removeprefix(inside)}: {value}"
        for name, value in values.items()
        if name.startswith(inside) and value is not None
    )
    return f"{{{', '.join(parts)}}}"


def _unasked(name: str) -> Row:
    """Return the row of a field that is newer than a manifest. It offers the first value only."""
    value = BIRTH_VALUES[name]
    note = "orch has no row for it in this library, which does as it did before the field existed"
    return Row(
        name,
        offer=(Meaning(value, ABSENT, note=note),),
        carried_by="its absence",
        advice=f"orch writes no other {name} for this library: leave it out.",
    )


def _sent(row: Row, meaning: Meaning, settings: Settings) -> Values:
    sent: dict[str, object] = {}
    if row.key and not row.carried_by:
        sent[row.key] = meaning.theirs if row.write is None else row.write(settings)
    if row.adds is not None:
        sent.update(row.adds(settings))
    sent.update(meaning.also)
    return sent


def _offered(row: Row) -> tuple[object, ...]:
    """Return the values that a row offers, for a user."""
    if not isinstance(row.offer, tuple):
        return (str(row.offer),)
    return tuple(each.ours for each in row.offer)


def _entry(name: str, status: Status, key: str, value: str, note: str) -> LedgerEntry:
    return LedgerEntry(field=name, status=status, key=key, value=value, note=note)


def _nearest(name: str, value: object, offered: Sequence[object]) -> str:
    names = list(map(str, offered))
    near = get_close_matches(str(value), names, n=1) or names[:1]
    return f"Set {name}={near[0]}."


def _put(nested: dict[str, object], name: str, value: object) -> None:
    """Set a dotted field of nested data."""
    *sections, leaf = name.split(".")
    inner: Any = nested
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[leaf] = value


def _meaningless(name: str, key: str, value: object, rows: Iterable[Row]) -> Fault:
    taken: dict[str, None] = dict.fromkeys(
        str(spelling)
        for row in rows
        if row.key == key and isinstance(row.offer, tuple)
        for each in row.offer
        for spelling in (each.theirs, *each.spellings)
        if spelling is not ABSENT
    )
    taken |= {str(row.offer): None for row in rows if not isinstance(row.offer, tuple)}
    known = f" (it knows: {', '.join(taken)})" if taken else ""
    return Fault(f"orch has no {name} for '{value}'{known}{did_you_mean(str(value), taken)}", key)


def _spans(each: Row | Constant | SystemRow, version: str) -> bool:
    return _reaches(each.since, version) and not (each.until and _reaches(each.until, version))


def _reaches(first: str, version: str) -> bool:
    return not first or Version(version) >= Version(first)


def equal(left: object, right: object) -> bool:
    """Compare values as a launch would: 1 and 1.0 are equal, 1 and True are not."""
    if left is right:
        return True
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)
