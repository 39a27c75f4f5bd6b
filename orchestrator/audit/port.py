"""A launch of one library as a spec, or as a launch of another: every key of it has a row.

    script --launch_of--> Launch --ported--> Ported (fields, rows) --spec_text--> spec
                                                       |--moved--> LaunchPlan of another library

The fields are read by the library's manifest, the same that writes launches, over the defaults of
the release: what a launch leaves to a default is a field too.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from orchestrator import plugins
from orchestrator.audit import pipeline
from orchestrator.errors import SelectionError, SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.library.launches import UNKNOWN, UNSET, Given, Launch, LaunchReading
from orchestrator.library.manifest import Manifest, equal
from orchestrator.library.needs import name_of, settings_of
from orchestrator.library.protocol import Backend
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Frozen, Resources, Settings
from orchestrator.spec.redaction import hide

Kind = Literal["carried", "approximated", "set", "not carried"]

ANYWHERE = AttemptPaths(Path("/plan"), Path("/attempt"), Path("/checkpoints"))
"""Folders of a launch that is printed and never started."""
NODE = Resources(num_nodes=1, gpus_per_node=8)
NEEDED: Mapping[str, object] = {
    "model.path": "Qwen/Qwen2.5-7B",
    "data.path": "DigitalLearningGmbH/MATH-lighteval",
    "advantage.estimator": "grpo",
    "kl.estimator": "none",
    "rollout.group_size": 8,
    "rollout.max_response_tokens": 1024,
    "batch.num_prompts": 128,
    "optimizer.learning_rate": 1e-6,
    "num_train_steps": 100,
}
"""Fields that a cell must have, with the values that stand for them where a launch does not say.
They are rows of their own: check them."""

OBJECTIVE = (
    "advantage.estimator",
    "kl.estimator",
    "kl.placement",
    "loss.policy",
    "loss.aggregation",
    "loss.ratio_level",
)
"""Fields that decide what is optimized: no value stands in for one that orch cannot hold."""

UNREAD = "only a run of the script shows its value"
MARK = "-"
"""The value of a key in a launch that is made only to see what the manifest calls the key."""


@dataclass(frozen=True)
class PortRow:
    """One key of the launch, or one field that the new launch has for another reason."""

    kind: Kind
    source: str
    """The key and value as written; empty for a field that the launch does not write."""
    field: str = ""
    value: object = None
    target: str = ""
    """The key and value of the new launch."""
    note: str = ""
    is_other: bool = False
    """True if the new launch does something else, or may do so."""


@dataclass(frozen=True)
class Ported:
    """A launch as fields of a cell, and what became of each of its keys."""

    library: str
    version: str
    fields: Mapping[str, Any]
    """Nested, as `Settings` has them."""
    given: Mapping[str, object]
    """Every key of the launch, typed."""
    of_field: Mapping[str, tuple[str, ...]]
    """Field -> the keys of the launch that it was read from."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Keys that no field holds, with the reason."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Field -> why its value is not the launch's: not said, refused, or the first of several
    files."""
    program: tuple[str, ...] = ()
    """The words of the launch, as its script has them."""
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Field of the objective -> why no cell has the launch's value. A user must choose."""
    other: frozenset[str] = frozenset()
    """Keys without a field whose value orch's own launches replace: they train something else."""

    @property
    def settings(self) -> Settings:
        """Return the fields as settings. Raise SpecError with every fault."""
        return settings_of(self.fields, f"launch of {self.library}")


def launch_of(
    text: str, name: str, files: Mapping[str, str], pinned: Mapping[str, str]
) -> tuple[Launch, LaunchReading, str]:
    """Return the first launch of a file, of a run without arguments, its reading, and a sentence
    if the file has others.

    Raise SelectionError if the file has none.
    """
    readings = list(pipeline.readings(text, name, files, pinned))
    launches = {
        json.dumps(typed(reading), sort_keys=True, default=str): (launch, reading)
        for launch, reading in readings
        if launch.usual and reading.held is not None
    }
    if not launches:
        unknown = dict.fromkeys(f"{each.library} {each.version}" for _, each in readings)
        raise SelectionError(
            f"{name} has no launch whose keys orch knows"
            + "".join(
                f"; it launches {each}, of which orch has no table of keys: --library "
                f"{each.partition(' ')[0]}@VERSION reads it as another release"
                for each in unknown
            )
        )
    launch, reading = next(iter(launches.values()))
    if len(launches) == 1:
        return launch, reading, ""
    which = f"line {launch.line}" + (f", case {launch.case}" if launch.case else "")
    note = f"{name} has {len(launches)} launches or cases; this is the first, of {which}"
    return launch, reading, note


