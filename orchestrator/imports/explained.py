"""The meaning of a library's logged name: `orch explain METRIC@LIBRARY`."""

from typing import Any

from orchestrator import plugins
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.library.logged import LoggedMetric, LoggedMetrics
from orchestrator.metrics.names import METRICS

_PLACES = {"reward": "a KL in the reward", "loss": "a KL in the loss"}


def explained(query: str) -> list[dict[str, Any]]:
    """Return the rows of `METRIC@LIBRARY` as plain data; of `@LIBRARY`, all of the library's.

    A release after a second @ is ignored: each row names the releases that were read. The end of a
    name is enough: `kl_loss` is `actor/kl_loss`. Raise SelectionError for an unknown name.
    """
    name, _, rest = query.partition("@")
    library = rest.partition("@")[0]
    table = plugins.logged_metrics(library) if library else None
    if table is None:
        raise SelectionError(
            f"orch knows no metrics of '{library}'{did_you_mean(library, plugins.logging())} (it "
            f"knows those of {', '.join(plugins.logging())})"
        )
    rows = _rows(table, name) if name else list(table.metrics)
    if not rows:
        names = sorted({row.name for row in table.metrics})
        raise SelectionError(
            f"orch has no row for '{name}' of {library}{did_you_mean(name, names)} (it has: "
            f"{', '.join(names)})"
        )
    return [_data(row, library) for row in rows]


def _rows(table: LoggedMetrics, name: str) -> list[LoggedMetric]:
    return table.rows(name) or [
        row for row in table.metrics if row.name.endswith((f"/{name}", f"/{name}/avg"))
    ]


def _data(row: LoggedMetric, library: str) -> dict[str, Any]:
    ours = METRICS.get(row.ours)
    return {
        "name": row.name,
        "library": library,
        "where": row.where or (_PLACES[row.place] if row.place else ""),
        "meaning": row.meaning or (ours.meaning if ours else "no KL; orch has no name for it"),
        "ours": row.ours,
        "ours_means": ours.meaning if ours else "",
        "source": row.source,
    }
