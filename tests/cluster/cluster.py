"""Starting, stopping and asking the cluster."""

import getpass
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from . import config, daemons
from .waiting import wait_for

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "sbatch", "munged", "mariadbd", "mariadb-install-db")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

NVIDIA_SMI = """\
#!/bin/sh
answer="{base}/gpus.$SLURMD_NODENAME"
[ -e "$answer" ] && exec cat "$answer"
IFS=,
case "$*" in *memory.used*) for gpu in ${{CUDA_VISIBLE_DEVICES}}; do echo 61440; done; exit;; esac
for gpu in ${{CUDA_VISIBLE_DEVICES}}; do echo "$gpu, 81153, 81920, 0"; done
"""
"""Answers what orch asks of the job's GPUs: index, free and all memory, errors; used memory.
GPUs here are device files."""


def missing() -> str:
    """What keeps a cluster from starting here, in a sentence; empty if nothing does."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if absent:
        return f"no SLURM here ({', '.join(absent)} missing): `python3 bootstrap.py test` as root installs it"  # noqa: E501
    return ""


class Cluster:
    """A cluster in a folder. Its daemons die with this process."""

    def __init__(self, base: Path):
        self.base = base
        self._blind: set[str] = set()
        self.conf = base / "slurm.conf"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self.env |= {"SLURM_CONF": str(self.conf), "PATH": f"{base}/bin:{SEARCH}"}

    nodes = tuple(f"a100-{n}" for n in range(config.NODES))

    def start(self) -> None:
        """From an empty folder to idle nodes: about 10 s, of which 5 are the database's."""
        if not self.conf.exists():
            self._write()
        for name in ("munged", "mariadbd", "slurmdbd", "slurmctld", *self.nodes):
            self.start_daemon(name)
        wait_for(self.is_ready, 60, f"the nodes of {self.base} to be idle", every=0.2)

    def is_ready(self) -> bool:
        done = self._try("sinfo", "-h", "-N", "-o", "%N %t")
        states = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
        return done.returncode == 0 and list(states.values()) == ["idle"] * config.NODES

    def stop(self) -> None:
        """Ends all jobs and daemons; the folder stays, and can be started again."""
        if daemons.is_running("slurmctld", self.base):
            self._try("scancel", "--user", getpass.getuser())
            with suppress(TimeoutError):
                wait_for(lambda: not self._try("squeue", "-h").stdout, 5, "jobs to end")
        for name in (*self.nodes, "slurmctld", "slurmdbd", "mariadbd", "munged"):
            daemons.stop(name, self.base)
        for pid in daemons.left_over(self.conf):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def purge(self) -> None:
        """Stops it and removes its folder."""
        self.stop()
        shutil.rmtree(self.base, ignore_errors=True)

    def run(self, *argv: object, seconds: float = 60) -> str:
        """What a program prints, in the cluster's environment. Raises if it fails."""
        done = self._try(*argv, seconds=seconds)
        if done.returncode:
            raise RuntimeError(f"{argv} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def _try(self, *argv: object, seconds: float = 60) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(a) for a in argv],
            env=self.env,
            cwd=self.base,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def start_daemon(self, name: str) -> None:
        """Starts one of munged, mariadbd, slurmdbd, slurmctld or a node, and waits for it."""
        daemons.start(name, self._argv(name), self.base, self.env)
        what = f"{name} of {self.base} to answer"
        try:
            wait_for(partial(self._answers, name), 60, what, every=0.05)
        except TimeoutError as error:
            raise TimeoutError(f"{error}. It says: {self._words(name)}") from error

    def stop_daemon(self, name: str, number: int = signal.SIGTERM) -> None:
        """Ends one of them with a signal (SIGKILL: as if it crashed), and waits for its end."""
        daemons.stop(name, self.base, number)

    def drain(self, node: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")

    def fail(self, node: str) -> None:
        """Sets a node down: its jobs end as NODE_FAIL."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def resume(self, node: str) -> None:
        self._try("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def hide(self, node: str, folder: Path) -> bool:
        """Starts a node's daemon again where a folder is empty, as on a machine that does not mount
        it. False, and nothing done, where namespaces cannot be made."""
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:  # noqa: S607  (wherever it is)
            return False
        self.stop_daemon(node)
        self._blind.add(node)
        mount = 'mount -t tmpfs none "$0" && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", mount, str(folder), *self._argv(node)]
        daemons.start(node, argv, self.base, self.env)
        wait_for(partial(self._answers, node), 60, f"{node} to answer", every=0.05)
        return True

    def spoil(self, node: str, answer: str) -> None:
        """Lets nvidia-smi on a node print this, and nothing else, until the next test."""
        (self.base / f"gpus.{node}").write_text(answer)

    def restore(self) -> None:
        """Ends all jobs and brings every daemon and node back, for the next test."""
        for name in self._blind:
            self.stop_daemon(name)
        self._blind.clear()
        for path in self.base.glob("gpus.*"):
            path.unlink()
        for name in ("munged", "mariadbd", "slurmdbd", "slurmctld", *self.nodes):
            if not daemons.is_running(name, self.base):
                self.start_daemon(name)
        self._try("scancel", "--user", getpass.getuser())
        for node in self.nodes:
            self.resume(node)
        wait_for(lambda: not self._try("squeue", "-h").stdout, 60, "the last test's jobs to end")
        wait_for(self.is_ready, 60, "all nodes to be idle", every=0.2)

    def _argv(self, name: str) -> list[str]:
        base = self.base
        match name:
            case "munged":
                return [
                    "munged",
                    "--force",
                    "--foreground",
                    f"--socket={base}/munge.sock",
                    f"--key-file={base}/munge.key",
                    f"--pid-file={base}/pid/munged",
                    f"--log-file={base}/log/munged.log",
                    f"--seed-file={base}/munge.seed",
                    "--num-threads=2",
                ]
            case "mariadbd":
                return [
                    "mariadbd",
                    "--no-defaults",
                    f"--datadir={base}/sql",
                    f"--socket={base}/sql.sock",
                    f"--port={self._ports.sql}",
                    "--bind-address=127.0.0.1",
                    f"--pid-file={base}/pid/mariadbd",
                    f"--user={getpass.getuser()}",
                    f"--init-file={base}/init.sql",
                    "--skip-name-resolve",
                    "--performance-schema=OFF",
                    "--skip-log-bin",
                    "--innodb-buffer-pool-size=16M",
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-lock-wait-timeout=900",
                    "--innodb-log-file-size=8M",
                ]
            case "slurmdbd" | "slurmctld":
                return [name, "-D"]
        return ["slurmd", "-D", "-N", name]

    def _answers(self, name: str) -> bool:
        if not daemons.is_running(name, self.base):
            told = self._words(name)
            raise RuntimeError(f"{name} of {self.base} ended at once: {told}")
        match name:
            case "munged":
                return _listens(self.base / "munge.sock")
            case "mariadbd":
                return _listens(("127.0.0.1", self._ports.sql))
            case "slurmdbd":
                return _listens(("127.0.0.1", self._ports.dbd)) and self._has_associations()
            case "slurmctld":
                return " is UP" in self._try("scontrol", "ping").stdout
        return _listens(("127.0.0.1", self._ports.node + int(name.rpartition("-")[2])))

    def _words(self, name: str) -> str:
        found = sorted((self.base / "log").glob(f"*{name}*"))
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in found)

    def _has_associations(self) -> bool:
        if (self.base / "associated").exists():
            return True
        add = ("sacctmgr", "-i", "-Q", "add")
        self._try(*add, "cluster", "orch", seconds=20)
        self._try(*add, "account", config.ACCOUNT, "cluster=orch", seconds=20)
        self._try(*add, "user", getpass.getuser(), f"account={config.ACCOUNT}", seconds=20)
        shown = self._try("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user")
        if f"{config.ACCOUNT}|{getpass.getuser()}" not in shown.stdout:
            return False
        (self.base / "associated").touch()
        return True

    @property
    def _ports(self) -> config.Ports:
        first = int((self.base / "ports").read_text())
        return config.Ports(first, first + 1, first + 2, first + 3)

    def _write(self) -> None:
        base = self.base
        for name in ("bin", "log", "pid", "run", "state", "spool", "sql", "dev"):
            (base / name).mkdir(parents=True, exist_ok=True)
        (base / "bin" / "nvidia-smi").write_text(NVIDIA_SMI.format(base=base))
        (base / "bin" / "nvidia-smi").chmod(0o755)
        base.chmod(0o755)
        (base / "ports").write_text(str(daemons.free_ports(3 + config.NODES)))
        key = base / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        password = secrets.token_hex(16)
        for name, text in (
            ("slurmdbd.conf", config.slurmdbd_conf(base, self._ports, password)),
            ("init.sql", config.database_sql(password)),
        ):
            (base / name).touch(mode=0o600)
            (base / name).write_text(text)
        (base / "gres.conf").write_text(config.gres_conf(_devices(base / "dev")))
        self.run(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={base}/sql",
            f"--user={getpass.getuser()}",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            "--innodb-log-file-size=8M",
            seconds=120,
        )
        self.conf.write_text(config.slurm_conf(base, self._ports))


@contextmanager
def started() -> Iterator[Cluster]:
    """A cluster in a new folder, purged afterwards.

    Three tries, each with ports and a database of its own: on a busy machine a daemon, or the
    installer of the database, now and then does not come up in time.
    """
    for left in (2, 1, 0):
        base = Path(tempfile.mkdtemp(prefix="orch-slurm-", dir="/tmp"))
        cluster = Cluster(base)
        try:
            cluster.start()
            break
        except BaseException as error:
            cluster.purge()
            mends = (TimeoutError, RuntimeError, subprocess.TimeoutExpired)
            if not left or not isinstance(error, mends):
                raise
            sys.stderr.write(f"the cluster is started anew: {error}\n")
    try:
        yield cluster
    finally:
        cluster.purge()


def _devices(folder: Path) -> list[Path]:
    """Four device files to stand for GPUs: ours where we may make them, else the system's."""
    ours = [folder / f"nvidia{n}" for n in range(4)]
    try:
        for path in ours:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        return [Path("/dev") / name for name in ("null", "zero", "full", "random")]
    return ours


def _listens(address: Path | tuple[str, int]) -> bool:
    local = isinstance(address, Path)
    with socket.socket(socket.AF_UNIX if local else socket.AF_INET) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(address) if local else address)
        except OSError:
            return False
    return True
