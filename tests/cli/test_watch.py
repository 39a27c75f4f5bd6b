"""`orch status --watch` and `orch dashboard` as a person runs them."""

import http.client
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from command_line import orch
from lifeline import heed_ctrl_c

from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.status import _Summary
from orchestrator.runs.watch import progress_line, take_snapshot

SPEC = "experiments/smoke.yaml"
BUSY_SECONDS = 300
"""What an ending or a start may take where many other processes compute. It was 30, too short for a
dashboard that waits for MLflow's import to end."""


# ---------------------------------------------------------------- what is known of cells


@pytest.fixture
def cells(synthetic: Any) -> list[Any]:
    made = synthetic.grid({"k1.reward": [0.5] * 3, "k3.loss": [0.5] * 3})
    return [record.cell for record in made.records]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.of(tmp_path, "w", "micro")
    made.open()
    return made


def begin(folder: RunFolder, cell: Any) -> AttemptDir:
    folder.cell(cell).make(cell)
    attempt = folder.cell(cell).new_attempt()
    attempt.job.write_text('{"started": 1.0, "pid": 1, "argv": []}')
    return attempt


def write(attempt: AttemptDir, text: str) -> None:
    with attempt.metrics.open("a") as file:
        file.write(text)


def line(step: int, **values: float) -> str:
    return json.dumps({"step": step, "time": 1.0 + step, "values": values}) + "\n"


def test_a_running_cell_has_the_step_of_its_last_whole_line(
    folder: RunFolder, cells: list[Any]
) -> None:
    attempt = begin(folder, cells[0])
    write(attempt, line(5, **{"train/reward_mean": 1.0}) + line(6)[:20])
    seen = take_snapshot(cells, folder).lines
    assert [(one.step, one.reward) for one in seen[:2]] == [(5, 1.0), (0, None)]


def test_a_look_changes_when_the_page_would(folder: RunFolder, cells: list[Any]) -> None:
    seen = [take_snapshot(cells, folder).digest]
    attempt = begin(folder, cells[0])
    seen.append(take_snapshot(cells, folder).digest)
    write(attempt, line(1, **{"train/reward_mean": 1.0}))
    seen.append(take_snapshot(cells, folder).digest)
    folder.cell(cells[0]).evaluations.mkdir()
    seen.append(take_snapshot(cells, folder).digest)
    assert len(set(seen)) == 4
    assert take_snapshot(cells, folder).digest == seen[-1]


def test_progress_and_time_left(folder: RunFolder, cells: list[Any]) -> None:
    experiment: Any = None  # time does not need it
    attempt, summary = begin(folder, cells[0]), _Summary(experiment)
    with folder.cell(cells[0]).take_claim() or pytest.fail("claimed"):
        assert summary.seconds_left(take_snapshot(cells, folder), 0.0) is None
        write(attempt, line(60, **{"train/reward_mean": 1.0}))
        seen = take_snapshot(cells, folder)
        left = summary.seconds_left(seen, 60.0)
    assert left == pytest.approx(6 * 100 - 60)
    assert seen.live
    assert not seen.over
    assert progress_line(seen) == "0 of 6 cells done, 1 running, 5 planned; 10% of steps"


# ---------------------------------------------------------------- status --watch


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, folder: Path, *arguments: str, rows: int = 40, columns: int = 140):
        self.main, side = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "ORCH"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=folder,
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
            env={**environment, "TERM": "xterm", "LINES": str(rows), "COLUMNS": str(columns)},
        )
        os.close(side)
        self.text = ""

    def until(self, true: Callable[[str], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not true(self.text):
            assert time.monotonic() < deadline, self.text
            if select.select([self.main], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.main, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert true(self.text), self.text
                    return

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.main)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_(*arguments: Any, **more: Any) -> Terminal:
        opened.append(Terminal(*arguments, **more))
        return opened[-1]

    yield open_
    for one in opened:
        one.end()


@pytest.mark.slow
def test_watch_on_a_terminal_ends_when_all_have_ended(
    finished: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(finished, "status", SPEC, "--watch")
    shown.until(lambda text: "4 of 4 cells done; 100% of steps" in text)
    assert shown.process.wait(60) == 0


@pytest.mark.slow
def test_watch_follows_cells_and_ends_with_ctrl_c(
    empty: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(empty, "status", SPEC, "--watch")
    shown.until(lambda text: "0 of 4 cells done, 4 planned" in text)
    done = orch(empty, "run", SPEC, "--train-only", "-w", "kl=none")
    assert done.returncode == 0, done.stderr
    shown.until(lambda text: "1 of 4 cells done" in text)
    os.write(shown.main, b"\x03")
    os.killpg(shown.process.pid, signal.SIGINT)
    assert shown.process.wait(60) == 0
    assert "Traceback" not in shown.text


@pytest.mark.slow
def test_watch_without_a_terminal_prints_lines(finished: Path) -> None:
    done = orch(finished, "status", SPEC, "--watch")
    assert done.returncode == 0
    assert done.stdout == "smoke.micro: 4 of 4 cells done; 100% of steps\n"


# ---------------------------------------------------------------- dashboard


@pytest.fixture
def dashboard(finished: Path) -> Iterator[Callable[..., Any]]:
    started: list[Any] = []

    def start(*arguments: str) -> Any:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "ORCH"))}
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "orchestrator", "dashboard", SPEC, *arguments],
            cwd=finished,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def address(process: Any, name: str = "report", place: int = 1) -> str:
    for text in process.stdout:
        if text.startswith(name):
            return str(text.split()[place])
    raise AssertionError(f"it ended with {process.wait()}")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310  (our own server)
        return str(answer.read().decode())


