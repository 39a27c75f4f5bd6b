"""The first screen of a report: the finding, missing runs, claims, and redrawn figures."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from orchestrator.analysis.claims import (
    OPEN,
    SMALL,
    ClaimEvidence,
    JudgedClaim,
    reason,
    statement,
    verdict_text,
    working_text,
)
from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.configurations import (
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    Configuration,
    task_metrics,
)
from orchestrator.analysis.stats import Estimate, Rate, rate
from orchestrator.analysis.text import counted, estimate_text, listed, metric_title, number_text
from orchestrator.charts.gradients import gradient_views
from orchestrator.records import PublishedFigure, PublishedPanel, Record, Selection, Spec
from orchestrator.report.figures import (
    FEW_SEEDS,
    axis_label,
    has_curve,
    looks_of,
    rounded,
    setting_names,
    short,
    term_of,
)
from orchestrator.report.model import (
    Card,
    ClaimEffect,
    Figure,
    Panel,
    Plate,
    as_sentences,
)
from orchestrator.report.plots import distance_chart
from orchestrator.report.words import figure
from orchestrator.spec.claims import COLLAPSE, ClaimSide
from orchestrator.spec.select import matches

NOTHING = "no cell has finished yet: there is nothing to say"
TASKS = "tasks"
"""The metric of a published panel that stands for every scored task."""


def findings(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return the answer: a label and a text for stability, and for accuracy.

    Before a run has finished, and for an experiment that only counts working runs, the one label
    is empty. Texts start with a small letter and have no full stop.
    """
    if not any(run.record.state == "succeeded" for run in comparison.runs):
        return (("", NOTHING),)
    counts = [f.counted for f in comparison.claims if f.counted is not None]
    if counts and len(counts) == len(comparison.claims):
        works = all(f.verdict == "holds" for f in comparison.claims)
        lead = "everything works" if works else "not everything works"
        return (("", f"{lead}: {' '.join(map(working_text, counts))}".rstrip(".")),)
    sentences = (
        ("Stability", stability_text(comparison.configurations)),
        ("Accuracy", _accuracy_text(comparison)),
    )
    return tuple((label, text) for label, text in sentences if text)


def answer(comparison: Comparison) -> str:
    """Return the answer as text: a sentence for each finding."""
    return as_sentences(findings(comparison))


def term_words(kl: str) -> str:
    """Return a KL term in words: `k1 in the loss`, `k3 in reward and loss`, `no KL`."""
    estimator, _, place = kl.partition(".")
    if not place:
        return "no KL" if kl == "none" else kl
    return f"{estimator} in {'reward and loss' if place == 'both' else f'the {place}'}"


def stability_text(configurations: Sequence[Configuration]) -> str:
    """Return the runs that were not stable, in words; a run of several studies counts once."""
    records = {run.record.cell.id: run.record for c in configurations for run in c.runs}
    kinds = [record.outcome.kind for record in records.values() if record.outcome]
    sentences = (
        _collapses_text(configurations),
        f"{number} unstable" if (number := kinds.count("unstable")) else "",
        f"{number} too short or noisy to call stable" if (number := kinds.count("unclear")) else "",
    )
    return "; ".join(filter(None, sentences))


def _collapses_text(configurations: Sequence[Configuration]) -> str:
    collapsed: dict[str, dict[str, float]] = {}
    for c in configurations:
        runs = collapsed.setdefault(c.kl, {})
        runs |= {r.record.cell.id: r.finals[COLLAPSE] for r in c.runs if COLLAPSE in r.finals}
    ended = sum(map(len, collapsed.values()))
    some = [(kl, int(sum(r.values())), len(r)) for kl, r in collapsed.items() if any(r.values())]
    if not some:
        return f"none of {counted(ended, 'run')} collapsed" if ended else ""
    some.sort(key=lambda one: -one[1] / one[2])
    (worst, fallen, of), *others = some
    each = [f"{term_words(worst)} collapsed in {fallen} of {counted(of, 'run')}"]
    each += [f"{term_words(kl)} in {count} of {n}" for kl, count, n in others]
    rest = ended - sum(n for _, _, n in some)
    return f"{listed(each)}; {f'none of the other {rest} did' if rest else 'no other term was run'}"


