"""A real SLURM cluster on this one machine: controller, nodes with fake A100s, accounting.

    with started() as cluster:
        cluster.run("sinfo")                       # any program, in the cluster's environment
        subprocess.run(..., env=cluster.env)

Everything listens on the loopback, lives in one short folder of its own and goes with it. Works as
root and as a plain user (whose own jobs are then all it runs).

Debian's packages: see bootstrap.py. slurmdbd 22.05 listens on every address whatever it is told,
and takes only this cluster's munge credentials. Facts of SLURM 22.05 that shape the configuration:
GPUs need real device files; a private munge socket has to be named three times; a requeued job
starts only after the credential's life time, here 5 seconds.
"""

from .cluster import Cluster, missing, started
from .waiting import wait_for

__all__ = ["Cluster", "missing", "started", "wait_for"]
