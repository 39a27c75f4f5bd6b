"""The committed evidence on this library, against its own functions run here."""

import pytest

from backends.trl import BACKEND
from backends.trl.options import own_options
from lab.probes.protocol import probes_of
from orchestrator.evidence import stored
from tests.lab.probes.measured import same_as_committed

RELEASES = BACKEND.versions


@pytest.mark.thorough  # in a library's environment
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_the_committed_evidence_is_what_is_measured(version: str) -> None:
    same_as_committed("trl", version)


def natives(version: str) -> dict[str, tuple[object, object]]:
    """The terms of the library's own launches, on-policy and on older samples."""
    kept = stored.read("trl", version)
    assert kept is not None
    return {
        each["name"]: (each["on_policy"]["terms"], each["off_policy"]["terms"])
        for each in kept["natives"]
    }


def test_beta_alone_is_another_objective_on_both_sides_of_1_10() -> None:
    """And RLOO's KL is the same: of the sequence, with one ratio a response."""
    old, new = natives("1.9.2"), natives("1.16.0")
    assert old["grpo --beta"] == ([[1, "token_forward_kl"]], [[1, "sampled_k3"]])
    assert new["grpo --beta"] == ([[1, "token_reverse_kl"]], [[1, "token_reverse_kl@rollout"]])
    assert old["rloo"] == new["rloo"] == ([[1, "sequence_reverse_kl"]], [[1, "frozen_k1"]])
    assert [name for name in old if old[name] != new[name]] == ["grpo --beta"]


def test_one_ratio_a_response_makes_the_corrected_kl_no_objective() -> None:
    """The weight of a token's KL is then not the token's: GSPO with beta, since 1.10.0."""
    found = natives("1.16.0")
    level = "grpo --importance_sampling_level sequence"
    assert found[level][0] == [[1, "token_forward_kl"]]
    assert found[f"{level} --use_bias_correction_kl"] == ([], [])


def test_rloo_has_its_kl_inside_the_leave_one_out_baseline() -> None:
    for version in RELEASES:
        kept = stored.read("trl", version)
        assert kept is not None
        entering = kept["reward"]["rloo"]
        assert (entering["within"], entering["others"]) == ("response", "leave_one_out")
        (cell,) = (c for c in kept["cells"] if c.get("ratio") == "sequence")
        assert (cell["estimator"], cell["placement"]) == ("k1", "reward")


def test_the_probes_know_the_librarys_own_beta() -> None:
    for version in RELEASES:
        assert own_options("rloo")[version]["beta"].default == probes_of("trl").RLOO_BETA
