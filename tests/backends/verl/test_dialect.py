"""verl's dialect against verl's own kl_penalty, apply_kl_penalty, advantages and ppo_loss."""

import pytest

from tests.backends import dialects
from tests.backends.verl import library

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


@pytest.mark.parametrize("version", library.VERSIONS)
def test_the_dialect_trains_as_the_library_would(version: str) -> None:
    where = dialects.beside(library.python(version), "verl")
    found = dialects.gaps("verl", version, where, seeds=1, every=3)
    assert found["count"] > 200
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found
