"""Published numbers beside ours: the same claim, measured here. They are never merged."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.estimates import Improvement
from orchestrator.analysis.judge import NotTestableError, columns, contrast, relative
from orchestrator.analysis.runs import MeasuredRun
from orchestrator.records import Published, PublishedNumber
from orchestrator.spec.claims import Claim, ClaimSide, parse


@dataclass(frozen=True)
class PublishedComparison:
    """A published number and what was measured here of the same claim."""

    published: PublishedNumber
    claim: Claim
    ours: Improvement | None
    missing: str = ""
    """Why there is nothing of ours, in a sentence."""

    @property
    def verdict(self) -> str:
        """Whether the published value lies in our interval; empty where there is none."""
        if self.ours is None or self.ours.low is None or self.ours.high is None:
            return ""
        inside = self.ours.low <= self.published.relative_improvement <= self.ours.high
        return "inside our interval" if inside else "outside our interval"


def beside(published: Published, runs: Sequence[MeasuredRun]) -> list[PublishedComparison]:
    """One for each published number, in order. Raises ValueError for a claim that cannot be read,
    which `load` has refused before."""
    return [_beside(number, parse(number.claim), runs) for number in published.numbers]


def _beside(
    number: PublishedNumber, claim: Claim, runs: Sequence[MeasuredRun]
) -> PublishedComparison:
    metric = claim.left.metric
    if not isinstance(claim.right, ClaimSide) or claim.right.metric != metric:
        return PublishedComparison(
            number, claim, None, "a relative improvement is of one metric on both sides"
        )
    try:
        settings = contrast(claim, runs).settings
    except NotTestableError as reason:
        return PublishedComparison(number, claim, None, str(reason))
    sides = [(columns(s.left, metric), columns(s.right, metric)) for s in settings]
    found = relative(sides, metric)
    return PublishedComparison(
        number, claim, found, "" if found else "the mean of the right side is not above 0"
    )
