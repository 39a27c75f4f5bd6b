"""Write many points of many runs at once into the tables of MLflow's own SQL store.

`log_batch` creates an object of its database layer for each point, which takes nine tenths of its
time. Here the points of many runs are rows of one INSERT. It is in the same transaction in which
MLflow's own functions check each run and keep its latest values. A database writes every index page
that a transaction has touched, so many runs in one transaction take a third of the time of one run
after another.

The tables are those of MLflow's documented schema. If the installed release has other tables, or if
the store is a server, `writer_of` returns None and points are written by `log_batch`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_ROW = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
"""The columns of both tables, in MLflow's order. In `metrics` they are also the primary key."""
_TEXT_ROW = ("key", "run_uuid", "value")
"""The columns of the tables of params and tags."""
_OF_RUN = {"run_uuid", "status", "end_time"}
_DIALECTS = ("sqlite", "postgresql")

_ARRAYS = """
INSERT INTO metrics ("key", "value", "timestamp", step, is_nan, run_uuid)
SELECT * FROM unnest(
    %(key)s::varchar[], %(value)s::float8[], %(timestamp)s::bigint[], %(step)s::bigint[],
    %(is_nan)s::boolean[], %(run_uuid)s::varchar[]
)
ON CONFLICT DO NOTHING
"""
"""For PostgreSQL, one parameter is a whole column, so that no driver sends a statement for each
row."""


class Point(NamedTuple):
    """One value of a metric. It has the field names of mlflow.entities.Metric, which is slow to
    create."""

    key: str
    value: float
    timestamp: int
    step: int
    model_id: str | None = None


_CACHE_KIB = 262_144
"""SQLite's own cache of pages for a connection is 2 MB: less than what a batch touches."""


class RunEnd(NamedTuple):
    """The final data of a run that has ended."""

    run_id: str
    status: str
    end_time: int
    """End of the run, in Unix milliseconds."""
    tag: tuple[str, str]


class BulkWriter:
    """A writer of many runs into one store at once."""

    def __init__(self, store: Any):
        self._store = store

    def __call__(
        self,
        points: Mapping[str, Sequence[Any]],
        params: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Log points and params of runs, all or none.

        The points are MLflow's metrics or Point, without model_id. Each mapping is run id -> data
        to log. Existing rows stay. Raise MlflowException for a run that was deleted.
        """
        _write(self._store, points, params or {})

    def finish(self, ends: Sequence[RunEnd]) -> None:
        """Set status, end time and a tag of runs to which `log` has written, all or none."""
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
        from sqlalchemy import bindparam, update

        tagging = _insert_of(self._store)(SqlTag.__table__)
        tagging = tagging.on_conflict_do_update(
            index_elements=["key", "run_uuid"], set_={"value": tagging.excluded.value}
        )
        ending = (
            update(SqlRun.__table__)
            .where(SqlRun.__table__.c.run_uuid == bindparam("run"))
            .values(status=bindparam("ended"), end_time=bindparam("at"))
        )
        with self._store.ManagedSessionMaker(read_only=False) as session:
            connection = session.connection()
            connection.execute(
                ending, [{"run": e.run_id, "ended": e.status, "at": e.end_time} for e in ends]
            )
            rows = [{"key": e.tag[0], "value": e.tag[1], "run_uuid": e.run_id} for e in ends]
            connection.execute(tagging, rows)


def writer_of(client: Any) -> BulkWriter | None:
    """Return a writer for a client's store, or None if `log_batch` must write the points."""
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine = getattr(store, "engine", None)
    needed = ("ManagedSessionMaker", "_get_run", "_check_run_is_active", "sanitize_metric_value")
    latest = "_update_latest_metrics_if_necessary"
    if engine is None or not all(hasattr(store, name) for name in (*needed, latest)):
        return None
    if engine.dialect.name not in _DIALECTS or not _has_known_tables():
        return None
    return BulkWriter(store)


def _has_known_tables() -> bool:
    try:
        from mlflow.store.tracking.dbmodels.models import (
            SqlLatestMetric,
            SqlMetric,
            SqlParam,
            SqlRun,
            SqlTag,
        )
    except ImportError:
        return False
    texts = [tuple(sorted(table.__table__.columns.keys())) for table in (SqlParam, SqlTag)]
    if set(texts) != {_TEXT_ROW} or not set(SqlRun.__table__.columns.keys()) >= _OF_RUN:
        return False
    points, latest = SqlMetric.__table__, SqlLatestMetric.__table__
    same = all(set(c.keys()) == set(_ROW) for c in (points.primary_key.columns, latest.columns))
    return same and tuple(points.columns.keys()) == _ROW and points.name == "metrics"


def _write(
    store: Any, points: Mapping[str, Sequence[Any]], params: Mapping[str, Mapping[str, str]]
) -> None:
    rows: list[tuple[object, ...]] = []
    latest = {run_id: _add(store, run_id, metrics, rows) for run_id, metrics in points.items()}
    with store.ManagedSessionMaker(read_only=False) as session:
        for run_id in dict.fromkeys((*points, *params)):
            run = store._get_run(run_uuid=run_id, session=session)  # noqa: SLF001  (as log_batch does)
            store._check_run_is_active(run)  # noqa: SLF001  as its log_batch does
        _insert(session.connection(), store, rows)
        _insert_params(session.connection(), store, params)
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


def _insert_of(store: Any) -> Any:
    """Return the database's own INSERT, which handles an existing row."""
    from sqlalchemy.dialects import postgresql, sqlite

    inserts: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
    return inserts[store.engine.dialect.name]


def _insert_params(connection: Any, store: Any, params: Mapping[str, Mapping[str, str]]) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlParam

    rows = [
        {"key": key, "value": value, "run_uuid": run_id}
        for run_id, of_run in params.items()
        for key, value in of_run.items()
    ]
    if rows:
        statement = _insert_of(store)(SqlParam.__table__).on_conflict_do_nothing()
        connection.execute(statement, rows)


def _insert(connection: Any, store: Any, rows: Sequence[tuple[object, ...]]) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    if not rows:
        return
    installed = store.engine.dialect
    statement = _insert_of(store)(SqlMetric.__table__).on_conflict_do_nothing()
    if installed.name == "sqlite":  # its driver takes rows as they are, which is quicker
        connection.exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.exec_driver_sql(str(statement.compile(dialect=installed)), rows)
    elif installed.paramstyle == "pyformat":  # psycopg, psycopg2
        columns = {name: [row[i] for row in rows] for i, name in enumerate(_ROW)}
        connection.exec_driver_sql(_ARRAYS, columns)
    else:
        connection.execute(statement, [dict(zip(_ROW, row, strict=True)) for row in rows])
