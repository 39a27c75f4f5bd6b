"""The metrics that AReaL logs."""

from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_document, having

_ACTOR = "areal/trainer/ppo/actor.py, 1.0.4"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "ppo_actor/kl_rewards/avg",
            "",
            "the penalty in the reward, -kl_ctl times the estimate of kl_estimator, averaged over "
            "tokens: β is in it and it is negative. Without `ref:` it is -kl_ctl times log π, an "
            "entropy bonus and no KL",
            f"{_ACTOR}: _compute_advantages",
        ),
        LoggedMetric(
            "ppo_actor/update/approx_kl/avg",
            "",
            "no KL to the reference policy: the mean over tokens of log π - log π_proximal, so of "
            "minus k1 between the policy before the update and the policy",
            "areal/utils/functional/functional.py, ppo_actor_loss_fn, 1.0.4",
        ),
        LoggedMetric(
            "ppo_actor/update/behave_approx_kl/avg",
            "",
            "no KL to the reference policy: the mean over tokens of log π_proximal minus the log "
            "of the policy that sampled (staleness and rounding)",
            "areal/utils/functional/functional.py, ppo_actor_loss_fn, 1.0.4",
        ),
        LoggedMetric("ppo_actor/task_reward/avg", "train/reward_mean"),
        LoggedMetric("ppo_actor/update/entropy/avg", "train/entropy"),
        LoggedMetric("ppo_actor/update/actor_loss/avg", "train/policy_loss"),
        LoggedMetric("ppo_actor/update/clip_ratio/avg", "train/clip_fraction"),
    ),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("actor.kl_ctl"),
)
