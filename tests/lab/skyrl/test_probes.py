"""The committed evidence on this library, against its own functions run here."""

import pytest

from backends.skyrl import BACKEND
from tests.lab.probes.measured import measured, same_as_committed

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


@pytest.mark.parametrize("version", BACKEND.versions)
def test_the_committed_evidence_is_what_is_measured(version: str) -> None:
    same_as_committed("skyrl", version)


def test_the_kl_in_the_loss_is_a_sequence_mean_whatever_the_policy_loss_is() -> None:
    for version in BACKEND.versions:
        loss = measured("skyrl", version)["loss"]
        assert {name: each["kl"] for name, each in loss.items()} == dict.fromkeys(
            loss, "sequence_mean"
        )
        assert {name: each["policy"] for name, each in loss.items()} == {n: n for n in loss}


def test_a_kl_in_the_loss_is_on_when_a_launch_says_nothing() -> None:
    silent = measured("skyrl", "0.4.0")["silent"]
    assert silent["loss"] == {"estimator": "k3", "beta": 0.001}
    assert silent["reward"] is None
