"""The parts of a report as plain data without markup. dashboards/ and markdown.py render it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.analysis.claims import ClaimVerdict
from orchestrator.charts.marks import ChartView
from orchestrator.records import OUTCOMES

FigureKind = Literal["curves", "finals", "measures", "redrawn", "drawn"]


@dataclass(frozen=True)
class Link:
    """Text that links to `#cell-<id>` on the page, to a relative path, or to an address."""

    text: str
    href: str


@dataclass(frozen=True)
class MapCell:
    """A field of a collapse map: the numbers of runs that collapsed, ended and were declared."""

    collapsed: int
    ended: int
    """Those of which the curve tells if they collapsed."""
    declared: int
    untold: int = 0
    """Those that ended, and the curve cannot tell."""

    def __str__(self) -> str:
        """Return `1 of 2, 1 cannot tell, 1 not ended`; with no run that tells, a word."""
        waiting = self.declared - self.ended - self.untold
        if not self.ended:
            return OUTCOMES["unclear"] if self.untold else "not ended"
        counts = ((self.untold, OUTCOMES["unclear"]), (waiting, "not ended"))
        more = (f"{count} {what}" for count, what in counts if count)
        return ", ".join((f"{self.collapsed} of {self.ended}", *more))


ReportText = str | tuple[Link, ...] | MapCell
"""The content of a field of a table."""


@dataclass(frozen=True)
class Card:
    """A claim and its verdict, in words."""

    name: str
    verdict: ClaimVerdict
    words: str
    """The verdict as readers see it: `no effect larger than 0.05`."""
    statement: str
    reason: str
    source: str
    """The claim's text in the spec."""
    cells: tuple[str, ...] = ()
    """Ids of the cells that the verdict depends on."""
    says: str = ""
    """The publication's statement in words; empty if the publication does not make the claim."""
    where: str = ""
    """The place of the statement in the publication."""
    here: str = ""
    """The result here, in short."""
    effect: "ClaimEffect | None" = None


@dataclass(frozen=True)
class ClaimEffect:
    """The effect of a claim, with the sign such that positive means as claimed."""

    value: float
    low: float | None
    high: float | None
    """The interval that decides; None with one seed and for shares."""
    region: tuple[float, float | None]
    """The range in which the claim holds; None: without an upper end."""
    metric: str
    """The measure: effects of one measure are drawn on one scale."""


@dataclass(frozen=True)
class ReportTable:
    """A table: rows of text below column titles."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[ReportText, ...], ...]
    searchable: bool = False
    """True for long tables: the page folds them and adds a search box."""
    exported: bool = False
    """True for a table that the page offers as LaTeX and CSV."""
    anchors: tuple[str, ...] = ()
    """The link target of each row; empty if nothing links to rows."""


@dataclass(frozen=True)
class Panel:
    """A panel with fixed configurations: `at` has indices of `Report.data["configurations"]`."""

    title: str
    draws: Literal["curves", "finals"]
    metric: str
    at: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """A figure. The tables of its section have the same numbers.

    Kinds: `drawn` has its `views`. The others are drawn from `Report.data`: `curves` of one metric
    and `measures` of several, a panel for each KL configuration; `finals`, dots with intervals;
    `redrawn`, the `panels`, which the reader's filters do not change.
    """

    id: str
    kind: FigureKind
    title: str
    caption: str
    alt: str
    metrics: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    views: tuple[ChartView, ...] = ()


@dataclass(frozen=True)
class Plate:
    """A published figure: number, content in words, and our figure or the reason for none."""

    number: str
    title: str
    shows: str
    figure: Figure | None
    missing: str = ""
    """The reason for no figure, or what the figure lacks."""
    here: tuple[tuple[str, str], ...] = ()
    """What this experiment says of the publication's statements about it: verdict and text."""


@dataclass(frozen=True)
class Entry:
    """A title with preformatted lines, for example the output of a failed cell."""

    title: str
    lines: str
    cell: str = ""
    """The id of the cell that the lines belong to."""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    maps: tuple[ReportTable, ...] = ()
    """Collapse maps: a row a KL term, a column a beta."""
    tables: tuple[ReportTable, ...] = ()
    entries: tuple[Entry, ...] = ()
    note: str = ""
    """A warning at the top of the section."""
    folded: bool = False
    """True for a section on method: the page shows it below `Details`."""


@dataclass(frozen=True)
class Report:
    """The report of one experiment at one scale."""

    name: str
    question: str
    description: str
    banner: str
    """A warning at the top of the report; empty at full scale."""
    findings: tuple[tuple[str, str], ...]
    """The answer: a label and a text each, for stability and accuracy."""
    facts: tuple[tuple[str, str], ...]
    """Short name -> value: the three main numbers first, then seeds, cost, ..."""
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    missing: str = ""
    """Sentences on open claims and unfinished cells; empty without any."""
    settings: tuple[tuple[str, str], ...] = ()
    """Every setting of the grid and its result in short, the worst first; empty for one setting."""
    first: Figure | None = None
    """The figure above the claims; None if nothing was measured for it."""
    source: str = ""
    """The publication of the statements and plates."""
    plates: tuple[Plate, ...] = ()
    """The publication's figures, each with our figure."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data of figures, as JSON: see report/figures.py."""
    created: str = ""
    written: str = ""
    """orch's version, and the commit of the spec's folder if it is in a git repository."""

    @property
    def answer(self) -> str:
        """Return the answer as text: a sentence for each finding."""
        return as_sentences(self.findings)


def as_sentences(findings: Sequence[tuple[str, str]]) -> str:
    """Return findings as text, a sentence each."""
    sentences = (f"{label}: {text}" if label else text for label, text in findings)
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in sentences)


def text_of(field: ReportText) -> str:
    """Return a field's text without its links."""
    return ", ".join(link.text for link in field) if isinstance(field, tuple) else str(field)


def cell_link(cell_id: str, text: str) -> Link:
    """Return a link to a cell's row in the table of provenance."""
    return Link(text or cell_id, f"#cell-{cell_id}")
