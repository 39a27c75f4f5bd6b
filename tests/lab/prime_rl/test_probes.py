"""The committed evidence on this library, against its own functions run here."""

import pytest

from backends.prime_rl import BACKEND
from tests.lab.probes.measured import measured, same_as_committed

pytestmark = pytest.mark.slow  # runs a library's functions in a process of their own


@pytest.mark.thorough  # in a library's environment
@pytest.mark.parametrize("version", BACKEND.versions)
def test_the_committed_evidence_is_what_is_measured(version: str) -> None:
    same_as_committed("prime_rl", version)


def test_its_own_teacher_term_is_of_the_token_alone() -> None:
    natives = {each["name"]: each for each in measured("prime_rl", "0.5.0")["natives"]}
    teacher = natives["teacher_tau"]
    assert (teacher["reward"]["within"], teacher["reward"]["others"]) == ("token", "none")
    assert teacher["on_policy"]["objective"] == "token_reverse_kl"
    assert teacher["off_policy"]["terms"] == [[1, "token_reverse_kl@rollout"]]


def test_its_own_kl_term_is_not_towards_the_reference_policy() -> None:
    for version in BACKEND.versions:
        natives = {each["name"]: each for each in measured("prime_rl", version)["natives"]}
        assert natives["kl_tau"]["on_policy"]["objective"] == "zero"
        assert natives["kl_tau"]["off_policy"]["towards"] == "rollout"


def test_our_loss_takes_the_kl_in_the_reward_of_the_policy_being_updated() -> None:
    cells = measured("prime_rl", "0.5.0")["cells"]
    off = [c for c in cells if c["placement"] == "reward" and not c["on_policy"]]
    off = [c for c in off if "refused" not in c]
    assert off
    assert {c["reward_kl_of"] for c in off} == {"policy"}
