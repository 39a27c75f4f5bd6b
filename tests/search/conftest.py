"""The real cluster, for searches whose trials are jobs."""

import pytest

from tests.cluster.fixture import cluster, slurm

__all__ = ["cluster", "slurm"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
