"""What tests that ask or train a library share."""

from collections.abc import Iterator

import pytest

from tests.backends import child


@pytest.fixture(scope="module", autouse=True)
def probes_fork() -> Iterator[None]:
    """Make the processes of lab/probes/runner.py forks, in the tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        child.probes_fork(patch)
        yield
    child.end_all()
