"""How each field of a cell reaches Prime-RL, release by release."""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from backends.prime_rl.capabilities import CURRENT
from orchestrator.records import LedgerEntry
from orchestrator.settings import Cadence

Status = Literal["exact", "approximated", "extension"]

_OURS = "through our loss (hooks.py), which its `custom` loss hook calls"
_ESTIMATOR = f"{_OURS}, with the log-probabilities of its teacher model; not clamped"
_PLACEMENT = (
    f"{_OURS}. In the reward: the sum over the response at the current policy, without gradient, "
    "after the group baseline: the same expected gradient as before it, with more variance (with a "
    "baseline that contains the rollout itself, dr_grpo or grpo, the weight of KL against the "
    "reward is group_size / (group_size - 1) of the usual). In the loss: no importance weight but "
    "the estimator's own; divided by the tokens of the trainer rank, as the policy loss is"
)
LAG = (
    "bounds how old the rollout policy is when a batch is full, and how many updates a rollout "
    "may live through: its first tokens may be older than the bound by as many. Not every batch is "
    "this stale: the newest weights are used"
)
AGGREGATION = {
    "token_mean": "each trainer rank divides by the tokens of its own share; ranks are averaged",
    "constant": "its trainer divides by the tokens of each rank's share, not by constant_tokens x "
    "rollouts: the same direction, and the same weight of KL, in a step of another length, most of "
    "which AdamW takes out again",
}
LINEAR = (
    "reaches 0 at the last train step: its decay ends one step sooner than a decay that would "
    "reach 0 at the step after the last"
)
FROM_ZERO = (
    "counted from 0: the first train step has 1e-8 of the rate, and the full rate is reached one "
    "step later"
)
_ADVANTAGE = {
    "rloo": "leave_one_out of hooks.py, which its `custom` advantage hook calls",
    "grpo": "standardised of hooks.py: over the unbiased standard deviation + 1e-6",
    "reinforce": "plain of hooks.py, which its `custom` advantage hook calls",
}
_PROMPT = (
    "seq_len is prompt and response together: a longer prompt is not left out, it leaves less room "
    "for its response"
)
_SEED = (
    "seeds the order of prompts and the servers' sampling; its orchestrator.seed is read by "
    "nothing, and what runs at the same time is not reproducible"
)
_TOKENIZER = (
    "trainer.tokenizer.name as well: without it the trainer saves its default model's tokenizer"
)
_DATA = "an argument of our environment (environment.py), which its `env.id` names"

_KEYS: Mapping[str, str] = {
    "model.name": "",
    "model.path": "model.name",
    "model.chat_template": "",
    "data.name": "",
    "data.path": "orchestrator.env.args.path",
    "data.split": "orchestrator.env.args.split",
    "data.num_prompts": "orchestrator.env.args.num_prompts",
    "data.instruction": "orchestrator.env.args.instruction",
    "data.reward": "orchestrator.env.args.reward",
    "data.max_prompt_tokens": "seq_len",
    "advantage.estimator": "orchestrator.advantage",
    "loss.aggregation": "",
    "loss.constant_tokens": "",
    "loss.clip": "trainer.loss.kwargs",
    "loss.clip.low": "trainer.loss.kwargs.clip_low",
    "loss.clip.high": "trainer.loss.kwargs.clip_high",
    "loss.clip.dual": "trainer.loss.kwargs.clip_dual",
    "kl.estimator": "trainer.loss.kwargs.estimator",
    "kl.placement": "trainer.loss.kwargs.placement",
    "kl.beta": "trainer.loss.kwargs.beta",
    "kl.reset_reference_every_steps": "",
    "rollout.group_size": "orchestrator.rollouts_per_example",
    "rollout.max_response_tokens": "orchestrator.sampling.max_tokens",
    "rollout.temperature": "orchestrator.sampling.temperature",
    "rollout.top_p": "",
    "batch.num_prompts": "orchestrator.batch_size",
    "batch.num_minibatches": "",
    "optimizer.learning_rate": "trainer.optim.lr",
    "optimizer.weight_decay": "trainer.optim.weight_decay",
    "optimizer.beta1": "trainer.optim.betas1",
    "optimizer.beta2": "trainer.optim.betas2",
    "optimizer.epsilon": "",
    "optimizer.max_grad_norm": "trainer.optim.max_norm",
    "optimizer.schedule": "trainer.scheduler.type",
    "optimizer.num_warmup_steps": "trainer.scheduler.warmup_steps",
    "num_train_steps": "max_steps",
    "backend.name": "",
    "backend.version": "",
    "max_staleness_steps": "max_async_level",
    "seed": "orchestrator.buffer.seed",
}

_NOTES: Mapping[str, tuple[Status, str]] = {
    "model.path": ("exact", _TOKENIZER),
    "data.path": ("extension", _DATA),
    "data.split": ("extension", _DATA),
    "data.instruction": ("extension", _DATA),
    "data.reward": ("extension", _DATA),
    "data.num_prompts": ("extension", f"{_DATA}; checked when it is loaded"),
    "data.max_prompt_tokens": ("approximated", _PROMPT),
    "loss.clip": ("extension", f"no clip; {_OURS}"),
    "loss.clip.low": ("extension", _OURS),
    "loss.clip.high": ("extension", _OURS),
    "loss.clip.dual": ("extension", _OURS),
    "kl.estimator": ("extension", _ESTIMATOR),
    "kl.placement": ("extension", _PLACEMENT),
    "kl.beta": ("extension", _OURS),
    "rollout.top_p": ("exact", "it always sends 1.0"),
    "batch.num_prompts": ("exact", "counted in rollouts: num_prompts x group_size"),
    "batch.num_minibatches": ("exact", "it makes one optimizer step a batch"),
    "optimizer.epsilon": ("exact", "torch's default"),
    "seed": ("approximated", _SEED),
}