def _accuracy_text(comparison: Comparison) -> str:
    """Return the effect that is claimed both in and out of domain, or the first in domain."""
    of_domain: tuple[dict[object, JudgedClaim], ...] = ({}, {})
    for finding in comparison.claims:
        claim, e = finding.claim, finding.evidence
        if e is None or e.effect is None or not isinstance(claim.right, ClaimSide):
            continue
        sides = (claim.left.where, claim.right.where, claim.at, claim.studies)
        for place, metrics in enumerate((IN_DOMAIN, OUT_OF_DOMAIN)):
            if claim.left.metric == claim.right.metric and claim.left.metric in metrics:
                of_domain[place].setdefault(sides, finding)
    inside, outside = of_domain
    chosen = next((key for key in inside if key in outside), next(iter(inside), None))
    if chosen is None:
        return ""
    claim = inside[chosen].claim
    assert isinstance(claim.right, ClaimSide)  # noqa: S101  (chosen so)
    text = f"{_side_words(claim.left)} against {_side_words(claim.right)}, "
    text += f"{_seen(inside[chosen])} in domain"
    return text + (f", {_seen(outside[chosen])} out of domain" if chosen in outside else "")


def _side_words(side: ClaimSide) -> str:
    words = [
        term_words(" or ".join(each.values))
        if each.axis == "kl"
        else f"{'β' if each.axis in ('beta', 'kl.beta') else each.axis} {' or '.join(each.values)}"
        for each in side.where
    ]
    return " at ".join(words) if words else "all runs"


def _seen(finding: JudgedClaim) -> str:
    """Return `0.050 higher [...]`, or `no difference seen (...)` where the interval has 0, or what
    the verdict says of a small one.
    """
    assert finding.evidence is not None  # noqa: S101  (chosen so)
    assert finding.evidence.effect is not None  # noqa: S101  (chosen so)
    effect = finding.evidence.effect
    text = estimate_text(effect, signed=True)
    if finding.verdict == "no effect":
        return f"no effect larger than {SMALL:g} ({text})"
    return text if effect.excludes_zero or effect.n < 2 else f"no difference seen ({text})"


def worst_first(comparison: Comparison) -> dict[tuple[str, str], str]:
    """Return (study, setting) -> its result in short, for every setting of the grid.

    Those with the largest share of collapsed runs come first, then those with the lowest accuracy.
    """
    groups: dict[tuple[str, str], list[Configuration]] = {}
    every = comparison.configurations
    for c, setting in zip(every, setting_names(every), strict=True):
        groups.setdefault((c.study, setting), []).append(c)
    rated = []
    for key, own in groups.items():
        collapsed, ended = (
            sum(n) for n in ((c.collapse.count for c in own), (c.collapse.n for c in own))
        )
        means = [c.finals[m].mean for c in own if (m := comparison.in_domain) and m in c.finals]
        text = f"{collapsed} of {ended} runs collapsed" if ended else "no curve tells of a collapse"
        if means:
            text += f", mean accuracy {number_text(min(means))} to {number_text(max(means))}"
        share = collapsed / ended if ended else 0.0
        rated.append((-share, fmean(means) if means else 2.0, key, text))
    return {key: text for _, _, key, text in sorted(rated, key=lambda one: one[:2])}


# ---------------------------------------------------------------- accuracy against distance

DISTANCES = ("eval/kl_reverse", "train/kl_reference")
"""Measures of the distance from the reference policy, best first."""
MOST_SETTINGS = 2
"""Maximum number of settings of the study that the first figure shows in and out of domain."""
MOST_PANELS = 6


