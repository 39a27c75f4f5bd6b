"""orch dashboard: write the page of the report, serve it and MLflow on this machine."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click

from dashboards.serve import listen
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.pipeline import stages
from orchestrator.runs.experiment import Experiment
from orchestrator.tracking.links import experiment_page
from orchestrator.tracking.server import LocalServer, serving
from orchestrator.tracking.store import store_of


@click.command()
@common.cells
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8700,
    show_default=True,
    help="Port of the page; 0 takes a free one.",
)
@common.as_json
def command(choice: CellChoice, port: int, as_json: bool) -> int:
    """Write the page of SPEC as `orch report` does, and serve it and MLflow to this machine's
    browsers. Print their two addresses. Ctrl-C ends both.

    MLflow shows what `orch run` or `orch report` last copied to it. It is the server of
    MLFLOW_TRACKING_URI, or one that is started here.
    """
    experiment = choice.chosen()
    folder = experiment.folder.report
    stages.write_report(stages.read_results(experiment), figures=(folder / "figures").is_dir())
    with _ended_by_signals(), ExitStack() as ends, listen(folder, port) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        ends.callback(page.shutdown)
        mlflow, server = _mlflow(experiment, ends)
        report = f"http://127.0.0.1:{page.server_port}/"
        if as_json:
            print_json({"report": report, "mlflow": mlflow})
        else:
            click.echo(f"report  {report}")
            click.echo(f"MLflow  {mlflow or 'nothing yet: `orch run` or `orch report` fills it'}")
        say(f"{'MLflow answers within a minute. ' if server else ''}Ctrl-C ends it")
        sys.stdout.flush()
        server.wait() if server else threading.Event().wait()
    return 0


def _mlflow(experiment: Experiment, ends: ExitStack) -> tuple[str | None, LocalServer | None]:
    """Return the address of MLflow (None: it has nothing yet) and the server, if one is started."""
    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    if store.is_server:
        return f"{store.address}/", None
    if store.database is not None and not store.database.exists():
        return None, None
    server = ends.enter_context(serving(store))
    return server.address + experiment_page(experiment.folder, store), server


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn a hang-up and SIGTERM into KeyboardInterrupt, so that both servers end too."""

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
