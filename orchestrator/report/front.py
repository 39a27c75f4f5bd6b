"""The first screen of a report: the finding, missing runs, claims, and redrawn figures."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.analysis.claims import (
    DECIDED,
    OPEN,
    ClaimEvidence,
    JudgedClaim,
    effect_sentence,
    reason,
    statement,
    verdict_text,
    working_text,
)
from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.configurations import IN_DOMAIN, OUT_OF_DOMAIN, Configuration
from orchestrator.analysis.stats import Estimate, Rate
from orchestrator.analysis.text import counted, estimate_text, listed
from orchestrator.records import PublishedFigure, PublishedPanel, Record, Selection, Spec
from orchestrator.report.figures import has_curve
from orchestrator.report.model import Card, ClaimEffect, Figure, Panel, Plate
from orchestrator.spec.claims import COLLAPSE
from orchestrator.spec.select import matches

NOTHING = "No cell has finished yet: there is nothing to say."
NO_CLAIMS = "The spec states no claims; the figures below describe what came out."
_MAIN = {"in_domain": IN_DOMAIN, "out_of_domain": OUT_OF_DOMAIN}


def answer(comparison: Comparison) -> str:
    """Return the finding in one sentence: the number of decided claims and the clearest effect."""
    claims = comparison.claims
    if not any(run.record.state == "succeeded" for run in comparison.runs):
        return NOTHING
    if not claims:
        return NO_CLAIMS
    counts = [f.counted for f in claims if f.counted is not None]
    if len(counts) == len(claims):
        works = all(f.verdict == "holds" for f in claims)
        lead = "Everything works" if works else "Not everything works"
        return f"{lead}: {' '.join(working_text(each) for each in counts)}"
    measured = [f for f in claims if f.evidence is not None]
    if not measured:
        same = _number(claims, "holds by construction")
        if same:
            return (
                f"{counted(same, 'claim')} of {len(claims)} hold by construction, none was tested."
            )
        return f"None of the {counted(len(claims), 'claim')} can be tested on these runs yet."
    best = min(measured, key=_clarity)
    assert best.evidence is not None  # noqa: S101  (chosen so)
    supported, failed = _number(claims, "holds"), _number(claims, "contradicted")
    text = effect_sentence(best.claim, best.evidence)
    if not supported + failed:
        return f"The clearest effect so far: {text}."
    verdicts = listed(
        [
            *(
                [f"{counted(supported, 'claim')} {'holds' if supported == 1 else 'hold'}"]
                if supported
                else []
            ),
            *([f"{failed} {'does' if failed == 1 else 'do'} not hold"] if failed else []),
        ]
    )
    return f"Here {verdicts}; the clearest effect: {text}."


def missing(comparison: Comparison, records: Sequence[Record]) -> str:
    """Return sentences on open claims and unfinished cells, or an empty text without any."""
    unfinished = [r for r in records if r.state != "succeeded"]
    sentences = []
    open_ = [f for f in comparison.claims if f.verdict in OPEN]
    if open_:
        of = f"{len(open_)} of {counted(len(comparison.claims), 'claim')}"
        text = f"{of} {'is' if len(open_) == 1 else 'are'} still open"
        # From one seed nobody can tell how many more are enough: it shows no spread.
        soon = [f.seeds_needed for f in open_ if f.seeds_needed is not None and f.num_seeds > 1]
        if all(f.num_seeds < 2 for f in open_):
            text += ": one seed shows no spread, so run more of them"
        elif soon:
            fewest = min(soon)
            at = sum(n == fewest for n in soon)
            text += (
                f": about {counted(fewest, 'seed')} decide "
                f"{'it' if len(open_) == 1 else f'{at} of them'} if all stays as seen"
            )
        sentences.append(text)
    if untested := _number(comparison.claims, "not testable"):
        sentences.append(f"{counted(untested, 'claim')} cannot be tested on these runs")
    if unfinished:
        sentences.append(f"{len(unfinished)} of {counted(len(records), 'cell')} have not finished")
    return f"{'; '.join(sentences)}." if sentences else ""


def _number(claims: Sequence[JudgedClaim], verdict: str) -> int:
    return sum(f.verdict == verdict for f in claims)


def _clarity(finding: JudgedClaim) -> tuple[bool, float, float]:
    """Return the sort key of a claim: decided claims first, then by p, then by size of effect."""
    e = finding.evidence
    assert e is not None  # noqa: S101  (asked only of measured claims)
    decided = finding.verdict in DECIDED
    effect = _effect(finding)
    return not decided, e.p, -abs(effect.value) if effect else 0.0


# ---------------------------------------------------------------- a row a claim


def cards(comparison: Comparison, spec: Spec) -> Iterator[Card]:
    """Yield a card for every claim, in the order of the spec."""
    statement_by_claim = {each.claim: each for each in spec.published.statements}
    for f in comparison.claims:
        says = statement_by_claim.get(f.name)
        yield Card(
            f.name,
            f.verdict,
            verdict_text(f),
            statement(f.claim),
            reason(f),
            f.claim.text,
            f.evidence.contrast.cells if f.evidence else f.counted.works if f.counted else (),
            says.says if says else "",
            says.where if says else "",
            in_short(f),
            _plain(f),
            _effect(f),
        )


def in_short(f: JudgedClaim) -> str:
    """Return a claim's result: its effect with an interval, its counts, or why it has neither."""
    if f.counted is not None:
        return f"{len(f.counted.works)} of {counted(f.counted.n, 'run')} work"
    e = f.evidence
    if e is None:
        return "one training run on both sides" if f.verdict != "not testable" else "not measured"
    if e.effect is None:
        left, right = (_rate(side) for side in (e.left, e.right))
        what = "collapsed" if f.claim.left.metric == COLLAPSE else "not stable"
        return f"{left} {what}, against {right}" if right else f"{left} {what}"
    seeds = counted(len(e.contrast.seeds), "seed")
    text = estimate_text(e.effect, signed=True)
    return text if e.effect.n < 2 else f"{text}, {seeds}"


