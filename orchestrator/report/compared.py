"""The tables of `orch compare`: configurations, claims, and the differences along an axis."""

from collections.abc import Sequence

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.configurations import AxisDifference, Configuration
from orchestrator.analysis.sentences import reason, statement
from orchestrator.analysis.stats import Estimate
from orchestrator.report.model import ReportTable


def configuration_table(comparison: Comparison, metric: str | None = None) -> ReportTable:
    """Return the final values of every configuration with their intervals.

    They are of one metric, or of the main accuracies in and out of domain.
    """
    main = (comparison.in_domain, comparison.out_of_domain)
    metrics = [metric] if metric is not None else [name for name in main if name]
    every = comparison.configurations
    several_lags = len({one.traits.get("async") for one in every}) > 1
    rows = [
        (
            one.study,
            _setting(one, with_async=several_lags),
            one.name,
            f"{one.num_finished}/{len(one.runs)}",
            *(_final(one.finals.get(metric)) for metric in metrics),
            f"{one.collapse.count}/{one.collapse.n}",
        )
        for one in every
    ]
    columns = ("study", "where", "configuration", "seeds", *metrics, "collapsed")
    return ReportTable("", columns, tuple(rows))


def _setting(configuration: Configuration, *, with_async: bool) -> str:
    return " ".join(
        value if name in ("model", "data", "backend") else f"{name}={value}"
        for name, value in configuration.traits.items()
        if name != "async" or with_async
    )


def _final(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.half_width is None:
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3f} ± {estimate.half_width:.3f}"


def claim_table(comparison: Comparison) -> ReportTable:
    """Return verdict and reason of every claim."""
    rows = [(c.verdict, statement(c.claim), reason(c)) for c in comparison.claims]
    return ReportTable("", ("verdict", "claim", "why"), tuple(rows))


def difference_table(
    differences: Sequence[AxisDifference], axis: str, metric: str, effect: float | None
) -> ReportTable:
    """Return the difference of every pair of values of an axis.

    effect: if given, a column has the seeds that would show a difference of this size.
    """
    rows = [
        (
            d.left,
            d.right,
            f"{d.effect.mean:+.3f}",
            _bounds(d.effect),
            _bounds(d.over_items),
            "-" if d.relative is None else f"{d.relative.value:+.1%}",
            str(d.effect.n),
            str(len(d.settings)),
            f"{d.p_corrected:.2g}",
            d.verdict,
            *([] if effect is None else [str(d.seeds_for(effect) or "unknown")]),
        )
        for d in differences
    ]
    columns = (
        axis,
        "against",
        "difference",
        "over seeds",
        "over seeds and items",
        "relative",
        "seeds",
        "settings",
        "p (Holm)",
        "verdict",
        *([] if effect is None else [f"seeds for {effect:g}"]),
    )
    caption = (
        f"difference in {metric}: 95 % intervals as if this were the only look; p and verdict hold "
        "at every look"
    )
    return ReportTable(caption, columns, tuple(rows))


def _bounds(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"[{estimate.low:+.3f}, {estimate.high:+.3f}]"