def distance_figure(comparison: Comparison, *, micro: bool) -> Figure | None:
    """Return the first figure: accuracy against KL to the reference policy.

    Means over the runs that did not collapse, one for each configuration of the study with the most
    betas. None if nothing has both.
    """
    every = comparison.configurations
    betas = {c.study: {d.beta for d in every if d.study == c.study} for c in every}
    study = max(betas, key=lambda name: len(betas[name]), default="")
    own = [(i, c) for i, c in enumerate(every) if c.study == study]
    distance = next((m for m in DISTANCES if any(m in c.finals for _, c in own)), None)
    domains = [m for m in (comparison.in_domain, comparison.out_of_domain) if m]
    settings = setting_names(every)
    names = list(dict.fromkeys(s for of, s in worst_first(comparison) if of == study))
    if len(names) > MOST_SETTINGS:
        domains = domains[:1]
    of = f", worst first: {MOST_PANELS} of {len(names)}" if len(names) > MOST_PANELS else ""
    names = names[:MOST_PANELS]
    rows = [
        row | {"panel": " · ".join([metric_title(metric), *(names[1:] and [name])])}
        for name in names
        for metric in domains
        for i, c in own
        if distance and settings[i] == name
        for row in _distance_rows(i, c, distance, metric)
    ]
    if not distance or not rows:
        return None
    chart = distance_chart(rows, looks_of(every), short(axis_label(distance)))
    fill = {"study": f"{study}{of}", "micro": " Micro scale." if micro else ""}
    return figure("distance", "drawn", fill, views=(chart,))


def _distance_rows(at: int, c: Configuration, distance: str, metric: str) -> list[dict[str, Any]]:
    """Return the mean of a configuration's trained runs, and these runs where they are few."""
    trained = [run.finals for run in c.runs if not run.finals.get(COLLAPSE)]
    both = [(far, f[metric]) for f in trained if (far := f.get(distance, 0)) > 0 and metric in f]
    if not both:
        return []
    one: dict[str, Any] = {"at": at, "name": c.name, "term": term_of(c), "beta": c.beta}
    if c.beta is not None:
        one["label"] = f"β {c.beta:g}"
    x, y = (fmean(values) for values in zip(*both, strict=True))
    rows = [one | {"x": rounded(x), "value": rounded(y), "seeds": f"{len(both)} of {len(c.runs)}"}]
    if 1 < len(both) <= FEW_SEEDS:
        rows += [one | {"x": rounded(a), "seed": rounded(b)} for a, b in both]
    return rows


def missing(comparison: Comparison, records: Sequence[Record]) -> str:
    """Return sentences on open claims and unfinished cells, or an empty text without any."""
    unfinished = [r for r in records if r.state != "succeeded"]
    sentences = [comparison.claims_changed.removesuffix(".")] if comparison.claims_changed else []
    open_ = [f for f in comparison.claims if f.verdict in OPEN]
    if open_:
        of = f"{len(open_)} of {counted(len(comparison.claims), 'claim')}"
        text = f"{of} {'is' if len(open_) == 1 else 'are'} still open"
        if all(f.num_seeds < 2 for f in open_):
            text += ": one seed shows no spread, so run more of them"
        sentences.append(text)
    if untested := sum(f.verdict == "not testable" for f in comparison.claims):
        sentences.append(f"{counted(untested, 'claim')} cannot be tested on these runs")
    if unfinished:
        sentences.append(f"{len(unfinished)} of {counted(len(records), 'cell')} have not finished")
    return f"{'; '.join(sentences)}." if sentences else ""


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
        rates = [side for side in (e.left, e.right) if isinstance(side, Rate)]
        left, *right = [f"{side.count} of {side.n}" for side in rates]
        what = "collapsed" if f.claim.left.metric == COLLAPSE else "not stable"
        text = ", against ".join([f"{left} {what}", *right])
        if rates[0].n and not rates[0].count:
            text += f"; a share above {rate(0, len(e.contrast.seeds)).high:.2g} is excluded"
        return text
    seeds = counted(len(e.contrast.seeds), "seed")
    text = estimate_text(e.effect, signed=True)
    return text if e.effect.n < 2 else f"{text}, {seeds}"


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
        return ClaimEffect(*value, (-margin, margin), f.claim.left.metric)
    mean, low, high = value
    if f.claim.relation in ("<", "<="):
        mean, low, high = -mean, None if high is None else -high, None if low is None else -low
    return ClaimEffect(mean, low, high, (-margin, None), f.claim.left.metric)


def _difference(e: ClaimEvidence) -> tuple[float, float | None, float | None] | None:
    if e.effect is not None:
        return e.effect.mean, e.effect.low, e.effect.high
    if isinstance(e.left, Rate) and isinstance(e.right, Rate):
        return e.left.share - e.right.share, None, None
    return None


# ---------------------------------------------------------------- the published figures


