"""SkyRL's dialect against SkyRL's own KL, rewards, advantages and worker loss."""

import pytest

from orchestrator import plugins
from tests.backends import dialects
from tests.backends.skyrl.cells import VERSIONS
from tests.backends.skyrl.library import python

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dialect_trains_as_the_library_would(version: str) -> None:
    where = dialects.beside(python(version), "skyrl")
    found = dialects.gaps("skyrl", version, where, seeds=1, every=3)
    assert found["count"] > 100
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found


def test_only_the_older_release_forgets_its_sampler() -> None:
    """Its PPO loss, asynchronous, has the ratio to the current policy; ours from 0.3.0 on not."""
    asked = plugins.load("skyrl").semantics
    assert asked("0.2.0").dialect.ratio_to == "batch_start"
    assert asked("0.4.0").dialect.ratio_to == asked("0.3.0").dialect.ratio_to == "rollout"