def typed(reading: LaunchReading) -> dict[str, object]:
    """Return the keys of a launch with typed values; the last value of a key counts."""
    keys = reading.held
    if keys is None:
        return {}
    return {key: _value(values[-1]) for key, values in keys.given.items() if values}


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def _value(given: Given) -> object:
    text = given.text.strip()
    if UNKNOWN in text or UNSET in text:
        return text.replace(UNKNOWN, "?").replace(UNSET, "")
    if _NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    if text in ("True", "true", "False", "false"):
        return text.lower() == "true"
    if text in ("null", "None", "~"):
        return None
    if text.startswith(("[", "{")):
        try:
            plain: object = yaml.safe_load(text)
        except yaml.YAMLError:
            return text
        return plain
    return text.strip("'\"")


def ported(launch: Launch, reading: LaunchReading) -> Ported:
    """Return a launch as fields of a cell.

    Raise SelectionError for a library that orch does not train with.
    """
    backend = plugins.load(reading.library) if reading.library in plugins.names() else None
    if backend is None or backend.manifest is None:
        raise SelectionError(
            f"orch reads launches of {reading.library} and writes none: there is nothing to port"
        )
    manifest = backend.manifest
    version = reading.version
    if version not in manifest.versions:
        # The keys of an old release are those of the nearest one, not of the newest.
        version = backend.neighbour(version) if version else manifest.release(None)
    given = typed(reading)
    lost = dict.fromkeys(_unread(reading), UNREAD)
    known = {key: value for key, value in given.items() if key not in lost}
    program = tuple(word.text for word in launch.words)

    def read(values: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
        launched = backend.values_of_anybody(program, values, version)
        fields, faults = manifest.read_in_part(launched, version)
        kept = {name: part for name, part in fields.items() if name in Settings.model_fields}
        return kept, {fault.path.removeprefix("$."): fault.message for fault in faults}

    own = {key: _own_name(backend, key, version) for key in given}
    spelled = {name: key for key, name in own.items()}
    fields, faults = read(known)
    refused = {spelled.get(name, name): text for name, text in faults.items()}
    lost |= {key: text for key, text in refused.items() if key in known}
    known = {key: value for key, value in known.items() if key not in refused}
    used = _used(manifest, known, own, lambda values: read(values)[0])
    read_keys = {key for keys in used.values() for key in keys}
    defaults = {
        **manifest.tables[version].defaults,
        **backend.values_of_anybody(program, {}, version),
    }
    other = set()
    for key in (each for each in given if each not in read_keys and each not in lost):
        is_default = own[key] in defaults and equal(defaults[own[key]], given[key])
        default = default_of(reading.library, version) if is_default else ""
        if why := _another_training(manifest, version, own[key], given[key]):
            other.add(key)
        lost[key] = why or _why_not_carried(manifest, version, own[key], given[key], default)
    for key in (each for each in given if lost.get(each) == UNREAD):
        name = next((row.field for row in manifest.rows if row.key == own[key]), "")
        if name := name or manifest.fields_of_keys.get(own[key], ""):
            lost[key] = f"{UNREAD}: set {name}, where orch put the default of {reading.library}"
    unsaid = "the launch does not say it"
    if any(each.kind == "call" for each in launch.documents):
        unsaid = "orch does not read it from a program"
    assumed = {
        name: next((text for text in refused.values() if _refuses(text, name)), unsaid)
        for name in _complete(fields, reading.library, version)
    } | _one_file(fields)
    warmup = "optimizer.num_warmup_steps"
    if warmup in used and warmup not in dict(flatten(fields)):
        assumed[warmup] = f"the number of steps is not known, so there is no warm-up: set {warmup}"
    undecided = {
        name: text
        for name in OBJECTIVE
        for text in refused.values()
        if _refuses(text, name)
        and (name.startswith("kl.") <= (fields["kl"] != {"estimator": "none"}))
    }
    assumed = {name: why for name, why in assumed.items() if name not in undecided}
    return Ported(
        reading.library,
        version,
        fields,
        given,
        used,
        lost,
        assumed,
        program,
        undecided,
        frozenset(other),
    )


def _refuses(fault: str, name: str) -> bool:
    """Return True if a fault is of the value that a launch gives a field.

    For a field that the launch leaves out, the message ends with `for 'None'`.
    """
    return f" no {name} for" in fault and f" no {name} for 'None'" not in fault


def _one_file(fields: dict[str, Any]) -> dict[str, str]:
    """Put the first file of a list into `data.path`; return why, if the list has others."""
    paths = fields["data"]["path"]
    if not isinstance(paths, list) or not paths:
        return {}
    fields["data"] |= {"path": paths[0], "name": name_of(str(paths[0]))}
    if len(paths) == 1:
        return {}
    return {"data.path": f"a cell has one file, and this is the first of {len(paths)}: join them"}


def default_of(library: str, version: str) -> str:
    """Return why a key is not carried that has the release's default."""
    return f"it is the default of {library} {version}"


def _another_training(manifest: Manifest, version: str, key: str, value: object) -> str:
    """Return what orch's launches send for a key instead, if that trains something else."""
    sent = manifest.constants_of(version).get(key)
    if sent is None or not sent.accepts or any(equal(each, value) for each in sent.accepts):
        return ""
    return (
        f"orch's launches of {manifest.library} have {key}={sent.value}: the new launch is "
        "another training"
    )


def _why_not_carried(
    manifest: Manifest, version: str, key: str, value: object, default: str
) -> str:
    """Return why no setting of a cell holds a key, and what a spec can do.

    default: the sentence for a value that is the release's default; else empty.
    """
    place = _place(key, manifest)
    sent = manifest.constants_of(version).get(key)
    if sent is not None and not equal(sent.value, value):
        why = f"orch's launches of {manifest.library} have {key}={sent.value}"
        return f"{why}; {place}" if place else why
    if default and key not in manifest.fields_of_keys:
        return default
    if place:
        return place
    if manifest.passes_keys:
        return "no field of a cell holds it; backend.extra may pass it on"
    return "no field of orch holds it"


def _place(key: str, manifest: Manifest) -> str:
    """Return what a spec has a key as, in words; empty if it has it nowhere."""
    system = (f"system.{row.field}" for row in manifest.system if key in row.keys)
    name = manifest.fields_of_keys.get(key) or next(system, "")
    return f"a spec has it as {name}: set it there" if name else ""


def _own_name(backend: Backend, key: str, version: str) -> str:
    """Return the name of a key of a launch in the manifest, which has one name for all releases."""
    marked = backend.values_of_anybody((), {key: MARK}, version)
    return next((name for name, value in marked.items() if value == MARK), key)


def _unread(reading: LaunchReading) -> Iterator[str]:
    for key, values in (reading.held.given if reading.held else {}).items():
        if values and UNKNOWN in values[-1].text:
            yield key


def _used(
    manifest: Manifest,
    given: Mapping[str, object],
    own_names: Mapping[str, str],
    read: Callable[[Mapping[str, object]], Mapping[str, Any]],
) -> dict[str, tuple[str, ...]]:
    """Return field -> the keys that decide it: without one of them the field has another value,
    or it is the key of the field's own row."""
    whole = dict(flatten(_plain(read(given))))
    used: dict[str, list[str]] = {}
    for key in given:
        fewer = dict(flatten(_plain(read({k: v for k, v in given.items() if k != key}))))
        changed = [n for n in whole.keys() | fewer.keys() if whole.get(n) != fewer.get(n)]
        named = own_names[key]
        own = [row.field for row in manifest.rows if row.key == named and row.field in whole]
        for name in dict.fromkeys([*changed, *own]):
            used.setdefault(name, []).append(key)
    return {name: tuple(keys) for name, keys in used.items()}


def _plain(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with their sections as mappings."""
    return {
        name: _plain(value.model_dump() if isinstance(value, Frozen) else value)
        if isinstance(value, Mapping | Frozen)
        else value
        for name, value in nested.items()
    }


def _complete(fields: dict[str, Any], library: str, version: str) -> Iterator[str]:
    """Put what a cell must have into the fields; yield the names of what was assumed."""
    fields |= _plain(fields)
    flat = dict(flatten(fields))
    alone = flat.get("rollout.group_size") == 1
    for name, value in NEEDED.items():
        if flat.get(name) is None:
            # Without a group there is nothing to compare a rollout with.
            _put(fields, name, "reinforce" if alone and value == "grpo" else value)
            yield name
    fields["backend"] = {"name": library, "version": version}
    for section in ("model", "data"):
        _put(fields, f"{section}.name", name_of(str(fields[section]["path"])))
    minibatches = fields["batch"].get("num_minibatches", 1)
    if "num_train_steps" not in flat and minibatches:
        fields["num_train_steps"] = 100 * minibatches  # whole rollout batches
    if fields["kl"].get("placement") is None:
        fields["kl"] = {"estimator": "none"}


def _put(nested: dict[str, Any], name: str, value: object) -> None:
    section, _, rest = name.partition(".")
    if rest:
        _put(nested.setdefault(section, {}), rest, value)
    else:
        nested[section] = value


def cell_of(settings: Settings) -> Cell:
    """Return a cell with these settings."""
    return Cell(
        id=fingerprint(settings),
        slug="ported",
        studies=("ported",),
        axes={},
        settings=settings,
        resources=NODE,
    )


def rows_of_spec(launch: Ported) -> Iterator[PortRow]:
    """Yield a row for each key of a launch that becomes a spec."""
    holders: dict[str, list[str]] = {}
    for name, keys in launch.of_field.items():
        for key in keys:
            holders.setdefault(key, []).append(name)
    flat = dict(flatten(launch.fields))
    for key, value in launch.given.items():
        source = _written(key, value)
        if key in launch.left:
            is_other = key in launch.other
            yield PortRow("not carried", source, note=launch.left[key], is_other=is_other)
        else:
            for name in holders.get(key, []):
                why = launch.assumed.get(name, "")
                yield PortRow(
                    "approximated" if why else "carried", source, name, flat.get(name), note=why
                )
    yield from _own_loss(launch)
    yield from _assumed(launch)


def _own_loss(launch: Ported) -> Iterator[PortRow]:
    """Yield a row for each part of the launch's loss that no cell has."""
    for name, note in plugins.load(launch.library).own_loss(launch.given).items():
        yield PortRow("not carried", "", name, note=note, is_other=True)


def moved(
    launch: Ported,
    library: str,
    version: str | None,
    changes: Mapping[str, object],
    paths: AttemptPaths = ANYWHERE,
) -> tuple[LaunchPlan | None, list[PortRow]]:
    """Return the launch in another library, or None if that has not all fields; and the rows.

    changes: dotted field -> value, as a user chose where the library has no equal field. paths: the
    folders that the launch names. Raise SpecError for fields that make no cell.
    """
    fields = json.loads(json.dumps(launch.fields))
    for name, value in changes.items():
        _put(fields, name, value)
    fields["backend"] = {"name": library} | ({"version": version} if version else {})
    refused = [
        PortRow("not carried", "", name, note=f"{text}: choose {name}=VALUE")
        for name, text in launch.undecided.items()
        if name not in changes
    ]
    backend = plugins.load(library)
    settings = settings_of(fields, f"launch of {launch.library}")
    while True:
        try:
            plan = backend.translate(cell_of(settings), paths)
            break
        except UnsupportedSetting as error:
            keys = _keys_of(launch, error.field)
            again = any(row.field == error.field for row in refused)
            refused.append(
                PortRow(
                    "not carried", _sources(launch, keys), error.field, error.value, note=str(error)
                )
            )
            offered = next((x for x in error.offered if type(x) is type(error.value)), None)
            if again or offered is None:
                return None, refused
            # Only to see what else is refused: the launch itself is not given.
            _put(fields, error.field, offered)
            try:
                settings = settings_of(fields, f"launch of {launch.library}")
            except SpecError:
                return None, refused
    if refused:
        return None, refused
    rows = [*_moved_rows(launch, plan, changes), *_own_loss(launch), *_lost(launch)]
    return plan, rows


def _moved_rows(
    launch: Ported, plan: LaunchPlan, changes: Mapping[str, object]
) -> Iterator[PortRow]:
    was = dict(flatten(launch.fields))
    own = _entries_of_its_own(launch)
    for entry in plan.ledger:
        keys = _keys_of(launch, entry.field)
        target = f"{entry.key}={entry.value}" if entry.key else ""
        unheld = launch.undecided.get(entry.field, "")
        differs = entry.field in changes and not equal(was.get(entry.field), changes[entry.field])
        if unheld or differs:
            note = unheld or f"in place of {was.get(entry.field)}"
            note = f"chosen here, {note}"
            chosen = "; ".join(filter(None, (note, entry.note)))
            sources = _sources(launch, keys)
            yield PortRow("set", sources, entry.field, entry.value, target, chosen, is_other=True)
            continue
        before = own.get(entry.field)
        assumed = launch.assumed.get(entry.field, "")
        is_other = "approximated" in (entry.status, before.status if before else "")
        is_other = is_other or bool(keys and assumed)
        kind: Kind = "approximated" if is_other else "carried"
        own_note = f"in {launch.library}: {before.note}" if before and before.note else ""
        note = "; ".join(filter(None, (assumed, entry.note, own_note)))
        if not keys:
            if entry.field.startswith("backend.") or not (target or kind == "approximated"):
                continue
            kind = kind if kind == "approximated" else "set"
        yield PortRow(
            kind,
            _sources(launch, keys),
            entry.field,
            entry.value,
            target,
            note,
            is_other=is_other,
        )


def _entries_of_its_own(launch: Ported) -> dict[str, LedgerEntry]:
    """Return field -> what the launch's own library does with it, for fields of the loss."""
    fields = json.loads(json.dumps(launch.fields))
    if fields["data"].get("num_prompts") is None:  # OpenRLHF's steps are its prompts
        _put(fields, "data.num_prompts", fields["batch"]["num_prompts"])
    settings = settings_of(fields, f"launch of {launch.library}")
    try:
        plan = plugins.load(launch.library).translate(cell_of(settings), ANYWHERE)
    except UnsupportedSetting:
        return {}
    of_loss = ("advantage.", "kl.", "loss.")
    return {entry.field: entry for entry in plan.ledger if entry.field.startswith(of_loss)}


def _lost(launch: Ported) -> Iterator[PortRow]:
    for key, reason in launch.left.items():
        source, is_other = _written(key, launch.given[key]), key in launch.other
        yield PortRow("not carried", source, note=reason, is_other=is_other)
    yield from _assumed(launch)


def _assumed(launch: Ported) -> Iterator[PortRow]:
    """Yield a row for each field that is in no key of the launch."""
    flat = dict(flatten(launch.fields))
    for name in launch.assumed:
        if name in launch.of_field:
            continue
        note = f"{launch.assumed[name]}: check it"
        yield PortRow("set", "", name, flat.get(name), note=note, is_other=True)


def _keys_of(launch: Ported, name: str) -> tuple[str, ...]:
    """Return the keys of a field, of its section or of its parts."""
    return tuple(
        dict.fromkeys(
            key
            for field_, keys in launch.of_field.items()
            if field_ == name or field_.startswith(f"{name}.") or name.startswith(f"{field_}.")
            for key in keys
        )
    )


def _sources(launch: Ported, keys: tuple[str, ...]) -> str:
    return ", ".join(_written(key, launch.given[key]) for key in keys)


def _written(key: str, value: object) -> str:
    """Return a key and its value, without a secret of it."""
    return f"{key}={'null' if value is None else hide(value, key)}"


def _without_null(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_null(value) if isinstance(value, Mapping) else value
        for name, value in nested.items()
        if value is not None and value != {}
    }


def _spec_row(row: PortRow) -> str:
    named = row.field if row.value is None else f"{row.field}={row.value}"
    ways = " -> ".join(filter(None, (row.source, named)))
    return f"{row.kind}: {ways}" + (f" ({row.note})" if row.note else "")


def spec_text(launch: Ported, source: str) -> str:
    """Return a spec of one cell whose launch has the fields of a launch, with its rows on top."""
    plan, refused = moved(launch, launch.library, launch.version, {})
    head = [
        f"# From {source}, a launch of {launch.library} {launch.version}.",
        *(f"# {_spec_row(row)}" for row in rows_of_spec(launch)),
        *(f"# give {row.field}: {row.note}" for row in refused if plan is None),
        "# set: resources (the nodes and GPUs of a launch are not read: check them)",
    ]
    fields = _without_null(launch.fields)
    for name in launch.undecided:
        section, _, leaf = name.partition(".")
        fields.get(section, {}).pop(leaf, None)
    model, data = fields.pop("model"), fields.pop("data")
    fields.pop("backend")
    seed = fields.pop("seed", 0)
    body = {
        "defaults": [{"site": "auto"}, "_self_"],
        "name": name_of(source.rpartition(".")[0] or source),
        "question": f"What does {source} do?",
        "seeds": [seed],
        "model": model,
        "data": data,
        "backend": f"{launch.library}@{launch.version}",
        "base": {**fields, "resources": NODE.model_dump(include={"num_nodes", "gpus_per_node"})},
        "studies": {"ported": {}},
    }
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100)
    return "\n".join(head) + "\n" + text
