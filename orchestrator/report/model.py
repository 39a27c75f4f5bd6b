"""The parts of a report: plain data, no markup. dashboards/ draws it, markdown.py writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.analysis.claims import ClaimVerdict

FigureKind = Literal[
    "finals",
    "curves",
    "measures",
    "predicted",
    "gradients",
    "stability",
    "published",
    "libraries",
    "trials",
    "redrawn",
    "imported",
    "phases",
]


@dataclass(frozen=True)
class Link:
    """Text that links to `#cell-<id>` on the page, to a relative path, or to an address."""

    text: str
    href: str


ReportText = str | tuple[Link, ...]
"""The content of a field of a table."""


@dataclass(frozen=True)
class Card:
    """A claim and its verdict, in words."""

    name: str
    verdict: ClaimVerdict
    statement: str
    reason: str
    source: str
    """The claim as the spec states it."""
    cells: tuple[str, ...] = ()
    """Ids of the cells it was judged on."""
    says: str = ""
    """The publication's statement, in words; empty if the claim is the experiment's own."""
    where: str = ""
    """The place of the statement in the publication."""
    here: str = ""
    """The result here, in short."""
    plain: str = ""
    """The meaning of the verdict, for a reader who does not read statistics."""
    effect: "ClaimEffect | None" = None


@dataclass(frozen=True)
class ClaimEffect:
    """The effect a claim is about, turned so that more is more as claimed."""

    value: float
    low: float | None
    high: float | None
    """95 % interval of one look; None with one seed."""
    region: tuple[float, float | None]
    """The region in which the claim holds; None: it has no upper end."""


@dataclass(frozen=True)
class ReportTable:
    """A table: rows of text under a head."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[ReportText, ...], ...]
    searchable: bool = False
    """Long: the page gives it a search box and folds it."""
    anchors: tuple[str, ...] = ()
    """The name of each row in links; empty if nothing links to rows."""


@dataclass(frozen=True)
class MapCell:
    """One field of a collapse map: runs that collapsed, of those that ended."""

    collapsed: int
    ended: int
    declared: int


@dataclass(frozen=True)
class Map:
    """A collapse map of one study and setting.

    Rows are estimators and placements, columns are betas.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MapCell | None, ...]], ...]


@dataclass(frozen=True)
class Panel:
    """A panel with a choice of its own: `at` are indices of `Report.data["configurations"]`."""

    title: str
    draws: Literal["curves", "finals"]
    metric: str
    at: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """A figure drawn from `Report.data`. The tables of its section hold the same numbers.

    finals: dots with intervals, one panel a metric; curves: one metric, one panel a KL
    configuration; measures: curves, one panel a metric; predicted: observed over predicted;
    gradients: the laboratory's Fig. 1, from `data["laboratory"]`; stability: dots, one panel a
    measure of `data["stability"]`; published: our intervals and the paper's numbers, from
    `data["published"]`; libraries: curves by library, one panel a question, from
    `data["libraries"]`; trials: the panels of searches in `data["tune"]`; redrawn: `panels`, which
    no filter changes; imported: `data["imported"]`, one panel a metric; phases: `data["phases"]`,
    one heat map a KL term.
    """

    id: str
    kind: FigureKind
    title: str
    caption: str
    alt: str
    metrics: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Plate:
    """A published figure: its number, what it shows in words, and ours, or why there is none."""

    number: str
    title: str
    shows: str
    figure: Figure | None
    missing: str = ""


@dataclass(frozen=True)
class Entry:
    """A title and preformatted lines, such as those of a failed cell."""

    title: str
    lines: str
    cell: str = ""
    """Id of the cell it is of."""


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    maps: tuple[Map, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    entries: tuple[Entry, ...] = ()
    note: str = ""
    """A warning that is shown above everything else of the section."""


@dataclass(frozen=True)
class Report:
    """The report of one experiment at one scale."""

    name: str
    question: str
    description: str
    banner: str
    """Shown above everything; empty at full scale."""
    answer: str
    """The finding in one sentence."""
    facts: tuple[tuple[str, str], ...]
    """Short name -> value: the three main numbers first, then seeds, cost, ..."""
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    missing: str = ""
    """The runs or scores that are missing, in a sentence; empty if none are."""
    source: str = ""
    """The publication that statements and plates are of."""
    plates: tuple[Plate, ...] = ()
    """Its figures, each with ours."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data of figures, as JSON: see report/figures.py."""
    created: str = ""
    written: str = ""
    """By what: orch's version, and the commit of the spec's folder where there is one."""


def text_of(field: ReportText) -> str:
    """Return a field's text without its links."""
    return field if isinstance(field, str) else ", ".join(link.text for link in field)


def cell_link(cell_id: str, text: str = "") -> Link:
    """Return a link to a cell's row in the table of provenance."""
    return Link(text or cell_id, f"#cell-{cell_id}")
