"""Write many runs with their points at once into the tables of MLflow's own SQL store.

`create_run`, `log_inputs` and `log_batch` create objects of MLflow's database layer for each run,
tag and point, in a transaction for each call. Here runs, tags, params, data sets and points of many
runs are rows of one INSERT per table, in one transaction. A database writes every index page that a
transaction has touched, so many runs in one transaction take a third of the time of one run after
another. MLflow's own functions check that the experiment and existing runs are active, and keep the
latest values of existing runs.

The tables are those of MLflow's documented schema. If the installed release has other tables, or if
the store is a server, `writer_of` returns None and MLflow's client writes everything.
"""

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_ROW = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
"""The columns of both tables of metrics, in MLflow's order. In `metrics` they are also the primary
key."""
_TABLES = {
    "SqlMetric": {*_ROW},
    "SqlLatestMetric": {*_ROW},
    "SqlParam": {"key", "value", "run_uuid"},
    "SqlTag": {"key", "value", "run_uuid"},
    "SqlRun": {
        "run_uuid",
        "name",
        "source_type",
        "source_name",
        "entry_point_name",
        "user_id",
        "status",
        "start_time",
        "end_time",
        "deleted_time",
        "source_version",
        "lifecycle_stage",
        "artifact_uri",
        "experiment_id",
    },
    "SqlDataset": {
        "dataset_uuid",
        "experiment_id",
        "name",
        "digest",
        "dataset_source_type",
        "dataset_source",
        "dataset_schema",
        "dataset_profile",
    },
    "SqlInput": {
        "input_uuid",
        "source_type",
        "source_id",
        "destination_type",
        "destination_id",
        "step",
    },
    "SqlInputTag": {"input_uuid", "name", "value"},
}
"""MLflow's class of each table, and the columns that orch knows."""
_NEEDED = (
    "ManagedSessionMaker",
    "_get_run",
    "_check_run_is_active",
    "_get_experiment",
    "_check_experiment_is_active",
    "sanitize_metric_value",
    "_update_latest_metrics_if_necessary",
)
"""Functions of MLflow's store that are called here."""
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


@dataclass(frozen=True, slots=True)
class Points:
    """Values of metrics of one run, as columns of equal length."""

    keys: Sequence[str] = ()
    values: Sequence[float] = ()
    timestamps: Sequence[int] = ()
    """Unix milliseconds."""
    steps: Sequence[int] = ()

    @classmethod
    def of(cls, metrics: Iterable[Any]) -> "Points":
        """Return the columns of mlflow.entities.Metric, or of anything with its fields."""
        rows = [(m.key, m.value, m.timestamp, m.step) for m in metrics]
        return cls(*zip(*rows, strict=True)) if rows else cls()

    def __len__(self) -> int:
        return len(self.keys)


class NewRun(NamedTuple):
    """A run that the store does not have yet. `run` and `dataset` are MLflow's own objects."""

    run: Any
    dataset: Any = None
    """A DatasetInput, or None."""


_CACHE_KIB = 262_144
"""SQLite's own cache of pages for a connection is 2 MB: less than what a batch touches."""


class RunEnd(NamedTuple):
    """The final data of a run that has ended."""

    run_id: str
    status: str
    end_time: int
    """End of the run, in Unix milliseconds."""
    tag: tuple[str, str]


def new_run(experiment: Any, started: int, tags: Mapping[str, str], name: str) -> Any:
    """Return MLflow's object of a run as `create_run` makes it, without writing it.

    experiment: MLflow's object. started: Unix milliseconds.
    """
    from mlflow.entities import Run, RunData, RunInfo, RunTag
    from mlflow.utils.uri import append_to_uri_path

    run_id = uuid.uuid4().hex
    info = RunInfo(
        run_id=run_id,
        experiment_id=experiment.experiment_id,
        user_id=tags.get("mlflow.user", "unknown"),
        status="RUNNING",
        start_time=started,
        end_time=None,
        lifecycle_stage="active",
        artifact_uri=append_to_uri_path(experiment.artifact_location, run_id, "artifacts"),
        run_name=name,
    )
    named = {"mlflow.runName": name, **tags}
    return Run(info, RunData(tags=[RunTag(key, value) for key, value in named.items()]))


