"""Whether a launch learns from old samples, and what its KL term does there."""

import pytest

from audit.scripts import IN_REWARD, TYPE, USE_LOSS, VERL, only
from orchestrator.audit.render import headline

SIZES = "data.train_batch_size={} actor_rollout_ref.actor.ppo_mini_batch_size={}"


@pytest.mark.parametrize(
    ("sizes", "off_policy"),
    [(SIZES.format(1024, 256), True), ("", True), (SIZES.format(256, 256), False)],
)
def test_minibatches_make_a_launch_of_verl_off_policy(sizes: str, off_policy: bool) -> None:
    finding = only(f"{VERL} {IN_REWARD}=True {sizes}")
    assert (finding.off_policy, finding.confidence) == (off_policy, "certain")
    assert ("unbiased" in headline(finding)) is not off_policy
    assert ("biased by 11%" in finding.regime) is off_policy


def test_k1_in_the_loss_off_policy_is_unlikelihood() -> None:
    finding = only(f"{VERL} {USE_LOSS}=True {TYPE}=kl {IN_REWARD}=False")
    assert "unlikelihood" in headline(finding)
    assert "4 train steps for each batch" in finding.regime


def test_a_regime_that_is_not_known_is_assumed() -> None:
    finding = only(f"{VERL} {IN_REWARD}=True data.train_batch_size=$(cat x)")
    assert finding.confidence == "assumed"
    assert "data.train_batch_size cannot be read here" in finding.assumes[-1]
