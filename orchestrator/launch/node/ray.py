"""A Ray cluster of the job's nodes and nobody else's, for the time of one run (Ray 2.43 to 2.60).

Ports are unique, and so is the folder of sockets, because jobs share nodes; `ray stop` is never
used, because it ends the Ray of every job of the user on a node.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from orchestrator.files import read_tail
from orchestrator.launch import program
from orchestrator.launch.endings import Ending, failure_of
from orchestrator.launch.node import process_group
from orchestrator.launch.node.environment import TrainerEnvironment
from orchestrator.launch.node.process_group import ProcessGroup
from orchestrator.spec.site_options import NodeOptions

_WAIT = Path(__file__).with_name("ray_wait.py")
_GIB = 1 << 30


class RayStartError(Exception):
    """The cluster did not come together."""

    def __init__(self, ending: Ending):
        self.ending = ending
        super().__init__(ending.message)


class NodeSetup(NamedTuple):
    """Where a run takes place: what every program of it needs."""

    names: Sequence[str]
    """Nodes, this one first."""
    gpus_per_node: int
    ground: TrainerEnvironment
    options: NodeOptions
    cwd: Path
    sees: Sequence[Path]
    """Folders that an image must see."""
    python: str

    def command(self, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        return self.ground.command(argv, self.cwd, self.sees, sorted(env))


@contextmanager
def ray_cluster(stage: NodeSetup, company: ProcessGroup, env: Mapping[str, str]) -> Iterator[str]:
    """The address of a cluster that has all the GPUs. Raises Failed if it does not come together.

    env: what the run adds to the variables of the job; it is exported before Ray starts, because
    Ray's workers see the variables of their node's Ray and not those of the driver.
    """
    other = stage.names[1] if len(stage.names) > 1 else None
    host = process_group.own_address(stage.options.network_interface, other)
    port = process_group.free_port(host)
    address = f"{host}:{port}"
    variables = stage.ground.variables(env)
    for rank, node in enumerate(stage.names):
        where = (
            ["--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false"]
            if rank == 0
            else [f"--address={address}"]
        )
        argv = stage.command(["ray", "start", *where, *_common(stage, company)], env)
        company.start(node, argv, variables, stage.cwd, here=rank == 0)
        if rank == 0 and other is not None:
            _until_listening(company, host, port, stage.options.start_minutes * 60)
    _until_whole(stage, company, address, variables, env)
    yield address


def _common(stage: NodeSetup, company: ProcessGroup) -> list[str]:
    gpus = stage.gpus_per_node
    cpus = stage.options.ray_cpus_per_node or max(process_group.cpus_here(), 4 * gpus + 4)
    common = [
        f"--num-gpus={gpus}",
        f"--num-cpus={cpus}",
        f"--temp-dir={company.scratch}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--block",
    ]
    if stage.options.ray_object_store_gib is not None:
        common.append(f"--object-store-memory={int(stage.options.ray_object_store_gib * _GIB)}")
    return common


def _until_listening(company: ProcessGroup, host: str, port: int, seconds: float) -> None:
    """A worker that asks before the head answers gives up."""
    import socket

    deadline = time.monotonic() + seconds
    while True:
        if (told := company.ending()) is not None:
            raise RayStartError(told)
        try:
            with socket.create_connection((host, port), timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise RayStartError(_late(company, seconds, "its head does not listen")) from None
        time.sleep(0.2)


def _until_whole(
    stage: NodeSetup,
    company: ProcessGroup,
    address: str,
    variables: Mapping[str, str],
    env: Mapping[str, str],
) -> None:
    count, seconds = len(stage.names), stage.options.start_minutes * 60
    wanted = [str(stage.gpus_per_node * count), str(count), str(seconds)]
    source = _WAIT.read_text(encoding="utf-8")
    argv = stage.command([stage.python, "-c", source, address, *wanted], env)
    out, err = company.folder / "wait.out", company.folder / "wait.log"
    with out.open("wb") as to, err.open("wb") as noise:
        waiter = subprocess.Popen(
            argv,
            cwd=stage.cwd,
            env=dict(variables),
            stdout=to,
            stderr=noise,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    deadline = time.monotonic() + seconds + 60
    try:
        while waiter.poll() is None:
            if (told := company.ending()) is not None:
                raise RayStartError(told)
            if time.monotonic() > deadline:
                raise RayStartError(_late(company, seconds, "it does not answer"))
            time.sleep(0.2)
    finally:
        program.end(waiter, 2)
    if waiter.returncode == 0:
        return
    if waiter.returncode == 3:
        gpus, living = out.read_text(encoding="utf-8").split()[-2:]
        what = f"it counts {gpus} of {wanted[0]} GPUs on {living} of {count} nodes"
        raise RayStartError(_late(company, seconds, what))
    tail = read_tail(err, 1 << 14).decode(errors="replace")
    raise RayStartError(
        Ending(
            "failed",
            code=waiter.returncode,
            failure=failure_of(tail),
            message=(f"Ray did not come up\n{tail[-1500:]}").rstrip(),
        )
    )


def _late(company: ProcessGroup, seconds: float, what: str) -> Ending:
    message = (
        f"Ray did not come together within {seconds / 60:g} minutes "
        f"(site.options.start_minutes): {what}. What each node said is in {company.folder}"
    )
    return Ending("failed", failure="node", message=message)
