"""The metrics that slime logs."""

from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_flags, having

_LOSS = "slime/backends/megatron_utils/loss.py, policy_loss_function, 0.3.1"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "train/kl_loss",
            "train/kl_term",
            "KL to the reference policy, as --kl-loss-type estimates it (k1 unless given), times "
            "the importance ratio with --use-unbiased-kl: each response's mean over tokens, then "
            "the mean over responses, or over tokens with --calculate-per-token-loss; "
            "--kl-loss-coef is not in it, and may be 0",
            _LOSS,
        ),
        LoggedMetric(
            "train/ppo_kl",
            "",
            "no KL to the reference policy: the mean of log π_old - log π; with gspo, each "
            "response's own mean on all its tokens",
            _LOSS,
        ),
        LoggedMetric(
            "train/train_rollout_logprob_abs_diff",
            "",
            "no KL: the mean distance of the engine's log-probabilities from the trainer's",
            _LOSS,
        ),
        LoggedMetric("rollout/raw_reward", "train/reward_mean"),
        LoggedMetric("rollout/response_lengths", "rollout/response_tokens"),
        LoggedMetric("train/entropy_loss", "train/entropy"),
        LoggedMetric("train/pg_loss", "train/policy_loss"),
        LoggedMetric("train/pg_clipfrac", "train/clip_fraction"),
        LoggedMetric("train/grad_norm", "train/grad_norm"),
        LoggedMetric("train/lr-pg_0", "train/learning_rate"),
    ),
    steps="a step of train/ is a train step, one of rollout/ is a rollout batch",
    launch=as_flags(("python3", "train.py")),
    step_names=("train/step", "rollout/step"),
    owns=having("rollout_function_path"),
)
