"""Write many runs with their points at once into the tables of MLflow's own SQL store.

`create_run`, `create_logged_model`, `log_inputs` and `log_batch` create objects of MLflow's
database layer for each run, model, tag and point, in a transaction for each call. Here runs, tags,
params, data sets, models and points of many runs are rows of few INSERTs per table, in one
transaction. A database writes every index page that a transaction has touched, so many runs in one
transaction take a third of the time of one run after another. MLflow's own functions check that the
experiment and existing runs are active, and keep the latest values of existing runs.

The tables are those of MLflow's documented schema. If the installed release has other tables, or if
the store is a server, `writer_of` returns None and MLflow's client writes everything.
"""

import itertools
import math
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    "SqlLoggedModel": {
        "model_id",
        "experiment_id",
        "name",
        "artifact_location",
        "creation_timestamp_ms",
        "last_updated_timestamp_ms",
        "status",
        "lifecycle_stage",
        "model_type",
        "source_run_id",
        "status_message",
    },
    "SqlLoggedModelMetric": {
        "model_id",
        "metric_name",
        "metric_timestamp_ms",
        "metric_step",
        "metric_value",
        "experiment_id",
        "run_id",
        "dataset_uuid",
        "dataset_name",
        "dataset_digest",
    },
    "SqlLoggedModelParam": {"model_id", "experiment_id", "param_key", "param_value"},
    "SqlLoggedModelTag": {"model_id", "experiment_id", "tag_key", "tag_value"},
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
    "MODELS_FOLDER_NAME",
    "ARTIFACTS_FOLDER_NAME",
)
"""Members of MLflow's store that are used here."""
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


class Block(NamedTuple):
    """Values of some metrics of one run at some steps."""

    keys: tuple[str, ...]
    values: "NDArray[np.float64]"
    """A row for each step, and a column for each key."""
    timestamps: Sequence[int]
    """Unix milliseconds of each step."""
    steps: Sequence[int]


@dataclass(frozen=True, slots=True)
class Points:
    """Values of metrics of one run."""

    blocks: Sequence[Block] = ()

    @classmethod
    def of(cls, metrics: Iterable[Any]) -> "Points":
        """Return the points of mlflow.entities.Metric, or of anything with its fields."""
        import numpy as np

        by_key: dict[str, list[Any]] = defaultdict(list)
        for metric in metrics:
            by_key[metric.key].append(metric)
        return cls(
            [
                Block(
                    (key,),
                    np.array([[one.value] for one in of_key], dtype=np.float64),
                    [one.timestamp for one in of_key],
                    [one.step for one in of_key],
                )
                for key, of_key in by_key.items()
            ]
        )

    def __len__(self) -> int:
        return sum(block.values.size for block in self.blocks)

    def __iter__(self) -> Iterator[tuple[str, float, int, int]]:
        """Yield (key, value, timestamp, step)."""
        for block in self.blocks:
            each_step = zip(block.values.tolist(), block.timestamps, block.steps, strict=True)
            for values, at, step in each_step:
                for key, value in zip(block.keys, values, strict=True):
                    yield key, value, at, step


class NewRun(NamedTuple):
    """A run that the store does not have yet. `run` and `dataset` are MLflow's own objects."""

    run: Any
    dataset: Any = None
    """A DatasetInput, or None."""


class NewModel(NamedTuple):
    """An evaluated checkpoint of a run, for MLflow's list of models."""

    experiment: Any
    """MLflow's object."""
    run_id: str
    step: int
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Points
    """Its metrics."""


_CACHE_KIB = 262_144
"""SQLite's own cache of pages for a connection is 2 MB: less than what a batch touches."""
_WIDTH = 500
"""Most columns of values in a temporary table of SQLite, which takes 2,000 columns."""
_ROWS_A_STATEMENT = 150_000
"""Rows in the arrays of one INSERT into PostgreSQL: about 40 MB."""


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

    run_id = _new_run_id()
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


def _new_run_id() -> str:
    """Return 32 hexadecimal digits, as MLflow's own ids have. Later ids sort after earlier ones.

    So the rows of later runs go to the end of the indexes of runs. Ids in random order are
    scattered over all pages of these indexes.
    """
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


