"""Releases of libraries that changed the objective: of one launch script, and on docs/drift.md.

A script is audited on both releases, and the findings are compared. The page docs/drift.md shows
measurements for libraries that orch drives: the evidence of each release, and a backend's
defaults.json. For libraries that orch only audits, it shows the audit of a launch in each release.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.audit import AuditFinding, audit
from orchestrator.audit.documents import yaml_document, yaml_node
from orchestrator.audit.render import headline
from orchestrator.estimators import TABLE
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.library.launches import InLoss, InReward, UnreadableScript
from orchestrator.library.releases import numbers
from orchestrator.probes import defaults, evidence
from orchestrator.probes.capability import Release, words


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


def script_changes(
    text: str,
    name: str,
    files: Mapping[str, str],
    versions: Mapping[str, str],
    releases: tuple[tuple[str, str], tuple[str, str]],
) -> tuple[list[ScriptChange], int, tuple[str, ...]]:
    """Return the changes, the number of launches of the library, and assumptions.

    The assumptions are about releases without a table of keys. Raise UnreadableScript for a file
    without launches.
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
    changes = []
    for finding in before:
        other = keyed.get((finding.line, finding.case)) or next(
            (each for each in after if each.line == finding.line), None
        )
        if other is not None and (change := _change(finding, other, old, new)) is not None:
            changes.append(change)
    taken = dict.fromkeys(
        why for each in (*before, *after) for why in each.assumes if "has no table" in why
    )
    return changes, len(before), tuple(taken)


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
        tuple(_because(before, after, old, new)) or tuple(_other_rules(before, after)),
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


HEAD = """# Where a release changed the objective

This page is made by `orch matrix --format drift`; nothing on it was typed in. The same launch,
run on two releases of a library, may optimise two things. `orch drift SCRIPT --from
LIBRARY@VERSION --to LIBRARY@VERSION` says so of a script of yours.

Gradients are measured: the library's own functions, taken from each release's source, in double
precision on the CPU, over every sequence of a model whose gradients are known exactly. They are the
expected gradients in that model's two parameters, per unit of β.
"""
SAID = {"nothing": "a launch that says nothing of KL", "beta": "with β alone"}
REGIMES = {"on_policy": "on-policy", "off_policy": "on samples of an older policy"}


def page(drives: Sequence[Release]) -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    kept = {library: defaults.read(library) for library in plugins.names()}
    parts += [
        "\n".join(_of_defaults(plugins.load(library).title, measured))
        for library, measured in kept.items()
        if measured
    ]
    parts.append("## Releases that orch drives\n")
    parts += ["\n".join(f"- {line}" for line in _of_evidence(drives))]
    read = [line for name in plugins.readers() for line in _of_reader(name)]
    if read:
        parts.append("## Read, not measured\n")
        parts.append("The audit's reading of one launch, release by release.\n")
        parts.append("\n".join(f"- {line}" for line in read))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


# -------------------------------------------------------------------- releases with defaults.json


def _of_defaults(title: str, releases: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}: {len(releases)} releases\n"
    spans: list[list[str]] = []
    for version, each in releases.items():
        if spans and _statement(releases[spans[-1][-1]]) == _statement(each):
            spans[-1].append(version)
        else:
            spans.append([version])
    keys = list(next(iter(releases.values()))["defaults"])
    head = [
        *(f"`{key}`" for key in keys),
        *SAID.values(),
        "the same, on samples of an older policy",
    ]
    yield _row(["releases", *head])
    yield _row(["---"] * (len(head) + 1))
    for span in spans:
        last = releases[span[-1]]
        objectives = [_words(last[default]["on_policy"]) for default in SAID]
        name = span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}"
        settings = [_plain(last["defaults"].get(key)) for key in keys]
        yield _row([name, *settings, *objectives, _words(last["beta"]["off_policy"])])
    yield ""
    for before, after in pairwise(spans):
        yield from _measured_changes(before[-1], after[0], releases[before[-1]], releases[after[0]])
    yield ""


