"""The dashboard: the page of an experiment, kept up to date while it runs, and MLflow beside it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import dashboards
from dashboards.serve import (
    Board,
    BoardState,
    DashboardServer,
    DashboardSite,
    Page,
    PageSource,
    listen,
)
from orchestrator.errors import OrchError, SelectionError
from orchestrator.evaluate import score_index
from orchestrator.launch.logs import logs
from orchestrator.pipeline import stages
from orchestrator.report import markdown
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.state import read_state
from orchestrator.runs.watch import progress_line, take_snapshot
from orchestrator.tracking.server import TUNNEL_PORT, LocalServer, serving
from orchestrator.tracking.store import Store, connected, store_of
from orchestrator.tracking.views import runs_page, views

_LOG_LINES = 100


class LiveExperiment:
    """One experiment, as the dashboard reads it. The spec is read again when its file changes."""

    def __init__(self, open_: Callable[[], Experiment]):
        self.experiment = open_()
        self._open, self._spec_time = open_, self._modified()

    def state(self) -> BoardState:
        """Return the progress of the experiment, with a digest that changes when the page would."""
        if (modified := self._modified()) != self._spec_time:
            self.experiment, self._spec_time = self._open(), modified
        snapshot = take_snapshot(self.experiment.cells, self.experiment.folder)
        return BoardState(f"{snapshot.digest}{modified}", progress_line(snapshot), snapshot.live)

    def page(self) -> Page:
        """Return the page and its Markdown."""

        shown = self.experiment
        records = stages.collect_records(shown)
        index = score_index(shown.cells, shown.spec.evaluation, shown.folder)
        comparison = stages.compare_records(shown, records, index.scores, index.items)
        report = stages.build_report(shown, comparison, records, index.scores, faults=index.faults)
        return Page(dashboards.html(report, live=True).encode(), markdown(report).encode())

    def files(self) -> dict[str, Path]:
        """Return pictures and tables that `orch report` wrote beside the page, by relative path."""
        root = self.experiment.folder.report
        return {
            path.relative_to(root).as_posix(): path
            for path in (root.rglob("*") if root.is_dir() else ())
            if path.suffix in (".png", ".pdf", ".csv", ".parquet")
            and path.is_file()
            # A link may lead out of the folder; the server gives away nothing from outside.
            and path.resolve().is_relative_to(root.resolve())
        }

    def cell(self, name: str) -> str:
        """Return state and last lines of a cell. Raise SelectionError if none has this name."""
        id_ = name.rpartition("-")[2]
        cells = [cell for cell in self.experiment.folder.cells() if cell.id == id_]
        if not cells:
            raise SelectionError(f"no launched cell is called '{name}'")
        state = read_state(cells[0])
        message = f": {state.exit.message}" if state.exit and state.exit.message else ""
        why = message or (state.fault and f": {state.fault}")
        parts = [f"{cells[0].path.name}\n{state.state}{why}"]
        for stream in ("stdout", "stderr"):
            try:
                text = logs(cells[0], stream, lines=_LOG_LINES)
            except OrchError as error:
                text = str(error)
            parts.append(f"---- last lines of {stream} ----\n{text}")
        return "\n\n".join(parts)

    def _modified(self) -> int:
        """Return when the spec file was last changed, in ns; 0 if it cannot be read."""
        try:
            return Path(self.experiment.spec.source).stat().st_mtime_ns
        except OSError:
            return 0


@contextmanager
def page_served(
    live: LiveExperiment, host: str, port: int | None, token: str
) -> Iterator[DashboardServer]:
    """Serve the page of an experiment inside the context. Yield the server.

    Raise ModuleNotFoundError at once where vl-convert, which the page needs, is not installed.
    """
    import_module("vl_convert")
    board = Board(PageSource(live.state, live.page))
    try:
        site = DashboardSite(board, live.files, live.cell, token)
        with listen(site, host, port) as served:
            threading.Thread(target=served.serve_forever, daemon=True).start()
            try:
                yield served
            finally:
                served.shutdown()
    finally:
        board.close()


def has_mlflow(experiment: Experiment) -> bool:
    """Return False if nothing was copied to the experiment's MLflow store yet."""
    database = _store(experiment).database
    return database is None or database.exists()


@contextmanager
def mlflow_served(experiment: Experiment) -> Iterator[LocalServer | None]:
    """Serve an experiment's MLflow inside the context. Yield None if a server has it already."""
    store = _store(experiment)
    if store.is_server:
        yield None
        return
    with serving(store) as server:
        yield server


def mlflow_address(experiment: Experiment) -> str:
    """Return the address to open: the server's, or this end of the printed tunnel."""
    store = _store(experiment)
    return f"{store.address if store.is_server else f'http://127.0.0.1:{TUNNEL_PORT}'}/"


def mlflow_views(experiment: Experiment) -> dict[str, str] | None:
    """Return the ready views: title -> address, first the one of all runs.

    Return None if MLflow has no such experiment. Raise EnvironmentFault if it does not answer.
    """
    with connected(_store(experiment)) as client:
        known = client.get_experiment_by_name(experiment.folder.experiment)
    if known is None:
        return None
    address, id_ = mlflow_address(experiment), known.experiment_id
    records = collect(experiment.cells, experiment.folder)
    return {"Runs": f"{address}{runs_page(id_)}"} | {
        f"{view.title} ({view.num_runs})": f"{address}{runs_page(id_, view.key)}"
        for view in views(records)
    }


def _store(experiment: Experiment) -> Store:
    return store_of(experiment.folder, experiment.spec.site.tracking_uri)
