"""The real cluster, for what runs on its nodes."""

from tests.cluster.fixture import cluster, slurm

__all__ = ["cluster", "slurm"]
