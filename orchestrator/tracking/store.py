"""The MLflow store: its address, time limits, and errors as sentences."""

import contextlib
import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from orchestrator.errors import EnvironmentFault
from orchestrator.files import take_lock, telling
from orchestrator.rundir import RunFolder
from orchestrator.spec.redaction import HIDDEN, hide_userinfo

SETTINGS: Mapping[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    # mlflow 3.17.2 writes this, by default ./mlruns, into raw SQL for its experiment `Default`,
    # which a quote in the working directory breaks; orch gives its experiments their own place
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
}
"""Variables that are set while MLflow is used, unless a person set them. MLflow's defaults wait for
minutes."""

BUSY_SECONDS = 20
"""Seconds to wait for another process's lock on an SQLite file."""
_NOISY = ("mlflow", "alembic", "urllib3")
_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Store:
    """The place where MLflow keeps its runs. `uri` may hold a password; `shown` never does."""

    uri: str = field(repr=False)
    shown: str
    artifacts: Path | None
    """Folder of this experiment's artifacts, where orch chooses it; None: the server's choice."""
    database: Path | None
    """The SQLite file, if it is one."""
    ours: bool
    """True for the default: SQLite in the runs folder, made again whenever it is missing."""

    @property
    def is_server(self) -> bool:
        """Return True if the store is a server, reached over http or https."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def artifact_location(self) -> str | None:
        """Return where MLflow's page finds the artifacts of a new experiment; None: the server
        decides.

        The default store's has no folder in it: whoever serves the store names the folder, so that
        the runs folder can be moved.
        """
        if self.artifacts is None:
            return None
        return f"mlflow-artifacts:/{self.artifacts.name}" if self.ours else self.artifacts.as_uri()

    @property
    def address(self) -> str:
        """Return the URI of a server without user, password, and slash at its end."""
        parts = urlsplit(self.uri)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")

    def hide(self, text: str) -> str:
        """Return a text without this store's password."""
        text = text.replace(self.uri, self.shown)
        for secret in _passwords(self.uri):
            for form in {secret, unquote(secret), quote(unquote(secret), safe="")}:
                text = text.replace(form, HIDDEN)
        return hide_userinfo(text)


def store_of(folder: RunFolder, uri: str | None) -> Store:
    """Return the store at `uri`, else at $MLFLOW_TRACKING_URI, else in the runs folder."""
    runs_dir = folder.path.parent
    artifacts = runs_dir / "mlartifacts" / folder.experiment
    address = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address:
        database = runs_dir / "mlflow.db"
        default = _SQLITE + str(database).replace("%", "%25").replace("?", "%3F")
        return Store(default, default, artifacts, database, ours=True)
    if address.startswith(("http://", "https://", "databricks")):
        return Store(address, hide_userinfo(address), None, None, ours=False)
    path = unquote(address.removeprefix(_SQLITE).partition("?")[0])
    known = address.startswith(_SQLITE) and path not in ("", ":memory:")
    return Store(
        address,
        hide_userinfo(address),
        artifacts,
        Path(path).absolute() if known else None,
        ours=False,
    )


@contextmanager
def connected(store: Store) -> Iterator[Any]:
    """Yield an MlflowClient. Raise EnvironmentFault for an error of MLflow, in a bounded time.

    A request that MLflow finds malformed is a bug of orch and keeps its traceback.
    """
    with _settings(store):
        with raising_sentences(store, opening=True):
            import mlflow  # noqa: F401  (it sets its loggers up, and only then can they be quiet)

            with _quiet():
                client = _client(store)
        with raising_sentences(store), _quiet():
            yield client


@contextmanager
def raising_sentences(store: Store, *, opening: bool = False) -> Iterator[None]:
    """Raise EnvironmentFault for an error of MLflow, of the network or of a database.

    opening: a request that MLflow finds malformed is such an error too.
    """
    try:
        yield
    except Exception as error:
        sentence = _sentence(error, opening)
        if sentence is None:
            raise
        raise EnvironmentFault(
            f"MLflow at {store.shown} cannot be used: {store.hide(sentence)}. Nothing is lost: the "
            "run directories hold everything, and `orch report` mirrors what is missing"
        ) from None  # the cause may quote the password