def _rate(side: Estimate | Rate | None) -> str:
    return f"{side.count} of {side.n}" if isinstance(side, Rate) else ""


def _plain(f: JudgedClaim) -> str:
    if f.verdict in ("holds", "contradicted") and f.p_corrected is not None:
        way = "as large" if f.verdict == "holds" else "as large the other way"
        odds = max(20, min(1000, int(1 / f.p_corrected))) if f.p_corrected else 1000
        more = " or fewer" if odds == 1000 else ""
        return f"Chance alone shows an effect {way} in about 1 of {odds:,} experiments{more}."
    if f.verdict == "holds by construction":
        return "Nothing to test: the two are the same mathematics, trained once."
    if f.verdict in OPEN and f.seeds_needed is not None and f.num_seeds > 1:
        return f"About {counted(f.seeds_needed, 'seed')} decide it if all stays as seen."
    if f.verdict in OPEN and f.num_seeds < 2:
        return "One seed shows no spread."
    if f.verdict == "not testable":
        return f.missing[:1].upper() + f.missing[1:] + "."
    return ""


def _effect(f: JudgedClaim) -> ClaimEffect | None:
    """Return the effect with the sign such that positive means as claimed, or None without one."""
    e = f.evidence
    if e is None:
        return None
    value = _difference(e)
    if value is None:
        return None
    margin = f.claim.margin or 0.0
    if f.claim.relation == "~":
        return ClaimEffect(*value, (-margin, margin))
    mean, low, high = value
    if f.claim.relation in ("<", "<="):
        mean, low, high = -mean, None if high is None else -high, None if low is None else -low
    return ClaimEffect(mean, low, high, (-margin, None))


def _difference(e: ClaimEvidence) -> tuple[float, float | None, float | None] | None:
    if e.effect is not None:
        return e.effect.mean, e.effect.low, e.effect.high
    if isinstance(e.left, Rate) and isinstance(e.right, Rate):
        return e.left.share - e.right.share, None, None
    return None


# ---------------------------------------------------------------- the published figures


def plates(comparison: Comparison, spec: Spec, laboratory: Figure) -> Iterator[Plate]:
    """Yield every published figure with this experiment's figure.

    `laboratory`: the figure of the exact laboratory, for Fig. 1.
    """
    for figure in spec.published.figures:
        yield _plate(figure, comparison, laboratory)


def _plate(published: PublishedFigure, comparison: Comparison, laboratory: Figure) -> Plate:
    words = published.figure, published.title, published.shows
    id_ = re.sub(r"[^a-z0-9]+", "-", published.figure.lower()).strip("-")
    alt = f"{published.title}, redrawn from this experiment."
    if published.laboratory:
        return Plate(*words, replace(laboratory, id=id_, metrics=("paper",)))
    panels = [p for p in (_panel(each, comparison) for each in published.panels) if p is not None]
    if not panels:
        return Plate(*words, None, "No finished cell of this experiment redraws it.")
    return Plate(*words, Figure(id_, "redrawn", published.title, "", alt, panels=tuple(panels)))


def _panel(panel: PublishedPanel, comparison: Comparison) -> Panel | None:
    chosen = Selection(panel.where)
    own = [
        (i, c)
        for i, c in enumerate(comparison.configurations)
        if c.study == panel.study and matches(chosen, c.runs[0].record.cell)
    ]

    def shown(c: Configuration, metric: str) -> bool:
        return has_curve(c, metric) if panel.draws == "curves" else metric in c.finals

    for metric in _MAIN.get(panel.metric, (panel.metric,)):
        at = tuple(i for i, c in own if shown(c, metric))
        if at:
            return Panel(panel.title, panel.draws, metric, at)
    return None
