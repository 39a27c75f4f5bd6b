"""`orch collect` of many runs of 3,000 points: read from their logs, written into MLflow's SQLite.

Wall seconds count, the store's waiting for the disk among them. With --http: into MLflow's own
server on this machine, as many calls at once as it takes, beside one call after another.
    python benchmarks/collect.py [cells] [--http]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import mirror as mirroring

from orchestrator.runs.collect import collect
from orchestrator.tracking import backpressure, mirror

BAR_SECONDS = 30
"""For 1,000 runs."""


class Collected(NamedTuple):
    """What collecting took."""

    read: float
    """CPU seconds of reading the logs."""
    written: float
    """CPU seconds of this process for the mirror."""
    wall: float
    """Seconds by the clock of both."""


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    cells = numbers[0] if numbers else 100
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as name:
        if "--http" in sys.argv:
            alone, together, bare = over_http(Path(name), cells)
            print(f"{cells} runs x 3,000 points over HTTP, s by the clock")
            print(f"log_batch, one after another    {bare:7.1f}")
            print(f"mirror, one after another       {alone:7.1f}")
            print(f"mirror, as many as it takes     {together:7.1f}   {together / bare:.2f} of it")
            return
        done = collected(Path(name), cells)
    print(f"{cells} runs x 3,000 points: {done.wall:.1f} s by the clock", end=" ")
    print(f"(bar {BAR_SECONDS * cells / 1000:.1f}); CPU s: read {done.read:.2f},", end=" ")
    print(f"written {done.written:.2f}")


def collected(folder: Path, cells: int) -> Collected:
    spec, runs, all_cells = mirroring.experiment(folder, cells)
    mirroring.open_store(folder / "mlflow.db")
    started = time.perf_counter()
    read, records = mirroring.cpu(lambda: collect(all_cells, runs))
    uri = f"sqlite:///{folder}/mlflow.db"
    written, report = mirroring.cpu(lambda: mirror(records, (), spec, runs, uri))
    assert report.rows == cells * mirroring.STEPS * len(mirroring.NAMES)
    return Collected(read, written, time.perf_counter() - started)


def over_http(folder: Path, cells: int) -> tuple[float, float, float]:
    """Seconds by the clock: one call after another, as many as it takes, a loop of log_batch."""
    spec, runs, all_cells = mirroring.experiment(folder, cells)
    records = collect(all_cells, runs)
    mirroring.open_store(folder / "empty.db")

    def timed(name: str, action: Callable[[str], object]) -> float:
        shutil.copy(folder / "empty.db", folder / f"{name}.db")
        with server(folder / f"{name}.db") as uri:
            started = time.perf_counter()
            action(uri)
            return time.perf_counter() - started

    with (
        mock.patch.object(backpressure, "AT_ONCE", 1),
        mock.patch.object(backpressure, "MOST_AT_ONCE", 1),
    ):
        alone = timed("alone", lambda uri: mirror(records, (), spec, runs, uri))
    together = timed("together", lambda uri: mirror(records, (), spec, runs, uri))
    return alone, together, timed("bare", lambda uri: mirroring.log_all(records, uri))


@contextmanager
def server(database: Path) -> Iterator[str]:
    """Run MLflow's own server over a database, with its four workers."""
    import socket

    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    artifacts = database.with_suffix("")
    argv = [sys.executable, "-m", "mlflow", "server", "--port", str(port)]
    argv += ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", artifacts]
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        argv, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    break
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