class BulkWriter:
    """A writer of many runs into one store at once."""

    def __init__(self, store: Any):
        self._store = store

    def __call__(
        self,
        points: Mapping[str, Points],
        params: Mapping[str, Mapping[str, str]] | None = None,
        new: Sequence[NewRun] = (),
    ) -> None:
        """Create the new runs and log points and params of runs, all or none.

        Each mapping is run id -> data to log, of new and of existing runs. Existing rows stay.
        Raise MlflowException for a run or an experiment that was deleted.
        """
        _write(self._store, points, params or {}, new)

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
    """Return a writer for a client's store, or None if MLflow's client must write everything."""
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine = getattr(store, "engine", None)
    if engine is None or not all(hasattr(store, name) for name in _NEEDED):
        return None
    if engine.dialect.name not in _DIALECTS or not _has_known_tables():
        return None
    return BulkWriter(store)


def _has_known_tables() -> bool:
    from mlflow.store.tracking.dbmodels import models

    tables = {name: getattr(models, name, None) for name in _TABLES}
    if not all(
        table is not None and set(table.__table__.columns.keys()) == _TABLES[name]
        for name, table in tables.items()
    ):
        return False
    metrics, datasets = models.SqlMetric.__table__, models.SqlDataset.__table__
    return (
        metrics.name == "metrics"
        and tuple(metrics.columns.keys()) == _ROW
        and set(metrics.primary_key.columns.keys()) == set(_ROW)
        and set(datasets.primary_key.columns.keys()) == {"experiment_id", "name", "digest"}
    )


def _write(
    store: Any,
    points: Mapping[str, Points],
    params: Mapping[str, Mapping[str, str]],
    new: Sequence[NewRun],
) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam

    created = {each.run.info.run_id for each in new}
    with store.ManagedSessionMaker(read_only=False) as session:
        for run_id in dict.fromkeys((*points, *params)):
            if run_id not in created:
                run = store._get_run(run_uuid=run_id, session=session)  # noqa: SLF001  (as log_batch does)
                store._check_run_is_active(run)  # noqa: SLF001  as its log_batch does
        rows = {run_id: _rows(store, run_id, of_run) for run_id, of_run in points.items()}
        _insert_runs(session, store, new)
        _insert_metrics(session.connection(), store, list(itertools.chain(*rows.values())))
        _insert(
            session.connection(),
            store,
            SqlParam,
            [
                {"key": key, "value": value, "run_uuid": run_id}
                for run_id, of_run in params.items()
                for key, value in of_run.items()
            ],
        )
        first: list[dict[str, object]] = []
        for run_id, of_run in rows.items():
            latest = [dict(zip(_ROW, row, strict=True)) for row in _latest(of_run)]
            if run_id in created:
                first += latest
            else:
                metrics = [SqlMetric(**row) for row in latest]
                store._update_latest_metrics_if_necessary(metrics, session)  # noqa: SLF001  as its log_batch does
        _insert(session.connection(), store, SqlLatestMetric, first)


def _rows(store: Any, run_id: str, points: Points) -> list[tuple[Any, ...]]:
    """Return the rows of a run, in the order of _ROW."""
    import numpy as np

    values, is_nan = list(points.values), [False] * len(points)
    # Most values are finite, and need no call of MLflow's function.
    for i in np.flatnonzero(~np.isfinite(np.array(values, dtype=float))).tolist():
        is_nan[i], value = store.sanitize_metric_value(values[i])
        values[i] = float(value)  # an array of PostgreSQL is of one type
    run_ids = itertools.repeat(run_id, len(points))
    columns = (points.keys, values, points.timestamps, points.steps, is_nan, run_ids)
    return list(zip(*columns, strict=True))


