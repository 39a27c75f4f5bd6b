"""`submit` killed at each of its operations, then run again: kill.py CELLS.json FOLDER FIRST.

For each n, in a folder n of its own: a process that the kernel kills at its n-th operation (a file
opened, made or renamed in the folder, a lock, a program started), until one comes to its end.
Then, for some delays, one that is killed so long after sbatch was started. Afterwards every folder
is submitted once more. Prints how many operations there were.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.launch.slurm.submit import submit
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import SlurmOptions

OPERATIONS = {"open", "os.rename", "os.mkdir", "fcntl.flock", "subprocess.Popen"}
DELAYS = (0.003, 0.006, 0.012, 0.02, 0.03)


def run(folder: Path, cells: list[Cell]) -> None:
    options = SlurmOptions(extra=("--hold",), max_array_size=2)
    submit(cells, RunFolder(folder), options, evaluate=True)


def killed(folder: Path, cells: list[Cell], arm: Callable[[Path], None]) -> bool:
    """Whether the process was killed before its end."""
    child = os.fork()
    if child == 0:
        arm(folder)
        try:
            run(folder, cells)
        except BaseException as error:
            print(f"{folder.name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def at_operation(nth: int) -> Callable[[Path], None]:
    def arm(folder: Path) -> None:
        seen = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            inside = event in ("fcntl.flock", "subprocess.Popen") or (
                event in OPERATIONS and str(folder) in str(arguments[0])
            )
            if event in OPERATIONS and inside:
                seen += 1
                if seen == nth:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return arm


def after_sbatch(delay: float) -> Callable[[Path], None]:
    def arm(_folder: Path) -> None:
        def kill() -> None:
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGKILL)

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event == "subprocess.Popen" and arguments[0] == "sbatch":
                threading.Thread(target=kill, daemon=True).start()

        sys.addaudithook(hook)

    return arm


def main() -> None:
    cells = [Cell.model_validate(c) for c in json.loads(Path(sys.argv[1]).read_text())]
    root = Path(sys.argv[2])
    count = 1
    while killed(root / f"at{count}", cells, at_operation(count)):
        count += 1
    for number, delay in enumerate(DELAYS):
        killed(root / f"after{number}", cells, after_sbatch(delay))
    for folder in sorted(root.iterdir()):
        assert not killed(folder, cells, lambda _: None)
    print(count)


main()
