"""`orch` for tests: in the test's own process where a command only prints, else in a new one."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from orchestrator.cli import answer
from orchestrator.pipeline import messages

ROOT = Path(__file__).parents[1]
SECONDS = 1800
WORKING = {"run", "eval", "tune", "dashboard", "env", "mlflow"}
"""Words of commands that train, score, serve, install or open MLflow: each has its own process."""
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "LC_", "LANG", "HOME", "XDG_", "TMP", "TEMP"),
    *("HF_", "OMP_", "MKL_", "OPENBLAS_", "MPL"),
)
"""Beginnings of variables that Python or a library reads when it is imported, or only once."""


def read_at_import(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that a command in this process cannot change; an empty one is none."""
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_IMPORT) and v}


def own_variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "ORCH"))}


_IMPORTED_WITH = read_at_import(own_variables())


def orch(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`orch ARGUMENTS` in a folder; never a terminal, never a tracking server of the machine's."""
    variables = own_variables() | environment
    words = list(map(str, arguments))
    if (
        WORKING.isdisjoint(words)
        and read_at_import(variables) == _IMPORTED_WITH
        and threading.current_thread() is threading.main_thread()
    ):
        return in_this_process(folder, words, variables)
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )


def in_this_process(
    folder: Path, words: list[str], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with _restored(), CliRunner().isolation() as (out, err, _):
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        try:
            code = answer(words)
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(
            words, code, out.getvalue().decode(), err.getvalue().decode()
        )


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Restore what a command may change in its process: folder, variables, signals, log, mask."""
    folder, variables, search = Path.cwd(), dict(os.environ), sys.path.copy()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    mask = os.umask(0o022)
    os.umask(mask)
    log, level = logging.root.handlers.copy(), logging.root.level
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = search
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        os.umask(mask)
        logging.root.handlers[:] = log
        logging.root.setLevel(level)
        if torch and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        messages.set_quiet(False)
        messages.set_verbose(False)
