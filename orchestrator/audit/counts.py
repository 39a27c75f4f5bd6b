"""Count the launches of a tree: what holds each policy, its KL term, its regime, faults.

The facts of one launch are plain values, so that `docs/tools/census.py` counts stored ones alike.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from orchestrator.audit.bounds import NOT_KNOWN
from orchestrator.audit.fix import WITHOUT_KL
from orchestrator.audit.judge import PROBLEMS, AuditFinding
from orchestrator.audit.render import WORDS
from orchestrator.library.launches import AuditVerdict

REFERENCE = "KL to a reference"
OTHER = "another objective, such as a teacher's"
UNDETERMINED = "not determined"
NO_TERM = "no KL term"
STOPS = "will not start"
CONFLICT = "contradicts itself"
WRONG_KEY = "a key that the release refuses or ignores"
NO_EFFECT = "a KL setting without effect"
NOT_ITS_NAME = "a KL that does not do what its name says"
MOST_ROWS = 12
"""Rows of a table that a person reads; the others are one row."""


class LaunchFacts(NamedTuple):
    """What is counted of one launch.

    `anchor`: what holds its policy. `bound`: what bounds a step, whether or not a KL acts too.
    `terms`: its KL terms, such as `k3 in the loss`. `beta`: the weight of the only one.
    """

    library: str
    version: str
    anchor: str
    bound: str
    to: str
    terms: str
    beta: float | None
    does: AuditVerdict
    regime: str
    advantage: str
    faults: tuple[str, ...]


class CountTable(NamedTuple):
    """One table of a summary: its title, and rows of a name, a number of launches, and more."""

    title: str
    more: str
    rows: list[tuple[str, int, str]]


def facts(finding: AuditFinding) -> LaunchFacts:
    """Return what is counted of a finding."""
    places = (("reward", finding.kl_in_reward), ("loss", finding.kl_in_loss))
    active = [(place, term) for place, term in places if term.active]
    names = [f"{term.estimator or 'not known'} in the {place}" for place, term in active]
    bound = finding.bound.by if finding.bound is not None else NOT_KNOWN
    anchor = REFERENCE if active else OTHER
    if finding.verdict == "undetermined":
        anchor = UNDETERMINED
    elif finding.verdict in WITHOUT_KL:
        anchor = bound
    regime = {True: "on-policy", False: "off-policy", None: "not known"}[finding.regime.on_policy]
    return LaunchFacts(
        finding.library,
        finding.version,
        anchor,
        bound,
        finding.bound.to if finding.bound is not None else "not known",
        " and ".join(names) or NO_TERM,
        active[0][1].beta if len(active) == 1 else None,
        finding.verdict,
        regime,
        finding.advantage_estimator or "not known",
        tuple(_faults(finding)),
    )


def _faults(finding: AuditFinding) -> Iterator[str]:
    if any(each.stops for each in finding.contradictions):
        yield STOPS
    elif finding.contradictions:
        yield CONFLICT
    if any(each.mistake for each in finding.key_findings):
        yield WRONG_KEY
    if finding.inactive_flags:
        yield NO_EFFECT
    if finding.verdict in PROBLEMS:
        yield NOT_ITS_NAME


def launches(findings: Iterable[AuditFinding]) -> list[AuditFinding]:
    """Return one finding for each command of a file: its usual case, or else its first."""
    chosen: dict[tuple[str, int], AuditFinding] = {}
    for each in findings:
        key = (each.file, each.line)
        if key not in chosen or (each.usual and not chosen[key].usual):
            chosen[key] = each
    return list(chosen.values())


def headline(every: Sequence[LaunchFacts], n_files: int) -> str:
    """Return what a tree of launches has, in one sentence."""
    known = [each for each in every if each.anchor != UNDETERMINED]
    without = sum(each.anchor != REFERENCE for each in known)
    text = f"{len(every)} launches in {n_files} files"
    if known:
        text += f": {without} ({percent(without, len(known))}) have no KL to a reference policy"
    if len(known) < len(every):
        text += f"; of {len(every) - len(known)} the KL is not determined, and they are left out"
    return f"{text}."


def tables(every: Sequence[LaunchFacts]) -> Iterator[CountTable]:
    """Yield the tables of a summary, the one that answers first."""
    yield _table("what holds the policy", "", every, lambda each: each.anchor)
    with_kl = [each for each in every if each.anchor == REFERENCE]
    yield _table("KL term that acts", "β; what it is", with_kl, lambda each: each.terms, _beta)
    yield _table("regime", "", every, lambda each: each.regime)
    yield _table(
        "library", "no KL to a reference", every, lambda each: each.library, _without_reference
    )
    faults = Counter(fault for each in every for fault in each.faults)
    rows = [(name, n, percent(n, len(every))) for name, n in faults.most_common()]
    yield CountTable("what is wrong (a launch may count twice)", "", rows)


def _table(
    title: str,
    more: str,
    every: Sequence[LaunchFacts],
    name: Callable[[LaunchFacts], str],
    extra: Callable[[Sequence[LaunchFacts]], str] | None = None,
) -> CountTable:
    groups: dict[str, list[LaunchFacts]] = {}
    for each in every:
        groups.setdefault(name(each), []).append(each)
    ordered = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    if len(ordered) > MOST_ROWS:
        rest = [each for _, group in ordered[MOST_ROWS - 1 :] for each in group]
        others = f"{len(ordered) - MOST_ROWS + 1} others"
        ordered = [*ordered[: MOST_ROWS - 1], (others, rest)]
    rows = [
        (label, len(group), extra(group) if extra else percent(len(group), len(every)))
        for label, group in ordered
    ]
    return CountTable(title, more, rows)


def _beta(group: Sequence[LaunchFacts]) -> str:
    """Return the smallest, the median and the largest β, and what most of the group optimise."""
    betas = sorted(each.beta for each in group if each.beta is not None)
    does, n = Counter(WORDS[each.does] for each in group).most_common(1)[0]
    what = does if n == len(group) else f"{does} ({n})"
    if not betas:
        return what
    span = f"{betas[0]:g}" if betas[0] == betas[-1] else f"{betas[0]:g} to {betas[-1]:g}"
    middle = "" if betas[0] == betas[-1] else f", median {median(betas):g}"
    return f"{span}{middle}; {what}"


def _without_reference(group: Sequence[LaunchFacts]) -> str:
    known = [each for each in group if each.anchor != UNDETERMINED]
    return percent(sum(each.anchor != REFERENCE for each in known), len(known))


def percent(count: int, of: int) -> str:
    """Return a share in percent."""
    return f"{100 * count / of:.0f} %" if of else "-"
