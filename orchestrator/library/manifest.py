"""One table a library: how each field of a cell reaches it, and what its values mean.

A backend writes its manifest as rows. A row carries one field to one key of the library, for the
cells and the releases it is meant for, and lists the values that the key takes with what each
means. Everything else derives from the rows:

    capabilities   field -> the values that some row offers
    refusal        a value that no row carries raises UnsupportedSetting, with the nearest one
    translation    key -> value of a launch
    ledger         one entry a field: exact, approximated or through an extension of ours
    parse          the fields that a launch asks for
    audit          what a written value means (`low_var_kl` is k3)
    drift          the rows that two releases do not share

Tables are allow-lists: what is in no row is refused. An entry says `exact` only where the table of
the release accepts the key and the value that are sent, and reading them back gives the value of
the field.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Literal, NamedTuple, Protocol

from orchestrator.errors import Fault, SpecError, UnsupportedSetting, did_you_mean
from orchestrator.identity import flatten
from orchestrator.records import LedgerEntry
from orchestrator.settings import Frozen, Settings

Status = Literal["exact", "approximated", "extension"]
Account = tuple[Status, str]
"""How faithfully a row carries its field, and a note for people."""
Values = Mapping[str, object]
"""Keys of a library -> their values, as one launch has them."""


class ManifestError(Exception):
    """A manifest contradicts itself or its release's table. Our fault: it keeps its traceback."""


class Absent:
    """The value of a key that a launch leaves out."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Meaning:
    """One value of a field and what stands for it in the library."""

    ours: object
    theirs: object
    """What a launch sends; ABSENT for a key that is left out."""
    status: Status = "exact"
    note: str = ""
    spellings: tuple[object, ...] = ()
    """Other values of the key that the release takes and that mean the same."""
    since: str = ""
    """First release that has this value; empty: all of the row's."""


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers from `least` to `most` (exclusive) and, with `null`, None, which is sent as `off`."""

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
        return self.least <= value < self.most and (not self.whole or value == int(value))

    def __str__(self) -> str:
        kind = "whole numbers" if self.whole else "numbers"
        bounds = [f"from {self.least:g}"] * (self.least != float("-inf"))
        bounds += [f"below {self.most:g}"] * (self.most != float("inf"))
        return " ".join([kind, *bounds]) + (" or null" if self.null else "")


class AnyText:
    """Every text: a path, a name, a template of the user's."""

    def __contains__(self, value: object) -> bool:
        return value is None or isinstance(value, str)

    def __str__(self) -> str:
        return "any text"


TEXT = AnyText()


class OpenOffer(Protocol):
    """Values without a list: what it contains can be sent, and `str` of it says what that is."""

    def __contains__(self, value: object) -> bool: ...


Offer = tuple[Meaning, ...] | OpenOffer


def same(*values: object, status: Status = "exact", note: str = "") -> tuple[Meaning, ...]:
    """Return meanings of values that the library calls as orch does."""
    return tuple(Meaning(value, value, status, note) for value in values)


def named(names: Mapping[object, object]) -> tuple[Meaning, ...]:
    """Return meanings from a mapping: orch's value -> the library's."""
    return tuple(Meaning(ours, theirs) for ours, theirs in names.items())


