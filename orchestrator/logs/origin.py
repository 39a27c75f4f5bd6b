"""Derive the library that trained a logged run, and its release."""

from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.logs.logged import LoggedRun

FEWEST = 2
"""Number of logged names from which on the library that knows the most of them is the one."""


class LibraryOrigin(NamedTuple):
    """A library with the reason, and its release; None if nothing identifies it."""

    library: str | None
    library_because: str
    release: str | None = None


def origin_of(run: LoggedRun, named: str | None = None) -> LibraryOrigin:
    """Return the library that trained a run.

    It is `named` (`trl@1.16.0`), else the one that the metric names identify. Raise SelectionError
    for a library of which orch knows no metrics.
    """
    if named is not None:
        library, _, release = named.partition("@")
        if plugins.logged_metrics(library) is None:
            raise SelectionError(
                f"orch knows no metrics of '{library}'{did_you_mean(library, plugins.logging())} "
                f"(it knows those of {', '.join(plugins.logging())})"
            )
        return LibraryOrigin(library, "as given", release or None)
    tables = {name: plugins.logged_metrics(name) for name in plugins.logging()}
    logged = {name for row in run.rows for name in row.values}
    known = {n: {m for m in logged if table.rows(m)} for n, table in tables.items() if table}
    most = max(map(len, known.values()))
    fitting = [name for name, names in known.items() if len(names) == most]
    if len(fitting) == 1 and most >= FEWEST:
        return LibraryOrigin(fitting[0], "it knows more of the logged names than other libraries")
    fits = f"its names fit {', '.join(fitting)}" if most else "no library orch knows has its names"
    return LibraryOrigin(None, f"{fits}: --library says which")