@pytest.mark.slow
def test_dashboard_serves_the_report_and_leaves_nothing(
    finished: Path, dashboard: Callable[..., Any]
) -> None:
    orch(finished, "status", SPEC)  # it makes the index of ended cells, a cache
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    process = dashboard("--no-mlflow", "--port", "0")
    url = address(process)
    assert "Does everything work on this machine?" in get(url)
    assert json.loads(get(f"{url}version"))["line"] == "4 of 4 cells done; 100% of steps"
    assert get(f"{url}report.md").startswith("#")
    (cell_dir, *_) = sorted((finished / "runs/smoke.micro/cells").iterdir())
    assert "last lines of stdout" in get(f"{url}cells/{cell_dir.name}/")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert "Traceback" not in process.stdout.read()
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_mlflow_ends_with_the_dashboard_however_that_ends(
    dashboard: Callable[..., Any], number: int
) -> None:
    process = dashboard("--port", "0")
    assert address(process, "MLflow") == "http://127.0.0.1:8600/"
    deadline = time.monotonic() + BUSY_SECONDS
    while not (listens := socket_below(process.pid)):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "its server is there"
        time.sleep(0.1)
    process.send_signal(number)
    process.wait(BUSY_SECONDS)
    deadline = time.monotonic() + BUSY_SECONDS
    while on_socket(listens):
        assert time.monotonic() < deadline, on_socket(listens)
        time.sleep(0.2)


def command_lines() -> Iterator[tuple[str, str]]:
    """Each process's number and its command line."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        yield place.parent.name, _text(place).replace("\0", " ")


def socket_below(parent: int) -> str:
    """The socket that a child of a process was told to listen on; empty if there is none yet."""
    for number, line in command_lines():
        match = re.search(r"--uds (\S+)", line)
        if match and re.search(rf"\) [A-Z] {parent} ", _text(Path("/proc", number, "stat"))):
            return match[1]
    return ""


def on_socket(socket: str) -> list[str]:
    """Command lines of processes that were given this socket."""
    return [line for _, line in command_lines() if socket in line]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--token", "short"], "at least 16"),
        (["--token", "a" * 20 + "; x"], "at least 16"),
        (["--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
        (["--port", "70000"], "--port"),
    ],
)
def test_mistakes_are_sentences(empty: Path, arguments: list[str], told: str) -> None:
    done = orch(empty, "dashboard", SPEC, *arguments)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_others_need_the_token_that_it_makes(dashboard: Callable[..., Any]) -> None:
    url = address(dashboard("--no-mlflow", "--port", "0", "--host", "0.0.0.0"))  # noqa: S104  (what is tested)
    assert re.search(r"\?token=[\w-]{32}$", url)
    port = re.search(r":(\d+)/", url)
    assert port
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(f"http://127.0.0.1:{port[1]}/")


@pytest.mark.slow
def test_mlflow_is_open_to_its_owner_alone_and_finds_its_artifacts(
    finished: Path, dashboard: Callable[..., Any]
) -> None:
    """It was writable by every user of the machine."""
    process = dashboard("--port", "0")
    tunnel = address(process, "  ssh", 5)
    socket_path = Path(tunnel.partition(":")[2])
    assert tunnel.startswith("8600:")
    assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700
    deadline = time.monotonic() + BUSY_SECONDS
    while not socket_path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    plain = ask_mlflow(socket_path, "experiments/get-by-name?experiment_name=smoke.micro")
    experiment = plain["experiment"]
    assert experiment["artifact_location"] == "mlflow-artifacts:/smoke.micro"
    query = {"experiment_ids": [experiment["experiment_id"]], "max_results": 100}
    runs = ask_mlflow(socket_path, "runs/search", query)["runs"]
    listed = [
        ask_mlflow(socket_path, f"artifacts/list?run_id={run['info']['run_id']}").get("files", [])
        for run in runs
    ]
    assert any(file["path"] == "report" for files in listed for file in files), listed


def ask_mlflow(socket_path: Path, path: str, body: object = None) -> Any:
    """Return MLflow's answer to a request over its socket."""
    with closing(http.client.HTTPConnection("localhost", timeout=120)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(socket_path))
        connection.request(
            "GET" if body is None else "POST",
            f"/api/2.0/mlflow/{quote(path, safe='/?=&')}",
            None if body is None else json.dumps(body),
            {"Content-Type": "application/json"},
        )
        return json.loads(connection.getresponse().read())


def _text(place: Path) -> str:
    try:
        return place.read_text()
    except OSError:
        return ""
