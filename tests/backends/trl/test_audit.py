"""Launches of TRL where more than the answer counts; tests/audit/answers.jsonl has the answers."""

import pytest

from orchestrator.audit import audit


@pytest.mark.parametrize(
    ("estimator", "place", "verdict"),
    [
        ("rb", "reward_and_loss", "unbiased_reverse_kl"),
        ("full", "reward_and_loss", "unbiased_reverse_kl"),
        ("full_forward", "reward_and_loss", "both"),
        ("full", "loss", "token_reverse_kl"),
    ],
)
def test_a_kl_that_orch_ships_is_read_in_every_place(
    estimator: str, place: str, verdict: str
) -> None:
    """The launch's own words, as orch writes them; both parts together are judged as one term."""
    own = f"--kl-estimator {estimator} --kl-placement {place}"
    sizes = "--per_device_train_batch_size 8 --num_generations 8"
    text = f"python3 plan/orch_trl.py grpo {own} --beta 0.1 {sizes}"
    (finding,) = audit(text, "launch.sh", versions={"trl": "1.16.0 given"})
    assert finding.term_verdict == verdict
    if verdict == "unbiased_reverse_kl":
        assert "its two parts" in finding.why


def test_a_change_that_the_release_offers() -> None:
    (found,) = audit("trl grpo --beta 0.04", "a.sh", versions={"trl": "1.9.2 given"})
    assert [e.text for c in found.changes for e in c.edits] == ["--use_bias_correction_kl True"]
