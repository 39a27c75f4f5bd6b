"""The metrics that ROLL logs."""

from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_document, having

_WORKER = "roll/pipeline/base_worker.py, loss_func, 0.3.0"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "critic/kl",
            "train/kl_term",
            "KL to the reference policy, as kl_penalty estimates it: each response's mean over "
            "tokens, then the mean over responses. It is logged whether or not it is in "
            "the reward: "
            "critic/kl_coef is 0 without add_token_level_kl",
            "roll/utils/functionals.py, compute_token_reward, 0.3.0",
            place="reward",
        ),
        LoggedMetric(
            "critic/kl",
            "",
            "KL to the reference policy, as kl_penalty estimates it, that nothing trains on: "
            "without add_token_level_kl it is only logged",
            "roll/utils/functionals.py, compute_token_reward, 0.3.0",
            place="loss",
        ),
        LoggedMetric(
            "actor/kl_loss",
            "train/kl_term",
            "KL to the reference policy: k3, clamped to 10, aggregated like the policy loss; "
            "kl_loss_coef is not in it. It is logged whether or not use_kl_loss is on",
            _WORKER,
            place="loss",
        ),
        LoggedMetric(
            "actor/kl_loss",
            "",
            "KL to the reference policy: k3, clamped to 10, that nothing trains on: without "
            "use_kl_loss it is only logged",
            _WORKER,
            place="reward",
        ),
        LoggedMetric(
            "actor/approxkl",
            "",
            "no KL to the reference policy: k2 between the policy and the policy before the "
            "batch's updates",
            _WORKER,
        ),
        LoggedMetric(
            "actor/policykl",
            "",
            "no KL to the reference policy: the mean of log π - log π_old",
            _WORKER,
        ),
        LoggedMetric("critic/score/mean", "train/reward_mean"),
        LoggedMetric("actor/pg_loss", "train/policy_loss"),
        LoggedMetric("actor/ppo_ratio_clipfrac", "train/clip_fraction"),
    ),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("add_token_level_kl"),
)
