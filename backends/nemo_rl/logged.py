"""The metrics that NeMo-RL logs."""

from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_document, having

_LOSS = "nemo_rl/algorithms/loss/loss_functions.py, ClippedPGLossFn, 0.7.0"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "train/kl_penalty",
            "train/kl_term",
            "KL to the reference policy in the loss, as reference_policy_kl_type "
            "estimates it, with "
            "its clamps and, with use_on_policy_kl_approximation, its weight; divided by the "
            "coefficient. 0 where the coefficient is 0",
            _LOSS,
        ),
        LoggedMetric(
            "train/gen_kl_error",
            "rollout/mismatch_kl",
            "no KL to the reference policy: KL(engine || trainer) of the same policy, by the "
            "estimator of reference_policy_kl_type",
            _LOSS,
        ),
        LoggedMetric(
            "train/policy_kl_error",
            "",
            "no KL to the reference policy: KL(trainer || engine) of the same policy, by the "
            "estimator of reference_policy_kl_type, on tokens that the engine sampled",
            _LOSS,
        ),
        LoggedMetric(
            "train/js_divergence_error",
            "",
            "no KL to the reference policy: the Jensen-Shannon divergence of trainer and engine",
            _LOSS,
        ),
        LoggedMetric("train/reward", "train/reward_mean"),
        LoggedMetric("train/grad_norm", "train/grad_norm"),
        LoggedMetric("train/lr", "train/learning_rate"),
        LoggedMetric("train/approx_entropy", "train/entropy"),
        LoggedMetric("train/mean_gen_tokens_per_sample", "rollout/response_tokens"),
        LoggedMetric("train/probs_ratio_max", "train/ratio_max"),
    ),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("loss_fn.reference_policy_kl_penalty"),
)
