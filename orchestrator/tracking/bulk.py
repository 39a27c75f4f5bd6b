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
import re
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROW = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
"""The columns of both tables of metrics, in MLflow's order. In `metrics` they are also the primary
key."""
TABLES = {
    "metrics": {*_ROW},
    "latest_metrics": {*_ROW},
    "params": {"key", "value", "run_uuid"},
    "tags": {"key", "value", "run_uuid"},
    "runs": {
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
    "datasets": {
        "dataset_uuid",
        "experiment_id",
        "name",
        "digest",
        "dataset_source_type",
        "dataset_source",
        "dataset_schema",
        "dataset_profile",
    },
    "inputs": {
        "input_uuid",
        "source_type",
        "source_id",
        "destination_type",
        "destination_id",
        "step",
    },
    "input_tags": {"input_uuid", "name", "value"},
    "logged_models": {
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
    "logged_model_metrics": {
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
    "logged_model_params": {"model_id", "experiment_id", "param_key", "param_value"},
    "logged_model_tags": {"model_id", "experiment_id", "tag_key", "tag_value"},
}
"""MLflow's tables, and the columns that orch knows."""
_NEEDED = (
    "ManagedSessionMaker",
    "_get_run",
    "_check_run_is_active",
    "_get_experiment",
    "_check_experiment_is_active",
    "_update_latest_metrics_if_necessary",
)
"""Members of MLflow's store that are used here."""
_LARGEST = 1.7976931348623157e308
_STORED = {math.inf: (False, _LARGEST), -math.inf: (False, -_LARGEST)}
_STORED_NAN = (True, 0)
"""What MLflow stores for values that a database does not take, as `sanitize_metric_value` does."""
_MODELS_FOLDER, _ARTIFACTS_FOLDER = "models", "artifacts"
"""Folders of a model's artifacts, as MLflow's store names them."""
_READY = 2
"""The status of a model that is ready."""
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


class RunInfo(NamedTuple):
    """What identifies a run, with MLflow's names. Times are in Unix milliseconds."""

    run_id: str
    experiment_id: str
    user_id: str
    status: str
    start_time: int
    artifact_uri: str
    run_name: str
    end_time: int | None = None
    lifecycle_stage: str = "active"


class RunData(NamedTuple):
    """The tags and params of a run, with MLflow's names."""

    tags: Mapping[str, str]
    params: Mapping[str, str]


class UnwrittenRun(NamedTuple):
    """A run as `create_run` makes it, with the names of MLflow's object."""

    info: RunInfo
    data: RunData
    inputs: None = None


class NewDataset(NamedTuple):
    """A data set of a run, with MLflow's names, and its role."""

    name: str
    digest: str
    source_type: str
    source: str
    tags: Sequence[tuple[str, str]] = ()


class NewRun(NamedTuple):
    """A run that the store does not have yet."""

    run: UnwrittenRun
    dataset: NewDataset | None = None


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


IN_MEMORY = ("PRAGMA cache_size=-262144", "PRAGMA temp_store=MEMORY")
"""Statements that let SQLite keep 256 MiB of pages, and temporary tables, in memory. Its own cache
of pages for a connection is 2 MB: less than what a batch touches."""
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


def new_run(experiment: Any, started: int, tags: Mapping[str, str], name: str) -> UnwrittenRun:
    """Return a run as `create_run` makes it, without writing it.

    experiment: MLflow's object. started: Unix milliseconds.
    """
    run_id = _new_run_id()
    info = RunInfo(
        run_id=run_id,
        experiment_id=experiment.experiment_id,
        user_id=tags.get("mlflow.user", "unknown"),
        status="RUNNING",
        start_time=started,
        artifact_uri=_below(experiment.artifact_location, run_id, _ARTIFACTS_FOLDER),
        run_name=name,
    )
    return UnwrittenRun(info, RunData({"mlflow.runName": name, **tags}, {}))


def _below(location: str, *parts: str) -> str:
    """Return the address of a folder below an address."""
    if is_plain(location):
        return "/".join([location, *parts])
    from mlflow.utils.uri import append_to_uri_path

    return str(append_to_uri_path(location, *parts))


def is_plain(location: str) -> bool:
    """Return True for a folder of this machine whose address needs no rule but a slash."""
    return re.fullmatch(r"file://(/[\w.~-]+)+", location, re.ASCII) is not None


def _new_run_id() -> str:
    """Return 32 hexadecimal digits, as MLflow's own ids have. Later ids sort after earlier ones.

    So the rows of later runs go to the end of the indexes of runs. Ids in random order are
    scattered over all pages of these indexes.
    """
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


class Transaction(Protocol):
    """An open transaction of a database that has MLflow's tables."""

    dialect: str
    takes_arrays: bool
    """True if a parameter of a statement may be an array."""

    def insert(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert rows, all with the same columns. Existing rows stay."""

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        """Execute a statement of the database's driver, once or for each of several rows."""

    def check_run(self, run_id: str) -> None:
        """Raise an error if this existing run was deleted."""

    def check_experiment(self, experiment_id: str) -> None:
        """Raise an error if this experiment was deleted."""

    def dataset_ids(self, keys: Collection[tuple[int, str, str]]) -> dict[Any, str]:
        """Return (experiment, name, digest) -> id of data sets; others may be among them."""

    def update_latest(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep these values of existing runs as the latest, where they are."""

    def end_runs(self, ends: "Sequence[RunEnd]") -> None:
        """Set status, end time and a tag of each run."""


class _MlflowTransaction:
    """A transaction of MLflow's own store, which was opened with SQLAlchemy."""

    def __init__(self, store: Any, session: Any):
        from mlflow.store.tracking.dbmodels import models

        self.dialect = str(store.engine.dialect.name)
        # psycopg, psycopg2
        self.takes_arrays = store.engine.dialect.paramstyle == "pyformat"
        self._store, self._session, self._connection = store, session, session.connection()
        self._models, self._tables = models, models.Base.metadata.tables

    def insert(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        if rows:
            self._connection.execute(self._insert(table).on_conflict_do_nothing(), rows)

    def _insert(self, table: str) -> Any:
        """Return the database's own INSERT, which handles an existing row."""
        from sqlalchemy.dialects import postgresql, sqlite

        inserts: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
        return inserts[self.dialect](self._tables[table])

    def execute(self, statement: str, parameters: Any = ()) -> None:
        self._connection.exec_driver_sql(statement, parameters)

    def check_run(self, run_id: str) -> None:
        run = self._store._get_run(run_uuid=run_id, session=self._session)  # noqa: SLF001  (as log_batch does)
        self._store._check_run_is_active(run)  # noqa: SLF001  as its log_batch does

    def check_experiment(self, experiment_id: str) -> None:
        from mlflow.entities import ViewType

        experiment = self._store._get_experiment(self._session, experiment_id, ViewType.ALL)  # noqa: SLF001  as create_run does
        self._store._check_experiment_is_active(experiment)  # noqa: SLF001  as its create_run does

    def dataset_ids(self, keys: Collection[tuple[int, str, str]]) -> dict[Any, str]:
        from sqlalchemy import select

        of = self._tables["datasets"].c
        return {
            (row.experiment_id, row.name, row.digest): row.dataset_uuid
            for row in self._connection.execute(
                select(of.experiment_id, of.name, of.digest, of.dataset_uuid)
                .where(of.experiment_id.in_({key[0] for key in keys}))
                .where(of.name.in_({key[1] for key in keys}))
                .where(of.digest.in_({key[2] for key in keys}))
            )
        }

    def update_latest(self, rows: Sequence[Mapping[str, Any]]) -> None:
        metrics = [self._models.SqlMetric(**row) for row in rows]
        self._store._update_latest_metrics_if_necessary(metrics, self._session)  # noqa: SLF001  as its log_batch does

    def end_runs(self, ends: "Sequence[RunEnd]") -> None:
        from sqlalchemy import bindparam, update

        tagging = self._insert("tags")
        tagging = tagging.on_conflict_do_update(
            index_elements=["key", "run_uuid"], set_={"value": tagging.excluded.value}
        )
        runs = self._tables["runs"]
        ending = (
            update(runs)
            .where(runs.c.run_uuid == bindparam("run"))
            .values(status=bindparam("ended"), end_time=bindparam("at"))
        )
        self._connection.execute(
            ending, [{"run": e.run_id, "ended": e.status, "at": e.end_time} for e in ends]
        )
        rows = [{"key": e.tag[0], "value": e.tag[1], "run_uuid": e.run_id} for e in ends]
        self._connection.execute(tagging, rows)


class BulkWriter:
    """A writer of many runs into one store at once."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Transaction]]):
        self._begin = begin

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
        with self._begin() as transaction:
            _write(transaction, points, params or {}, new, models)

    def finish(self, ends: Sequence[RunEnd]) -> None:
        """Set status, end time and a tag of runs to which `log` has written, all or none."""
        with self._begin() as transaction:
            transaction.end_runs(ends)


def writer_of(client: Any) -> BulkWriter | None:
    """Return a writer for a client's store, or None if MLflow's client must write everything."""
    own = getattr(client, "bulk", None)
    if isinstance(own, BulkWriter):
        return own
    store: Any = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine = getattr(store, "engine", None)
    if engine is None or not all(hasattr(store, name) for name in _NEEDED):
        return None
    if engine.dialect.name not in _DIALECTS:
        return None
    if not _has_known_tables() or not _has_known_values(store):
        return None

    @contextmanager
    def begin() -> Iterator[Transaction]:
        with store.ManagedSessionMaker(read_only=False) as session:
            transaction = _MlflowTransaction(store, session)
            if transaction.dialect == "sqlite":
                # Before the first row, because a transaction takes no such setting.
                for setting in IN_MEMORY:
                    transaction.execute(setting)
            yield transaction

    return BulkWriter(begin)


def _has_known_tables() -> bool:
    from mlflow.store.tracking.dbmodels.models import Base

    tables = Base.metadata.tables
    if not all(
        name in tables and set(tables[name].columns.keys()) == columns
        for name, columns in TABLES.items()
    ):
        return False
    metrics, datasets = tables["metrics"], tables["datasets"]
    return (
        tuple(metrics.columns.keys()) == _ROW
        and set(metrics.primary_key.columns.keys()) == set(_ROW)
        and set(datasets.primary_key.columns.keys()) == {"experiment_id", "name", "digest"}
    )


def _has_known_values(store: Any) -> bool:
    """Return True if the store writes the values that are constants here."""
    from mlflow.entities import LoggedModelStatus

    sanitized = getattr(store, "sanitize_metric_value", None)
    folders = [getattr(store, f"{name}_FOLDER_NAME", "") for name in ("MODELS", "ARTIFACTS")]
    return (
        sanitized is not None
        and all(sanitized(value) == stored for value, stored in _STORED.items())
        and sanitized(math.nan) == _STORED_NAN
        and folders == [_MODELS_FOLDER, _ARTIFACTS_FOLDER]
        and LoggedModelStatus.READY.to_int() == _READY
    )


def _write(
    transaction: Transaction,
    points: Mapping[str, Points],
    params: Mapping[str, Mapping[str, str]],
    new: Sequence[NewRun],
    models: Sequence[NewModel],
) -> None:
    created = {each.run.info.run_id for each in new}
    for run_id in dict.fromkeys((*points, *params)):
        if run_id not in created:
            transaction.check_run(run_id)
    insert_runs(transaction, new)
    _insert_models(transaction, models)
    if transaction.dialect == "sqlite":
        _insert_into_sqlite(transaction, points)
    else:
        _insert_metrics(transaction, points)
    transaction.insert(
        "params",
        [
            {"key": key, "value": value, "run_uuid": run_id}
            for run_id, of_run in params.items()
            for key, value in of_run.items()
        ],
    )
    first: list[dict[str, object]] = []
    for run_id, of_run in points.items():
        latest = [dict(zip(_ROW, row, strict=True)) for row in _latest(run_id, of_run)]
        if run_id in created:
            first += latest
        else:
            transaction.update_latest(latest)
    transaction.insert("latest_metrics", first)


_Row = tuple[str, float, int, int, bool, str]
"""Values in the order of _ROW."""


def _rows(run_id: str, points: Points) -> Iterator[_Row]:
    """Yield the rows of a run."""
    for key, value, at, step in points:
        is_nan, stored = (False, value) if math.isfinite(value) else _STORED.get(value, _STORED_NAN)
        yield key, float(stored), at, step, is_nan, run_id  # an array of PostgreSQL is of one type


def _latest(run_id: str, points: Points) -> list[_Row]:
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
        for row in _rows(run_id, Points([end])):
            if row[0] not in latest or _rank(row) > _rank(latest[row[0]]):
                latest[row[0]] = row
    return list(latest.values())


def _rank(row: _Row) -> tuple[int, int, float]:
    _, value, at, step, *_ = row
    return step, at, value


def insert_runs(transaction: Transaction, new: Sequence[NewRun]) -> None:
    """Insert runs with their tags and data sets, as `create_run` and `log_inputs` do."""
    infos = [each.run.info for each in new]
    for experiment_id in {info.experiment_id for info in infos}:
        transaction.check_experiment(experiment_id)
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
    transaction.insert("runs", runs)
    transaction.insert("tags", tags)
    _insert_inputs(transaction, new)


def _insert_inputs(transaction: Transaction, new: Sequence[NewRun]) -> None:
    """Insert the data sets that the experiment lacks, and an input of each run."""
    named = [
        (each.run.info, int(each.run.info.experiment_id), each.dataset)
        for each in new
        if each.dataset is not None
    ]
    datasets = {
        (experiment_id, one.name, one.digest): {
            "dataset_uuid": uuid.uuid4().hex,
            "experiment_id": experiment_id,
            "name": one.name,
            "digest": one.digest,
            "dataset_source_type": one.source_type,
            "dataset_source": one.source,
            "dataset_schema": None,
            "dataset_profile": None,
        }
        for _, experiment_id, one in named
    }
    transaction.insert("datasets", list(datasets.values()))
    # Read back, because a data set that was there before has an id of its own.
    ids = transaction.dataset_ids(datasets)
    inputs, tags = [], []
    for info, experiment_id, one in named:
        input_id = uuid.uuid4().hex
        inputs.append(
            {
                "input_uuid": input_id,
                "source_type": "DATASET",
                "source_id": ids[experiment_id, one.name, one.digest],
                "destination_type": "RUN",
                "destination_id": info.run_id,
                "step": 0,
            }
        )
        tags += [{"input_uuid": input_id, "name": name, "value": value} for name, value in one.tags]
    transaction.insert("inputs", inputs)
    transaction.insert("input_tags", tags)


def _insert_models(transaction: Transaction, models: Sequence[NewModel]) -> None:
    """Insert models that are ready, each an output of its run, with their metrics.

    These are the rows of `create_logged_model`, `log_outputs`, `finalize_logged_model`, and of
    `log_batch` for points that name a model.
    """
    now = time.time_ns() // 1_000_000
    rows, outputs, tags, params, metrics = [], [], [], [], []
    for each in models:
        named = {
            "model_id": f"m-{uuid.uuid4().hex}",
            "experiment_id": int(each.experiment.experiment_id),
        }
        location = _below(
            each.experiment.artifact_location,
            _MODELS_FOLDER,
            str(named["model_id"]),
            _ARTIFACTS_FOLDER,
        )
        rows.append(
            {
                **named,
                "name": each.name,
                "artifact_location": location,
                "creation_timestamp_ms": now,
                "last_updated_timestamp_ms": now,
                "status": _READY,
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
            for key, value, at, step, _, run_id in _rows(each.run_id, each.points)
        ]
    transaction.insert("logged_models", rows)
    transaction.insert("inputs", outputs)
    transaction.insert("logged_model_tags", tags)
    transaction.insert("logged_model_params", params)
    transaction.insert("logged_model_metrics", metrics)


def _insert_into_sqlite(transaction: Transaction, points: Mapping[str, Points]) -> None:
    """Insert points of runs into the metrics of an SQLite database. Existing rows stay.

    A temporary table gets one row for each step of a run, with all values. From it, one statement
    for each metric inserts its rows, so that Python passes neither names nor run ids for each
    point. One metric after another is the order of the primary key, whose index is the largest.
    """
    import numpy as np

    # SQLite takes NaN for NULL, and the statements below put MLflow's value for NaN there.
    _, instead_of_nan = _STORED_NAN
    by_keys: dict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for run_id, of_run in points.items():
        for block in of_run.blocks:
            finite = np.nan_to_num(block.values, nan=math.nan, posinf=_LARGEST, neginf=-_LARGEST)
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
        transaction.execute("DROP TABLE IF EXISTS temp.orch_steps")
        transaction.execute(
            f"CREATE TEMP TABLE orch_steps (run_uuid, timestamp, step, {', '.join(columns)})"
        )
        transaction.execute(
            f"INSERT INTO temp.orch_steps VALUES ({marks})",  # noqa: S608  (question marks)
            rows,
        )
        for key, column in sorted(zip(keys, columns, strict=True)):
            transaction.execute(
                f"""
                INSERT INTO metrics ("key", value, timestamp, step, is_nan, run_uuid)
                SELECT ?, coalesce({column}, ?), timestamp, step, {column} IS NULL, run_uuid
                FROM temp.orch_steps WHERE true  -- which SQLite's grammar needs before ON
                ON CONFLICT DO NOTHING
                """,  # noqa: S608  (a column's number)
                (key, float(instead_of_nan)),
            )
        transaction.execute("DROP TABLE temp.orch_steps")


def _insert_metrics(transaction: Transaction, points: Mapping[str, Points]) -> None:
    """Insert points of runs into the metrics of PostgreSQL. Existing rows stay."""
    each_row = itertools.chain.from_iterable(
        _rows(run_id, of_run) for run_id, of_run in points.items()
    )
    while rows := list(itertools.islice(each_row, _ROWS_A_STATEMENT)):
        if transaction.takes_arrays:
            by_column = zip(*rows, strict=True)
            columns = {name: list(one) for name, one in zip(_ROW, by_column, strict=True)}
            transaction.execute(_ARRAYS, columns)
        else:
            transaction.insert("metrics", [dict(zip(_ROW, row, strict=True)) for row in rows])
