"""The dashboard: the page of an experiment, kept up to date while it runs, and MLflow beside it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dashboards
from dashboards.serve import (
    Board,
    BoardState,
    DashboardServer,
    DashboardSite,
    MlflowProxy,
    Page,
    PageSource,
    listen,
    new_token,
    open_mlflow,
)
from orchestrator.errors import OrchError, SelectionError
from orchestrator.evaluate import score_index
from orchestrator.launch.logs import logs
from orchestrator.pipeline import stages
from orchestrator.report import markdown
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.state import read_state
from orchestrator.runs.watch import CurveTails, progress_line, take_snapshot
from orchestrator.tracking.server import Server, experiment_id, serving
from orchestrator.tracking.store import Store, store_of
from orchestrator.tracking.views import runs_page, views

_LOG_LINES = 100


class LiveExperiment:
    """One experiment, as the dashboard reads it. The spec is read again when its file changes."""

    def __init__(self, open_: Callable[[], Experiment]):
        self.experiment = open_()
        self._open, self._spec_time = open_, self._modified()
        self._tails = CurveTails()

    def state(self) -> BoardState:
        """Return the progress of the experiment, with a digest that changes when the page would."""
        if (modified := self._modified()) != self._spec_time:
            self.experiment, self._spec_time = self._open(), modified
        snapshot = take_snapshot(self.experiment.cells, self.experiment.folder, self._tails)
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
    """Serve the page of an experiment inside the context. Yield the server."""
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


class MlflowBeside:
    """The MLflow of an experiment, served for the readers of its page."""

    def __init__(
        self, experiment: Experiment, store: Store, server: Server, proxy: MlflowProxy | None
    ):
        self._experiment, self._store, self._server = experiment, store, server
        self._proxy = proxy
        self.opened = proxy.opened if proxy else f"{server.address}/"
        """The address to open; with the token, if MLflow has one."""

    @property
    def is_starting(self) -> bool:
        """Return True if orch started the server; False if it is another person's."""
        return self._proxy is not None

    def wait(self, page: DashboardSite) -> list[str] | None:
        """Wait until MLflow answers, and show its address on the page.

        Return lines with its ready views; None if it has no such experiment. Raise EnvironmentFault
        if it does not answer.
        """
        self._server.wait()
        name = self._experiment.folder.experiment
        known = experiment_id(self._server, self._store, name)
        # Where others can read the page, its link to MLflow has no token.
        shown = f"{self._proxy.address}/" if self._proxy and not page.token else self.opened
        page.status["mlflow"] = shown if known is None else f"{shown}{runs_page(known)}"
        if known is None:
            return None
        records = collect(self._experiment.cells, self._experiment.folder)
        return [
            f"  {view.title} ({view.num_runs})\n    {self.opened}{runs_page(known, view.key)}"
            for view in views(records)
        ]


@contextmanager
def mlflow_served(experiment: Experiment, token: str) -> Iterator[MlflowBeside]:
    """Serve an experiment's MLflow inside the context, unless a server of it runs already.

    token: the page's; a server that orch starts has the same, or one of its own.
    """
    store = _store(experiment)
    with serving(store) as server:
        if server.socket is None:
            yield MlflowBeside(experiment, store, server, None)
            return
        with open_mlflow(server.socket, token or new_token()) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            try:
                yield MlflowBeside(experiment, store, server, proxy)
            finally:
                proxy.shutdown()


def _store(experiment: Experiment) -> Store:
    return store_of(experiment.folder, experiment.spec.site.tracking_uri)