class BulkWriter:
    """A writer of many runs into one store at once."""

    def __init__(self, store: Any):
        self._store = store

    def __call__(
        self,
        points: Mapping[str, Points],
        params: Mapping[str, Mapping[str, str]] | None = None,
        new: Sequence[NewRun] = (),
        models: Sequence[NewModel] = (),
    ) -> None:
        """Create the new runs and models, and log points and params of runs, all or none.

        Each mapping is run id -> data to log, of new and of existing runs. Existing rows stay.
        Raise MlflowException for a run or an experiment that was deleted.
        """
        _write(self._store, points, params or {}, new, models)

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
    models: Sequence[NewModel],
) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam

    created = {each.run.info.run_id for each in new}
    with store.ManagedSessionMaker(read_only=False) as session:
        if store.engine.dialect.name == "sqlite":
            _use_memory(session.connection())
        for run_id in dict.fromkeys((*points, *params)):
            if run_id not in created:
                run = store._get_run(run_uuid=run_id, session=session)  # noqa: SLF001  (as log_batch does)
                store._check_run_is_active(run)  # noqa: SLF001  as its log_batch does
        _insert_runs(session, store, new)
        _insert_models(session.connection(), store, models)
        if store.engine.dialect.name == "sqlite":
            _insert_into_sqlite(session.connection(), store, points)
        else:
            _insert_metrics(session.connection(), store, points)
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
        for run_id, of_run in points.items():
            rows = _latest(store, run_id, of_run)
            latest = [dict(zip(_ROW, row, strict=True)) for row in rows]
            if run_id in created:
                first += latest
            else:
                metrics = [SqlMetric(**row) for row in latest]
                store._update_latest_metrics_if_necessary(metrics, session)  # noqa: SLF001  as its log_batch does
        _insert(session.connection(), store, SqlLatestMetric, first)


_Row = tuple[str, float, int, int, bool, str]
"""Values in the order of _ROW."""


def _rows(store: Any, run_id: str, points: Points) -> Iterator[_Row]:
    """Yield the rows of a run."""
    for key, value, at, step in points:
        # Most values are finite, and need no call of MLflow's function.
        is_nan, stored = (
            (False, value) if math.isfinite(value) else store.sanitize_metric_value(value)
        )
        yield key, float(stored), at, step, is_nan, run_id  # an array of PostgreSQL is of one type


def _latest(store: Any, run_id: str, points: Points) -> list[_Row]:
    """Return the latest row of each metric: that of the largest step, time and value, and the first
    of equal ones."""
    latest: dict[str, _Row] = {}
    for block in points.blocks:
        moments = list(zip(block.steps, block.timestamps, strict=True))
        last = max(moments, default=None)
        ends = [i for i, moment in enumerate(moments) if moment == last]
        end = Block(
            block.keys,
            block.values[ends],
            [block.timestamps[i] for i in ends],
            [block.steps[i] for i in ends],
        )
        for row in _rows(store, run_id, Points([end])):
            if row[0] not in latest or _rank(row) > _rank(latest[row[0]]):
                latest[row[0]] = row
    return list(latest.values())


def _rank(row: _Row) -> tuple[int, int, float]:
    _, value, at, step, *_ = row
    return step, at, value


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


def _insert_models(connection: Any, store: Any, models: Sequence[NewModel]) -> None:
    """Insert models that are ready, each an output of its run, with their metrics.

    These are the rows of `create_logged_model`, `log_outputs`, `finalize_logged_model`, and of
    `log_batch` for points that name a model.
    """
    from mlflow.entities import LoggedModelStatus
    from mlflow.store.tracking.dbmodels import models as tables
    from mlflow.utils.uri import append_to_uri_path

    now = time.time_ns() // 1_000_000
    rows, outputs, tags, params, metrics = [], [], [], [], []
    for each in models:
        named = {
            "model_id": f"m-{uuid.uuid4().hex}",
            "experiment_id": int(each.experiment.experiment_id),
        }
        location = append_to_uri_path(
            each.experiment.artifact_location,
            store.MODELS_FOLDER_NAME,
            named["model_id"],
            store.ARTIFACTS_FOLDER_NAME,
        )
        rows.append(
            {
                **named,
                "name": each.name,
                "artifact_location": location,
                "creation_timestamp_ms": now,
                "last_updated_timestamp_ms": now,
                "status": LoggedModelStatus.READY.to_int(),
                "lifecycle_stage": "active",
                "model_type": "checkpoint",
                "source_run_id": each.run_id,
                "status_message": None,
            }
        )
        outputs.append(
            {
                "input_uuid": uuid.uuid4().hex,
                "source_type": "RUN_OUTPUT",
                "source_id": each.run_id,
                "destination_type": "MODEL_OUTPUT",
                "destination_id": named["model_id"],
                "step": each.step,
            }
        )
        tags += [{**named, "tag_key": k, "tag_value": v} for k, v in each.tags.items()]
        params += [{**named, "param_key": k, "param_value": v} for k, v in each.params.items()]
        metrics += [
            {
                **named,
                "metric_name": key,
                "metric_timestamp_ms": at,
                "metric_step": step,
                "metric_value": value,
                "run_id": run_id,
                "dataset_uuid": None,
                "dataset_name": None,
                "dataset_digest": None,
            }
            for key, value, at, step, _, run_id in _rows(store, each.run_id, each.points)
        ]
    _insert(connection, store, tables.SqlLoggedModel, rows)
    _insert(connection, store, tables.SqlInput, outputs)
    _insert(connection, store, tables.SqlLoggedModelTag, tags)
    _insert(connection, store, tables.SqlLoggedModelParam, params)
    _insert(connection, store, tables.SqlLoggedModelMetric, metrics)


