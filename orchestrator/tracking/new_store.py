"""A new default store, filled without MLflow.

Importing MLflow takes two CPU seconds, and its migrations of an empty SQLite file one more. The
first time that MLflow makes the default store of a runs folder, its empty database is kept in the
user's cache folder. Later default stores are copies of it, and the mirror writes its rows into
them (`bulk`). `NewStore` answers the calls with which the mirror asks MLflow's client. MLflow makes
and fills the store in every other case: an unknown schema, an address that needs quoting, an
environment that configures MLflow.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from orchestrator.files import cache_folder, is_kept, short_digest, telling
from orchestrator.tracking.bulk import (
    IN_MEMORY,
    TABLES,
    BulkWriter,
    NewRun,
    RunEnd,
    UnwrittenRun,
    insert_runs,
    is_plain,
    new_run,
    writer_of,
)
from orchestrator.tracking.store import (
    SETTINGS,
    Store,
    connected,
    frozen_heap,
    raising_sentences,
)

_TABLES = {
    **TABLES,
    "experiments": {
        "experiment_id",
        "name",
        "artifact_location",
        "lifecycle_stage",
        "creation_time",
        "last_update_time",
        "workspace",
    },
    "experiment_tags": {"key", "value", "experiment_id"},
}
"""The tables that are written here, and their columns."""
_FIRST_ROWS = {"alembic_version": 1, "experiments": 1, "workspaces": 1}
"""Tables that have rows in an empty store, and how many."""
_DEFAULT = ("Default", "mlflow-artifacts:/0", "active", "default")
"""The experiment that every store has: name, artifact location, stage and workspace."""
_HARMLESS = SETTINGS.keys() - {"_MLFLOW_SERVER_ARTIFACT_ROOT"}
"""Variables for MLflow that change no row of a store."""
_LONGEST_LOCATION = 1000
_BUSY_SECONDS = 60.0


@contextmanager
def client_of(store: Store) -> Iterator[Any]:
    """Yield a client of the store: a NewStore if possible, else MLflow's own."""
    new = _new_store(store)
    if new is not None:
        with closing(new), raising_sentences(store), frozen_heap():
            yield new
        return
    is_missing = _is_default(store) and _is_absent(store)
    with connected(store) as client:
        if is_missing and _kept() is None:
            _keep(store, client)
        yield client


def _is_default(store: Store) -> bool:
    """Return True for the default store, if the environment does not configure MLflow."""
    names = [name for name in os.environ if name.startswith(("MLFLOW_", "_MLFLOW_"))]
    return store.ours and set(names) <= _HARMLESS


def _is_absent(store: Store) -> bool:
    return store.database is not None and not os.path.lexists(store.database)


def _new_store(store: Store) -> "NewStore | None":
    """Return a store that was made now, or None if MLflow must make it or has made it."""
    if store.database is None or store.artifacts is None:
        return None
    location = store.artifacts.as_uri()
    unusual = not is_plain(location) or len(location) > _LONGEST_LOCATION
    if unusual or not _is_default(store) or not _is_absent(store):
        return None
    empty = _kept()
    if empty is None:
        return None
    with telling(store.database):
        store.database.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not _copied(empty, store.database):
            return None
        return NewStore(store.database)
    except (OSError, sqlite3.Error):  # MLflow tries, and says what is wrong
        return None


def _copied(empty: Path, database: Path) -> bool:
    """Copy an empty store to a place that no file has. Return False if another process was first.

    A kill leaves no part of a database at this place.
    """
    unfinished = database.with_name(f".{database.name}.{os.getpid()}")
    try:
        shutil.copyfile(empty, unfinished)
        with closing(_connection(unfinished)) as connection:
            now = _now()
            connection.execute(
                "UPDATE experiments SET creation_time=?, last_update_time=?", [now, now]
            )
        os.link(unfinished, database)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink(missing_ok=True)
    return True


# ------------------------------------------------------------------ the empty database


