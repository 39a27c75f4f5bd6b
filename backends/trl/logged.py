"""TRL's metrics. Transformers' loggers, but for MLflow's, put `train/` before names."""

from collections.abc import Mapping
from typing import Any

from backends.trl.metrics import NAMES
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_call, renamed

_KL = (
    LoggedMetric(
        "kl",
        "train/kl_term",
        "KL to the reference policy: k3 of each token, times the token's importance ratio where "
        "use_bias_correction_kl is on, averaged over response tokens; β is not in it. It is there "
        "only where β is not 0. Before 0.26.0 there is no ratio; in 0.14.0 it is the mean of the "
        "responses' means",
        "trl/trainer/grpo_trainer.py, _compute_loss, 0.14.0, 0.24.0, 1.9.2, 1.10.0 and 1.16.0",
        place="loss",
    ),
    LoggedMetric(
        "kl",
        "train/kl_reference_per_token",
        "KL to the reference policy: k1 of each token (log π of the rollout minus log π of the "
        "reference), averaged over response tokens. The penalty in the reward is its sum over the "
        "response, so the average times the length",
        "trl/trainer/rloo_trainer.py, _generate_and_score_completions, 0.24.0, 1.9.2 and 1.10.0",
        place="reward",
    ),
    LoggedMetric(
        "kl",
        "",
        "no KL to a reference policy, which this trainer does not have: k3 of the ratio between "
        "the policy and the policy that sampled, averaged over tokens",
        "trl/experimental/async_grpo/async_grpo_trainer.py, 1.9.0",
        where="AsyncGRPOTrainer",
    ),
    LoggedMetric(
        "objective/kl",
        "train/kl_reference",
        "KL to the reference policy: k1 summed over a response, averaged over responses",
        "trl/trainer/rloo_trainer.py, train, 0.14.0 (RLOOTrainer up to 0.21)",
    ),
    LoggedMetric(
        "sampling/sampling_logp_difference/mean",
        "",
        "no KL: the mean distance of the engine's log-probabilities from the trainer's",
        "trl/trainer/grpo_trainer.py, _generate_and_score_completions",
    ),
)
_REWARD = (LoggedMetric("reward", "train/reward_mean"),)
"""Over all reward functions, with their weights."""


def _class(settings: Mapping[str, Any]) -> str | None:
    """Return the class of logged settings, by names that only this class ever had; else None."""
    if {"normalize_advantages", "normalize_advantage", "rloo_k"} & settings.keys():
        return "RLOOConfig"
    grpo = {"loss_type", "scale_rewards", "use_liger_loss"}
    return "GRPOConfig" if grpo & settings.keys() else None


def _is_own(settings: Mapping[str, Any]) -> bool:
    return "num_generations" in settings and "rlhf_type" not in settings


LOGGED = LoggedMetrics(
    (*_KL, *_REWARD, *renamed(NAMES, (*_KL, *_REWARD))),
    prefixes=("train/",),
    launch=as_call("trl", _class),
    step_names=("train/global_step",),
    owns=_is_own,
)
