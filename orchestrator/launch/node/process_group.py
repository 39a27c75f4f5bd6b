"""The nodes of a job, and a group of processes, one per node, that start and end together."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.files import read_tail
from orchestrator.launch.endings import Ending, failure_of
from orchestrator.launch.processes import node_name
from orchestrator.launch.slurm import scheduler

_LONGEST_SCRATCH = 30
"""A socket's path has at most 107 bytes, of which Ray takes 62 (2.55)."""
_STEP = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_VERBOSE",
    "SLURM_DISTRIBUTION",
    "SLURM_CPUS_PER_TASK",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_OPEN_MODE",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT",
)
"""Variables of the surrounding step that srun would read as options of the next."""


def names(num_nodes: int) -> list[str]:
    """Return the job's nodes, this one first. Raise EnvironmentFault if there are too few."""
    own_name = node_name()
    listed = os.environ.get("SLURM_JOB_NODELIST")
    nodes = _expanded(listed) if listed else [own_name]
    if len(nodes) < num_nodes:
        where = "the job has" if listed else "outside a SLURM job there is"
        raise EnvironmentFault(
            f"the cell needs {num_nodes} nodes (resources.num_nodes) and {where} {len(nodes)}"
        )
    others = [name for name in nodes if name != own_name]
    return [own_name, *others][:num_nodes]


def _expanded(listed: str) -> list[str]:
    if not set("[,") & set(listed):
        return [listed]
    return scheduler.call(["scontrol", "show", "hostnames", listed]).split()


def address_of(node: str) -> str:
    """Return an address of a node: its name if it resolves, else the address in SLURM."""
    with suppress(OSError):
        socket.getaddrinfo(node, None)
        return node
    for word in scheduler.call(["scontrol", "show", "node", "-o", node]).split():
        if word.startswith("NodeAddr="):
            return word.partition("=")[2]
    return node


def own_address(interface: str | None, other: str | None) -> str:
    """Return this node's address for other nodes: of an interface, or on the route to `other`."""
    if interface is not None:
        return _address_of_interface(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        # Any address outside will do: the kernel only chooses a route, and with it the own address.
        for target in (address_of(other) if other else None, "10.255.255.255"):
            with suppress(OSError):
                probe.connect((target or "10.255.255.255", 9))
                address: str = probe.getsockname()[0]
                if not address.startswith("127."):
                    return address
    return "127.0.0.1"


def _address_of_interface(name: str) -> str:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # 0x8915 is SIOCGIFADDR of <linux/sockios.h>. It fills a struct ifreq, where bytes 20 to
            # 23 are the IPv4 address.
            packed = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            names = ", ".join(each for _, each in socket.if_nameindex())
            raise EnvironmentFault(
                f"site.options.network_interface '{name}' has no address on {socket.gethostname()} "
                f"(there are: {names})"
            ) from error
    return socket.inet_ntoa(packed[20:24])


def free_port(address: str) -> int:
    """Return a port of this node on which nobody listens."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def on_node(node: str, command: Sequence[str]) -> list[str]:
    """Return the argv that runs a command on another node of the job.

    The command overlaps other steps and has the job's whole share of the node.
    """
    return [
        "srun",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--export=ALL",
        "--job-name=orch-node",
        *command,
    ]


def container_step(node: str | None) -> list[str]:
    """Return the start of an argv that runs the rest as a step of its own on this node.

    pyxis makes the step's container. node: where the step runs; None: on the node that runs this.
    The variables of a surrounding step are unset, because srun would read them as its options.
    """
    where = node or (node_name() if "SLURM_JOB_ID" in os.environ else None)
    dropped = [word for name in _STEP for word in ("-u", name)]
    placed = [f"--nodelist={where}"] if where else []
    alone = ["--overlap", "--nodes=1", "--ntasks=1", *placed, "--mem=0", "--cpu-bind=none"]
    return ["env", *dropped, "srun", *alone, "--export=ALL", "--job-name=orch-container"]


def without_step(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for an srun within a step."""
    return {name: value for name, value in env.items() if name not in _STEP}


def num_cpus() -> int:
    """Return the number of CPUs that the job has on this node."""
    plain = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "").partition("(")[0].partition(",")[0]
    return int(plain) if plain.isdigit() else len(os.sched_getaffinity(0))