def _latest(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the latest row of each metric: that of the largest step, time and value, and the first
    of equal ones."""
    import numpy as np

    if not rows:
        return []
    keys, values, times, steps, *_ = zip(*rows, strict=True)
    earlier_last = -np.arange(len(rows))
    numbers = [np.array(column, dtype=np.int64) for column in (times, steps)]
    # lexsort sorts by its last key first: step, then time, then value. Of equal rows the first must
    # come last, because the last one is taken.
    order = np.lexsort((earlier_last, np.array(values, dtype=float), *numbers)).tolist()
    return [rows[i] for i in {keys[i]: i for i in order}.values()]


def _insert_of(store: Any) -> Any:
    """Return the database's own INSERT, which handles an existing row."""
    from sqlalchemy.dialects import postgresql, sqlite

    inserts: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
    return inserts[store.engine.dialect.name]


def _insert(connection: Any, store: Any, model: Any, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows into the table of one of MLflow's classes. Existing rows stay."""
    if rows:
        connection.execute(_insert_of(store)(model.__table__).on_conflict_do_nothing(), rows)


def _insert_runs(session: Any, store: Any, new: Sequence[NewRun]) -> None:
    """Insert runs with their tags and data sets, as `create_run` and `log_inputs` do."""
    from mlflow.entities import ViewType
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

    infos = [each.run.info for each in new]
    for experiment_id in {info.experiment_id for info in infos}:
        experiment = store._get_experiment(session, experiment_id, ViewType.ALL)  # noqa: SLF001  as create_run does
        store._check_experiment_is_active(experiment)  # noqa: SLF001  as its create_run does
    runs = [
        {
            "run_uuid": info.run_id,
            "name": info.run_name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": info.user_id,
            "status": info.status,
            "start_time": info.start_time,
            "end_time": None,
            "deleted_time": None,
            "source_version": "",
            "lifecycle_stage": info.lifecycle_stage,
            "artifact_uri": info.artifact_uri,
            # A number in the table, and a text in MLflow's objects.
            "experiment_id": int(info.experiment_id),
        }
        for info in infos
    ]
    tags = [
        {"key": key, "value": value, "run_uuid": each.run.info.run_id}
        for each in new
        for key, value in each.run.data.tags.items()
    ]
    _insert(session.connection(), store, SqlRun, runs)
    _insert(session.connection(), store, SqlTag, tags)
    _insert_inputs(session.connection(), store, [each for each in new if each.dataset is not None])


def _insert_inputs(connection: Any, store: Any, new: Sequence[NewRun]) -> None:
    """Insert the data sets that the experiment lacks, and an input of each run."""
    from mlflow.store.tracking.dbmodels.models import SqlDataset, SqlInput, SqlInputTag
    from sqlalchemy import select

    named = [(int(each.run.info.experiment_id), each.dataset.dataset) for each in new]
    datasets = {
        (experiment_id, one.name, one.digest): {
            "dataset_uuid": uuid.uuid4().hex,
            "experiment_id": experiment_id,
            "name": one.name,
            "digest": one.digest,
            "dataset_source_type": one.source_type,
            "dataset_source": one.source,
            "dataset_schema": one.schema,
            "dataset_profile": one.profile,
        }
        for experiment_id, one in named
    }
    _insert(connection, store, SqlDataset, list(datasets.values()))
    of = SqlDataset.__table__.c
    # Read back, because a data set that was there before has an id of its own.
    ids = {
        (row.experiment_id, row.name, row.digest): row.dataset_uuid
        for row in connection.execute(
            select(of.experiment_id, of.name, of.digest, of.dataset_uuid)
            .where(of.experiment_id.in_({key[0] for key in datasets}))
            .where(of.name.in_({key[1] for key in datasets}))
            .where(of.digest.in_({key[2] for key in datasets}))
        )
    }
    inputs, tags = [], []
    for each, (experiment_id, one) in zip(new, named, strict=True):
        input_id = uuid.uuid4().hex
        inputs.append(
            {
                "input_uuid": input_id,
                "source_type": "DATASET",
                "source_id": ids[experiment_id, one.name, one.digest],
                "destination_type": "RUN",
                "destination_id": each.run.info.run_id,
            }
        )
        tags += [
            {"input_uuid": input_id, "name": tag.key, "value": tag.value}
            for tag in each.dataset.tags
        ]
    _insert(connection, store, SqlInput, inputs)
    _insert(connection, store, SqlInputTag, tags)


def _insert_metrics(connection: Any, store: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    if not rows:
        return
    installed = store.engine.dialect
    statement = _insert_of(store)(SqlMetric.__table__).on_conflict_do_nothing()
    if installed.name == "sqlite":  # its driver takes rows as they are, which is quicker
        # A negative cache_size is in KiB.
        connection.exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.exec_driver_sql(str(statement.compile(dialect=installed)), rows)
    elif installed.paramstyle == "pyformat":  # psycopg, psycopg2
        by_column = zip(*rows, strict=True)
        columns = {name: list(one) for name, one in zip(_ROW, by_column, strict=True)}
        connection.exec_driver_sql(_ARRAYS, columns)
    else:
        connection.execute(statement, [dict(zip(_ROW, row, strict=True)) for row in rows])
