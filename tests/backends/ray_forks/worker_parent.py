"""Runs Ray's workers, each in a fork of this process, which has imported what takes seconds.

    python worker_parent.py NUMBER MODULE...     with the variables of the launch; it inherits the
                                                 file of that number, a socket that listens

A worker is still a process with variables, output and modules of its own, which Ray starts, names,
watches and ends. See sitecustomize.py, which asks; __init__.py, which starts this.
"""

import array
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 16
INSTALLED = [
    each for each in sys.path[1:] if each not in os.environ["PYTHONPATH"].split(os.pathsep)
]
"""Where this Python looks for modules, without the variable."""


def main() -> None:
    """Fork for everybody who asks, until this process is ended."""
    number, *modules = sys.argv[1:]
    with socket.socket(fileno=int(number)) as listener:
        for name in modules:
            importlib.import_module(name)
        assert "ray" not in sys.modules, "Ray reads its variables when it is imported"
        gc.freeze()
        awake, wake = socket.socketpair()
        awake.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        askers: dict[int, socket.socket] = {}
        while True:
            ready, _, _ = select.select([listener, awake], [], [])
            if awake in ready:
                awake.recv(MOST_BYTES)
                tell_of_ended(askers)
            if listener in ready:
                link, _ = listener.accept()
                files, question = received(link)
                fork = os.fork()
                if not fork:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (listener, awake, wake, link, *askers.values()):
                        each.close()
                    become(files, question)
                for file in files:
                    os.close(file)
                askers[fork] = link


def tell_of_ended(askers: "dict[int, socket.socket]") -> None:
    """Send the exit codes of forks that have ended to those who asked for them."""
    for fork in list(askers):
        ended, status = os.waitpid(fork, os.WNOHANG)
        if ended:
            with askers.pop(fork) as link:
                try:
                    link.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                except OSError:  # Ray has ended the one who asked
                    continue


def received(link: socket.socket) -> "tuple[list[int], dict[str, Any]]":
    """Return the three standard files of who asks, and what it was started for."""
    files = array.array("i")
    _, extra, _, _ = link.recvmsg(1, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, data in extra:
        files.frombytes(data)
    text = b""
    while not text.endswith(b"\n"):
        text += link.recv(MOST_BYTES)
    return list(files), json.loads(text)


def become(files: "list[int]", question: "dict[str, Any]") -> NoReturn:
    """Be `python setup_worker.py ARGUMENTS`, and end."""
    os.setpgid(0, 0)  # Ray ends a worker with its process group
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(question["variables"])
    os.chdir(question["folder"])
    os.execvp = become_program
    run(question["argv"])


def become_program(_: str, args: "list[str]") -> NoReturn:
    """Be the Python program that Ray would have bash start; start it if it is another's."""
    begun, python, *argv = shlex.split(args[-1])
    if begun != "exec" or not Path(python).samefile(sys.executable):
        os.execv("/bin/bash", args)  # noqa: S606  (as Ray does)
    if argv[0] == "-s":  # no folder of the user's; a variable of the launch has said so here too
        del argv[0]
    run(argv)


def run(argv: "list[str]") -> NoReturn:
    """Be `python ARGV`, and end as it would."""
    sys.argv = argv
    searched = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [str(Path(argv[0]).parent), *searched, *INSTALLED]
    runpy.run_path(argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
