"""orch dashboard: the report, live, beside MLflow."""

import os
import re
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dashboards.door import Door, open_door
from dashboards.serve import (
    Board,
    DashboardServer,
    DashboardSite,
    PageSource,
    is_loopback,
    listen,
    new_token,
)
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.pipeline.live import LiveExperiment
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.tracking.server import Server, experiment_id, serving
from orchestrator.tracking.store import Store, store_of
from orchestrator.tracking.views import runs_page, views

_MIN_TOKEN = 16


@click.command(short_help="Serve the report, kept up to date, and MLflow.")
@common.cells
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Every address but this machine's own needs a token; one "
    "is made if none is given.",
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
    help="Only a person with this token can read the page and MLflow; `auto` makes a token.",
)
@click.option("--no-mlflow", is_flag=True, help="Serve the report without MLflow.")
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the report in a browser. Default: where there is a screen.",
)
@common.as_json
def command(
    choice: CellChoice,
    host: str,
    port: int | None,
    token: str,
    no_mlflow: bool,
    opens: bool | None,
    as_json: bool,
) -> int:
    """Serve the report of SPEC, up to date while cells run, and MLflow.

    The command changes nothing on disk. MLflow shows what `orch run` or `orch collect` last
    copied to it. It is the server in MLFLOW_TRACKING_URI, or a server that is started only for
    you: it listens on this machine only, and needs a token (that of the printed address, or
    --token). Ctrl-C ends both.

    With --where, the page shows only the chosen cells. With --json, the command prints the
    addresses once, as one object, when both servers are ready.
    """
    token = _token(token, is_loopback(host))
    live = LiveExperiment(choice.chosen)
    with _ended_by_signals():
        board = Board(PageSource(live.state, live.page))
        try:
            site = DashboardSite(board, live.files, live.cell, token)
            with listen(site, host, port) as served:
                threading.Thread(target=served.serve_forever, daemon=True).start()
                if not as_json:
                    click.echo(f"report  {served.address}")
                if _has_screen() if opens is None else opens:
                    webbrowser.open(served.address)
                _stay(live.experiment, site, served, no_mlflow=no_mlflow, as_json=as_json)
        finally:
            board.close()
    return 0


def _has_screen() -> bool:
    """Return True if somebody at a terminal of this machine could see a browser."""
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return screen and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ


def _token(token: str, alone: bool) -> str:
    if token == "auto" or not (token or alone):  # noqa: S105  (a mode, not a password)
        return new_token()
    if token and not re.fullmatch(rf"[A-Za-z0-9_-]{{{_MIN_TOKEN},}}", token):
        raise OrchError(
            f"--token: at least {_MIN_TOKEN} letters, digits, - and _; the one given is not. "
            "`--token auto` makes a good one"
        )
    return token


def _stay(
    experiment: Experiment,
    site: "DashboardSite",
    served: "DashboardServer",
    *,
    no_mlflow: bool,
    as_json: bool,
) -> None:
    """Serve the page, and MLflow beside it, until Ctrl-C."""
    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    if reason := _without_mlflow(store, no_mlflow):
        say(reason)
        if as_json:
            print_json({"report": served.address, "mlflow": None})
        _wait(served)
    with serving(store) as server, _door(server, site.token) as door:
        opened = door.opened if door else f"{server.address}/"
        if as_json:
            print_json({"report": served.address, "mlflow": opened})
        else:
            click.echo(f"MLflow  {opened}{'  (starting)' if door else ''}")
        shown = door.address + "/" if door and not site.token else opened
        threading.Thread(
            target=_tell_mlflow,
            args=(experiment, site, server, store, opened, shown, as_json),
            daemon=True,
        ).start()
        _wait(served)


@contextmanager
def _door(server: "Server", token: str) -> Iterator["Door | None"]:
    """Yield the guarded port of a server that orch started; None for another's."""
    if server.socket is None:
        yield None
        return
    with open_door(server.socket, token or new_token()) as door:
        threading.Thread(target=door.serve_forever, daemon=True).start()
        try:
            yield door
        finally:
            door.shutdown()


def _tell_mlflow(
    experiment: Experiment,
    site: "DashboardSite",
    server: "Server",
    store: "Store",
    opened: str,
    shown: str,
    as_json: bool,
) -> None:
    """Once it answers: its address on the page, and the ready views on the terminal.

    `opened`: the address to print. `shown`: that for the page, without a token of MLflow's where
    others can read the page.
    """
    try:
        server.wait()
    except EnvironmentFault as fault:
        say(str(fault))
        return
    name = experiment.folder.experiment
    known = experiment_id(server, store, name)
    if known is None:
        say(f"MLflow has no experiment {name} yet: `orch collect` makes it")
        site.status["mlflow"] = shown
        return
    site.status["mlflow"] = f"{shown}{runs_page(known)}"
    lines = [
        f"  {view.title} ({view.num_runs})\n    {opened}{runs_page(known, view.key)}"
        for view in views(collect(experiment.cells, experiment.folder))
    ]
    click.echo("\n".join(["MLflow answers. Ready views:", *lines]), err=as_json)
    sys.stdout.flush()


def _without_mlflow(store: "Store", no_mlflow: bool) -> str:
    """Return why no MLflow is shown; empty if one is."""
    if no_mlflow:
        return "no MLflow, as asked"
    if _is_missing(store):
        return "MLflow has nothing yet: `orch run` or `orch collect` fills it"
    return ""


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
    """Turn a hang-up and SIGTERM into KeyboardInterrupt, so that the server and MLflow end too."""

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
