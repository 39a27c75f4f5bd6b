"""A Ray cluster of only the job's nodes, for the duration of one run (Ray 2.43 to 2.60).

Ports and the folder of sockets are unique, because jobs share nodes. `ray stop` is never used,
because it ends the Ray of every job of the user on a node.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from orchestrator.launch import program
from orchestrator.launch.endings import Ending
from orchestrator.launch.node import process_group
from orchestrator.launch.node.environment import TrainerEnvironment
from orchestrator.launch.node.process_group import OWN_ADDRESS, ProcessGroup
from orchestrator.spec.site_options import NodeOptions

_WAIT = Path(__file__).with_name("ray_wait.py")
_GIB = 1 << 30


class RayStartError(Exception):
    """Raised if the cluster does not start on all nodes."""

    def __init__(self, ending: Ending):
        self.ending = ending
        super().__init__(ending.message)


class NodeSetup(NamedTuple):
    """The nodes and the environment of a run, for each of its programs."""

    names: Sequence[str]
    """Nodes, this one first."""
    gpus_per_node: int
    environment: TrainerEnvironment
    options: NodeOptions
    cwd: Path
    visible: Sequence[Path]
    """Folders that an image must see."""
    python: str
    env: Mapping[str, str]
    """The variables that the run adds to the job's."""
    ray_cpus: int | None = None
    """CPUs that the library's actors claim over all nodes."""

    def command(self, argv: Sequence[str], node: str | None = None) -> list[str]:
        """Return argv inside the environment, for a node; None: this one."""
        return self.environment.command(argv, self.cwd, self.visible, sorted(self.env), node)

    @property
    def variables(self) -> dict[str, str]:
        """Return all variables of a program. Ray's workers see those of their node's Ray."""
        return self.environment.variables(self.env)

    @property
    def gpus_checked(self) -> bool:
        """Return True if nvidia-smi checks the GPUs before anything starts."""
        return self.options.gpu_check and self.gpus_per_node > 0

    @property
    def cpus_per_node(self) -> int:
        """Return the CPUs that Ray is started with. With fewer than they claim, the library's
        actors would wait for ever."""
        claimed = -(-(self.ray_cpus or 0) // len(self.names))  # rounded up
        return max(process_group.num_cpus(), claimed)

    @property
    def checks(self) -> tuple[int, str | None]:
        """Return the GPUs and the interface that another node's agent checks first."""
        return self.gpus_per_node if self.gpus_checked else 0, self.options.network_interface


@contextmanager
def ray_cluster(setup: NodeSetup, group: ProcessGroup) -> Iterator[str]:
    """Start a cluster that has all the GPUs. Yield its address.

    Raise RayStartError if the cluster does not start.
    """
    other = setup.names[1] if len(setup.names) > 1 else None
    host = process_group.own_address(setup.options.network_interface, other)
    port = process_group.free_port(host)
    address = f"{host}:{port}"
    for rank, node in enumerate(setup.names):
        argv = setup.command(_start_argv(setup, address, rank, group.scratch), node)
        group.start(
            node,
            argv,
            setup.variables,
            setup.cwd,
            setup.checks if rank else None,
        )
        if rank == 0 and other is not None:
            _wait_for_head(group, host, port, setup.options.start_minutes * 60)
    _wait_for_cluster(setup, group, address)
    yield address


def _start_argv(setup: NodeSetup, address: str, rank: int, folder: Path | None) -> list[str]:
    """Return the `ray start` of a node. rank: 0 is the head, whose host:port is the address.
    folder: that of Ray's sockets and logs."""
    if rank == 0:
        host, _, port = address.rpartition(":")
        where = ["--head", f"--port={port}", "--include-dashboard=false"]
        where.append(f"--node-ip-address={host}")
    else:
        where = [f"--address={address}"]
        if setup.options.network_interface:
            where.append(f"--node-ip-address={OWN_ADDRESS}")
    argv = [
        *("ray", "start", *where),
        f"--num-gpus={setup.gpus_per_node}",
        f"--num-cpus={setup.cpus_per_node}",
        f"--temp-dir={folder}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--block",
    ]
    if setup.options.ray_object_store_gib is not None:
        argv.append(f"--object-store-memory={int(setup.options.ray_object_store_gib * _GIB)}")
    return argv


def _wait_for_head(group: ProcessGroup, host: str, port: int, seconds: float) -> None:
    """Wait until the head listens, because a node that joins earlier gives up."""
    import socket

    deadline = time.monotonic() + seconds
    while True:
        if (reported := group.ending()) is not None:
            raise RayStartError(reported)
        try:
            with socket.create_connection((host, port), timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise RayStartError(_timeout(group, seconds, "its head does not listen")) from None
        time.sleep(0.2)


def _wait_for_cluster(setup: NodeSetup, group: ProcessGroup, address: str) -> None:
    count, seconds = len(setup.names), setup.options.start_minutes * 60
    wanted = [str(setup.gpus_per_node * count), str(count), str(seconds)]
    # Passed as text: the trainer's environment, or its image, does not see orch's files.
    source = _WAIT.read_text(encoding="utf-8")
    # ray_wait ends by itself after `seconds`. The additional minute is for its start. After that it
    # hangs and is ended.
    deadline = time.monotonic() + seconds + 60

    def watch() -> Ending | None:
        late = time.monotonic() > deadline
        return group.ending() or (_timeout(group, seconds, "it does not answer") if late else None)

    ended = program.run(
        setup.command([setup.python, "-c", source, address, *wanted]),
        group.folder / "wait.out",
        group.folder / "wait.log",
        cwd=setup.cwd,
        env=setup.variables,
        watch=watch,
    )
    if ended.state != "succeeded":
        raise RayStartError(ended)


def _timeout(group: ProcessGroup, seconds: float, what: str) -> Ending:
    message = (
        f"Ray did not come together within {seconds / 60:g} minutes "
        f"(site.options.start_minutes): {what}. What each node said is in {group.folder}"
    )
    return Ending("failed", failure="node", message=message)
