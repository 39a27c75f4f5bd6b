"""The metrics that SkyRL logs."""

from backends.skyrl.metrics import NAMES
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_document, having, renamed

_KL = (
    LoggedMetric(
        "loss/avg_kl",
        "train/kl_term",
        "KL to the reference policy in the reward, as kl_estimator_type estimates it: each "
        "response's mean over tokens, then the mean over responses; the coefficient is not in it",
        "skyrl_train/trainer.py, apply_reward_kl_penalty, 0.4.0",
    ),
    LoggedMetric(
        "policy/policy_kl",
        "train/kl_term",
        "KL to the reference policy in the loss, as kl_estimator_type estimates it: each "
        "response's "
        "mean over tokens, then the mean over responses; kl_loss_coef is not in it",
        "skyrl_train/workers/worker.py, 0.4.0",
    ),
)
LOGGED = LoggedMetrics(
    (*_KL, *renamed(NAMES, _KL)),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("trainer.algorithm.kl_estimator_type"),
)
