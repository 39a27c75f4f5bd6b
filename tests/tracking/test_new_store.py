"""A new default store that is filled without MLflow holds what MLflow would have put into it."""

import os
import pickle
import pprint
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tracking_house import House, dump, dying

from orchestrator.errors import EnvironmentFault
from orchestrator.files import short_digest
from orchestrator.rundir import RunFolder
from orchestrator.tracking import bulk, new_store
from orchestrator.tracking.bulk import BulkWriter
from orchestrator.tracking.new_store import NewStore
from orchestrator.tracking.store import store_of

TIMES = {
    "creation_time",
    "last_update_time",
    "creation_timestamp_ms",
    "last_updated_timestamp_ms",
}
"""Columns with the time at which a row was written."""


def without_settings(patch: pytest.MonkeyPatch, cache_home: Path) -> None:
    """An empty cache folder, and no settings of MLflow but those of orch."""
    for name in list(os.environ):
        if "MLFLOW_" in name:
            patch.delenv(name)
    patch.setenv("XDG_CACHE_HOME", str(cache_home))


@pytest.fixture(scope="module")
def mlflows(
    make_house: Callable[..., House], tmp_path_factory: pytest.TempPathFactory
) -> tuple[House, Path]:
    """A house whose store MLflow made, and the empty database that was kept then."""
    root = tmp_path_factory.mktemp("mlflows")
    house = make_house(root / "runs")
    house.database.unlink()
    first, second, third, fourth = house.cells
    house.attempt(first, range(8))
    house.attempt(second, range(4))
    house.attempt(third, range(2), state="failed")
    house.attempt(fourth, range(3), state=None)
    house.score(first, 4, 0.25)
    house.score(first, 7, 0.5)
    house.score(second, 3, float("inf"))
    house.folder.report.mkdir()
    (house.folder.report / "index.html").write_text("<p>β</p>")
    with pytest.MonkeyPatch.context() as patch:
        without_settings(patch, root / "cache")
        house.mirror()
    (file,) = (root / "cache" / "orch").iterdir()
    assert file.suffix == ".db"
    return house, file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_settings(monkeypatch, tmp_path / "cache")
    return tmp_path / "cache" / "orch"


@pytest.fixture
def kept(cache: Path, mlflows: tuple[House, Path]) -> House:
    """A house whose store MLflow made; the empty database is in this test's cache folder."""
    house, file = mlflows
    cache.mkdir(parents=True, mode=file.parent.stat().st_mode)
    shutil.copy2(file, cache)
    return house


@pytest.fixture
def make(kept: House, tmp_path: Path) -> Callable[[str], House]:
    """The same house in other folders, not mirrored yet."""

    def house_in(name: str) -> House:
        runs_dir = tmp_path / name / "runs"
        left_out = shutil.ignore_patterns("mlflow.db", "mlartifacts", "mirror.json")
        shutil.copytree(kept.folder.path.parent, runs_dir, ignore=left_out, symlinks=True)
        return kept._replace(folder=RunFolder(runs_dir / kept.folder.path.name))

    return house_in


def held(house: House) -> str:
    """All that MLflow tells of the experiment, without the place of the runs folder."""
    content = dump(store_of(house.folder, None).uri, house.folder.experiment)
    text = pprint.pformat(content, width=10**9)  # sorts keys
    return text.replace(str(house.folder.path.parent), "RUNS")


