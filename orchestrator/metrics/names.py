"""Canonical metric names: one table with the meaning, the unit and the better direction of each."""

from typing import NamedTuple


class Metric(NamedTuple):
    """The meaning of a metric, and its unit."""

    meaning: str
    unit: str = ""


METRICS: dict[str, Metric] = {
    "train/reward_mean": Metric("task reward of the rollout batch, before any KL penalty"),
    "train/shaped_reward_mean": Metric("reward minus beta times the summed KL, where placed there"),
    "train/kl_reference": Metric("k1 estimate of KL(policy || reference policy)", "nats/sequence"),
    "train/kl_reference_per_token": Metric("the same, averaged over tokens", "nats/token"),
    "train/kl_term": Metric("the KL estimate the loss or reward really uses, before beta"),
    "train/beta_effective": Metric("beta that would pull as hard under the nominal objective"),
    "train/beta": Metric("beta in force, where a controller moves it"),
    "train/entropy": Metric("mean entropy of the policy at sampled positions", "nats/token"),
    "train/policy_loss": Metric("the policy-gradient part of the loss"),
    "train/grad_norm": Metric("global norm of the gradient before clipping"),
    "train/clip_fraction": Metric("share of tokens whose ratio was clipped"),
    "train/ratio_max": Metric("largest importance ratio of a token in the batch"),
    "train/learning_rate": Metric("learning rate of this train step"),
    "rollout/response_tokens": Metric("mean length of a response", "tokens"),
    "rollout/staleness_mean": Metric("policy versions between sampling and use", "train steps"),
    "rollout/staleness_max": Metric("largest of them", "train steps"),
    "rollout/mismatch_kl": Metric(
        "KL(engine || trainer's policy), on sampled tokens", "nats/token"
    ),
    "rollout/mismatch_chi2": Metric("mean squared ratio of trainer's policy to engine, less 1"),
    "rollout/mismatch_ess": Metric("effective share of the samples under that ratio"),
    "eval/accuracy_in_domain": Metric("exact expected accuracy on the skill trained on"),
    "eval/accuracy_out_of_domain": Metric("mean exact expected accuracy on the other skills"),
    "eval/accuracy_predicted": Metric("accuracy in domain at the closed-form optimum of the cell"),
    "eval/kl_reverse_predicted": Metric("KL(optimum || reference policy)", "nats/sequence"),
    "eval/kl_reverse": Metric(
        "KL(policy || reference policy) on held-out prompts", "nats/sequence"
    ),
    "eval/kl_forward": Metric(
        "KL(reference policy || policy) on held-out prompts", "nats/sequence"
    ),
    "eval/entropy": Metric("entropy of the policy on held-out prompts", "nats/token"),
    "time/step_seconds": Metric("wall-clock time of this train step", "s"),
}
"""`eval/accuracy/<skill>` and `eval/<task>/<metric>` complete the list; both are accuracies."""


def is_divergence(metric: str) -> bool:
    """Return True for a divergence or an entropy (`kl_forward`, `entropy_per_sequence`).

    Such a score is no share of right answers, and no part of a domain's mean.
    """
    return metric.startswith(("kl_", "entropy"))


def is_canonical(name: str) -> bool:
    """Return True if orch may write this name to metrics.jsonl or MLflow."""
    return name in METRICS or name.startswith("eval/")
