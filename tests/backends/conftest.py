"""What tests of all libraries share."""

from collections.abc import Iterator

import pytest

from tests.backends import child


@pytest.fixture(scope="module", autouse=True)
def _no_interpreter_outlives_its_module() -> Iterator[None]:
    yield
    child.end_all()
