"""Measuring releases from tests: in the contract environments, or a checkout that is pointed to."""

from functools import cache
from typing import Any

import pytest

from lab.probes.measure import measure
from lab.probes.protocol import sources
from orchestrator.environments.lock import lock_of
from orchestrator.errors import EnvironmentFault
from orchestrator.evidence import stored
from tests.backends.environments import contract_python, root


@cache
def measured(library: str, version: str) -> dict[str, Any]:
    """The release, measured here. Skips where its source cannot be had; in CI that fails, but for a
    library on no registry."""
    commits = lock_of(library, version, "gpu").words("checkout")
    if not commits:
        contract_python(library, version)
    try:
        with sources(library, version, within=root()) as found:
            return measure(library, version, found.folder, found.commit)
    except EnvironmentFault as fault:
        if not commits or "point" not in str(fault):
            raise
        pytest.skip(str(fault))


def same_as_committed(library: str, version: str) -> None:
    """What is measured here is what the repository says."""
    committed = stored.read(library, version)
    assert committed is not None, f"python -m lab measure {library}@{version}"
    told = stored.differences(committed, measured(library, version))
    again = f"python -m lab measure {library}@{version}, if {library} has changed"
    assert not told, "\n".join([*told[:20], again])
