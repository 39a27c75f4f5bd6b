"""Compare two releases of a library: for the cells of a spec, and for a launch script.

For a cell the launches come from `translate`, the mathematics from the evidence of both releases. A
script is audited on both releases, and the findings are compared.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, NamedTuple

from orchestrator import plugins
from orchestrator.audit import AuditFinding, audit
from orchestrator.audit.documents import yaml_document, yaml_node
from orchestrator.audit.libraries import NeighbourFiles
from orchestrator.audit.libraries import versions as releases_around
from orchestrator.audit.render import headline
from orchestrator.errors import SelectionError, UnsupportedSetting
from orchestrator.estimators import TABLE, entry
from orchestrator.evidence import stored
from orchestrator.evidence.capabilities import measurement
from orchestrator.evidence.cells import Release
from orchestrator.evidence.stored import curve_of, curve_text, objective_text
from orchestrator.identity import flatten
from orchestrator.library.launches import InLoss, InReward, UnreadableScript
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import BackendRef, Kl
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.select import matches, parse

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


def cells_of_library(
    library: str, spec: str, overrides: Sequence[str], where: Sequence[str]
) -> tuple[list[Cell], str]:
    """Return the declared cells of a spec that name a library; all cells if none names it.

    The text is empty, or says that all were taken. Raise SelectionError if `where` selects none.
    """
    declared = expand(load(Path(spec), overrides))
    cells = [cell for cell in declared if cell.settings.backend.name == library]
    note = ""
    if not cells:
        note = f"no cell of {spec} asks for {library}: all {len(declared)} are taken as if they did"
        cells = declared
    selection = parse(where)
    chosen = [cell for cell in cells if matches(selection, cell)]
    if not chosen:
        raise SelectionError(f"--where {' '.join(where)} selects none of {len(cells)} cells")
    return chosen, note


def code_changes(before: Release, after: Release) -> list[str]:
    """Return the probed functions whose text differs between the releases."""
    old, new = (stored.read(*release) or {"sources": {}} for release in (before, after))
    shared = [name for name in old["sources"] if name in new["sources"]]
    return [
        name for name in shared if old["sources"][name]["sha256"] != new["sources"][name]["sha256"]
    ]


def refused_by_both(
    cells: Sequence[Cell], before: Release, after: Release, translate: Translate
) -> dict[str, str]:
    """Return slug -> the reason for each cell that neither release accepts: it is not compared."""
    refused = {}
    for cell in cells:
        old, new = (_plan(cell, each, translate) for each in (before, after))
        if isinstance(old, str) and isinstance(new, str):
            refused[cell.slug] = new
    return refused


def drift_lines(
    drifts: Sequence[Drift], old: Release, new: Release, total: int, not_run: Sequence[str]
) -> Iterator[str]:
    """Yield the changes of each group of cells in lines, then the number of cells that change.

    total: the number of cells that were compared. not_run: as in `_nothing`.
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
        yield _nothing(f"{total} cells", old, new, not_run)
        return
    changed = sum(len(group.cells) for group in drifts)
    meant = _num_cells_with(drifts, "objective") or "none"
    yield (
        f"{changed} of {total} cells change from {name} to {other}; what was measured of the "
        f"mathematics changes for {meant} of them"
    )


def _nothing(
    of_what: str, old: Release, new: Release, not_run: Sequence[str], other: Sequence[str] = ()
) -> str:
    """Return the sentence on launches whose keys, defaults and measured objective are the same.

    not_run: functions around the loss with another code, that orch has not run in both releases.
    other: measurements of functions of the launch with other results.
    """
    between = f"{of_what} from {'@'.join(old)} to {'@'.join(new)}"
    doubts = []
    if other:
        doubts.append(f"the library's code gives other numbers for {', '.join(other)}")
    if not_run:
        doubts.append(f"orch has not run functions with other code: {', '.join(not_run)}")
    if not doubts:
        return f"nothing changes for {between}"
    return f"the settings of {between} mean the same, but {'; '.join(doubts)}"


def rewritten_text(functions: Sequence[str]) -> str:
    """Return a sentence on functions of the library whose code differs between the releases."""
    were = "1 function was" if len(functions) == 1 else f"{len(functions)} functions were"
    return (
        f"{were} rewritten between the releases, and measure the same unless "
        f"a line above says otherwise: {', '.join(functions)}"
    )


