"""The committed evidence on this library, against its own functions run here."""

import pytest

from backends.openrlhf import BACKEND
from tests.lab.probes.measured import measured, same_as_committed

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


@pytest.mark.parametrize("version", BACKEND.versions)
def test_the_committed_evidence_is_what_is_measured(version: str) -> None:
    same_as_committed("openrlhf", version)


def test_the_kl_is_on_when_a_launch_says_nothing() -> None:
    for version in BACKEND.versions:
        silent = measured("openrlhf", version)["silent"]
        assert silent == {
            "reward": {"estimator": "k1", "beta": 0.01},
            "loss": None,
            "proximal": None,
        }


def test_a_sequence_mean_leaves_the_kl_a_token_mean() -> None:
    """The call that averages the KL does not say how: `aggregate_loss` then takes tokens."""
    found = measured("openrlhf", "0.11.2")["loss"]["sequence_mean"]
    assert (found["policy"], found["kl"]) == ("sequence_mean", "token_mean")


def test_the_unbiased_gradient_is_weighted_by_at_most_ten() -> None:
    names = {n["name"]: n for n in measured("openrlhf", "0.11.2")["names"]}
    found = names["k3 --algo.kl.unbiased_gradient"]
    assert (found["gradient"], found["weight_bound"]) == ("sg_rho_k2", 10)
