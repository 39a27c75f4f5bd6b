"""The real cluster, for what is asked of one."""

from tests.cluster.fixture import cluster, slurm

__all__ = ["cluster", "slurm"]
