"""Write many points of a run at once into the tables of MLflow's own SQL store.

`log_batch` makes an object of its database layer for each point, which is nine tenths of its time.
Here the points of many runs are rows of one INSERT, in the transaction in which MLflow's own
functions check each run and keep its latest values. A database writes every page of an index that
a transaction has touched: many runs at once take a third of what one after another takes. The
tables are those of MLflow's documented schema; where the installed release has others, or the store
is a server, `writer_of` gives None and points go by `log_batch`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_ROW = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
"""The columns of both tables in MLflow's order; in `metrics` they are the primary key as well."""
_DIALECTS = ("sqlite", "postgresql")

_ARRAYS = """
INSERT INTO metrics ("key", "value", "timestamp", step, is_nan, run_uuid)
SELECT * FROM unnest(
    %(key)s::varchar[], %(value)s::float8[], %(timestamp)s::bigint[], %(step)s::bigint[],
    %(is_nan)s::boolean[], %(run_uuid)s::varchar[]
)
ON CONFLICT DO NOTHING
"""
"""PostgreSQL: a column is one parameter, so that no driver sends a statement for each row."""


class Point(NamedTuple):
    """One value of a metric, with the names of mlflow.entities.Metric, which is slow to make."""

    key: str
    value: float
    timestamp: int
    step: int
    model_id: str | None = None


BulkWriter = Callable[[Mapping[str, Sequence[Any]]], None]
"""(run id -> points or MLflow's metrics, without model_id): log them all or none. A point that is
there stays."""
_CACHE_KIB = 262_144
"""SQLite's own cache of pages for a connection is 2 MB: less than what a batch touches."""


def writer_of(client: Any) -> BulkWriter | None:
    """Return what writes points into a client's store, or None if `log_batch` must do it."""
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine = getattr(store, "engine", None)
    needed = ("ManagedSessionMaker", "_get_run", "_check_run_is_active", "sanitize_metric_value")
    latest = "_update_latest_metrics_if_necessary"
    if engine is None or not all(hasattr(store, name) for name in (*needed, latest)):
        return None
    if engine.dialect.name not in _DIALECTS or not _has_known_tables():
        return None

    def write(points: Mapping[str, Sequence[Any]]) -> None:
        _write(store, engine.dialect.name, points)

    return write


def _has_known_tables() -> bool:
    try:
        from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric
    except ImportError:
        return False
    points, latest = SqlMetric.__table__, SqlLatestMetric.__table__
    same = all(set(c.keys()) == set(_ROW) for c in (points.primary_key.columns, latest.columns))
    return same and tuple(points.columns.keys()) == _ROW and points.name == "metrics"


def _write(store: Any, dialect: str, points: Mapping[str, Sequence[Any]]) -> None:
    rows: list[tuple[object, ...]] = []
    latest = {run_id: _add(store, run_id, metrics, rows) for run_id, metrics in points.items()}
    with store.ManagedSessionMaker(read_only=False) as session:
        for run_id in points:
            run = store._get_run(run_uuid=run_id, session=session)  # noqa: SLF001  (as log_batch does)
            store._check_run_is_active(run)  # noqa: SLF001  as its log_batch does
        _insert(session.connection(), store.engine.dialect, dialect, rows)
        for newest in latest.values():
            store._update_latest_metrics_if_necessary(newest, session)  # noqa: SLF001  as its log_batch does


def _add(
    store: Any, run_id: str, metrics: Sequence[Any], rows: list[tuple[object, ...]]
) -> list[Any]:
    """Add the rows of a run. Return the latest value of each metric, as MLflow's objects."""
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    latest: dict[str, tuple[tuple[int, int, float], tuple[object, ...]]] = {}
    for metric in metrics:
        key, value, at, step = metric.key, metric.value, metric.timestamp, metric.step
        is_nan = False
        if not math.isfinite(value):
            is_nan, value = store.sanitize_metric_value(value)
            value = float(value)  # an array of PostgreSQL is of one type
        row = (key, value, at, step, is_nan, run_id)
        rows.append(row)
        order = step, at, value
        if key not in latest or order > latest[key][0]:
            latest[key] = order, row
    return [SqlMetric(**dict(zip(_ROW, row, strict=True))) for _, row in latest.values()]


def _insert(
    connection: Any, installed: Any, dialect: str, rows: Sequence[tuple[object, ...]]
) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlMetric
    from sqlalchemy.dialects import postgresql, sqlite

    if not rows:
        return
    insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect]
    statement = insert(SqlMetric.__table__).on_conflict_do_nothing()
    if dialect == "sqlite":  # its driver takes rows as they are, which is quicker
        connection.exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.exec_driver_sql(str(statement.compile(dialect=installed)), rows)
    elif installed.paramstyle == "pyformat":  # psycopg, psycopg2
        columns = {name: [row[i] for row in rows] for i, name in enumerate(_ROW)}
        connection.exec_driver_sql(_ARRAYS, columns)
    else:
        connection.execute(statement, [dict(zip(_ROW, row, strict=True)) for row in rows])
