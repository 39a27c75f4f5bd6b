"""The metrics that open-instruct's grpo_fast.py logs."""

from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_flags, having

_STATS = "open_instruct/grpo_utils.py, populate_sample_loss_stats; model_utils.py, estimate_kl"
_AVERAGE = "averaged over the batch's tokens, with the log-ratio clamped to 40"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "objective/kl0_avg",
            "train/kl_reference_per_token",
            f"KL to the reference policy: k1, {_AVERAGE}",
            _STATS,
        ),
        LoggedMetric(
            "objective/kl1_avg",
            "",
            f"half the squared log-ratio to the reference (k2), {_AVERAGE}",
            _STATS,
        ),
        LoggedMetric(
            "objective/kl2_avg", "", f"KL to the reference policy: k3, {_AVERAGE}", _STATS
        ),
        LoggedMetric(
            "objective/kl3_avg",
            "",
            f"KL to the reference policy: k1 times the importance ratio, {_AVERAGE}",
            _STATS,
        ),
        LoggedMetric(
            "loss/kl_avg",
            "",
            "the estimate that kl_estimator names, times β: β is in it",
            _STATS,
        ),
        LoggedMetric("scores", "train/reward_mean"),
        LoggedMetric("loss/policy_avg", "train/policy_loss"),
        LoggedMetric("policy/clipfrac_avg", "train/clip_fraction"),
        LoggedMetric("policy/entropy_avg", "train/entropy"),
    ),
    launch=as_flags(("python", "open_instruct/grpo_fast.py"), dashes=False),
    step_names=("training_step",),
    owns=having("num_unique_prompts_rollout"),
)