_ARGUMENTS = "orchestrator.train.source.legacy.args"
_KEYS_OF_CURRENT: Mapping[str, str] = {
    **_KEYS,
    "data.path": f"{_ARGUMENTS}.path",
    "data.split": f"{_ARGUMENTS}.split",
    "data.num_prompts": f"{_ARGUMENTS}.num_prompts",
    "data.instruction": f"{_ARGUMENTS}.instruction",
    "data.reward": f"{_ARGUMENTS}.reward",
    "advantage.estimator": "orchestrator.algo.type",
    "kl.estimator": "",
    "kl.placement": "",
    "kl.beta": "",
    "rollout.group_size": "orchestrator.group_size",
    "rollout.max_response_tokens": "orchestrator.train.sampling.max_completion_tokens",
    "rollout.temperature": "orchestrator.train.sampling.temperature",
    "max_staleness_steps": "orchestrator.max_off_policy_steps",
    "seed": "inference.seed",
}
_TOKENS_OF_CURRENT = "the sum over the batch is divided by its tokens, on all ranks"
_CONSTANT_OF_CURRENT = (
    "its trainer divides by the tokens of the batch, not by constant_tokens x rollouts: the same "
    "direction in a step of another length, most of which AdamW takes out again"
)
_RLOO_OF_CURRENT = "its own, reward minus the group mean, times n / (n - 1) in our loss"
_LAG_OF_CURRENT = (
    "one batch is generated while another trains; a rollout may live through one update, and its "
    "first tokens are then older by one"
)
_ENTRIES_OF_CURRENT: Mapping[tuple[str, object], tuple[Status, str]] = {
    ("loss.aggregation", "token_mean"): ("exact", _TOKENS_OF_CURRENT),
    ("loss.aggregation", "constant"): ("approximated", _CONSTANT_OF_CURRENT),
    ("advantage.estimator", "rloo"): ("extension", _RLOO_OF_CURRENT),
    ("max_staleness_steps", 1): ("approximated", _LAG_OF_CURRENT),
}
_NOTES_OF_CURRENT: Mapping[str, str] = {
    "model.path": "",
    "seed": (
        "seeds the servers' sampling only: its order of prompts is the same in every run, by the "
        "number of the epoch, and what runs at the same time is not reproducible"
    ),
}


def entries(leaves: Mapping[str, object], version: str) -> tuple[LedgerEntry, ...]:
    """One entry for every leaf of a cell's settings."""
    return tuple(_entry(field, value, version) for field, value in leaves.items())


_NO_EVALUATION = (
    "it is given no evaluation set, so it evaluates nothing while it trains: ask for "
    "cadence.checkpoint_every_steps as often, and orch evaluates those checkpoints "
    "(evaluation.checkpoints: all)"
)


def of_cadence(cadence: Cadence) -> tuple[LedgerEntry, ...]:
    """What becomes of a cadence that the library is not told of."""
    every = cadence.evaluate_every_steps
    if every is None:
        return ()
    return (
        LedgerEntry(
            field="cadence.evaluate_every_steps",
            status="approximated",
            key="",
            value=str(every),
            note=_NO_EVALUATION,
        ),
    )


@cache
def _entry(field: str, value: object, version: str) -> LedgerEntry:
    keys = _KEYS_OF_CURRENT if version == CURRENT else _KEYS
    status, note = _status(field, value)
    if version == CURRENT and field in _NOTES_OF_CURRENT:
        note = _NOTES_OF_CURRENT[field]
    elif version == CURRENT:
        status, note = _ENTRIES_OF_CURRENT.get((field, value), (status, note))
    return LedgerEntry(field=field, status=status, key=keys[field], value=str(value), note=note)


def _status(field: str, value: object) -> tuple[Status, str]:
    if field == "loss.aggregation":
        return "approximated", AGGREGATION[str(value)]
    if field == "loss.constant_tokens":
        if value is None:
            return "exact", ""
        return "approximated", AGGREGATION["constant"]
    if field == "advantage.estimator":
        if value == "dr_grpo":
            return "exact", "its default: reward minus the group mean"
        return "extension", _ADVANTAGE[str(value)]
    if field == "optimizer.schedule" and value == "linear":
        return "approximated", LINEAR
    if field == "optimizer.num_warmup_steps" and value:
        return "approximated", FROM_ZERO
    if field == "max_staleness_steps":
        if value == 0:
            return "exact", "rollouts in flight when the policy is updated are dropped"
        return "approximated", LAG
    if field == "kl.reset_reference_every_steps":
        return "exact", "the reference policy's server never changes its weights"
    if (field, value) in (("kl.estimator", "none"), ("kl.placement", None), ("kl.beta", 0)):
        return "exact", "its own kl_tau, which pulls to the rollout policy, is not in our loss"
    return _NOTES.get(field, ("exact", ""))
