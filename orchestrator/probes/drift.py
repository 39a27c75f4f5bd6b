"""Compare two releases of a library for a cell: the launches and the mathematics.

Pure: the launches come from `translate`, the mathematics from the evidence of both releases.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UnsupportedSetting
from orchestrator.estimators import TABLE, entry
from orchestrator.probes import evidence
from orchestrator.probes.capability import Release, measurement, words
from orchestrator.probes.evidence import EstimatorCurve, curve_text
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import BackendRef, Kl

Translate = Callable[[Cell, AttemptPaths], LaunchPlan]
ChangeKind = Literal["renamed", "argument", "file", "refused", "offered", "objective", "ledger"]
"""`renamed`: another key, the same value. `objective`: as measured in the releases' own code."""

_MOST_CHANGES, _MOST_NAMES = 12, 4
"""Most changes, and most new names, of one group in `drift_lines`."""
_PLACE = AttemptPaths(Path("plan"), Path("attempt"), Path("checkpoints"))


@dataclass(frozen=True, slots=True)
class ReleaseChange:
    """One difference between the releases."""

    kind: ChangeKind
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Drift:
    """A group of cells that change in the same way, and the changes."""

    cells: tuple[Cell, ...]
    changes: tuple[ReleaseChange, ...]


def drift(
    cells: Sequence[Cell], before: Release, after: Release, translate: Translate
) -> list[Drift]:
    """Return cells grouped by their changes, whatever the values. Leave out unchanged cells."""
    groups: dict[tuple[object, ...], list[tuple[Cell, tuple[ReleaseChange, ...]]]] = {}
    for cell in cells:
        changed = tuple(changes(cell, before, after, translate))
        if changed:
            key = tuple(_kind_of(change) for change in changed)
            groups.setdefault(key, []).append((cell, changed))
    return [
        Drift(
            tuple(cell for cell, _ in members),
            tuple(map(_merged, zip(*(changed for _, changed in members), strict=True))),
        )
        for members in groups.values()
    ]


def _kind_of(change: ReleaseChange) -> object:
    """Return a key that is equal for like changes. Values of arguments may differ, as seeds do."""
    if change.kind in ("renamed", "argument", "file"):
        return change.kind, change.what
    return change


MOST_VALUES = 3


def _merged(same: Sequence[ReleaseChange]) -> ReleaseChange:
    """Return like changes of several cells as one change, with the values of all."""
    before, after = (
        list(dict.fromkeys(getattr(change, side) for change in same))
        for side in ("before", "after")
    )
    return ReleaseChange(same[0].kind, same[0].what, _some(before), _some(after))


def _some(values: Sequence[str]) -> str:
    more = len(values) - MOST_VALUES
    return " | ".join(values[:MOST_VALUES]) + (f" | {more} more" if more > 0 else "")


def changes(
    cell: Cell, before: Release, after: Release, translate: Translate
) -> Iterator[ReleaseChange]:
    """Yield every difference for one cell."""
    old, new = (_plan(cell, release, translate) for release in (before, after))
    if isinstance(old, str) and isinstance(new, str):
        return
    if isinstance(new, str):
        yield ReleaseChange("refused", "the cell", "accepted", new)
    elif isinstance(old, str):
        yield ReleaseChange("offered", "the cell", old, "accepted")
    else:
        texts = [_unversioned(plan, release) for plan, release in ((old, before), (new, after))]
        (argv, env, files), (argv_, env_, files_) = texts
        yield from _moved(argv, argv_)
        yield from _differing("argument", env, env_)
        yield from _differing("file", files, files_)
        yield from _differing("ledger", _ledger(old), _ledger(new))
        yield from _objectives(cell, before, after)
        yield from _mathematics(cell, before, after)


def code_changes(before: Release, after: Release) -> list[str]:
    """Return the probed functions whose text differs between the releases."""
    old, new = (evidence.read(*release) or {"sources": {}} for release in (before, after))
    shared = [name for name in old["sources"] if name in new["sources"]]
    return [
        name for name in shared if old["sources"][name]["sha256"] != new["sources"][name]["sha256"]
    ]


