"""Canonical metric names: one table with the meaning and unit of each, and what MLflow holds."""

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """The meaning of a metric, its unit, and whether MLflow holds it."""

    meaning: str
    unit: str = ""
    in_mlflow: Literal["always", "off policy", "on demand"] = "on demand"
    """off policy: for a cell whose rollouts may be of another policy than the one that is trained.
    on demand: if a claim or an objective of a search names it, or with `site.tracking_metrics:
    all`."""


BETA_EFFECTIVE = "train/beta_effective"
VALIDATION = "eval/validation/mean"
METRICS: dict[str, Metric] = {
    "train/reward_mean": Metric(
        "task reward of the rollout batch, before any KL penalty", in_mlflow="always"
    ),
    "train/shaped_reward_mean": Metric("reward minus beta times the summed KL, where placed there"),
    "train/kl_reference": Metric(
        "k1 estimate of KL(policy || reference policy)", "nats/sequence", "always"
    ),
    "train/kl_reference_per_token": Metric("the same, averaged over tokens", "nats/token"),
    "train/kl_term": Metric("the KL estimate the loss or reward really uses, before beta"),
    BETA_EFFECTIVE: Metric("beta that would pull as hard under the nominal objective"),
    "train/beta": Metric("beta in force, where a controller moves it"),
    "train/entropy": Metric(
        "mean entropy of the policy at sampled positions", "nats/token", "always"
    ),
    "train/policy_loss": Metric("the policy-gradient part of the loss"),
    "train/loss": Metric("the whole loss: its policy-gradient part and a KL in it"),
    "train/groups_without_signal": Metric("share of groups whose rewards are all equal"),
    "train/grad_norm": Metric("global norm of the gradient before clipping", in_mlflow="always"),
    "train/clip_fraction": Metric(
        "share of tokens whose ratio was clipped", in_mlflow="off policy"
    ),
    "train/ratio_max": Metric(
        "largest importance ratio of a token in the batch", in_mlflow="off policy"
    ),
    "train/learning_rate": Metric("learning rate of this train step"),
    "rollout/response_tokens": Metric("mean length of a response", "tokens", "always"),
    "rollout/cut_share": Metric("share of responses that were cut at the limit of tokens"),
    "rollout/staleness_mean": Metric("policy versions between sampling and use", "train steps"),
    "rollout/staleness_max": Metric("largest of them", "train steps"),
    "rollout/mismatch_kl": Metric(
        "KL(engine || trainer's policy), on sampled tokens", "nats/token", "off policy"
    ),
    "rollout/mismatch_abs": Metric(
        "mean distance of the engine's log-probabilities from the trainer's", "nats/token"
    ),
    "rollout/mismatch_chi2": Metric("mean squared ratio of trainer's policy to engine, less 1"),
    "rollout/mismatch_ess": Metric("effective share of the samples under that ratio"),
    VALIDATION: Metric(
        "mean task reward on the validation prompts of the training data, one response each, as "
        "the library itself measures it while it trains; the ledger has the sampling"
    ),
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


def in_mlflow(name: str, *, off_policy: bool) -> bool:
    """Return True for a metric that MLflow holds without being asked: evaluations, and those that
    the table names."""
    kind = METRICS[name].in_mlflow if name in METRICS else "on demand"
    return name.startswith("eval/") or kind == "always" or (kind == "off policy" and off_policy)


def is_divergence(metric: str) -> bool:
    """Return True for a divergence or an entropy (`kl_forward`, `entropy_per_sequence`).

    Such a score is no share of right answers, and no part of a domain's mean.
    """
    return metric.startswith(("kl_", "entropy"))


def is_canonical(name: str) -> bool:
    """Return True if orch may write this name to metrics.jsonl or MLflow."""
    return name in METRICS or name.startswith("eval/")
