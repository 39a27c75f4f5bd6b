"""Compare the objective of a launch script on two releases of a library.

Pure: audit the script on each release, and compare the findings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.audit import AuditFinding, audit
from orchestrator.audit.render import headline
from orchestrator.library.launches import InLoss, InReward


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
