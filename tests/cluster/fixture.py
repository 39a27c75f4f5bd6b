"""The cluster as a pytest fixture: one for all tests of a process, restored between tests."""

import os
from collections.abc import Iterator

import pytest

from . import Cluster, missing, started


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A running cluster, as the last test left it. Skips, loudly, where SLURM is not installed."""
    if fault := missing():
        pytest.skip(fault)
    with started() as running:
        yield running


@pytest.fixture
def cluster(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster with every node idle and no job, and this process's environment set to it."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "SBATCH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", slurm.env["PATH"])
    try:
        yield slurm
    finally:
        slurm.restore()
