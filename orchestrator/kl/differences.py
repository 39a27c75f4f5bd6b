"""The differences between dialects, each with words. An ablation changes one at a time."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from orchestrator.kl.library_semantics import Bounds, Dialect


class Difference(NamedTuple):
    """A difference between dialects, as one or more fields of Dialect."""

    title: str
    fields: tuple[str, ...]
    settings: tuple[str, ...]
    """The settings whose meaning differs."""
    words: Callable[[Any], str]
    """The function that returns the first field's value in words."""
    not_compared: str = ""
    """The reason why no test compares it with the libraries' code; empty if a test does."""


def _clamp_words(bounds: Bounds) -> str:
    texts = ("the log-ratio within ±{:g}", "the estimate within ±{:g}")
    parts = [text.format(x) for text, x in zip(texts, bounds, strict=True) if x is not None]
    return f"{' and '.join(parts)}; no gradient beyond" if parts else "not clamped"


def _choice(words: Mapping[str, str]) -> Callable[[Any], str]:
    return lambda value: words[str(value).lower()]


DIFFERENCES: Mapping[str, Difference] = {
    "kl_clamp": Difference(
        "clamp of the KL", ("kl_clamp", "kl_clamp_of"), ("kl.estimator",), _clamp_words
    ),
    "kl_ratio_max": Difference(
        "ratio that weighs the KL",
        ("kl_ratio_max",),
        ("kl.estimator",),
        lambda x: (
            "as the estimator's name says"
            if x is None
            else f"k2's gradient times the ratio without its gradient, {x:g} at most"
        ),
    ),
    "kl_reward": Difference(
        "KL in the reward",
        ("kl_reward",),
        ("kl.placement", "advantage.estimator"),
        _choice(
            {
                "inside": "summed over the response, inside the group's baseline",
                "outside": "summed over the response, after the group's baseline",
                "to_go": "each token with those after it, after the group's baseline",
                "token": "each token its own, after the group's baseline",
            }
        ),
    ),
    "kl_reward_policy": Difference(
        "policy the reward's KL is of",
        ("kl_reward_policy",),
        ("kl.placement",),
        _choice(
            {
                "rollout": "the one that sampled",
                "batch_start": "the one before the batch's updates",
            }
        ),
    ),
    "kl_loss_mean": Difference(
        "mean of the loss's KL",
        ("kl_loss_mean",),
        ("kl.placement", "kl.beta", "loss.aggregation"),
        _choice(
            {
                "as_policy": "as the policy loss's",
                "token_mean": "over tokens, always",
                "sequence_mean": "over each response, then over responses, always",
            }
        ),
    ),
    "ratio_to": Difference(
        "denominator of the ratio",
        ("ratio_to",),
        ("loss.clip", "max_staleness_steps"),
        _choice(
            {
                "rollout": "the policy that sampled",
                "batch_start": "the policy before the batch's updates: staleness is not corrected",
            }
        ),
    ),
    "ratio_level": Difference(
        "ratio of a response",
        ("ratio_level",),
        ("loss.clip", "kl.placement"),
        _choice(
            {
                "token": "one a token",
                "sequence_if_kl_reward": "one a response where the reward carries the KL",
            }
        ),
    ),
    "ratio_bound": Difference(
        "bound of the ratio",
        ("ratio_bound",),
        ("loss.clip",),
        lambda x: "none" if x is None else f"the log-ratio within ±{x:g}",
    ),
    "std_epsilon": Difference(
        "epsilon of the group's deviation",
        ("std_epsilon",),
        ("advantage.estimator",),
        lambda x: f"{x:g}",
    ),
    "micro_batch": Difference(
        "token mean",
        ("micro_batch",),
        ("loss.aggregation",),
        lambda x: (
            "over the minibatch" if x is None else f"over each {x} rollouts, then over those means"
        ),
    ),
    "mean_over": Difference(
        "tokens of a token mean",
        ("mean_over",),
        ("loss.aggregation", "batch.num_minibatches"),
        _choice(
            {
                "minibatch": "the minibatch's",
                "batch": "the mean of the batch's minibatches",
            }
        ),
    ),
    "constant_is_tokens": Difference(
        "aggregation constant",
        ("constant_is_tokens",),
        ("loss.constant_tokens",),
        _choice(
            {
                "false": "divides by constant_tokens",
                "true": "divides by the tokens of the minibatch",
            }
        ),
    ),
    "decay_of": Difference(
        "weight decay",
        ("decay_of",),
        ("optimizer.weight_decay",),
        _choice({"all": "of all parameters", "matrices": "of matrices, not of norms and biases"}),
    ),
    "warmup_from_zero": Difference(
        "warm-up",
        ("warmup_from_zero",),
        ("optimizer.num_warmup_steps",),
        _choice({"false": "counted from 1", "true": "counted from 0: the first update has rate 0"}),
    ),
    "schedule_per_batch": Difference(
        "schedule",
        ("schedule_per_batch",),
        ("optimizer.schedule", "optimizer.num_warmup_steps"),
        _choice({"false": "moves each train step", "true": "moves once a rollout batch"}),
        "when a library moves its learning rate is decided by a worker behind Ray and its engine, "
        "which no CPU runs: read in its source",
    ),
    "staleness": Difference(
        "lag",
        ("staleness",),
        ("max_staleness_steps",),
        _choice(
            {
                "exact": "exactly max_staleness_steps",
                "up_to": "at most max_staleness_steps; rehearsed as drawn uniformly up to it",
            }
        ),
        "how old a batch really is depends on the machines of a run: that it is drawn uniformly up "
        "to the bound is an assumption of ours",
    ),
    "precision": Difference(
        "precision",
        ("precision",),
        ("precision.training", "precision.rollout", "precision.checkpoint"),
        lambda formats: (
            "training in {}, rollouts in {}, checkpoint in {}, where the cell sets none".format(
                *("the model's own format" if each == "model" else each for each in formats)
            )
        ),
        "the embedded trainer computes in fp32 and rehearses every cell so",
    ),
}


def differing(one: Dialect, other: Dialect) -> tuple[str, ...]:
    """Return the names of the differences between two dialects."""
    return tuple(
        name
        for name, difference in DIFFERENCES.items()
        if any(getattr(one, field) != getattr(other, field) for field in difference.fields)
    )


def describe(dialect: Dialect, name: str) -> str:
    """Return the dialect's side of a difference in words."""
    difference = DIFFERENCES[name]
    return difference.words(getattr(dialect, difference.fields[0]))


def with_difference(one: Dialect, name: str, other: Dialect) -> Dialect:
    """Return dialect `one` with the fields of this difference from dialect `other`."""
    fields = DIFFERENCES[name].fields
    return one.model_copy(update={field: getattr(other, field) for field in fields})