def scratch(wanted: str | None, name: str) -> Path:
    """Return a folder of this job on each node's own disk.

    Its path is short, because Ray's sockets lie in it.
    """
    for base in (wanted, os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp"):  # noqa: S108  (sockets need a short path)
        if base and Path(base).is_dir() and len(base) <= _LONGEST_SCRATCH:
            return Path(base) / name
    return Path("/tmp") / name  # noqa: S108  (sockets need a short path)


_MODULE = "orchestrator.launch.node.agent"
_LAST_LINES = 6
_GRACE_SECONDS = 20.0
"""Seconds to wait for an agent's end: more than an agent gives to its program."""
TOKEN = "ORCH_RANK_TOKEN"  # noqa: S105  (a variable's name)
OWN_ADDRESS = "@address-of-this-node@"
"""A placeholder in an argv. Each node's agent replaces it by the node's own address."""
BAD_NODE, REFUSED = 75, 78
"""Exit codes of an agent that has started nothing, with the reason as its last line."""
_MEANING = {127: "config", REFUSED: "config", BAD_NODE: "node"}


class AgentOrder(NamedTuple):
    """What an agent does beside running its argv."""

    token: str
    """That of its rank, in the variables of all that it starts."""
    scratch: str
    """The folder to make and to remove; empty: none."""
    logs: str
    """The folder for Ray's logs of a failure."""
    gpus: int = 0
    """Number of GPUs that must be healthy; 0: not checked."""
    interface: str | None = None
    """The interface whose address OWN_ADDRESS stands for."""


@dataclass
class ProcessGroup:
    """The agents of a run, by node. `folder` has their output, and Ray's logs of a failed run."""

    token: str
    folder: Path
    scratch: Path | None = None
    members: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(
        self,
        node: str,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: Path,
        other: tuple[int, str | None] | None,
    ) -> None:
        """Start argv on a node, under an agent. other: None for this node; else the GPUs and the
        interface that the agent checks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        token, scratch = f"{self.token}.{len(self.members)}", str(self.scratch or "")
        order = AgentOrder(token, scratch, str(self.folder / node), *(other or ()))
        command = [sys.executable, "-P", "-m", _MODULE, json.dumps(order), *argv]
        if other is not None:
            command, env = on_node(node, command), without_step(env)
        with self._log(node).open("ab") as log:
            self.members[node] = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # A signal to this process's group must not reach srun: srun would kill the agent
                # before it could end what it has started.
                start_new_session=True,
            )

    def ending(self) -> Ending | None:
        """Return the ending of the first agent that ended by itself; None while all run."""
        for node, member in self.members.items():
            code = member.poll()
            if code is not None:
                return self._ending_of(node, code)
        return None

    def _ending_of(self, node: str, code: int) -> Ending:
        """Return the ending of a run whose agent on this node ended with this code."""
        tail = read_tail(self._log(node), 1 << 14).decode(errors="replace")
        named = failure_of(tail)
        failure = _MEANING.get(code) or (named if named != "error" else "node")
        last = "\n".join(tail.rstrip().splitlines()[-_LAST_LINES:])
        what = f"node {node} left the run: what ran there ended with code {code}\n{last}"
        if code in (BAD_NODE, REFUSED):
            lines = [line for line in tail.splitlines() if not line.startswith("srun:")]
            what = f"node {node}: {lines[-1] if lines else ''}"
        host = node if failure == "node" else ""
        return Ending("failed", code=code, failure=failure, message=what.rstrip(), host=host)

    def stop(self, *, keep_logs: bool) -> None:
        """End all agents and wait for them. Each agent ends what it started."""
        for member in self.members.values():
            if member.stdin is not None:
                with suppress(OSError):
                    if keep_logs:
                        member.stdin.write(b"keep\n")
                        member.stdin.flush()
                with suppress(OSError):
                    member.stdin.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for member in self.members.values():
            try:
                member.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()

    def _log(self, node: str) -> Path:
        return self.folder / f"{node}.log"
