"""The process that imports the trainers once and forks a worker for each cell.

It never starts a thread, so that forking is safe, and trains nothing itself. Messages in:
`prepare` (modules to import), `start` (an order), `stop`, `kill`. Messages out: `ready`,
`refused`, what workers report, and `ended` for each process that is gone.
"""

import gc
import os
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Any

from orchestrator.launch import processes, provenance, worker
from orchestrator.launch.channel import Channel


class ForkedWorker:
    """A worker: its process and the pipe on which it reports."""

    def __init__(self, pid: int, pipe: socket.socket, submission: str):
        self.pid, self.channel, self.submission = pid, Channel(pipe), submission


class ForkServerLoop:
    """The nursery's loop."""

    def __init__(self, orch: Channel):
        self.orch = orch
        self.children: dict[int, ForkedWorker] = {}
        self.closing = False

    def run(self) -> None:
        """Serves until orch is gone, or until it said stop and the last worker has ended."""
        while self.orch.open and not (self.closing and not self.children):
            pipes = {c.channel.socket: c for c in self.children.values() if c.channel.open}
            ready = select.select([self.orch.socket, *pipes], [], [], 0.5)[0]
            for message in self.orch.receive(0) if self.orch.socket in ready else ():
                self._obey(message)
            for pipe in ready:
                if pipe in pipes:
                    self._forward(pipes[pipe])
            self._bury()
        self._signal(signal.SIGKILL)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "prepare":
                self._prepare(message["modules"])
            case "start":
                self._start(worker.Order(**message["order"]))
            case "stop":
                self.closing = True
                self._signal(signal.SIGTERM)
            case "kill":
                self.closing = True
                self._signal(signal.SIGKILL)

    def _prepare(self, modules: list[str]) -> None:
        for name in modules:
            try:
                import_module(name)
            except Exception as error:
                self.orch.send({"refused": f"{name}: {type(error).__name__}: {error}"})
                self.closing = True
                return
        worker.one_thread()
        provenance.commit()  # of the code that was just imported; workers inherit the answer
        gc.freeze()  # collecting would touch, and so copy, every page that workers share
        self.orch.send({"ready": True})

    def _start(self, order: worker.Order) -> None:
        if self.closing:
            return
        nursery = os.getpid()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            processes.die_with(nursery)
            self.orch.socket.close()
            ours.close()
            for child in self.children.values():
                child.channel.socket.close()
            worker.main(order, Channel(theirs))
        theirs.close()
        self.children[pid] = ForkedWorker(pid, ours, order.submission)

    def _forward(self, child: ForkedWorker) -> None:
        for message in child.channel.receive(0):
            self.orch.send({**message, "submission": child.submission})

    def _bury(self) -> None:
        for child in list(self.children.values()):
            # a closed pipe means it is ending, which is worth the moment's wait
            pid, status = os.waitpid(child.pid, os.WNOHANG if child.channel.open else 0)
            if pid:
                while child.channel.open:
                    self._forward(child)
                child.channel.socket.close()
                del self.children[pid]
                code = os.waitstatus_to_exitcode(status)
                self.orch.send({"ended": code, "submission": child.submission})

    def _signal(self, number: int) -> None:
        for pid in self.children:
            os.kill(pid, number)


def main() -> None:
    processes.die_with(int(sys.argv[1]))
    ForkServerLoop(Channel(socket.socket(fileno=int(sys.argv[2])))).run()


if __name__ == "__main__":
    main()
