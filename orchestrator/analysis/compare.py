"""What the numbers support: Records and Scores in, a Comparison out. Pure statistics.

runs            a run's final values and curves under canonical names
configurations  runs that differ only in their seed: means, intervals, collapse, curves
pairing         which runs a claim sets against which
contrast        their paired differences, seed by seed
judge           verdicts on claims, corrected for their number
group           values of one axis set against each other
estimates       intervals and tests
crossed, items  intervals over seeds and items: the hierarchical bootstrap
ratio           relative improvement
published       numbers of a paper, each beside ours
stability       drop from the peak, spread between seeds, time to collapse
words, phrases  all of it as sentences
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.configurations import IN_DOMAIN as IN_DOMAIN
from orchestrator.analysis.configurations import OUT_OF_DOMAIN as OUT_OF_DOMAIN
from orchestrator.analysis.configurations import Configuration as Configuration
from orchestrator.analysis.configurations import configurations, main_metric
from orchestrator.analysis.estimates import Estimate as Estimate
from orchestrator.analysis.estimates import Improvement as Improvement
from orchestrator.analysis.estimates import Rate as Rate
from orchestrator.analysis.judge import JudgedClaim as JudgedClaim
from orchestrator.analysis.judge import judge
from orchestrator.analysis.libraries import AxisDifference as AxisDifference
from orchestrator.analysis.libraries import by as by
from orchestrator.analysis.libraries import versus_none as versus_none
from orchestrator.analysis.published import PublishedComparison as PublishedComparison
from orchestrator.analysis.published import beside
from orchestrator.analysis.runs import ItemScores as ItemScores
from orchestrator.analysis.runs import MeasuredRun as MeasuredRun
from orchestrator.analysis.runs import measure
from orchestrator.analysis.wording import reason as reason
from orchestrator.analysis.wording import statement as statement
from orchestrator.errors import Fault, SpecError
from orchestrator.records import Record, Score, Spec
from orchestrator.spec.claims import Claim, parse


@dataclass(frozen=True)
class Comparison:
    """Configurations with their intervals, and what they say of the claims."""

    runs: tuple[MeasuredRun, ...]
    configurations: tuple[Configuration, ...]
    findings: tuple[JudgedClaim, ...]
    in_domain: str | None
    """The metric that tells the main result; None before anything finished."""
    out_of_domain: str | None
    published: tuple[PublishedComparison, ...] = ()
    """Numbers of the paper, each beside ours."""


def compare(
    spec: Spec,
    records: Sequence[Record],
    scores: Iterable[Score],
    items: ItemScores | None = None,
) -> Comparison:
    """Means and intervals over seeds of every configuration, and a verdict on every claim.

    `items`: cell id -> task -> share of right answers of each item; with it, intervals over seeds
    and items stand beside those over seeds. Raises SpecError for a claim that cannot be read.
    """
    claims = _claims(spec)
    runs = measure(records, scores, items)
    found = configurations(runs)
    return Comparison(
        tuple(runs),
        tuple(found),
        tuple(judge(claims, runs)),
        main_metric(found, IN_DOMAIN),
        main_metric(found, OUT_OF_DOMAIN),
        tuple(beside(spec.published, runs)),
    )


def _claims(spec: Spec) -> dict[str, Claim]:
    claims, faults = {}, []
    for name, text in spec.claims.items():
        try:
            claims[name] = parse(text)
        except ValueError as error:
            faults.append(Fault(str(error), f"$.claims.{name}"))
    if faults:
        raise SpecError(spec.source or spec.name, faults)
    return claims
