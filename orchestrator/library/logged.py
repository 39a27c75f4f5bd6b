"""The metrics that a library logs: its names, orch's names for them, and the meaning of each KL.

It is the member `logged_metrics` of a backend, or of a library that is only read. `orch diagnose`
and `orch explain METRIC@LIBRARY` use it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.errors import LogFault

Place = Literal["reward", "loss"]


class LoggedMetric(NamedTuple):
    """One name in a library's log."""

    name: str
    """Without the prefix that a logger puts before it."""
    ours: str = ""
    """The canonical name (orchestrator/metrics/names.py); empty: orch has none for it."""
    meaning: str = ""
    """A sentence. For a KL: its two policies, its estimator, and what it is averaged over."""
    source: str = ""
    """File, function and releases that were read."""
    place: Place | None = None
    """The place of the KL where this name has this meaning; None: every place. Of a name with one
    row, it is the place that a log with the name has its KL in."""
    where: str = ""
    """The trainer that logs this name, in words, if the library has several trainers."""


class LoggedMetrics(NamedTuple):
    """The table of one library."""

    metrics: tuple[LoggedMetric, ...]
    prefixes: tuple[str, ...] = ()
    """Loggers put one of them before a name: `train/`."""
    step_names: tuple[str, ...] = ()
    """Names whose value is the step of their row. A row without one has the logger's own step."""
    console: Callable[[str], Iterable[tuple[int | None, Mapping[str, float]]]] | None = None
    """A function that returns the steps that a console's text has (None where it does not tell
    them), and their values by the library's names. None if orch does not read the console of this
    library."""

    def short(self, name: str) -> str:
        """Return a logged name without the prefix of its logger."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name.removeprefix(prefix)
        return name

    def rows(self, name: str) -> list[LoggedMetric]:
        """Return the rows of a logged name: one in all, or one for each trainer or place. A table
        that was exported may have `_` for `/`."""
        short = self.short(name)
        return [row for row in self.metrics if short in (row.name, row.name.replace("/", "_"))]

    def row(self, name: str, place: Place | None) -> LoggedMetric | None:
        """Return the row of a logged name in a run whose KL is in `place`.

        Return None if no row has the name, or if the row depends on a place that is unknown.
        """
        rows = [row for row in self.rows(name) if not row.where]
        fitting = rows if len(rows) == 1 else [row for row in rows if row.place in (None, place)]
        return fitting[0] if len(fitting) == 1 else None

    def place(self, names: Iterable[str]) -> Place | None:
        """Return where a log with these names has its KL; None: they do not tell, or both."""
        rows = [self.rows(name) for name in names]
        places = {each[0].place for each in rows if len(each) == 1} - {None}
        return places.pop() if len(places) == 1 else None


def renamed(names: Mapping[str, str], known: Iterable[LoggedMetric] = ()) -> list[LoggedMetric]:
    """Return a row for each library's name -> orch's name that `known` has no row for."""
    taken = {row.name for row in known}
    return [LoggedMetric(name, ours) for name, ours in names.items() if name not in taken]


def check_names(
    path: Path,
    library: str,
    versions: Iterable[str],
    logged: Collection[str],
    known: Iterable[str],
    *needed: str,
) -> None:
    """Raise LogFault for a log with names of which orch knows none, or that lacks a needed one."""
    lacking = next((name for name in needed if name not in logged), None)
    known_none = not any(name in logged for name in known)
    if logged and (known_none or lacking):
        raise LogFault.of_names(path, library, versions, logged, None if known_none else lacking)