def rows(house: House) -> dict[str, list[str]]:
    """The schema, and all rows of all tables, but for times of writing; ids are named by what they
    belong to."""
    with closing(sqlite3.connect(house.database)) as connection:
        connection.row_factory = sqlite3.Row
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        names = {
            **dict(connection.execute("SELECT run_uuid, value FROM tags WHERE key='orch.key'")),
            **dict(
                connection.execute(
                    "SELECT model_id, tag_value FROM logged_model_tags WHERE tag_key='orch.key'"
                )
            ),
            **dict(connection.execute("SELECT dataset_uuid, digest FROM datasets")),
        }
        # MLflow's migrations write the constraints of a table in no fixed order.
        content = {
            "": sorted(
                str(sorted(re.split(r",?\s*\n\s*", sql or "")))
                for (sql,) in connection.execute("SELECT sql FROM sqlite_master")
            )
        }
        for table in tables:
            every = [dict(row) for row in connection.execute(f'SELECT * FROM "{table}"')]  # noqa: S608  (a table)
            for row in every:
                row.update(dict.fromkeys(row.keys() & (TIMES | {"input_uuid"}), ""))
            content[table] = sorted(
                re.sub(
                    "(m-)?[0-9a-f]{32}",
                    lambda hit: names.get(hit[0], hit[0]),
                    repr(row).replace(house.folder.path.parent.as_posix(), "RUNS"),
                )
                for row in every
            )
    return content


def files(house: House) -> list[tuple[int, bytes]]:
    """The content and permissions of all artifacts."""
    root = house.folder.path.parent / "mlartifacts"
    return sorted(
        (path.stat().st_mode, path.read_bytes().replace(str(house.folder.path).encode(), b""))
        for path in root.rglob("*")
        if path.is_file()
    )


def test_every_row_and_file_is_that_of_mlflow(kept: House, make: Callable[[str], House]) -> None:
    house = make("ours00")
    code = (
        "import sys, pickle\nsys.path.insert(0, sys.argv[2])\n"
        "report = pickle.load(open(sys.argv[1], 'rb')).mirror()\n"
        "assert not {'mlflow', 'sqlalchemy'} & sys.modules.keys()\n"
        "assert (report.created, report.rows, report.updated) == (6, 61, 0), report\n"
    )
    pickled = house.folder.path.parent / "house.pickle"
    pickled.write_bytes(pickle.dumps(house))
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(pickled), here], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    ours, theirs = rows(house), rows(kept)
    for table, expected in theirs.items():
        assert ours[table] == expected, table
    assert ours.keys() == theirs.keys()
    assert files(house) == files(kept)
    before = held(house)
    (house.folder.path / "mirror.json").unlink()
    again = house.mirror()  # by MLflow
    assert (again.unchanged, again.created, again.updated, again.rows) == (6, 0, 0, 0)
    assert held(house) == before
    assert list(house.database.parent.glob(".mlflow.db*")) == []


def test_an_empty_store_is_that_of_mlflow(
    kept: House, make: Callable[[str], House], tmp_path: Path
) -> None:
    """The copy, before anything is written into it, and a store that MLflow makes now."""
    from orchestrator.tracking.store import connected

    ours = make("ours00")
    store = store_of(ours.folder, None)
    made = new_store._new_store(store)
    assert made is not None
    made.close()
    theirs = make("theirs")
    with connected(store_of(theirs.folder, None)):
        pass
    assert rows(ours) == rows(theirs)
    for house in (ours, theirs):
        assert house.database.stat().st_mode == kept.database.stat().st_mode
        with closing(sqlite3.connect(house.database)) as connection:
            (times,) = connection.execute("SELECT creation_time, last_update_time FROM experiments")
            assert times[0] == times[1] > kept.database.stat().st_ctime * 1000 - 10_000


def test_the_status_of_a_run_that_has_not_ended_is_set(
    kept: House, make: Callable[[str], House]
) -> None:
    from mlflow.tracking import MlflowClient

    store = store_of(make("ours00").folder, None)
    made = new_store._new_store(store)
    assert made is not None
    with closing(made):
        id_ = made.create_experiment("e", "file:///nowhere/e", {})
        run_id = made.create_run(id_, 5, {}, "first").info.run_id
        made.update_run(run_id, status="SCHEDULED")
    info = MlflowClient(tracking_uri=store.uri).get_run(run_id).info
    assert (info.status, info.start_time, info.end_time) == ("SCHEDULED", 5, None)


def is_used(house: House) -> bool:
    made = new_store._new_store(store_of(house.folder, None))
    if made is not None:
        made.close()
    return made is not None


