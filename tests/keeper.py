"""Run a program while another process keeps the other end of standard input open.

    python keeper.py PROGRAM ARGUMENT...

When standard input is closed, for whatever reason, ask the program and all its child processes to
stop, and kill those that do not. This file is run as a script and imports no module of orch.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.25


def main(argv: list[str]) -> int:
    """Return the exit code of the program, or 0 if it was stopped."""
    program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while program.poll() is None:
            readable, _, _ = select.select([0], [], [], _LOOK_SECONDS)
            if readable and not os.read(0, 4096):
                return 0
        return program.returncode
    finally:
        _end(program)


def _end(program: "subprocess.Popen[bytes]") -> None:
    """End the whole process group, because the program may have children that outlive it."""
    deadline = time.monotonic() + _GRACE_SECONDS
    number = signal.SIGTERM
    while True:
        # Take its exit code: an ended process that nobody waited for still counts as one of the
        # group.
        program.poll()
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(program.pid, number)
            except ProcessLookupError:
                return
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        if time.monotonic() > deadline + _GRACE_SECONDS:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