def _pattern() -> str | None:
    """Return the pattern of the kept file's name: MLflow's version, and a hash of its
    migrations."""
    try:
        spec, release = find_spec("mlflow"), version("mlflow")
    except (PackageNotFoundError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], "store", "db_migrations", "versions")
    migrations = " ".join(sorted(path.name for path in folder.glob("*.py")))
    return f"mlflow-{release}-{sha256(migrations.encode()).hexdigest()[:12]}"


def _kept() -> Path | None:
    """Return the empty database of the installed MLflow, or None. Remove files that are damaged."""
    folder, pattern = cache_folder(), _pattern()
    if folder is None or pattern is None:
        return None
    for file in sorted(folder.glob(f"{pattern}-*.db")):
        with suppress(OSError, sqlite3.Error):
            if is_kept(file) and _is_empty(file):
                return file
        with suppress(OSError):
            file.unlink()
    return None


def _is_empty(file: Path) -> bool:
    """Return True for a database of the known schema that holds what MLflow puts into a new one."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        numbers = {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608  (names of tables)
            for name in names
        }
        columns = {
            name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')}
            for name in _TABLES
        }
        default = (
            connection.execute(
                "SELECT name, artifact_location, lifecycle_stage, workspace FROM experiments"
            ).fetchall()
            if columns == _TABLES
            else []
        )
    filled = {name: number for name, number in numbers.items() if number}
    return filled == _FIRST_ROWS and default == [_DEFAULT]


def _keep(store: Store, client: Any) -> None:
    """Keep a copy of the database that MLflow has just made, if its tables are known."""
    folder, pattern = cache_folder(), _pattern()
    if folder is None or pattern is None or store.database is None or writer_of(client) is None:
        return
    unfinished = None
    with suppress(OSError, sqlite3.Error):
        handle, name = tempfile.mkstemp(prefix=".mlflow-", suffix=".db", dir=folder)
        os.close(handle)
        unfinished = Path(name)
        with (
            closing(sqlite3.connect(f"{store.database.as_uri()}?mode=ro", uri=True)) as source,
            closing(_connection(unfinished)) as copy,
        ):
            source.backup(copy)
        if _is_empty(unfinished):
            unfinished.replace(folder / f"{pattern}-{short_digest(unfinished)}.db")
    if unfinished is not None:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


# ------------------------------------------------------------------ the new store


class NewStore:
    """The calls of MLflow's client that the mirror makes of a store with nothing in it.

    Each call leaves the rows that MLflow's call leaves. A search gives nothing: it is made before
    anything is written.
    """

    def __init__(self, database: Path):
        self._connection = _connection(database)
        self._experiment: NewExperiment | None = None
        self.bulk = BulkWriter(self._begin)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    @contextmanager
    def _begin(self) -> "Iterator[_Transaction]":
        """Open a transaction. Commit it at the end of the context, or roll it back."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield _Transaction(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def get_experiment_by_name(self, _name: str) -> "NewExperiment | None":
        """Return the experiment, or None before it is made."""
        return self._experiment

    def get_experiment(self, _experiment_id: str) -> "NewExperiment":
        """Return the experiment, which was made before."""
        if self._experiment is None:
            raise LookupError("the experiment was not made yet")
        return self._experiment

    def create_experiment(self, name: str, location: str, tags: Mapping[str, str]) -> str:
        """Make the experiment, and return its id."""
        now = _now()
        with self._begin() as transaction:
            row = transaction.execute(
                "INSERT INTO experiments "
                "(name, artifact_location, lifecycle_stage, creation_time, last_update_time) "
                "VALUES (?, ?, 'active', ?, ?)",
                (name, location, now, now),
            )
            id_ = str(row.lastrowid)
            transaction.set_tags("experiment", [(*tag, id_) for tag in tags.items()])
        self._experiment = NewExperiment(id_, name, location, dict(tags))
        return id_

    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        """Set a tag of the experiment."""
        with self._begin() as transaction:
            transaction.set_tags("experiment", [(key, value, experiment_id)])
        self.get_experiment(experiment_id).tags[key] = value

    def search_runs(self, _experiments: Sequence[str], **_options: Any) -> "_Page":
        """Return no runs."""
        return _Page()

    def search_logged_models(self, _experiments: Sequence[str], **_options: Any) -> "_Page":
        """Return no models."""
        return _Page()

    def create_run(
        self, experiment_id: str, started: int, tags: Mapping[str, str], name: str
    ) -> UnwrittenRun:
        """Make a run, and return it."""
        run = new_run(self.get_experiment(experiment_id), started, tags, name)
        with self._begin() as transaction:
            insert_runs(transaction, [NewRun(run)])
        return run

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        """Set a tag of a run."""
        with self._begin() as transaction:
            transaction.set_tags("run", [(key, value, run_id)])

    def update_run(self, run_id: str, status: str) -> None:
        """Set the status of a run."""
        with self._begin() as transaction:
            transaction.execute("UPDATE runs SET status=? WHERE run_uuid=?", (status, run_id))

    def copy_artifacts(
        self, run: UnwrittenRun, texts: Mapping[str, str], files: Mapping[str, Path]
    ) -> None:
        """Write texts and copies of files as artifacts of a run."""
        folder = Path(run.info.artifact_uri.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*texts, *files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, file in files.items():
            if file.is_file():
                shutil.copyfile(file, folder / name)


class NewExperiment(NamedTuple):
    """An experiment, with MLflow's names."""

    experiment_id: str
    name: str
    artifact_location: str
    tags: dict[str, str]
    lifecycle_stage: str = "active"


class _Page(list[Any]):
    """The answer of a search that finds nothing."""

    token = None


class _Transaction:
    """An open transaction of a NewStore."""

    dialect = "sqlite"
    takes_arrays = False

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection

    def insert(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        if rows:
            columns = ", ".join(f'"{name}"' for name in rows[0])
            marks = ", ".join(f":{name}" for name in rows[0])
            self._connection.executemany(
                f"INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608  (names)
                rows,
            )

    def execute(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        if isinstance(parameters, list):
            return self._connection.executemany(statement, parameters)
        return self._connection.execute(statement, parameters)

    def check_run(self, run_id: str) -> None:
        """Nobody has deleted what this process has just made."""

    def check_experiment(self, experiment_id: str) -> None:
        """Nobody has deleted what this process has just made."""

    def dataset_ids(self, _keys: Collection[tuple[int, str, str]]) -> dict[Any, str]:
        rows = self._connection.execute(
            "SELECT experiment_id, name, digest, dataset_uuid FROM datasets"
        )
        return {tuple(key): id_ for *key, id_ in rows}

    def update_latest(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.insert("latest_metrics", rows)  # a run that was just made has no earlier ones

    def end_runs(self, ends: Sequence[RunEnd]) -> None:
        self.execute(
            "UPDATE runs SET status=?, end_time=? WHERE run_uuid=?",
            [(end.status, end.end_time, end.run_id) for end in ends],
        )
        self.set_tags("run", [(*end.tag, end.run_id) for end in ends])

    def set_tags(
        self, kind: Literal["run", "experiment"], rows: list[tuple[str, str, str]]
    ) -> None:
        """Set tags of runs or of experiments. Each row: key, value, id."""
        table, owner = {
            "run": ("tags", "run_uuid"),
            "experiment": ("experiment_tags", "experiment_id"),
        }[kind]
        self.execute(
            f'INSERT INTO {table} ("key", value, {owner}) VALUES (?, ?, ?) '  # noqa: S608  (names)
            f'ON CONFLICT ("key", {owner}) DO UPDATE SET value = excluded.value',
            rows,
        )


def _connection(database: Path) -> sqlite3.Connection:
    """Open a database for writing, without transactions of Python's own."""
    connection = sqlite3.connect(database, timeout=_BUSY_SECONDS, isolation_level=None)
    for setting in IN_MEMORY:
        connection.execute(setting)
    return connection


def _now() -> int:
    """Return the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000
