"""What tables of several sections share: who a row is of, and where its numbers come from."""

from orchestrator.compare import Configuration
from orchestrator.compare.phrases import told
from orchestrator.report.model import Text, cell_link

WHO = ("study", "setting", "configuration")


def who(c: Configuration, setting: str) -> tuple[str, str, str]:
    """The fields under WHO."""
    return c.study, setting, c.name


def cells(c: Configuration) -> Text:
    """A link to each seed's cell."""
    return tuple(cell_link(run.record.cell.id, f"s{run.seed}") for run in c.runs)


def final(c: Configuration, metric: str | None) -> str:
    """A final value with its interval over seeds; empty where there is none."""
    return told(c.finals[metric]) if metric is not None and metric in c.finals else ""


def final_over_items(c: Configuration, metric: str | None) -> str:
    """Its interval over seeds and items; empty where single items are not known."""
    found = c.finals_over_items.get(metric or "")
    return "" if found is None or found.low is None else told(found).partition(" ")[2]