@dataclass(frozen=True, slots=True)
class Row:
    """How one field reaches the library, for some cells and releases.

    A row sends its field under `key`. A row without a key says in `carried_by` what holds the field
    instead: a file that orch writes, or the library's own fixed value. `field` may be a section of
    the settings (`loss.clip`) that no row divides: its value is then the section or None.
    """

    field: str
    key: str = ""
    offer: Offer = TEXT
    carried_by: str = ""
    """Without a key: the file of the launch that holds the field, or why none needs to."""
    write: Callable[[Settings], object] | None = None
    """The value to send where `offer` alone does not say it (a quotient, a path)."""
    read: Callable[[Values], object] | None = None
    """The field's value from a launch, where `offer` alone does not say it.

    ABSENT: the launch says nothing that this row would read. KeyError: a value without a meaning.
    """
    adds: Callable[[Settings], Values] | None = None
    """Further keys that carry the field together with `key`."""
    when: Callable[[Settings], bool] | None = None
    """Cells that the row is meant for; None: every cell."""
    since: str = ""
    until: str = ""
    """First release with the row and first release without it; empty: unbounded."""
    account: Account | Callable[[Settings], Account] = ("exact", "")
    """Faithfulness and note; the meaning's own where it has a note or is not exact."""
    advice: str | Callable[[Settings], str] = ""
    """What to do where a value is refused."""
    shows: tuple[str, ...] = ()
    """Keys that people see in the ledger, where `key` alone does not tell them enough."""

    def meaning(self, value: object) -> Meaning | None:
        """Return the entry of the allow-list for a value of the field, or None if it has none."""
        if isinstance(self.offer, tuple):
            return next((each for each in self.offer if _equal(each.ours, value)), None)
        return Meaning(value, self._plain(value)) if value in self.offer else None

    def _plain(self, value: object) -> object:
        return self.offer.off if isinstance(self.offer, Number) and value is None else value

    def back(self, launch: Values) -> object:
        """Return the field's value as a launch has it, or ABSENT if the row cannot tell.

        Raise KeyError for a value of the key that means nothing.
        """
        if self.read is not None:
            return self.read(launch)
        return self.ours(launch.get(self.key, ABSENT)) if self.key else ABSENT

    def ours(self, theirs: object) -> object:
        """Return what a value of the key means for the field. Raise KeyError if nothing."""
        if isinstance(self.offer, tuple):
            for each in self.offer:
                if any(_equal(theirs, spelling) for spelling in (each.theirs, *each.spellings)):
                    return each.ours
            raise KeyError(theirs)
        if isinstance(self.offer, Number) and _equal(theirs, self.offer.off):
            return None if self.offer.null else theirs
        if theirs in self.offer:
            return theirs
        raise KeyError(theirs)

    def offered(self) -> tuple[object, ...]:
        """Return the values that the row offers, for people: an open range is one text."""
        if isinstance(self.offer, tuple):
            return tuple(each.ours for each in self.offer)
        return (str(self.offer),)


@dataclass(frozen=True, slots=True)
class ReleaseTable:
    """What one release's own parser knows: its keys and, where there is a list, their values."""

    version: str
    keys: frozenset[str]
    values: Mapping[str, frozenset[object]] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    """Prefixes of keys that a launch may add (Hydra's `+`), such as a worker's environment."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Key -> its type, as annotations of Python name it; `float x 2`: two words of a command."""

    def has(self, key: str) -> bool:
        """Tell whether a launch of the release may send a key."""
        return key in self.keys or (bool(self.added) and key.startswith(self.added))

    def objection(self, key: str, value: object) -> str:
        """Return why the release does not take this key and value; empty if it does."""
        if not self.has(key):
            return f"{self.version} has no key {key}{did_you_mean(key, self.keys)}"
        taken = self.values.get(key)
        if taken is not None and not any(_equal(value, each) for each in taken):
            names = ", ".join(sorted(map(str, taken)))
            return f"{key} of {self.version} takes {names}; not {value}"
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
    """Tell whether a value is of a type: an integer is a float, too; what is no simple type fits.

    `switch` and `bool` are one type, and so are `float x 2` and a list of two floats.
    """
    if kind.startswith("Optional["):
        return value is None or fits(kind[len("Optional[") : -1], value)
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        return isinstance(value, list | tuple) and all(fits(inner, each) for each in value)
    inner, times, count = kind.partition(" x ")
    if times and count.isdecimal():
        return fits(f"List[{inner}]", value) and len(value) == int(count)  # type: ignore[arg-type]
    types = _TYPES.get(kind)
    return types is None or type(value) in types


class Carried(NamedTuple):
    """One field of a cell, the row that carries it and what that row sends."""

    row: Row
    value: object
    meaning: Meaning
    sent: Values


Show = Callable[[Carried, Values, str], tuple[str, str]]
"""Key and value of a field as the ledger shows them, from the launch of a release."""


