"""What it cost: by study and by configuration, every attempt counted, failed ones too."""

from collections.abc import Iterable, Sequence

from orchestrator.compare import Comparison
from orchestrator.report.data import names_of
from orchestrator.report.model import Section, Table
from orchestrator.report.rows import WHO, cells, who
from orchestrator.types import ExitRecord, Record

TEXT = (
    "Training only, every attempt counted, failed ones too; evaluation is not in it. A cell that "
    "belongs to several studies is trained once and counted in each; the total counts it once."
)
COLUMNS = ("cells", "attempts", "GPU h", "CPU s", "wall clock h")


def cost(comparison: Comparison, records: Sequence[Record]) -> Section | None:
    """Nothing before an attempt has ended."""
    if not any(end for record in records for end in record.attempts):
        return None
    studies = dict.fromkeys(study for record in records for study in record.cell.studies)
    rows = [(study, *_spent(r for r in records if study in r.cell.studies)) for study in studies]
    rows.append(("all together", *_spent(records)))
    by_configuration = tuple(
        (*who(c, setting), *_spent(run.record for run in c.runs), cells(c))
        for c, setting in names_of(comparison.configurations)
    )
    return Section("cost", "Cost", (TEXT,), tables=(
        Table("By study", ("study", *COLUMNS), tuple(rows)),
        Table("By configuration", (*WHO, *COLUMNS, "where from"), by_configuration,
              searchable=True),
    ))  # fmt: skip


def _spent(records: Iterable[Record]) -> tuple[str, ...]:
    found = list(records)
    ends: list[ExitRecord] = [end for record in found for end in record.attempts if end]
    return (
        str(len(found)),
        str(sum(len(record.attempts) for record in found)),
        _number(sum(end.gpu_hours for end in ends)),
        _number(sum(end.cpu_seconds for end in ends)),
        _number(sum(max(0.0, end.ended - end.started) for end in ends) / 3600),
    )


def _number(value: float) -> str:
    return "0" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
