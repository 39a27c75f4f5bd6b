"""orch dashboard: the report, live, beside MLflow."""

import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dashboards.serve import DashboardServer, checked_token, is_loopback
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline.live import (
    LiveExperiment,
    has_mlflow,
    mlflow_address,
    mlflow_served,
    mlflow_views,
    page_served,
)
from orchestrator.runs.experiment import Experiment
from orchestrator.tracking.server import LocalServer


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
    help="Only a person with this token can read the page; `auto` makes a token.",
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

    The command changes nothing on disk. MLflow shows what `orch run` or `orch report` last
    copied to it. It is the server in MLFLOW_TRACKING_URI, or a server that is started only for
    you: it listens on a socket that only you can open, and the printed ssh command brings it to
    your browser. Ctrl-C ends both.

    With --where, the page shows only the chosen cells. With --json, the command prints the
    addresses once, as one object, when both servers are ready.
    """
    token = checked_token(token, is_loopback(host))
    live = LiveExperiment(choice.chosen)
    with _ended_by_signals(), page_served(live, host, port, token) as served:
        if not as_json:
            click.echo(f"report  {served.address}")
        if _has_screen() if opens is None else opens:
            webbrowser.open(served.address)
        if no_mlflow or not has_mlflow(live.experiment):
            fills = "MLflow has nothing yet: `orch run` or `orch report` fills it"
            say("no MLflow, as asked" if no_mlflow else fills)
            if as_json:
                print_json({"report": served.address, "mlflow": None, "tunnel": None})
            _wait()
        else:
            _serve_mlflow(live, served, as_json)
    return 0


def _serve_mlflow(live: LiveExperiment, served: DashboardServer, as_json: bool) -> None:
    """Serve MLflow beside the page until Ctrl-C."""
    address = mlflow_address(live.experiment)
    with mlflow_served(live.experiment) as server:
        tunnel = server.tunnel(served.server_port) if server else None
        if as_json:
            print_json({"report": served.address, "mlflow": address, "tunnel": tunnel})
        else:
            click.echo(f"MLflow  {address}")
            if tunnel:
                click.echo(f"  through this tunnel, from your own machine:\n  {tunnel}")
        arguments = (live.experiment, server, served, as_json)
        threading.Thread(target=_print_views, args=arguments, daemon=True).start()
        _wait()


def _has_screen() -> bool:
    """Return True if somebody at a terminal of this machine could see a browser."""
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return screen and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ


def _print_views(
    experiment: Experiment, server: LocalServer | None, served: DashboardServer, as_json: bool
) -> None:
    """Print the ready views once MLflow answers, and link the page to it."""
    try:
        if server is not None:
            server.wait()
        ready_views = mlflow_views(experiment)
    except EnvironmentFault as fault:
        say(str(fault))
        return
    served.site.status["mlflow"] = mlflow_address(experiment)
    if ready_views is None:
        say(f"MLflow has no experiment {experiment.folder.experiment} yet: `orch report` makes it")
        return
    served.site.status["mlflow"] = ready_views["Runs"]
    lines = [f"  {title}\n    {address}" for title, address in ready_views.items()]
    click.echo("\n".join(["MLflow answers. Ready views:", *lines]), err=as_json)
    sys.stdout.flush()


def _wait() -> None:
    """Wait for Ctrl-C, which raises KeyboardInterrupt."""
    say("Ctrl-C ends it")
    sys.stdout.flush()
    threading.Event().wait()


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