@dataclass(frozen=True)
class Manifest:
    """All rows of one library, and what its releases' own tables say."""

    library: str
    versions: tuple[str, ...]
    """Releases it is about, newest first."""
    rows: tuple[Row, ...]
    tables: Mapping[str, ReleaseTable]
    default: str = ""
    """The release of a cell that names none; empty: the newest."""
    show: Show | None = None
    """How the ledger shows a field; None: its key, and the value that is sent."""
    version_advice: str = ""
    """What to do where a release is unknown."""

    def version_of(self, settings: Settings) -> str:
        """Return the release that trains a cell. Raise UnsupportedSetting for an unknown one."""
        asked = settings.backend.version
        if asked is None:
            return self.default or self.versions[0]
        if asked in self.versions:
            return asked
        newest = self.default or self.versions[0]
        raise UnsupportedSetting(
            self.library,
            "backend.version",
            asked,
            self.versions,
            self.version_advice
            or f"Set backend.version={newest}{did_you_mean(asked, self.versions)}.",
        )

    @cached_property
    def _fields(self) -> Mapping[str, tuple[Row, ...]]:
        grouped: dict[str, list[Row]] = {}
        for row in self.rows:
            grouped.setdefault(row.field, []).append(row)
        return {name: tuple(rows) for name, rows in grouped.items()}

    @cached_property
    def _sections(self) -> frozenset[str]:
        """Sections of the settings that have rows as a whole and none for their leaves."""
        dotted = {name for name in self._fields if "." in name}
        return frozenset(
            name for name in dotted if not any(each.startswith(f"{name}.") for each in dotted)
        )

    def fields(self, settings: Settings) -> Iterator[tuple[str, object]]:
        """Yield every field of a cell and its value, in order: leaves, and undivided sections."""
        return self._leaves(settings, "")

    def _leaves(self, section: Frozen, prefix: str) -> Iterator[tuple[str, object]]:
        for key, value in section:
            name = f"{prefix}{key}"
            if isinstance(value, Frozen) and name not in self._sections:
                yield from self._leaves(value, f"{name}.")
            else:
                yield name, value

    @cached_property
    def _released(self) -> dict[str, Mapping[str, tuple[Row, ...]]]:
        """Release -> field -> its rows; filled as releases are asked for."""
        return {}

    def rows_of(self, name: str, version: str) -> tuple[Row, ...]:
        """Return the rows of a field that a release has."""
        rows = self._released.get(version)
        if rows is None:
            rows = self._released[version] = {
                name: tuple(
                    row
                    for row in rows
                    if _reaches(row.since, version)
                    and not (row.until and _reaches(row.until, version))
                )
                for name, rows in self._fields.items()
            }
        return rows.get(name, ())

    def capabilities(self, version: str = "") -> dict[str, tuple[object, ...]]:
        """Return, for each field with a closed list, the values that a release offers.

        Without a release: what any of them offers.
        """
        offers: dict[str, tuple[object, ...]] = {"backend.version": (None, *self.versions)}
        for name in self._fields:
            values: dict[object, None] = {}
            closed = True
            for release in [version] if version else self.versions:
                for row in self.rows_of(name, release):
                    closed &= isinstance(row.offer, tuple)
                    values |= dict.fromkeys(row.offered())
            if closed and values:
                offers[name] = tuple(values)
        return offers

    def row(self, settings: Settings, name: str, value: object) -> Row:
        """Return the one row that carries a field of a cell.

        Raise UnsupportedSetting with what is offered if no row does, ManifestError if several do.
        """
        return self._carried(settings, self.version_of(settings), name, value).row

    def _carried(self, settings: Settings, version: str, name: str, value: object) -> Carried:
        rows = self.rows_of(name, version)
        meant = [row for row in rows if row.when is None or row.when(settings)]
        fitting = [
            (row, meaning)
            for row in meant
            if (meaning := row.meaning(value)) is not None and _reaches(meaning.since, version)
        ]
        if len(fitting) == 1:
            row, meaning = fitting[0]
            return Carried(row, value, meaning, _sent(row, meaning, settings))
        if fitting:
            raise ManifestError(
                f"{self.library} {version}: {len(fitting)} rows carry {name}={value}"
            )
        offered = tuple(dict.fromkeys(v for row in meant or rows for v in row.offered()))
        if not offered:
            raise ManifestError(f"{self.library} {version}: no row accounts for {name}")
        advices = (row.advice for row in (*meant, *rows) if row.advice)
        advice = next((a if isinstance(a, str) else a(settings) for a in advices), "")
        nearest = did_you_mean(str(value), map(str, offered))
        raise UnsupportedSetting(
            f"{self.library} {version}",
            name,
            value,
            offered,
            advice or f"Set {name}={offered[0]}{nearest}.",
        )

    def carry(self, settings: Settings) -> tuple[Carried, ...]:
        """Return how each field of a cell is carried, in the order of the settings.

        Raise UnsupportedSetting for the first field that no row carries.
        """
        version = self.version_of(settings)
        return tuple(
            self._carried(settings, version, name, value) for name, value in self.fields(settings)
        )

    def check(self, settings: Settings) -> None:
        """Raise UnsupportedSetting for the first field of a cell that no row carries."""
        self.carry(settings)

    def assignments(
        self, settings: Settings, carried: Sequence[Carried] | None = None
    ) -> dict[str, object]:
        """Return the keys and values that carry a cell. Raise as `check` does.

        `carried`: what `carry` returns for the cell, if it was called already.
        """
        sent: dict[str, object] = {}
        for each in self.carry(settings) if carried is None else carried:
            for key, theirs in each.sent.items():
                if key in sent and not _equal(sent[key], theirs):
                    raise ManifestError(f"{self.library}: {key} is to be {sent[key]} and {theirs}")
                sent[key] = theirs
        return {key: theirs for key, theirs in sent.items() if theirs is not ABSENT}

    def ledger(
        self, settings: Settings, launch: Values, carried: Sequence[Carried] | None = None
    ) -> tuple[LedgerEntry, ...]:
        """Return one entry for every field of a cell. `launch`: every key that is really sent.

        Raise ManifestError where the table of the release refuses what is sent, or where a row says
        `exact` and reading back gives another value.
        """
        table = self.tables[self.version_of(settings)]
        return tuple(
            self._entry(each, settings, table, launch)
            for each in (self.carry(settings) if carried is None else carried)
        )

    def _entry(
        self, carried: Carried, settings: Settings, table: ReleaseTable, launch: Values
    ) -> LedgerEntry:
        row, value = carried.row, carried.value
        for key, theirs in carried.sent.items():
            held = launch.get(key, ABSENT)
            if held is not theirs and not _equal(held, theirs):
                raise ManifestError(f"{self.library}: {key} is {held} in the launch, not {theirs}")
            if theirs is not ABSENT and (why := table.objection(key, theirs)):
                raise ManifestError(f"{self.library}: {row.field}={value} cannot be sent: {why}")
        status, note = _account(carried, settings)
        if status == "exact":
            self._check_meaning(row, value, launch)
        if self.show is not None:
            key, text = self.show(carried, launch, table.version)
        else:
            key, text = row.key, str(launch.get(row.key, value) if row.key else value)
        return _ledger_entry(row.field, status, key, text, note)

    def _check_meaning(self, row: Row, value: object, launch: Values) -> None:
        if not row.key and not row.carried_by:
            raise ManifestError(f"{self.library}: nothing carries {row.field}={value}")
        if not row.key and row.read is None:
            return
        try:
            back = row.back(launch)
        except KeyError as error:
            raise ManifestError(
                f"{self.library}: {row.key}={error} means no {row.field}"
            ) from error
        if not _equal(back, value):
            raise ManifestError(f"{self.library}: {row.field}={value} reads back as {back}")

    def read(self, launch: Values, version: str) -> dict[str, object]:
        """Return the settings that a launch asks a release for, nested: the reverse of a cell's
        assignments. The first row of a field that can tell decides; a field that no row can tell
        is left out.

        Raise SpecError with every key whose value means nothing.
        """
        plain: dict[str, object] = {}
        faults: list[Fault] = []
        for name in self._fields:
            rows = self.rows_of(name, version)
            refused: list[tuple[str, object]] = []
            for row in rows:
                try:
                    back = row.back(launch)
                except KeyError as error:
                    refused.append((row.key, error.args[0]))
                    continue
                if back is not ABSENT:
                    _put(plain, name, back)
                    break
            else:
                faults += [_meaningless(name, key, value, rows) for key, value in refused[:1]]
        if faults:
            raise SpecError(f"{self.library} launch", faults)
        return plain

    def meanings(self, key: str, version: str) -> dict[object, object]:
        """Return what each listed value of a key means in a release, in every spelling."""
        return {
            spelling: each.ours
            for row in self.rows
            if row.key == key
            and isinstance(row.offer, tuple)
            and row in self.rows_of(row.field, version)
            for each in row.offer
            if _reaches(each.since, version)
            for spelling in (each.theirs, *each.spellings)
        }

    def keys(self, version: str) -> tuple[str, ...]:
        """Return the keys that the rows of a release may send, sorted."""
        return tuple(
            sorted({r.key for r in self.rows if r.key and r in self.rows_of(r.field, version)})
        )

    def differences(self, old: str, new: str) -> Iterator[tuple[str, str, str]]:
        """Yield the fields that two releases carry differently: field, old keys, new keys."""
        for name in self._fields:
            before, after = self.rows_of(name, old), self.rows_of(name, new)
            if before != after:
                yield name, _keys_of(before), _keys_of(after)

    def faults(self, cells: Iterable[Settings]) -> Iterator[str]:
        """Yield what is wrong with the table itself: no such field, no carrier, no such key."""
        leaves = {name for settings in cells for name, _ in flatten(settings.model_dump())}
        for row in self.rows:
            if row.field not in leaves and not any(x.startswith(f"{row.field}.") for x in leaves):
                yield f"{row.field} is no field of a cell"
            if not row.key and not row.carried_by:
                yield f"{row.field} has neither a key nor anything that carries it"
        for version in self.versions:
            for key in self.keys(version):
                if not self.tables[version].has(key):
                    yield f"{version} has no key {key}"


