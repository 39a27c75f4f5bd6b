"""The metrics that verl logs."""

from backends.verl.metrics import NAMES
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_document, having, renamed

_KL = (
    LoggedMetric(
        "actor/reward_kl_penalty",
        "train/kl_term",
        "KL to the reference policy, as algorithm.kl_penalty estimates it, of the "
        "log-probabilities "
        "of the batch: each response's mean over tokens, then the mean over responses; β is not in "
        "it. The penalty that a response gets is a sum over its tokens, not this mean",
        "verl/trainer/ppo/ray_trainer.py, apply_kl_penalty, 0.8.0 and 0.9.1",
    ),
    LoggedMetric(
        "actor/kl_loss",
        "train/kl_term",
        "KL to the reference policy, as actor.kl_loss_type estimates it, aggregated like "
        "the policy "
        "loss (loss_agg_mode); kl_loss_coef is not in it",
        "verl/workers/utils/losses.py, ppo_loss, 0.9.1; verl/workers/actor/dp_actor.py before",
    ),
    LoggedMetric(
        "actor/ppo_kl",
        "",
        "no KL to the reference policy: the mean over tokens of log π_old - log π, so of "
        "k1 between "
        "the policy before the batch's updates and the policy; 0 at the first update of a "
        "batch. With loss_mode kl_cov it is the mean distance of the two",
        "verl/trainer/ppo/core_algos.py, compute_policy_loss_*, 0.8.0 and 0.9.1",
    ),
    LoggedMetric(
        "rollout_corr/kl",
        "",
        "no KL to the reference policy: the mean over tokens of the engine's log-probability minus "
        "the trainer's, for the same policy (k1 of KL(engine || trainer))",
        "verl/trainer/ppo/rollout_corr_helper.py, 0.9.1",
    ),
    LoggedMetric(
        "rollout_corr/k3_kl",
        "rollout/mismatch_kl",
        "no KL to the reference policy: k3 of KL(engine || trainer), the same policy "
        "computed twice",
        "verl/trainer/ppo/rollout_corr_helper.py, 0.9.1",
    ),
)
LOGGED = LoggedMetrics(
    (*_KL, *renamed(NAMES, _KL)),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("actor_rollout_ref.actor.ppo_mini_batch_size", "worker.actor.global_batch_size"),
)
