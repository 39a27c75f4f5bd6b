"""The agent: one node's part of a run. It runs a program and ends all that the program started.

python -m orchestrator.launch.node.agent ORDER ARGV...     ORDER: AgentOrder, as JSON

The agent first checks the node's GPUs, if ARGV uses any, and ends with BAD_NODE if one is faulty.
In ARGV it replaces OWN_ADDRESS by the node's address on the interface. Then it runs ARGV to its
end, or until its stdin ends. Its stdin is the pipe from the run's first node. That pipe closes when
the run is over, also when the process on the first node dies. (srun forwards the end of stdin. A
signal to srun would kill the agent before it could end anything.) Then the agent ends every process
that ARGV started, in any session. It finds them by a token in their environment variables, which a
daemon that leaves its session keeps. It keeps the logs of a failed run (`keep` on stdin), and
removes the scratch folder.
"""

import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.launch import processes, program
from orchestrator.launch.node import process_group
from orchestrator.launch.node.gpus import gpu_fault
from orchestrator.launch.node.process_group import BAD_NODE, OWN_ADDRESS, REFUSED, TOKEN, AgentOrder

SCRATCH = "orch-"
"""Prefix of a scratch folder's name; the run's token follows."""


def end_processes(token: str) -> int:
    """End every process of this user that carries the token. Return their number."""
    first = list(carriers(token))
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0)):
        # Read again for each signal, because a process may have started others meanwhile.
        living = list(carriers(token))
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while living and time.monotonic() < deadline:
            time.sleep(0.05)
            living = [pid for pid in living if processes.is_running(pid)]
    return len(first)


def carriers(token: str) -> Iterator[int]:
    """Yield processes of this user that carry the token of a rank (`<run>.<rank>`) or of a run."""
    needle = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                carries = any(
                    word == needle or word.startswith(needle + b".") for word in variables
                )
                if carries and processes.is_running(int(entry.name)):
                    yield int(entry.name)


GRACE_SECONDS = 8.0
STOPPED = 143
_MOST_LOGS, _MOST_BYTES = 60, 1 << 20
_ORPHAN_SECONDS = 600
"""A younger folder may belong to a run that is just starting."""


class ControlPipe:
    """The pipe from the first node, on stdin."""

    def __init__(self) -> None:
        self.received = b""
        self.open = True

    def listen(self, seconds: float) -> bool:
        """Return True if the run still needs this node, after waiting at most `seconds`."""
        if self.open and select.select([0], [], [], seconds)[0]:
            data = os.read(0, 256)
            self.received += data
            self.open = bool(data)
        return self.open


def main() -> int:
    """Run the program. Return its exit code, or 143 if the run was over first."""
    order, argv = AgentOrder(*json.loads(sys.argv[1])), sys.argv[2:]
    if order.gpus and (fault := gpu_fault(order.gpus)):
        sys.stderr.write(f"{fault}\n")
        return BAD_NODE
    try:
        if order.interface is not None:
            address = process_group.own_address(order.interface, None)
            argv = [word.replace(OWN_ADDRESS, address) for word in argv]
    except EnvironmentFault as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    pipe, stop = ControlPipe(), processes.Stop()
    scratch = Path(order.scratch) if order.scratch else None
    with stop.listening():
        if scratch:
            clear_orphans(scratch.parent)
            scratch.mkdir(parents=True, exist_ok=True)
        code = _run(argv, order.token, lambda: pipe.listen(0.3) and not stop.asked)
        end_processes(order.token)
        if scratch:
            if code != STOPPED or b"keep" in pipe.received:
                keep_logs(scratch, Path(order.logs))
            shutil.rmtree(scratch, ignore_errors=True)
    return code


def _run(argv: list[str], token: str, wanted: Callable[[], bool]) -> int:
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            argv,
            env={**os.environ, TOKEN: token},
            stdin=subprocess.DEVNULL,
            # A session of its own, so that program.end can end its whole process group.
            start_new_session=True,
            preexec_fn=lambda: processes.die_with(parent),
        )
    except (FileNotFoundError, PermissionError) as error:
        sys.stderr.write(f"{argv[0]}: command not found ({error.strerror})\n")
        return 127
    while wanted():
        code = process.poll()
        if code is not None:
            # As a shell reports a signal: 128 plus its number.
            return code if code >= 0 else 128 - code
    program.end(process, GRACE_SECONDS)
    return STOPPED


def clear_orphans(base: Path) -> None:
    """Remove scratch folders of runs that were killed together with their agent.

    Remove only old folders of this user, and only if no process carries their token any more.
    """
    # 16 characters: the run's token.
    for path in base.glob(f"{SCRATCH}????????????????"):
        with suppress(OSError):
            status = path.lstat()
            old = time.time() - status.st_mtime > _ORPHAN_SECONDS
            if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode) and old:
                token = path.name.removeprefix(SCRATCH)
                if not any(carriers(token)):
                    shutil.rmtree(path, ignore_errors=True)


def keep_logs(scratch: Path, target: Path) -> None:
    """Copy the ends of Ray's own logs, newest first. They show the cause of a failure."""
    # Ray's folder of a start is named by the date; `session_latest` is only a link to one.
    logs = [path for path in scratch.glob("session_2*/logs/*") if path.is_file()]
    with suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(logs, key=lambda p: p.stat().st_mtime, reverse=True)[:_MOST_LOGS]:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_BYTES))
                if size:
                    (target / path.name).write_bytes(file.read())


if __name__ == "__main__":
    sys.exit(main())
