"""orch dashboard: the report, live, beside MLflow."""

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import say
from orchestrator.errors import EnvironmentFault, OrchError, SelectionError
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from dashboards.serve import BoardState, DashboardServer, DashboardSite, Page
    from orchestrator.tracking.server import Server
    from orchestrator.tracking.store import Store

_MIN_TOKEN = 16
_LOG_LINES = 100


@click.command(short_help="The report, live, beside MLflow.")
@common.spec
@common.overrides
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Anything but this machine's own needs a token; one is "
    "made if none is given.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Default: the first free one from 8700 on.",
)
@click.option(
    "--token",
    envvar="ORCH_DASHBOARD_TOKEN",
    default="",
    help="Only who has it may look; `auto` makes one.",
)
@click.option("--no-mlflow", is_flag=True, help="The report alone.")
def command(
    spec: str, overrides: tuple[str, ...], host: str, port: int | None, token: str, no_mlflow: bool
) -> int:
    """Serve the report of SPEC, kept up to date while cells run, and MLflow beside it.

    Changes nothing on disk. MLflow shows what was last mirrored (`orch run`, `orch collect`); its
    server listens on this machine only, or is the one that MLFLOW_TRACKING_URI names. Ctrl-C ends
    both.
    """
    from dashboards.serve import Board, DashboardSite, PageSource, is_loopback, listen
    from orchestrator.runs.experiment import open_experiment

    token = _token(token, is_loopback(host))
    shown = Shown(open_experiment(spec, overrides), lambda: open_experiment(spec, overrides))
    with _ended_by_signals():
        board = Board(PageSource(shown.look, shown.build))
        try:
            site = DashboardSite(board, shown.files, shown.cell, token)
            with listen(site, host, port) as served:
                threading.Thread(target=served.serve_forever, daemon=True).start()
                click.echo(f"report  {served.address}")
                _stay(shown.experiment, site, served, no_mlflow)
        finally:
            board.close()
    return 0


class Shown:
    """One experiment as the dashboard looks at it; the spec is read again when its file changes."""

    def __init__(self, experiment: Experiment, again: Callable[[], Experiment]):
        self.experiment = experiment
        from orchestrator.runs.watch import CurveTails

        self._again, self._spec_changed = again, self._changed()
        self._tails = CurveTails()

    def look(self) -> "BoardState":
        """How far it is, and whether a page would say something else than the last."""
        from dashboards.serve import BoardState
        from orchestrator.runs.watch import progress_line, take_snapshot

        if (changed := self._changed()) != self._spec_changed:
            self.experiment, self._spec_changed = self._again(), changed
        seen = take_snapshot(self.experiment.cells, self.experiment.folder, self._tails)
        return BoardState(f"{seen.digest}{changed}", progress_line(seen), seen.live)

    def build(self) -> "Page":
        """The page and its Markdown."""
        import dashboards
        from dashboards.serve import Page
        from orchestrator.cli import stages
        from orchestrator.evaluate import score_index
        from orchestrator.report import markdown

        shown = self.experiment
        records = stages.gather(shown)
        found = score_index(shown.cells, shown.spec.evaluation, shown.folder)
        comparison = stages.contrast(shown, records, found.scores, found.items)
        report = stages.build_report(shown, comparison, records, found.scores, faults=found.faults)
        return Page(dashboards.html(report, live=True).encode(), markdown(report).encode())

    def files(self) -> dict[str, Path]:
        """What `orch report` wrote beside the page: pictures and tables."""
        root = self.experiment.folder.report
        return {
            path.relative_to(root).as_posix(): path
            for path in (root.rglob("*") if root.is_dir() else ())
            if path.suffix in (".png", ".pdf", ".csv", ".parquet")
            and path.is_file()
            and path.resolve().is_relative_to(root.resolve())
        }

    def cell(self, name: str) -> str:
        """State and last lines of a cell of this experiment."""
        from orchestrator.runs.logs import logs
        from orchestrator.runs.state import read_state

        id_ = name.rpartition("-")[2]
        found = [cell for cell in self.experiment.folder.cells() if cell.id == id_]
        if not found:
            raise SelectionError(f"no launched cell is called '{name}'")
        seen = read_state(found[0])
        message = f": {seen.exit.message}" if seen.exit and seen.exit.message else ""
        parts = [
            f"{found[0].path.name}\n{seen.state}{message or (seen.fault and ': ' + seen.fault)}"
        ]
        for stream in ("stdout", "stderr"):
            try:
                text = logs(found[0], stream, lines=_LOG_LINES)
            except OrchError as error:
                text = str(error)
            parts.append(f"---- last lines of {stream} ----\n{text}")
        return "\n\n".join(parts)

    def _changed(self) -> int:
        try:
            return Path(self.experiment.spec.source).stat().st_mtime_ns
        except OSError:
            return 0


def _token(token: str, alone: bool) -> str:
    from dashboards.serve import new_token

    if token == "auto" or not (token or alone):  # noqa: S105  (a mode, not a password)
        return new_token()
    if token and not re.fullmatch(rf"[A-Za-z0-9_-]{{{_MIN_TOKEN},}}", token):
        raise OrchError(
            f"--token: at least {_MIN_TOKEN} letters, digits, - and _; the one given is not. "
            "`--token auto` makes a good one"
        )
    return token


def _stay(
    experiment: Experiment, site: "DashboardSite", served: "DashboardServer", no_mlflow: bool
) -> None:
    """Until Ctrl-C; with MLflow's server as long."""
    from orchestrator.tracking.server import serving
    from orchestrator.tracking.store import store_of

    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    if no_mlflow or _is_missing(store):
        if not no_mlflow:
            say("MLflow has nothing yet: `orch run` or `orch collect` fills it")
        _wait(served)
    with serving(store) as server:
        click.echo(
            f"MLflow  {server.address}  (starting)"
            if server.is_ours
            else f"MLflow  {server.address}"
        )
        threading.Thread(
            target=_tell_mlflow, args=(experiment, site, server, store), daemon=True
        ).start()
        _wait(served)


def _tell_mlflow(
    experiment: Experiment, site: "DashboardSite", server: "Server", store: "Store"
) -> None:
    """Once it answers: its address on the page, and the ready views on the terminal."""
    from orchestrator.runs.collect import collect
    from orchestrator.tracking.server import experiment_id
    from orchestrator.tracking.views import runs_page, views

    try:
        server.wait()
    except EnvironmentFault as fault:
        say(str(fault))
        return
    name = experiment.folder.experiment
    known = experiment_id(server, store, name)
    if known is None:
        say(f"MLflow has no experiment {name} yet: `orch collect` makes it")
        site.status["mlflow"] = server.address
        return
    site.status["mlflow"] = f"{server.address}/{runs_page(known)}"
    lines = [
        f"  {view.title} ({view.num_runs})\n    {server.address}/{runs_page(known, view.key)}"
        for view in views(collect(experiment.cells, experiment.folder))
    ]
    click.echo("\n".join(["MLflow answers. Ready views:", *lines]))
    sys.stdout.flush()


def _is_missing(store: "Store") -> bool:
    return store.database is not None and not store.database.exists()


def _wait(served: "DashboardServer") -> None:
    say("Ctrl-C ends it")
    sys.stdout.flush()
    try:
        threading.Event().wait()
    finally:
        served.shutdown()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A hang-up or SIGTERM ends it as Ctrl-C does: quietly, with nothing left behind."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        say("ended")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
