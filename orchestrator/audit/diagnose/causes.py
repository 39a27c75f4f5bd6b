"""The causes that a diagnosis can name, and what to change for each."""

from typing import NamedTuple


class Cause(NamedTuple):
    """One cause."""

    words: str
    """What is wrong, as the end of the sentence `Most likely, …`."""
    change: str
    """What to change, as one sentence."""


CAUSES: dict[str, Cause] = {
    "nothing_wrong": Cause(
        "nothing is wrong: the reward rises or stays high",
        "Change nothing.",
    ),
    "no_signal": Cause(
        "the rewards of a group are all alike, so that there is nothing to learn from",
        "Score some responses by hand: the answer may not be parsed, may be cut off before its "
        "end, or be the same in all of them; or the problems are far too hard or too easy.",
    ),
    "not_trained": Cause(
        "nothing is trained: no parameter has a gradient",
        "Look which parameters are frozen, whether the loss is detached, and whether all responses "
        "are masked.",
    ),
    "policy_unmoved": Cause(
        "the policy does not move",
        "Raise the learning rate by 10 times, and see that the steps reach the sampled weights.",
    ),
    "no_gain": Cause(
        "no gain shows: the reward neither rises nor falls",
        "See that the rewards of a group differ; take more rollouts, or a higher learning rate.",
    ),
    "unpaid_part": Cause(
        "a part of the reward is never paid, and teaches nothing",
        "Score some responses by hand with it: the form that it wants may never come.",
    ),
    "learning_rate": Cause(
        "the learning rate is too high for this batch",
        "Lower the learning rate by 3 to 10 times, or make the rollout batch larger.",
    ),
    "staleness": Cause(
        "the samples are staler than the loss bears",
        "Lower the asynchrony (the most train steps between sampling and use), or the learning "
        "rate; a sequence-level mask or truncation against the sampler bounds what is left.",
    ),
    "minibatches": Cause(
        "a rollout batch is used for more train steps than the loss bears",
        "Make fewer train steps of each rollout batch, switch the clip on if it is off, or lower "
        "the learning rate.",
    ),
    "engine_mismatch": Cause(
        "the inference engine samples from another policy than the one that is trained",
        "Use the trainer's number format in the engine (no fp8), or weight its samples by a "
        "truncated importance ratio.",
    ),
    "k3_reward_tail": Cause(
        "the KL in the reward has a heavy tail: single responses dominate a whole batch",
        "Use k1 in the reward: its gradient is that of the reverse KL, and it has no tail.",
    ),
    "kl_without_effect": Cause(
        "the KL is switched on and does not keep the policy near the reference policy",
        "Put k1 in the reward, or k2 in the loss: `orch explain` says what each term does.",
    ),
    "kl_too_strong": Cause(
        "beta is too large for the scale of this reward",
        "Lower beta by 10 times: the KL costs as much as this reward can gain.",
    ),
    "kl_too_weak": Cause(
        "beta is too small to hold the policy",
        "Raise beta by 10 times, or lower the learning rate.",
    ),
    "moved_reference": Cause(
        "the KL is not measured to the policy that the run began with",
        "Look whether the reference policy is replaced by the policy while it trains (TRL: "
        "sync_ref_model), or whether this metric is the KL to the policy that sampled.",
    ),
    "reward_hacking": Cause(
        "the trained reward rises while another score of the policy falls",
        "Read some responses with a high reward: it may pay for something else than the task. "
        "Mend the reward, or raise beta.",
    ),
    "entropy_collapse": Cause(
        "the entropy is used up before the reward is won",
        "Raise the upper bound of the clip, add an entropy bonus or a KL, sample at temperature "
        "1, or use more rollouts a prompt.",
    ),
    "length_collapse": Cause(
        "the responses shrink to next to nothing",
        "Look what the reward pays a short response, and at a penalty or a mean over the length.",
    ),
    "other_reference": Cause(
        "the reference policy is another than the policy that the run began with",
        "Unless that is meant (a teacher, or an adapter that is trained on): load the reference "
        "policy from the first policy's own weights, template, precision and temperature.",
    ),
    "negative_beta": Cause(
        "beta is negative: it pays for leaving the reference policy",
        "See in the trainer's code whether the KL is added to the loss (some trainers of "
        "early 2025 subtracted it); if it is, make beta positive.",
    ),
    "entropy_growth": Cause(
        "the entropy grows: the policy becomes noise",
        "Lower an entropy bonus, the upper bound of the clip or the learning rate, and look at the "
        "responses.",
    ),
    "not_finite": Cause(
        "a value is not finite, and the run is lost from there on",
        "Go back to a checkpoint before it; clip the gradient, keep log-probabilities in fp32, and "
        "look for a ratio or a KL whose exponential overflows.",
    ),
    "explodes": Cause(
        "the KL, the loss or the gradient explodes in single steps",
        "Look at the responses of these steps, clip the gradient, and bound the log-ratio of a "
        "token before its exponential is taken (in k3 and in the importance ratio).",
    ),
    "cut_from_start": Cause(
        "the responses are cut at the limit before they answer",
        "Raise the limit, or see that the policy ends its responses.",
    ),
    "length": Cause(
        "the responses grow to the limit and are cut off",
        "Leave out the division by length, punish cut responses, or raise the limit.",
    ),
}
