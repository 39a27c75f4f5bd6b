"""Hands a worker that Ray starts to a process that has imported what it would import (parent.py).

In a launch's folder of its own on PYTHONPATH, before the launch's. Every Python of the launch
loads it. Ray starts a worker as `python setup_worker.py ARGUMENTS`: such a process only asks for a
fork, and ends as the fork ends. Any other loads the sitecustomize that the launch ships.
"""

import array
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

SOCKET = "ORCH_TEST_RAY_FORKS"
"""The variable with the path at which the parent listens."""
SETUP = "/ray/_private/workers/setup_worker.py"


def ask_for_fork(path: str) -> None:
    """Have a fork do what this process was started for, and end as it ends.

    Return, for this process to do it, if the parent has ended.
    """
    question = {"argv": sys.orig_argv[1:], "variables": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(path)
        except OSError:
            return
        files = array.array("i", [0, 1, 2])
        link.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        link.sendall(json.dumps(question).encode() + b"\n")
        answer = link.recv(16)
    code = int(answer) if answer else 1
    if code < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


def load_next() -> None:
    """Run the sitecustomize that this one hides."""
    own = Path(__file__).parent
    for folder in sys.path:
        file = Path(folder, "sitecustomize.py")
        if Path(folder) != own and file.is_file():
            runpy.run_path(str(file))
            return


if SOCKET in os.environ and any(each.endswith(SETUP) for each in sys.orig_argv[1:3]):
    ask_for_fork(os.environ[SOCKET])
load_next()
