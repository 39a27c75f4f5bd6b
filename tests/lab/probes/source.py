"""The source of a release: of its contract environment, or of a checkout that is pointed to."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.probes.protocol import ProbeSource, sources
from orchestrator.environments.lock import lock_of
from orchestrator.errors import EnvironmentFault
from tests.backends.environments import contract_python, root


@contextmanager
def source_of(library: str, version: str) -> Iterator[ProbeSource]:
    """Yield it. Skip where it cannot be had; in CI fail, but for a library on no registry."""
    if not lock_of(library, version, "gpu").words("checkout"):
        contract_python(library, version)
    try:
        with sources(library, version, within=root()) as found:
            yield found
    except EnvironmentFault as fault:
        if "point" not in str(fault):
            raise
        pytest.skip(str(fault))