def plates(
    comparison: Comparison, spec: Spec, laboratory: Figure, rows: Sequence[Mapping[str, Any]]
) -> Iterator[Plate]:
    """Yield every published figure with this experiment's figure, and what the experiment says.

    `laboratory`: the figure of the exact laboratory, for Fig. 1; `rows`: its rows.
    """
    every = tuple(cards(comparison, spec))
    papers = [row for row in rows if row["paper"]]
    drawn = replace(laboratory, views=tuple(gradient_views(papers)))
    for each in spec.published.figures:
        plate = _plate(each, comparison, [t.name for t in spec.evaluation.tasks])
        if each.laboratory:
            first = replace(drawn, id=re.sub(r"[^a-z0-9]+", "-", each.figure.lower()).strip("-"))
            yield replace(plate, figure=first, missing="")
            continue
        of = [card for card in every if re.search(rf"\b{re.escape(each.figure)}\b", card.where)]
        here = tuple((card.words, f"{card.says} {_sentence(card.here)}") for card in of)
        yield replace(plate, here=here)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _plate(published: PublishedFigure, comparison: Comparison, tasks: Sequence[str]) -> Plate:
    words = published.figure, published.title, published.shows
    id_ = re.sub(r"[^a-z0-9]+", "-", published.figure.lower()).strip("-")
    alt = f"{published.title}, redrawn from this experiment."
    each_panel = [panel for each in published.panels for panel in _panels(each, comparison)]
    each_panel.sort(key=lambda p: tasks.index(p.title) if p.title in tasks else -1)
    # Two panels of the publication that one metric stands in for are one panel here.
    panels = tuple({(p.draws, p.metric, p.at): p for p in reversed(each_panel)}.values())[::-1]
    lacking = " ".join(filter(None, (_lacking(each, comparison) for each in published.panels)))
    if not panels:
        nothing = f"Nothing of this experiment redraws it yet. {lacking}".strip()
        return Plate(*words, None, nothing)
    figure = Figure(id_, "redrawn", published.title, "", alt, panels=panels)
    return Plate(*words, figure, lacking)


def improvement_text(ours: Estimate) -> str:
    """Return `+6.21 % [+1.00 %, +11.4 %]`."""
    text = percent(ours.mean)
    if ours.low is None or ours.high is None:
        return text
    return f"{text} [{percent(ours.low)}, {percent(ours.high)}]"


def percent(value: float) -> str:
    """Return a share with its sign, in percent."""
    return f"{100 * value:+.2f} %".replace("-", "−")


def _members(panel: PublishedPanel, comparison: Comparison) -> list[tuple[int, Configuration]]:
    chosen = Selection(panel.where)
    return [
        (i, c)
        for i, c in enumerate(comparison.configurations)
        if c.study == panel.study and matches(chosen, c.runs[0].record.cell)
    ]


def _panels(panel: PublishedPanel, comparison: Comparison) -> Iterator[Panel]:
    """Yield a panel of the first metric that has curves, or a panel for each scored task."""
    own = _members(panel, comparison)
    if panel.metrics == (TASKS,):
        runs = [run for _, c in own for run in c.runs]
        scored = [m for domain in (IN_DOMAIN, OUT_OF_DOMAIN) for m in task_metrics(runs, domain[0])]
        for metric in scored:
            if at := tuple(i for i, c in own if metric in c.finals):
                yield Panel(metric.split("/")[1], "finals", metric, at)
        return
    for metric in panel.metrics:
        if at := tuple(i for i, c in own if has_curve(c, metric)):
            other = "" if metric == panel.metrics[0] else f" (here: {metric_title(metric)})"
            yield Panel(panel.title + other, "curves", metric, at)
            return


def _lacking(panel: PublishedPanel, comparison: Comparison) -> str:
    """Return a sentence on the configurations that a panel lacks, or an empty text."""
    own = _members(panel, comparison)
    drawn = {i for one in _panels(panel, comparison) for i in one.at}
    if not own:
        return f"{panel.title}: no cell of study {panel.study} was chosen."
    if len(drawn) == len(own):
        return ""
    wanted = (
        "a score of a run that trained"
        if panel.metrics == (TASKS,)
        else f"a curve of {metric_title(panel.metrics[0])}"
    )
    of = counted(len(own), "configuration")
    return f"{panel.title}: {len(own) - len(drawn)} of {of} without {wanted}."