def _use_memory(connection: Any) -> None:
    """Let SQLite keep pages and temporary tables in memory. Call this before a transaction, which
    takes no such setting."""
    # A negative cache_size is in KiB.
    connection.exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.exec_driver_sql("PRAGMA temp_store=MEMORY")


def _insert_into_sqlite(connection: Any, store: Any, points: Mapping[str, Points]) -> None:
    """Insert points of runs into the metrics of an SQLite database. Existing rows stay.

    A temporary table gets one row for each step of a run, with all values. From it, one statement
    for each metric inserts its rows, so that Python passes neither names nor run ids for each
    point. One metric after another is the order of the primary key, whose index is the largest.
    """
    import numpy as np

    # SQLite takes NaN for NULL, and the statements below put MLflow's value for NaN there.
    _, instead_of_nan = store.sanitize_metric_value(math.nan)
    _, largest = store.sanitize_metric_value(math.inf)
    _, smallest = store.sanitize_metric_value(-math.inf)
    by_keys: dict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for run_id, of_run in points.items():
        for block in of_run.blocks:
            finite = np.nan_to_num(block.values, nan=math.nan, posinf=largest, neginf=smallest)
            for start in range(0, len(block.keys), _WIDTH):
                part = slice(start, start + _WIDTH)
                by_keys[block.keys[part]] += [
                    (run_id, at, step, *values)
                    for at, step, values in zip(
                        block.timestamps, block.steps, finite[:, part].tolist(), strict=True
                    )
                ]
    for keys, rows in by_keys.items():
        columns = [f"v{i}" for i in range(len(keys))]
        marks = ", ".join("?" * (3 + len(columns)))
        # Without a transaction before it, a failure could have left one.
        connection.exec_driver_sql("DROP TABLE IF EXISTS temp.orch_steps")
        connection.exec_driver_sql(
            f"CREATE TEMP TABLE orch_steps (run_uuid, timestamp, step, {', '.join(columns)})"
        )
        connection.exec_driver_sql(
            f"INSERT INTO temp.orch_steps VALUES ({marks})",  # noqa: S608  (question marks)
            rows,
        )
        for key, column in sorted(zip(keys, columns, strict=True)):
            connection.exec_driver_sql(
                f"""
                INSERT INTO metrics ("key", value, timestamp, step, is_nan, run_uuid)
                SELECT ?, coalesce({column}, ?), timestamp, step, {column} IS NULL, run_uuid
                FROM temp.orch_steps WHERE true  -- which SQLite's grammar needs before ON
                ON CONFLICT DO NOTHING
                """,  # noqa: S608  (a column's number)
                (key, float(instead_of_nan)),
            )
        connection.exec_driver_sql("DROP TABLE temp.orch_steps")


def _insert_metrics(connection: Any, store: Any, points: Mapping[str, Points]) -> None:
    """Insert points of runs into the metrics of PostgreSQL. Existing rows stay."""
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    each_row = itertools.chain.from_iterable(
        _rows(store, run_id, of_run) for run_id, of_run in points.items()
    )
    statement = _insert_of(store)(SqlMetric.__table__).on_conflict_do_nothing()
    while rows := list(itertools.islice(each_row, _ROWS_A_STATEMENT)):
        if store.engine.dialect.paramstyle == "pyformat":  # psycopg, psycopg2
            by_column = zip(*rows, strict=True)
            columns = {name: list(one) for name, one in zip(_ROW, by_column, strict=True)}
            connection.exec_driver_sql(_ARRAYS, columns)
        else:
            connection.execute(statement, [dict(zip(_ROW, row, strict=True)) for row in rows])
