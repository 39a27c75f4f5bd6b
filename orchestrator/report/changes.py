"""Compare two runs of one experiment: the verdicts on claims and the final values."""

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.text import counted, estimate_text
from orchestrator.report.figures import with_setting_names
from orchestrator.report.front import in_short
from orchestrator.report.model import ReportTable, Section

TEXT = (
    "The same cells in the run directories of {other} and here. What changed may be seeds, "
    "versions or machines: nothing is tested."
)


def changes_section(before: Comparison, now: Comparison, other: str) -> Section:
    """Return a section on the changes since `before`. `other`: its folder of run directories."""
    earlier = {f.name: f for f in before.claims}
    claims = tuple(
        (f.name, earlier[f.name].verdict, in_short(earlier[f.name]), f.verdict, in_short(f))
        for f in now.claims
        if f.name in earlier
        and (earlier[f.name].verdict, in_short(earlier[f.name])) != (f.verdict, in_short(f))
    )
    turned = sum(row[1] != row[3] for row in claims)
    rows = tuple(_changed_finals(before, now))
    verdicts = f"{counted(turned, 'verdict')} of {counted(len(now.claims), 'claim')} changed"
    changed = counted(len(now.configurations), "configuration")
    points = (
        f"{verdicts}; {counted(len(claims), 'effect')} did.",
        f"{len(rows)} of {changed} have another final value, or other seeds.",
    )
    tables = (
        ReportTable("Claims", ("claim", "was", "with", "is", "with"), claims),
        ReportTable(
            "Final values",
            ("study", "setting", "configuration", "was", "seeds", "is", "seeds", "change"),
            rows,
            searchable=len(rows) > 12,
        ),
    )
    return Section(
        "changed",
        "What changed",
        (TEXT.format(other=other),),
        points,
        tables=tuple(table for table in tables if table.rows),
    )


def _changed_finals(before: Comparison, now: Comparison) -> list[tuple[str, ...]]:
    metric = now.in_domain or before.in_domain
    earlier = {_key(c): c for c in before.configurations}
    rows: list[tuple[float, tuple[str, ...]]] = []
    for c, setting in with_setting_names(now.configurations):
        old = earlier.get(_key(c))
        if metric is None or old is None or old.by_seed(metric) == c.by_seed(metric):
            continue
        was, value = old.finals.get(metric), c.finals.get(metric)
        change = value.mean - was.mean if was and value else None
        rows.append(
            (
                -abs(change or 0.0),
                (
                    c.study,
                    setting,
                    c.name,
                    estimate_text(was) if was else "none",
                    str(old.num_finished),
                    estimate_text(value) if value else "none",
                    str(c.num_finished),
                    "" if change is None else f"{change:+.3f}".replace("-", "−"),
                ),
            )
        )
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _key(c: Configuration) -> tuple[object, ...]:
    return c.study, tuple(sorted(c.traits.items())), c.name
