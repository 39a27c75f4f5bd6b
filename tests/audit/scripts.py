"""Small launches to put constructs of the shell around."""

from orchestrator.audit import AuditFinding, audit

VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=8"
GRPO = VERL.replace("rloo", "grpo")
ON_POLICY = "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8"
USE_LOSS = "actor_rollout_ref.actor.use_kl_loss"
TYPE, COEFFICIENT = "actor_rollout_ref.actor.kl_loss_type", "actor_rollout_ref.actor.kl_loss_coef"
IN_REWARD = "algorithm.use_kl_in_reward"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --pretrain m"
SKYRL = "uv run -m skyrl.train.entrypoints.main_base trainer.algorithm.advantage_estimator=rloo"


def only(text: str, name: str = "launch.sh", **more: dict[str, str]) -> AuditFinding:
    """The one finding of a text."""
    found = audit(text, name, **more)
    assert len(found) == 1, found
    return found[0]


def verdict(text: str, name: str = "launch.sh", **more: dict[str, str]) -> str:
    """The verdict on the KL terms, without regime and surroundings: what was read of the keys."""
    return only(text, name, **more).term_verdict


def verdicts(text: str, name: str = "launch.sh") -> dict[str | None, str]:
    """Case -> verdict on the KL terms."""
    return {each.case: each.term_verdict for each in audit(text, name)}
