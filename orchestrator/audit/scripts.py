"""Compare two launch scripts: `orch compare --configs a.sh b.sh`.

orchestrator.audit reads each script. A table lists the differences: of the settings, and of the
dialects of their libraries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.audit import UnreadableScript, audit, libraries
from orchestrator.audit.judge import AuditFinding
from orchestrator.errors import EnvironmentFault, SelectionError
from orchestrator.kl.library_semantics import (
    DIFFERENCES,
    Dialect,
    describe,
    differing,
)
from orchestrator.library.key_tables import nearest, version_tuple
from orchestrator.library.launches import InLoss, InReward

LARGEST_BYTES = 2_000_000
"""Maximum number of bytes that are read from a script."""


@dataclass(frozen=True)
class Script:
    """A launch of a script, with the dialect of its release or the nearest release that orch knows.

    dialect: None for a library or a fork that orch can only audit.
    """

    name: str
    finding: AuditFinding
    dialect: Dialect | None
    notes: tuple[str, ...]


def read_script(path: str, pinned: Mapping[str, str] | None = None) -> Script:
    """Return the launch of a script in its usual case. Also read files in its folder.

    pinned: library -> release, for scripts that do not name one. Raise EnvironmentFault for a file
    that cannot be read, and SelectionError for a file without a launch.
    """
    file = Path(path)
    try:
        text = file.read_bytes()[:LARGEST_BYTES].decode(errors="replace")
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        around = libraries.versions(file) | dict(pinned or {})
        findings = audit(text, path, files=libraries.NeighbourFiles(file), versions=around)
    except UnreadableScript as error:
        raise SelectionError(f"{path}: {error}") from error
    usual = ([finding for finding in findings if finding.usual] or findings)[0]
    notes = []
    if len(findings) > 1:
        notes.append(
            f"{path} holds {len(findings)} launches or cases: the one of line {usual.line} is used"
        )
    dialect, note = _dialect(usual)
    notes += [f"{file.stem}: {each}" for each in (*([note] if note else []), *usual.notes)]
    return Script(file.stem, usual, dialect, tuple(notes))


def _dialect(finding: AuditFinding) -> tuple[Dialect | None, str]:
    """Return the dialect of a launch's library, and a note if it is another release's.

    The dialect is None for a library that orch can only audit, and for a fork without a release.
    The note then gives the reason.
    """
    title = plugins.load_reader(finding.library).title
    if finding.library not in plugins.names() or not finding.version[:1].isdigit():
        name = title if finding.library not in plugins.names() else finding.version
        return None, (
            f"orch reads launches of {name} and does not drive it: the table holds what its reader "
            "knows, and no clamps, denominators and precisions"
        )
    backend = plugins.load(finding.library)
    known = sorted(backend.versions, key=version_tuple)
    version = known[nearest(known, finding.version)]
    semantics = backend.semantics(version)
    dialect = semantics.native or semantics.dialect
    if version == finding.version:
        return dialect, ""
    return dialect, (
        f"orch has no facts of the mathematics of {finding.library} {finding.version} "
        f"({finding.version_because}); it is taken for {version}"
    )


def read_pair(
    left: str, right: str, pinned: Mapping[str, str] | None = None
) -> tuple[Script, Script]:
    """Return two scripts. Their names are their full paths if their file names are equal."""
    scripts = read_script(left, pinned), read_script(right, pinned)
    if scripts[0].name != scripts[1].name:
        return scripts
    return replace(scripts[0], name=str(Path(left))), replace(scripts[1], name=str(Path(right)))


def script_differences(left: Script, right: Script) -> list[dict[str, str]]:
    """Return what, left and right of each difference, in settings and in libraries' dialects."""
    rows = [
        (
            "library",
            f"{left.finding.library} {left.finding.version}",
            f"{right.finding.library} {right.finding.version}",
        ),
        *((what, text(left.finding), text(right.finding)) for what, text in _FIELDS.items()),
        *(
            (DIFFERENCES[cause].title, describe(one, cause), describe(other, cause))
            for one, other in _dialects(left, right)
            for cause in differing(one, other)
        ),
    ]
    return [{"what": what, "left": a, "right": b} for what, a, b in rows if a != b]


def unverified_differences(left: Script, right: Script) -> list[str]:
    """Return a sentence for each difference that was read in a library's source and never run."""
    causes = [
        DIFFERENCES[cause]
        for one, other in _dialects(left, right)
        for cause in differing(one, other)
    ]
    return [
        f"{cause.title}, not compared: {cause.not_compared}"
        for cause in causes
        if cause.not_compared
    ]


def _dialects(left: Script, right: Script) -> list[tuple[Dialect, Dialect]]:
    """Return a list with the pair of dialects, or an empty list if one of them is not known."""
    if left.dialect is None or right.dialect is None:
        return []
    return [(left.dialect, right.dialect)]


def scripts_data(left: Script, right: Script) -> dict[str, Any]:
    """Return the data that `orch compare --configs --json` prints, also used for its text."""
    return {
        "left": left.name,
        "right": right.name,
        "differences": script_differences(left, right),
        "why": {script.name: script.finding.why for script in (left, right)},
        "notes": [*left.notes, *right.notes, *unverified_differences(left, right)],
    }


def _term(finding: AuditFinding, term: InReward | InLoss) -> str:
    """Return a term in words. For an undetermined launch, add the release that was assumed."""
    if term.active is None:
        return "not known"
    text = "none"
    if term.active:
        beta = "not known" if term.beta is None else term.beta
        text = f"{term.estimator or 'an estimator not known'}, β={beta}"
    if finding.verdict == "undetermined":
        return f"not determined: {text} in {finding.version}, see below"
    return text


def _samples(finding: AuditFinding) -> str:
    words = {True: "of the policy itself", False: "of an older policy", None: "not known"}
    return words[finding.regime.on_policy]


_FIELDS: Mapping[str, Callable[[AuditFinding], str]] = {
    "KL in the reward, as asked": lambda f: _term(f, f.in_reward),
    "KL in the loss, as asked": lambda f: _term(f, f.in_loss),
    "advantage": lambda f: f.advantage_estimator or "not known",
    "group": lambda f: "not known" if f.group_size is None else str(f.group_size),
    "KL to the rollout policy": lambda f: "none" if not f.rollout_kl else f"{f.rollout_kl:g}",
    "samples": _samples,
    "what the KL does": lambda f: f.verdict.replace("_", " "),
    "what changes its force": lambda f: (
        "; ".join(each.headline for each in f.effects if each.headline) or "nothing"
    ),
}
