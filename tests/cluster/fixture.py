"""The cluster as a pytest fixture: one for all tests of a process, restored between tests.

A conftest.py takes it with `from cluster.fixture import cluster, slurm`.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from . import Cluster, missing, started

_held: dict[str, Any] = {"users": 0}


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A running cluster, as the last test left it. Skips, loudly, where SLURM is not installed."""
    if fault := missing():
        pytest.skip(fault)
    if not _held["users"]:
        stack = ExitStack()
        _held["cluster"], _held["stack"] = stack.enter_context(started()), stack
    _held["users"] = _held["users"] + 1
    try:
        yield _held["cluster"]
    finally:
        _held["users"] = _held["users"] - 1
        if not _held["users"]:
            _held["stack"].close()


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