def drift_lines(drifts: Sequence[Drift], old: Release, new: Release, total: int) -> Iterator[str]:
    """Yield the changes of each group of cells in lines, then the number of cells that change.

    total: the number of cells that were compared.
    """
    name, other = "@".join(old), "@".join(new)
    for group in drifts:
        labels = dict.fromkeys(cell.settings.kl.label for cell in group.cells)
        yield f"{len(group.cells)} of {total} cells ({', '.join(labels)}):"
        renamed = [change.what for change in group.changes if change.kind == "renamed"]
        rest = [change for change in group.changes if change.kind != "renamed"]
        if renamed:
            shown = ", ".join(renamed[:_MOST_NAMES]) + (", ..." if renamed[_MOST_NAMES:] else "")
            have = "1 argument has" if len(renamed) == 1 else f"{len(renamed)} arguments have"
            yield f"  {have} another name, and the same value: {shown}"
        for change in rest[:_MOST_CHANGES]:
            yield f"  {change.kind}: {change.what}"
            yield f"    {name}: {change.before}"
            yield f"    {other}: {change.after}"
        if len(rest) > _MOST_CHANGES:
            yield f"  and {len(rest) - _MOST_CHANGES} more (--json lists them)"
    if not drifts:
        yield f"nothing changes for {total} cells from {name} to {other}"
        return
    changed = sum(len(group.cells) for group in drifts)
    meant = _num_cells_with(drifts, "objective") or "none"
    yield (
        f"{changed} of {total} cells change from {name} to {other}; what was measured of the "
        f"mathematics changes for {meant} of them"
    )


def rewritten_text(functions: Sequence[str]) -> str:
    """Return a sentence on functions of the library whose code differs between the releases."""
    were = "1 function was" if len(functions) == 1 else f"{len(functions)} functions were"
    return (
        f"{were} rewritten between the releases, and measure the same unless "
        f"a line above says otherwise: {', '.join(functions)}"
    )


def drift_data(
    drifts: Sequence[Drift], old: Release, new: Release, total: int, rewritten: Sequence[str]
) -> dict[str, Any]:
    """Return the same as plain data, with every change."""
    return {
        "from": "@".join(old),
        "to": "@".join(new),
        "cells": total,
        "changed": sum(len(group.cells) for group in drifts),
        "objective_changed": _num_cells_with(drifts, "objective"),
        "rewritten": rewritten,
        "groups": [
            {
                "cells": [{"id": cell.id, "slug": cell.slug} for cell in group.cells],
                "changes": [asdict(change) for change in group.changes],
            }
            for group in drifts
        ],
    }


def _num_cells_with(drifts: Sequence[Drift], kind: ChangeKind) -> int:
    return sum(
        len(group.cells) for group in drifts if any(each.kind == kind for each in group.changes)
    )


def _plan(cell: Cell, release: Release, translate: Translate) -> LaunchPlan | str:
    library, version = release
    backend = BackendRef(name=library, version=version)
    # Keep the cell's id: it names folders in the launch, and the version alone would change it.
    moved = cell.model_copy(
        update={"settings": cell.settings.model_copy(update={"backend": backend})}
    )
    try:
        return translate(moved, _PLACE)
    except UnsupportedSetting as error:
        return str(error)


def _unversioned(plan: LaunchPlan, release: Release) -> list[dict[str, str]]:
    """Return arguments, environment and files, with `VERSION` where they name the release."""
    version = release[1]
    return [
        {key: value.replace(version, "VERSION") for key, value in each.items()}
        for each in (arguments(plan.argv), dict(plan.env), _files(plan))
    ]