def _client(store: Store) -> Any:
    from mlflow.tracking import MlflowClient

    if store.is_server:
        return MlflowClient(tracking_uri=store.address)
    if store.database is not None:
        with telling(store.database):
            store.database.parent.mkdir(parents=True, exist_ok=True)
    with _alone(store):
        _probe(store)
        client = MlflowClient(tracking_uri=store.uri)
        client.search_experiments(max_results=1)  # it makes the tables of a new store
    if store.ours and "%" in store.uri:  # MLflow makes an empty folder of the name before decoding
        with contextlib.suppress(OSError):
            os.removedirs(Path(store.uri.removeprefix(_SQLITE)).parent)
    return client


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Let one process at a time open a database: two that make its tables get in each other's
    way."""
    with ExitStack() as stack:
        if store.database is not None:
            with contextlib.suppress(OSError):  # a folder that cannot be written has its tables
                path = store.database.with_name(f".{store.database.name}.lock")
                take_lock(stack.enter_context(path.open("a", encoding="utf-8")))
        elif store.uri.startswith("postgresql"):
            import sqlalchemy

            # The server frees the lock with the connection.
            connection = stack.enter_context(_engine(store).connect())
            connection.execute(sqlalchemy.text("select pg_advisory_lock(7066)"))
        yield


def _probe(store: Store) -> None:
    """Connect to a database once. MLflow itself would try for 100 s before it reports a failure."""
    if store.uri.startswith(("sqlite", "postgresql", "mysql", "mssql")):
        import sqlalchemy

        sqlalchemy.inspect(_engine(store)).get_table_names()


def _engine(store: Store) -> Any:
    import sqlalchemy

    # As long as MLflow 3.17.2 itself waits for a lock on a file (store/db/utils.py: busy_timeout).
    options = {"timeout": BUSY_SECONDS} if store.uri.startswith("sqlite") else {}
    return sqlalchemy.create_engine(store.uri, poolclass=sqlalchemy.NullPool, connect_args=options)


def _sentence(error: Exception, opening: bool) -> str | None:
    """Return the error in one line; None for a bug of orch."""
    # What requests raises is an OSError.
    if not isinstance(error, OSError | ImportError | sqlite3.Error):
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        malformed = getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE"
        if not isinstance(error, SQLAlchemyError | MlflowException) or (malformed and not opening):
            return None
    line = " ".join(str(error).split()).partition(" [SQL:")[0]
    if (
        mismatch := re.search(r"out-of-date database schema \(found version (\w+)", line)
    ) is not None:
        return (
            f"another MLflow has written it (schema {mismatch[1]}). If that was an older one, keep "
            "a copy and run `mlflow db upgrade` with its address; else install that newer MLflow, "
            "or move the store away: `orch report` fills a new one"
        )
    if "file is not a database" in line or "disk image is malformed" in line:
        line += ": move that file away"
    return line if len(line) <= 400 else f"{line[:400]}..."


def every(search: Callable[..., Any], experiment_id: str, **options: Any) -> Iterator[Any]:
    """Yield all results of one of MLflow's searches in an experiment, page by page."""
    token = None
    while True:
        page = search([experiment_id], max_results=1000, page_token=token, **options)
        yield from page
        token = page.token
        if not token:
            return


def _passwords(uri: str) -> list[str]:
    """Return the password in an address, as it is written in the address."""
    _, _, after = uri.partition("://")
    userinfo, at, _ = after.partition("/")[0].rpartition("@")
    password = userinfo.partition(":")[2] if at else ""
    return [password] if password else []


@contextmanager
def _settings(store: Store) -> Iterator[None]:
    """Set the environment variables that configure MLflow; restore them afterwards."""
    wanted = {name: value for name, value in SETTINGS.items() if name not in os.environ}
    parts = urlsplit(store.uri) if store.is_server else None
    if parts is not None and "@" in parts.netloc:
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        wanted["MLFLOW_TRACKING_USERNAME"] = unquote(user)
        wanted["MLFLOW_TRACKING_PASSWORD"] = unquote(password)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages about migrations and retries. A failure still raises an error."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