def drift_data(
    drifts: Sequence[Drift],
    old: Release,
    new: Release,
    total: int,
    rewritten: Sequence[str],
    not_run: Sequence[str],
) -> dict[str, Any]:
    """Return the same as plain data, with every change."""
    return {
        "from": "@".join(old),
        "to": "@".join(new),
        "cells": total,
        "changed": sum(len(group.cells) for group in drifts),
        "objective_changed": _num_cells_with(drifts, "objective"),
        "rewritten": rewritten,
        "rewritten_and_unmeasured": not_run,
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
            texts.update((f"{name}: {key}", json.dumps(value)) for key, value in flatten(tree))
    return texts


def _tree(name: str, text: str) -> Mapping[str, Any] | None:
    try:
        if name.endswith(".toml"):
            return tomllib.loads(text)
        data = json.loads(text) if name.endswith(".json") else None
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


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
    a, b = objective_text(old), objective_text(new)
    if a != b:
        yield ReleaseChange("objective", "what its KL term optimises", a, b)


def _mathematics(cell: Cell, before: Release, after: Release) -> Iterator[ReleaseChange]:
    """Yield changes of how the KL enters, of its bounds and of its weights, as measured."""
    kl, settings = cell.settings.kl, cell.settings
    if kl.placement is None:
        return
    old, new = (stored.read(*release) for release in (before, after))
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
    kept = {k: v for k, v in measured.items() if k not in stored.VOLATILE and k != "refused"}
    return ", ".join(f"{key}={value}" for key, value in kept.items()) or "refused"


def _curves(measured: Mapping[str, Any], kl: Kl) -> dict[str, str]:
    """Return name -> its measured curve in words, for names with the value of the cell's estimator.

    Only names in a place where the cell has its KL count.
    """
    plain = entry(kl.estimator).base if kl.estimator in TABLE else ""
    return {
        f"{each['name']} in the {each['place']}": curve_text(curve_of(each))
        for each in measured["names"]
        if each.get("value") == plain and each["place"] in str(kl.placement)
    }


def on_policy(cell: Cell) -> bool:
    """Return True for one minibatch a batch and no staleness."""
    return cell.settings.batch.num_minibatches == 1 and not cell.settings.max_staleness_steps


# A launch script on two releases.


@dataclass(frozen=True, slots=True)
class ScriptChange:
    """The difference between two releases for one launch.

    `objective`: True if the KL term or its gradient changes; False if only the rest of the loss
    changes. `because`: the keys that the launch does not set, with both defaults. Without such
    keys: the rules of the new release that the old release does not have.
    """

    line: int
    case: str | None
    objective: bool
    before: str
    after: str
    because: tuple[str, ...]
    refused: tuple[str, ...]
    """The faults that the new release finds in keys that the old one accepted."""


def is_script(path: str) -> bool:
    """Return True if a file is no spec: by its suffix, or as YAML without a spec's keys."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return file.suffix in (".sh", ".bash", ".slurm", ".sbatch", ".py", ".toml")
    try:
        node = yaml_node(file.read_text(encoding="utf-8", errors="replace"))
        keys = {key.partition(".")[0] for key in yaml_document(node, path).values}
    except UnreadableScript:
        return False
    return not keys & {"studies", "study", "question", "recipe", "defaults"}


class ScriptDrift(NamedTuple):
    """What a new release changes for the launches of a script."""

    changes: list[ScriptChange]
    num_launches: int
    assumes: tuple[str, ...]
    """What was taken for granted of releases without a table of keys."""
    not_compared: tuple[str, ...] = ()
    """A sentence for each launch that could not be compared."""


def script_drift(path: str, old: Release, new: Release) -> ScriptDrift:
    """Return what changes for a file from one release of a library to another.

    Raise SelectionError if the file does not exist or starts nothing of the library, if orch does
    not read its scripts, or if no launch of it could be compared.
    """
    library, script = old[0], Path(path)
    if library not in plugins.readers():
        known = ", ".join(plugins.readers())
        raise SelectionError(f"orch reads no scripts of '{library}' (it reads: {known})")
    if not script.is_file():
        raise SelectionError(f"there is no file {path}")
    text = script.read_text(encoding="utf-8", errors="replace")
    files, versions = NeighbourFiles(script), releases_around(script)
    result = script_changes(text, path, files, versions, (old, new))
    if not result.num_launches:
        raise SelectionError(f"{path} starts nothing of {library}")
    if result.assumes:
        taken = "; ".join(result.assumes)
        raise SelectionError(f"nothing was compared: one would take for granted that {taken}")
    if len(result.not_compared) == result.num_launches:
        raise SelectionError(f"nothing was compared: {'; '.join(result.not_compared)}")
    return result


def script_drift_data(
    drift: ScriptDrift, old: Release, new: Release, not_run: Sequence[str], other: Sequence[str]
) -> dict[str, object]:
    """Return the drift of a script as plain data."""
    return {
        "from": "@".join(old),
        "to": "@".join(new),
        "launches": drift.num_launches,
        "changed": [asdict(each) for each in drift.changes],
        "not_compared": drift.not_compared,
        "other_results": other,
        "rewritten_and_unmeasured": not_run,
    }


def script_drift_lines(
    drift: ScriptDrift,
    path: str,
    old: Release,
    new: Release,
    not_run: Sequence[str],
    other: Sequence[str],
) -> Iterator[str]:
    """Yield the drift of a script in lines for a person."""
    for each in drift.changes:
        where = f"{path}:{each.line}{f' ({each.case})' if each.case else ''}"
        what = "the objective of this launch" if each.objective else "what surrounds the KL"
        yield f"{where}: {what} changed"
        yield f"  from {each.before}\n  to   {each.after}"
        yield from (f"  because {why}" for why in each.because)
        yield from (f"  {new[1]}: {refused}" for refused in each.refused)
    yield from (f"not compared: {why}" for why in drift.not_compared)
    if not drift.changes:
        count = drift.num_launches - len(drift.not_compared)
        launches = "1 launch" if count == 1 else f"{count} launches"
        yield _nothing(launches, old, new, not_run, other)


def script_changes(
    text: str,
    name: str,
    files: Mapping[str, str],
    versions: Mapping[str, str],
    releases: tuple[Release, Release],
) -> ScriptDrift:
    """Return what changes between two releases for the launches in a text.

    Raise UnreadableScript for a file without launches.
    """
    (library, old), (_, new) = releases
    before, after = (
        [
            each
            for each in audit(
                text, name, files=files, versions={**versions, library: f"{version} asked for"}
            )
            if each.library == library
        ]
        for version in (old, new)
    )
    keyed = {(each.line, each.case): each for each in after}
    changes, not_compared = [], []
    for finding in before:
        other = keyed.get((finding.line, finding.case)) or next(
            (each for each in after if each.line == finding.line), None
        )
        change = None if other is None else _change(finding, other, old, new)
        where = f"the launch of line {finding.line}"
        if change is not None:
            changes.append(change)
        elif other is None:
            not_compared.append(f"{where} is none of {library} {new}")
        elif finding.verdict == other.verdict == "undetermined":
            not_compared.append(f"{where} is not determined on either release: {finding.why}")
    taken = dict.fromkeys(
        why
        for each in (*before, *after)
        for why in each.assumes
        if "of which orch has no table" in why or "has a table of" in why
    )
    return ScriptDrift(changes, len(before), tuple(taken), tuple(not_compared))


def _change(before: AuditFinding, after: AuditFinding, old: str, new: str) -> ScriptChange | None:
    objective = _objective(before) != _objective(after)
    known_keys = {each.key for each in before.key_findings}
    refused = tuple(each.text for each in after.key_findings if each.key not in known_keys)
    around = [each.text for each in before.effects] != [each.text for each in after.effects]
    if not objective and not around and not refused:
        return None
    return ScriptChange(
        before.line,
        before.case,
        objective,
        _summary(before),
        _summary(after),
        tuple(_because(before, after, old, new))
        or tuple(_other_rules(before, after))
        or (() if objective else tuple(_other_effects(before, after, old, new))),
        refused,
    )


def _objective(finding: AuditFinding) -> tuple[str, InReward, InLoss]:
    return finding.verdict, finding.kl_in_reward, finding.kl_in_loss


def _summary(finding: AuditFinding) -> str:
    """Return a finding in words: its KL terms and their objective."""
    terms = [
        f"{term.estimator} in the {place}, β = {term.beta:g}: "
        for place, term in (("reward", finding.kl_in_reward), ("loss", finding.kl_in_loss))
        if term.active and term.estimator and term.beta is not None
    ]
    return f"{' and '.join(terms)}{headline(finding)}"


def _because(before: AuditFinding, after: AuditFinding, old: str, new: str) -> Iterator[str]:
    """Yield a sentence for each key that the launch does not set and whose default differs."""
    old_settings = {each.key: each for each in before.settings}
    for setting in after.settings:
        was = old_settings.get(setting.key)
        if setting.lines or (was is not None and (was.lines or was.value == setting.value)):
            continue
        value = was.value if was is not None else None
        earlier = f"{value or 'unset'} in {old}" if value is not None else f"not there in {old}"
        yield f"{setting.key} is {setting.value or 'unset'} by default in {new} ({earlier})"
    for key, was in old_settings.items():
        if not was.lines and all(each.key != key for each in after.settings):
            yield f"{key} decided in {old} ({was.value or 'unset'} by default), and not in {new}"


def _other_rules(before: AuditFinding, after: AuditFinding) -> Iterator[str]:
    """Yield the rules of the new release that the old release does not have."""
    old_rules = {each.text for each in before.rules}
    for each in after.rules:
        if each.text not in old_rules:
            yield each.text


def _other_effects(before: AuditFinding, after: AuditFinding, old: str, new: str) -> Iterator[str]:
    """Yield the effects of the rest of the loss that one release has and the other has not."""
    for release, has, lacks in ((old, before, after), (new, after, before)):
        others = {each.text for each in lacks.effects}
        yield from (f"of {release}: {e.text}" for e in has.effects if e.text not in others)