def _moved(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[ReleaseChange]:
    """Yield changed arguments, the renamed ones first: equal values under similar names."""
    removed = {key: value for key, value in old.items() if key not in new}
    added = {key: value for key, value in new.items() if key not in old}
    renamed: dict[str, str] = {}
    pairs = [
        (_likeness(key, other, removed, added), key, other)
        for key, value in removed.items()
        for other, moved in added.items()
        if value == moved
    ]
    for likeness, key, other in sorted(pairs, reverse=True):
        if likeness > LIKE and key not in renamed and other not in renamed.values():
            renamed[key] = other
    for key in sorted(renamed):
        yield ReleaseChange(
            "renamed", f"{key} -> {renamed[key]}", _shortened(old[key]), _shortened(old[key])
        )
    kept = {key: value for key, value in old.items() if key not in renamed}
    rest = {key: value for key, value in new.items() if key not in renamed.values()}
    yield from _differing("argument", kept, rest)


LIKE = 0.4
"""Two names less similar than this, from 0 to 1, are different settings with an equal value."""


def _likeness(key: str, other: str, removed: Mapping[str, str], added: Mapping[str, str]) -> float:
    """Return the similarity of two names of one value, 0 to 1; 1 if no other name has the value."""
    value = removed[key]
    alone = [list(each.values()).count(value) for each in (removed, added)] == [1, 1]
    # A short value, such as 1, may be equal by chance.
    return 1.0 if alone and len(value) > 3 else SequenceMatcher(None, key, other).ratio()


def arguments(argv: Sequence[str]) -> dict[str, str]:
    """Return key=value and `--flag value ...` by key; arguments without a key by position."""
    values: dict[str, str] = {}
    flag = ""
    for index, word in enumerate(argv):
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            values[flag] = value
        elif flag:
            values[flag] = f"{values[flag]} {word}".strip()
        elif "=" in word:
            key, _, value = word.partition("=")
            values[key.lstrip("+")] = value
        else:
            values[f"word {index + 1}"] = word
    return values


def _files(plan: LaunchPlan) -> dict[str, str]:
    """Return the settings of every file by key. A file without keys is one entry, its text."""
    texts: dict[str, str] = {}
    for name, text in plan.files.items():
        tree = _tree(name, text)
        if tree is None:
            texts[name] = text
        else:
            texts.update((f"{name}: {key}", value) for key, value in _leaves(tree))
    return texts


def _tree(name: str, text: str) -> Mapping[str, Any] | None:
    try:
        if name.endswith(".toml"):
            return tomllib.loads(text)
        data = json.loads(text) if name.endswith(".json") else None
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        where = f"{at}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from _leaves(value, where)
        else:
            yield where, json.dumps(value)


def _ledger(plan: LaunchPlan) -> dict[str, str]:
    """Return status and note of each field, except the version's own."""
    return {
        entry.field: entry.status + (f": {entry.note}" if entry.note else "")
        for entry in plan.ledger
        if not entry.field.startswith("backend.")
    }


def _differing(
    kind: ChangeKind, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[ReleaseChange]:
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield ReleaseChange(kind, key, _shortened(old.get(key)), _shortened(new.get(key)))


def _shortened(value: str | None) -> str:
    if value is None:
        return "(absent)"
    return value if len(value) <= 200 else f"{len(value)} characters"


def _objectives(cell: Cell, before: Release, after: Release) -> Iterator[ReleaseChange]:
    """Yield the change of the measured objective of the cell's KL term, if it changed."""
    kl = cell.settings.kl
    if kl.placement is None:
        return
    old, new = (measurement(*release, kl, on_policy(cell)) for release in (before, after))
    a, b = words(old), words(new)
    if a != b:
        yield ReleaseChange("objective", "what its KL term optimises", a, b)


def _mathematics(cell: Cell, before: Release, after: Release) -> Iterator[ReleaseChange]:
    """Yield changes of how the KL enters, of its bounds and of its weights, as measured."""
    kl, settings = cell.settings.kl, cell.settings
    if kl.placement is None:
        return
    old, new = (evidence.read(*release) for release in (before, after))
    if old is None or new is None:
        return
    parts: list[tuple[str, str, str]] = [
        ("loss", settings.loss.aggregation, "how the loss is averaged")
    ]
    if kl.placement != "loss":
        parts.append(("reward", settings.advantage.estimator, "how its KL enters the advantage"))
    for part, name, what in parts:
        a, b = (_plain(each[part].get(name, {})) for each in (old, new))
        if a != b:
            yield ReleaseChange("objective", what, a, b)
    shared = set(_curves(old, kl)) & set(_curves(new, kl))
    for name in sorted(shared):
        a, b = _curves(old, kl)[name], _curves(new, kl)[name]
        if a != b:
            yield ReleaseChange("objective", f"value, gradient and bounds of {name}", a, b)
    a, b = (str(each["ratio"]["flat_above"]) for each in (old, new))
    if a != b and not on_policy(cell):
        yield ReleaseChange(
            "objective", "log-ratio from which the policy loss has no gradient", a, b
        )


def _plain(measured: Mapping[str, Any]) -> str:
    kept = {k: v for k, v in measured.items() if k not in evidence.VOLATILE and k != "refused"}
    return ", ".join(f"{key}={value}" for key, value in kept.items()) or "refused"


def _curves(measured: Mapping[str, Any], kl: Kl) -> dict[str, str]:
    """Return name -> its measured curve in words, for names with the value of the cell's estimator.

    Only names in a place where the cell has its KL count.
    """
    plain = entry(kl.estimator).base if kl.estimator in TABLE else ""
    return {
        f"{each['name']} in the {each['place']}": curve_text(EstimatorCurve(**_fields(each)))
        for each in measured["names"]
        if each.get("value") == plain and each["place"] in str(kl.placement)
    }


def _fields(name: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in name.items() if key not in ("place", "name")}


def on_policy(cell: Cell) -> bool:
    """Return True for one minibatch a batch and no staleness."""
    return cell.settings.batch.num_minibatches == 1 and not cell.settings.max_staleness_steps