def _statement(each: Mapping[str, Any]) -> object:
    """Return the objectives and defaults of a release. Releases with equal ones share a row."""
    objectives = [_words(each[default][regime]) for default in SAID for regime in REGIMES]
    return objectives, each["defaults"]


def _measured_changes(
    old: str, new: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[str]:
    defaults_ = [
        f"`{key}` was {_plain(before['defaults'].get(key))} and is {_plain(value)}"
        for key, value in after["defaults"].items()
        if before["defaults"].get(key) != value
    ]
    because = f" ({'; '.join(defaults_)})" if defaults_ else ""
    lines = []
    for default, label in SAID.items():
        for regime, where in REGIMES.items():
            was, now = before[default][regime], after[default][regime]
            if _words(was) != _words(now):
                lines.append(
                    f"  - {label}, {where}: {_words(was)} → **{_words(now)}**; gradient "
                    f"{_vector(was)} → {_vector(now)}"
                )
    headline = "the objective changes" if lines else "no objective changes on the measured launches"
    yield f"- **{old} → {new}**: {headline}{because}"
    yield from lines


def _words(each: Mapping[str, Any]) -> str:
    """Return a measured objective in words, or `nothing` for a KL whose gradient is zero."""
    return "nothing" if each.get("objective") == ObjectiveKind.ZERO else words(each)


def _vector(each: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{x:.4g}' for x in each['gradient'])})" if "gradient" in each else "-"


def _plain(value: object) -> str:
    return "not there" if value is None else str(value)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# ---------------------------------------------------------------------- releases that orch drives


def _of_evidence(drives: Sequence[Release]) -> Iterator[str]:
    """Yield a sentence for each pair of neighbouring releases that were measured."""
    for library in dict.fromkeys(name for name, _ in drives):
        versions = [v for name, v in drives if name == library and evidence.read(library, v)]
        known = sorted(versions, key=numbers)
        for old, new in pairwise(known):
            yield _pair(library, old, new)


def _pair(library: str, old: str, new: str) -> str:
    before, after = (evidence.read(library, version) or {} for version in (old, new))
    differences = []
    if before["silent"] != after["silent"]:
        differences.append(f"a launch that says nothing: {before['silent']} → {after['silent']}")
    cells = [_by_term(each["cells"]) for each in (before, after)]
    both = [key for key in cells[0] if key in cells[1]]
    for key in both:
        was, now = cells[0][key], cells[1][key]
        if words(was) != words(now):
            estimator, place, on = key
            regime = "on-policy" if on else "off-policy"
            symbol = TABLE[estimator].symbol if estimator in TABLE else estimator
            differences.append(
                f"{symbol} in the {place}, {regime}: {words(was)} → **{words(now)}**; gradient "
                f"{_first(was)} → {_first(now)}"
            )
    same = f"none of the {len(both)} KL terms that were measured in both has another objective"
    sentence = "; ".join(differences) or (
        same if both else "what a launch does that says nothing is the same"
    )
    return f"**{library} {old} → {new}**: {sentence}"


def _by_term(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, bool], Any]:
    return {
        (each["estimator"], each["placement"], each["on_policy"]): each
        for each in cells
        if "objective" in each and each["placement"]
    }


def _first(each: Mapping[str, Any]) -> str:
    return _vector({"gradient": each["gradient"][0]})


# ------------------------------------------------------------------------ libraries that are read


def _of_reader(library: str) -> Iterator[str]:
    """Yield the changes that the audit finds in a reader's example launches, if it has any."""
    reader = plugins.load_reader(library)
    launches: Mapping[str, str] = getattr(reader, "drift_launches", {})
    versions: Sequence[str] = getattr(reader, "drift_releases", ())
    for label, text in launches.items():
        for old, new in pairwise(versions):
            changes, _, _ = script_changes(
                text, "launch.sh", {}, {}, ((library, old), (library, new))
            )
            for each in changes:
                if each.objective:
                    why = f" ({'; '.join(each.because)})" if each.because else ""
                    yield (
                        f"**{reader.title} {old} → {new}**, {label}: {each.before} → "
                        f"**{each.after}**{why}"
                    )
