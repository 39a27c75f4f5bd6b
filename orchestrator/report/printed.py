"""The paper's numbers beside ours: each a relative improvement of the same claim."""

from typing import Any

from orchestrator.compare import Beside, Comparison, statement
from orchestrator.report.data import rounded
from orchestrator.report.limits import is_micro
from orchestrator.report.model import Figure, Section, Table
from orchestrator.types import Spec

MICRO = (
    "NOT COMPARABLE: the published numbers are of models of 7 and 8 billion parameters on "
    "mathematics; ours are of the embedded trainer, tens of thousands of parameters on strings of "
    "digits. They stand side by side to show which way each goes, and nothing else."
)
TEXT = (
    "Relative improvement: how much higher left is than right, in shares of right, averaged over "
    "tasks. A published number has no interval; ours is a 95 % interval over seeds."
)


def printed(comparison: Comparison, spec: Spec) -> Section | None:
    """Nothing where the spec names no published numbers."""
    if not comparison.published:
        return None
    micro = is_micro(comparison.runs)
    source = f"Published in: {spec.published.source}." if spec.published.source else ""
    figure = Figure(
        "published", "published", "Published numbers beside ours",
        "Circles: ours, with 95 % intervals over seeds. Diamonds: published. "
        + ("Not comparable: the scales differ." if micro else ""),
        "Our relative improvement with its interval and the published number, a row a claim.",
    )  # fmt: skip
    rows = tuple(_row(one, micro) for one in comparison.published)
    columns = ("claim", "where", "published", "ours", "seeds", "published lies")
    return Section(
        "published", "Beside the paper's numbers", tuple(filter(None, (TEXT, source))),
        figures=(figure,) if any(one.ours for one in comparison.published) else (),
        tables=(Table("Relative improvement", columns, rows),), note=MICRO if micro else "",
    )  # fmt: skip


def _row(one: Beside, micro: bool) -> tuple[str, ...]:
    ours = one.ours
    if ours is None:
        told = f"none: {one.missing}"
    else:
        told = _share(ours.value)
        if ours.low is not None and ours.high is not None:
            told += f" [{_share(ours.low)}, {_share(ours.high)}]"
    verdict = "not comparable (micro scale)" if micro else one.verdict
    return (statement(one.claim), one.published.where, _share(one.published.relative_improvement),
            told, str(ours.n) if ours else "", verdict)  # fmt: skip


def _share(value: float) -> str:
    return f"{100 * value:+.2f} %".replace("-", "−")


def data(comparison: Comparison) -> list[dict[str, Any]]:
    """Name, where, the published value, and ours as [value, low, high]; all shares."""
    return [
        {
            "name": one.published.name, "where": one.published.where,
            "statement": statement(one.claim),
            "published": rounded(one.published.relative_improvement),
            "ours": None if one.ours is None
            else [rounded(v) for v in (one.ours.value, one.ours.low, one.ours.high)],
        }
        for one in comparison.published
    ]  # fmt: skip
