"""Verdicts on claims: supported, contradicted, underpowered, or not testable on these runs.

A claim names a region for the effect (above 0, within a margin, ...). Its p-value is twice the
smaller of two one-sided ones: for an effect outside the region, and for one inside. p-values are
corrected over all claims that could be tested (Holm); below 0.05 a claim is decided. Means over
seeds are tested by Student's t on paired differences, shares of collapsed runs exactly (Fisher
between two shares, the binomial against a number).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.claims import COLLAPSE, Claim, Relation, Side
from orchestrator.compare import estimates
from orchestrator.compare.contrast import Contrast, contrast
from orchestrator.compare.estimates import ALPHA, Estimate, Rate
from orchestrator.compare.pairing import NotTestableError
from orchestrator.compare.runs import Run

Verdict = Literal["supported", "contradicted", "underpowered", "not testable"]
MAX_COLLAPSE_SEEDS = 200
"""Search for a sufficient number of seeds ends here, for shares."""


@dataclass(frozen=True)
class Evidence:
    """What the runs say of a claim, before it is set among the other claims."""

    contrast: Contrast
    left: Estimate | Rate
    right: Estimate | Rate | None
    """None against a number."""
    effect: Estimate | None
    """Left minus right over seeds, paired; None for collapse, which has shares."""
    p_for: float
    p_against: float
    """One-sided: small when the effect is surely inside, or outside, the claimed region."""

    @property
    def p(self) -> float:
        return min(1.0, 2 * min(self.p_for, self.p_against))


@dataclass(frozen=True)
class Finding:
    """A claim and its verdict."""

    name: str
    claim: Claim
    verdict: Verdict
    missing: str = ""
    """Why it is not testable."""
    evidence: Evidence | None = None
    p_corrected: float | None = None
    family: int = 0
    """Claims the correction is over."""
    more_seeds: int | None = None
    """Seeds that would decide an underpowered claim if effect and spread stayed as they are."""

    @property
    def num_seeds(self) -> int:
        return len(self.evidence.contrast.seeds) if self.evidence else 0


def judge(claims: Mapping[str, Claim], runs: Sequence[Run]) -> list[Finding]:
    """One finding a claim, in order."""
    drafts: dict[str, Evidence | NotTestableError] = {}
    for name, claim in claims.items():
        try:
            drafts[name] = weigh(claim, contrast(claim, runs))
        except NotTestableError as reason:
            drafts[name] = reason
    testable = {name: draft for name, draft in drafts.items() if isinstance(draft, Evidence)}
    corrected = estimates.holm([draft.p for draft in testable.values()])
    findings = {
        name: _finding(name, claims[name], evidence, p, len(testable))
        for (name, evidence), p in zip(testable.items(), corrected, strict=True)
    }
    return [
        findings.get(name) or Finding(name, claim, "not testable", missing=str(drafts[name]))
        for name, claim in claims.items()
    ]


def _finding(name: str, claim: Claim, evidence: Evidence, p: float, family: int) -> Finding:
    if p < ALPHA:
        verdict: Verdict = "supported" if evidence.p_for < evidence.p_against else "contradicted"
        return Finding(name, claim, verdict, "", evidence, p, family)
    needed = _seeds_needed(claim, evidence, ALPHA / family)
    more = None if needed is None else max(1, needed - len(evidence.contrast.seeds))
    return Finding(name, claim, "underpowered", "", evidence, p, family, more)


def weigh(claim: Claim, found: Contrast) -> Evidence:
    """The evidence of the runs a claim is about."""
    if claim.left.metric == COLLAPSE:
        left = _collapsed(found, "left")
        right = _collapsed(found, "right") if isinstance(claim.right, Side) else None
        return Evidence(found, left, right, None, *_share_test(claim, left, right))
    effect = estimates.estimate(found.differences)
    sides = [estimates.estimate(s[seed] for seed in found.seeds) for s in (found.left, found.right)]
    p = _region(claim.relation, claim.margin, lambda bound: estimates.tails(effect, bound))
    right_side = None if isinstance(claim.right, float) else sides[1]
    return Evidence(found, sides[0], right_side, effect, *p)


Tails = Callable[[float], tuple[float, float]]


def _region(relation: Relation, margin: float, tails: Tails) -> tuple[float, float]:
    """One-sided p for and against an effect in the relation's region around 0."""
    if relation == "~":
        (above_low, below_low), (above_high, below_high) = tails(-margin), tails(margin)
        return max(above_low, below_high), min(below_low, above_high)
    above, below = tails(_bounds(relation, margin)[0])
    return (above, below) if relation.startswith(">") else (below, above)


def _bounds(relation: Relation, margin: float) -> tuple[float, ...]:
    """Where the region ends."""
    return {">": (0.0,), "<": (0.0,), ">=": (-margin,), "<=": (margin,), "~": (-margin, margin)}[
        relation
    ]


def _collapsed(found: Contrast, side: Literal["left", "right"]) -> Rate:
    runs = [run for setting in found.settings for run in getattr(setting, side)]
    outcomes = {r.record.cell.id: r.finals[COLLAPSE] for r in runs if r.seed in found.seeds}
    return estimates.rate(int(sum(outcomes.values())), len(outcomes))


def _share_test(claim: Claim, left: Rate, right: Rate | None) -> tuple[float, float]:
    if right is not None:
        fisher = (
            estimates.p_fisher(left.count, left.n, right.count, right.n),
            estimates.p_fisher(right.count, right.n, left.count, left.n),
        )
        return _region(claim.relation, 0.0, lambda _: fisher)
    centre = float(claim.right) if isinstance(claim.right, float) else math.nan

    def tails(bound: float) -> tuple[float, float]:
        return (
            estimates.p_share_above(left.count, left.n, centre + bound),
            estimates.p_share_above(left.n - left.count, left.n, 1 - centre - bound),
        )

    return _region(claim.relation, claim.margin, tails)


def _seeds_needed(claim: Claim, evidence: Evidence, alpha: float) -> int | None:
    """Seeds that would decide the claim, if effect and spread stayed as they are."""
    now = len(evidence.contrast.seeds)
    if evidence.effect is not None:
        if evidence.effect.n < 2:
            return now + 1
        bounds = _bounds(claim.relation, claim.margin)
        distance = min(abs(evidence.effect.mean - bound) for bound in bounds)
        return estimates.seeds_needed(distance, evidence.effect.sd, alpha)
    for seeds in range(now + 1, MAX_COLLAPSE_SEEDS + 1):
        grown = [
            None if rate is None else _grown(rate, seeds / now)
            for rate in (evidence.left, evidence.right)
        ]
        if grown[0] and 2 * min(_share_test(claim, grown[0], grown[1])) < alpha:
            return seeds
    return None


def _grown(found: Estimate | Rate, factor: float) -> Rate | None:
    """The same share of more runs."""
    if not isinstance(found, Rate):
        return None
    n = round(found.n * factor)
    return Rate(round(found.share * n), n, found.low, found.high)