def test_what_is_unusual_is_left_to_mlflow(
    kept: House,
    make: Callable[[str], House],
    make_house: Callable[..., House],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = make("ours00")
    for name in ("_MLFLOW_SERVER_ARTIFACT_ROOT", "MLFLOW_DEFAULT_WORKSPACE"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "x")
            assert not is_used(house)
    quoted = make_house(tmp_path / "a b" / "runs")
    quoted.database.unlink()
    assert not is_used(quoted)
    with monkeypatch.context() as patched:
        patched.setattr(new_store, "version", lambda _name: "3.18.0")
        assert not is_used(house)
    with monkeypatch.context() as patched:
        patched.setitem(new_store._TABLES, "runs", {"run_uuid"})
        patched.setattr(Path, "unlink", lambda *_a, **_b: None)
        assert not is_used(house)

    def linked(_one: Path, other: Path) -> None:
        raise FileExistsError(other)  # another process was first

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", linked)
        assert not is_used(house)
    assert list(house.database.parent.glob("*.db*")) == []
    assert is_used(house)
    assert not is_used(house), "it is there now"
    other = store_of(house.folder, f"sqlite:///{tmp_path}/another.db")
    assert new_store._new_store(other) is None


def test_one_copy_is_kept_of_all_stores_that_mlflow_makes(
    kept: House, make_house: Callable[..., House], cache: Path, tmp_path: Path
) -> None:
    before = list(cache.iterdir())
    quoted = make_house(tmp_path / "a b" / "runs")  # an address that is left to MLflow
    quoted.database.unlink()
    quoted.attempt(quoted.cells[0], range(2))
    assert quoted.mirror().created > 0
    assert list(cache.iterdir()) == before


def test_a_damaged_copy_is_removed_and_kept_anew(
    kept: House, cache: Path, make: Callable[[str], House]
) -> None:
    (file,) = cache.glob("*.db")
    whole = file.read_bytes()
    filled = shutil.copy(kept.database, cache / "filled")
    foreign = cache / f"{file.stem.rpartition('-')[0]}-{short_digest(filled)}.db"
    filled.replace(foreign)  # its name has its digest, but it holds somebody's runs
    file.write_bytes(whole[: len(whole) // 2])
    house = make("ours00")
    house.mirror()
    (again,) = cache.iterdir()
    assert again.stat().st_size == len(whole)
    assert again.stat().st_mode & 0o077 == 0
    assert rows(house) == rows(kept)


def test_an_unknown_schema_is_not_kept(
    kept: House, cache: Path, make: Callable[[str], House], monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in cache.iterdir():
        file.unlink()
    monkeypatch.setattr(bulk, "_has_known_values", lambda _store: False)
    make("theirs").mirror()
    assert list(cache.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "create_experiment",
        "create_run",
        "copy_artifacts",
        "__call__",
        "finish",
        "set_tag",
        "set_experiment_tag",
    ],
)
def test_mlflow_completes_what_a_kill_left(
    kept: House, make: Callable[[str], House], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Dies before the first call, then after the second."""
    undisturbed = held(kept)
    owner: Any = BulkWriter if call in ("__call__", "finish") else NewStore
    real = getattr(owner, call)
    for number, after in ((1, False), (2, True)):
        house = make(f"killed{number}")
        with monkeypatch.context() as patched:
            patched.setattr(owner, call, dying(real, number, after=after))
            try:
                house.mirror()
            except KeyboardInterrupt:
                pass
            else:
                assert number == 2, f"{call} is never called"
                break
        house.mirror()
        assert held(house) == undisturbed


def test_a_disk_that_is_full_is_a_sentence(
    kept: House, make: Callable[[str], House], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(NewStore, "set_experiment_tag", full)
    house = make("ours00")
    with pytest.raises(EnvironmentFault, match=r"database or disk is full.*Nothing is lost"):
        house.mirror()
    monkeypatch.undo()
    house.mirror()
    assert held(house) == held(kept)
