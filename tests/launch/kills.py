"""A process that is killed at the n-th of its operations: by an audit hook, at every instant that
matters."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

Hook = Callable[[str, tuple[object, ...]], None]
IN_THE_FOLDER = {"open", "os.rename", "os.mkdir"}
ANYWHERE = {"fcntl.flock", "subprocess.Popen", "socket.connect"}


def at_operation(nth: int, folder: Path) -> Hook:
    """Kill at the n-th file opened, made or renamed in the folder, lock, program or connection."""
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        inside = event in IN_THE_FOLDER and str(folder) in str(arguments[0])
        if inside or event in ANYWHERE:
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def killed(work: Callable[[], object], hook: Hook) -> bool:
    """Do it in a child with this hook; whether the child was killed before its end."""
    child = os.fork()
    if child == 0:
        sys.addaudithook(hook)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL
