"""The MLflow runs of cells, for pages that link to them."""

import contextlib
import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.rundir import RunFolder
from orchestrator.tracking.store import Store, connected, every, store_of

_QUERY = (
    "select tags.value, runs.run_uuid from runs join tags on tags.run_uuid = runs.run_uuid "
    "join experiments on experiments.experiment_id = runs.experiment_id "
    "where tags.key = 'orch.cell_id' and experiments.name = ? "
    "and runs.lifecycle_stage = 'active'"
)


class CellRuns(NamedTuple):
    """The MLflow runs of mirrored cells."""

    runs: dict[str, str]
    """Cell id -> id of its MLflow run."""
    address: str = ""
    """The URL below which a server has a page for each run; empty for other stores."""


def cell_runs(folder: RunFolder, uri: str | None, cells: Collection[str]) -> CellRuns:
    """Return the MLflow runs of these cells, for those that are mirrored.

    A store that orch made is read as an SQLite file: MLflow itself takes ten seconds to start.
    Raise EnvironmentFault if MLflow does not answer.
    """
    store = store_of(folder, uri)
    if store.database is not None:
        rows = _in_sqlite(store.database, _QUERY, folder)
        return CellRuns({cell: run for cell, run in rows if cell in cells})
    runs = {}
    with connected(store) as client:
        experiment = client.get_experiment_by_name(folder.experiment)
        if experiment is None:
            return CellRuns({})
        for run in every(client.search_runs, experiment.experiment_id):
            cell = run.data.tags.get("orch.cell_id", "")
            if cell in cells:
                runs[cell] = run.info.run_id
    pages = f"{store.address}/#/experiments/{experiment.experiment_id}/runs"
    return CellRuns(runs, pages if store.is_server else "")


def experiment_page(folder: RunFolder, store: Store) -> str:
    """Return the address of an experiment's runs below MLflow's; empty if it is not known here.

    Without it MLflow opens on a page for traces of agents.
    """
    query = "select experiment_id from experiments where name = ?"
    return "".join(runs_page(id_) for (id_,) in _in_sqlite(store.database, query, folder))


def runs_page(experiment_id: str) -> str:
    """Return the address of an experiment's runs below MLflow's."""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&compareRunsMode=CHART"


def _in_sqlite(database: Path | None, query: str, folder: RunFolder) -> list[tuple[Any, ...]]:
    """Return the rows of a query with the experiment's name as its parameter.

    A database that is missing, being made, or of another MLflow gives no rows and no error.
    """
    if database is None or not database.exists():
        return []
    with contextlib.suppress(sqlite3.Error):
        opened = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(opened) as connection:
            return connection.execute(query, (folder.experiment,)).fetchall()
    return []
