"""The metrics of ms-swift's GRPO trainer. Transformers' loggers put `train/` before a name."""

from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_flags, having

LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "kl",
            "train/kl_term",
            "KL to the reference policy: k3 of each token, averaged over each process's tokens, "
            "then over processes; β is not in it",
            "swift/rlhf_trainers/grpo_trainer.py, 4.5.2",
            place="loss",
        ),
        LoggedMetric(
            "kl",
            "train/kl_reference",
            "KL to the reference policy: k1 of the old policy summed over a response, "
            "averaged over "
            "responses (with --kl_in_reward)",
            "swift/rlhf_trainers/grpo_trainer.py, 4.5.2",
            place="reward",
        ),
        LoggedMetric("reward", "train/reward_mean"),
        LoggedMetric("entropy/mean", "train/entropy"),
        LoggedMetric("grad_norm", "train/grad_norm"),
        LoggedMetric("learning_rate", "train/learning_rate"),
        LoggedMetric("clip_ratio/region_mean", "train/clip_fraction"),
        LoggedMetric("completions/mean_length", "rollout/response_tokens"),
    ),
    prefixes=("train/",),
    launch=as_flags(("swift", "rlhf"), dashes=False),
    step_names=("train/global_step",),
    owns=having("rlhf_type"),
)