def _keys_of(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row.key or row.carried_by for row in rows))


def _equal(left: object, right: object) -> bool:
    """Compare values as a launch would: 1 and 1.0 are equal, 1 and True are not."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _sent(row: Row, meaning: Meaning, settings: Settings) -> Values:
    sent: dict[str, object] = {}
    if row.key:
        sent[row.key] = meaning.theirs if row.write is None else row.write(settings)
    if row.adds is not None:
        sent.update(row.adds(settings))
    return sent


def _account(carried: Carried, settings: Settings) -> Account:
    meaning, account = carried.meaning, carried.row.account
    if meaning.note or meaning.status != "exact":
        return meaning.status, meaning.note
    return account(settings) if callable(account) else account


@lru_cache(maxsize=4096)
def _ledger_entry(name: str, status: Status, key: str, value: str, note: str) -> LedgerEntry:
    return LedgerEntry(field=name, status=status, key=key, value=value, note=note)


def _put(plain: dict[str, object], name: str, value: object) -> None:
    """Set a dotted field of nested data."""
    *sections, leaf = name.split(".")
    for section in sections:
        inner = plain.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ManifestError(f"{section} is both a value and a section")
        plain = inner
    plain[leaf] = value


def _meaningless(name: str, key: str, value: object, rows: Iterable[Row]) -> Fault:
    taken = dict.fromkeys(
        str(spelling)
        for row in rows
        if row.key == key and isinstance(row.offer, tuple)
        for each in row.offer
        for spelling in (each.theirs, *each.spellings)
        if spelling is not ABSENT
    )
    known = f" (it knows: {', '.join(taken)})" if taken else ""
    return Fault(f"orch has no {name} for '{value}'{known}{did_you_mean(str(value), taken)}", key)


@cache
def _reaches(first: str, version: str) -> bool:
    return not first or _order(version) >= _order(first)


def _order(version: str) -> tuple[int, ...]:
    digits = [part for part in version.replace("post", "").split(".") if part.isdigit()]
    return tuple(int(part) for part in digits)
