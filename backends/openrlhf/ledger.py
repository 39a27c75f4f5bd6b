"""What became of each setting: the library's flag and value, and what differs."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from backends.openrlhf.check import UNBIASED
from backends.openrlhf.flags import FLAT, Options, spelled, words
from orchestrator.identity import flatten
from orchestrator.records import LedgerEntry
from orchestrator.settings import Cadence, Settings

KEYS: Mapping[str, tuple[str, ...]] = {
    "model.path": ("actor.model_name_or_path",),
    "model.chat_template": ("data.apply_chat_template",),
    "data.path": ("data.prompt_dataset", "data.max_samples"),
    "data.split": ("data.prompt_dataset",),
    "data.num_prompts": ("data.prompt_dataset",),
    "data.instruction": ("data.prompt_dataset",),
    "data.reward": ("reward.remote_url", "reward.clip_range"),
    "data.max_prompt_tokens": ("data.max_len",),
    "advantage.estimator": ("algo.advantage.estimator",),
    "loss.aggregation": ("actor.loss_agg_mode", "train.micro_batch_size"),
    "loss.clip": ("actor.eps_clip_low_high",),
    "loss.clip.low": ("actor.eps_clip_low_high",),
    "loss.clip.high": ("actor.eps_clip_low_high",),
    "loss.clip.dual": ("actor.dual_clip",),
    "kl.estimator": ("algo.kl.estimator", "algo.kl.unbiased_gradient"),
    "kl.placement": ("algo.kl.use_loss",),
    "kl.beta": ("algo.kl.init_coef",),
    "rollout.group_size": ("rollout.n_samples_per_prompt",),
    "rollout.max_response_tokens": ("rollout.max_new_tokens", "data.max_len"),
    "rollout.temperature": ("rollout.temperature",),
    "rollout.top_p": ("rollout.top_p",),
    "batch.num_prompts": ("rollout.batch_size",),
    "batch.num_minibatches": ("train.batch_size",),
    "optimizer.learning_rate": ("actor.adam.lr",),
    "optimizer.weight_decay": ("actor.adam.weight_decay",),
    "optimizer.beta1": ("actor.adam.betas",),
    "optimizer.beta2": ("actor.adam.betas",),
    "optimizer.epsilon": ("actor.adam.eps",),
    "optimizer.max_grad_norm": ("actor.max_norm",),
    "optimizer.schedule": ("actor.lr_scheduler",),
    "optimizer.num_warmup_steps": ("actor.lr_warmup_ratio",),
    "num_train_steps": ("data.max_samples", "train.num_episodes"),
    "max_staleness_steps": ("train.async_enable", "train.async_queue_size"),
    "seed": ("train.seed",),
}

EXACT: Mapping[str, str] = {
    "model.name": "what people call it",
    "data.name": "what people call it",
    "data.path": "the prompt file, made by `orch data prepare`, is named as often as it takes, and "
    "max_samples cuts the sum; one shuffle over all of it, so a prompt may come twice in a batch",
    "data.num_prompts": "a shorter file would end training early, without a word",
    "data.instruction": "already part of each prompt of the file",
    "data.max_prompt_tokens": "max_len less max_new_tokens; a longer prompt loses its beginning",
    "advantage.estimator": "of the task reward alone; divides by the unbiased standard deviation "
    "+ 1e-9 where it divides at all. The reward's clip is widened to 1000, out of the way",
    "loss.constant_tokens": "no loss is divided by a constant",
    "kl.beta": "0 loads no reference policy, so nothing of the drift from it is measured",
    "kl.reset_reference_every_steps": "the reference policy stays the first policy",
    "rollout.temperature": "log-probabilities are at this temperature",
    "rollout.top_p": "truncates sampling only; log-probabilities are of the whole distribution",
    "batch.num_prompts": "counts prompts",
    "num_train_steps": "there is no such flag: the prompts are counted out, and a step of the "
    "library's own log is a rollout batch",
    "max_staleness_steps": "synchronous",
    "optimizer.max_grad_norm": "0 turns it off",
    "backend.version": "see needs.json",
}
"""Notes of fields that are exact; every other exact field has none."""

REWARD_TO_GO = (
    "subtracted token by token after the group baseline, as a reward to go: no leave-one-out of "
    "the KL, no division by a group's standard deviation; equal in expectation where the baseline "
    "is rloo's, with another variance, and relatively heavier otherwise. It is computed once a "
    "rollout batch, from the trainer's policy"
)
CLAMPED = "each token's estimate is clamped to [-10, 10]"
KL_BY_TOKENS = "of the policy loss; the KL is a mean over tokens all the same"
MICRO_BATCHES = (
    "each micro-batch of a GPU is divided by its own tokens, then micro-batches are averaged: a "
    "token of a short micro-batch weighs more, in the policy loss and in the KL"
)
PROMPT_ORDER = (
    "seeds vLLM's engines and the trainer's shuffles; the order of the prompts is drawn from a "
    "generator that is never seeded"
)
SHUFFLED = (
    "the rollouts of a batch are shuffled: those of one group fall into several minibatches; "
    "train.batch_size counts rollouts"
)
QUEUE = (
    "a bound, in rollout batches waiting in a queue; the lag of a batch is neither constant nor "
    "logged. Old log-probabilities are the trainer's at the start of the batch, so the ratio and "
    "its clip do not see this lag"
)
WEIGHTED = (
    "the gradient is {}'s, with the ratio at most 10; the value, which is only logged, is {}'s "
    "without the ratio, clamped to [-10, 10]"
)


def entries(settings: Settings, options: Options, version: str) -> tuple[LedgerEntry, ...]:
    """One entry for each leaf of the settings."""
    differs = dict(differences(settings, version))
    return tuple(
        _entry(field, differs.get(field), _keys(field, options, version), _values(field, options))
        for field, _ in flatten(settings.model_dump())
    )


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


@lru_cache(maxsize=4096)
def _entry(field: str, differs: str | None, key: str, value: str) -> LedgerEntry:
    return LedgerEntry(
        field=field,
        status="exact" if differs is None else "approximated",
        key=key,
        value=value,
        note=EXACT.get(field, "") if differs is None else differs,
    )


def _keys(field: str, options: Options, version: str) -> str:
    given = (spelled(name, version) for name in KEYS.get(field, ()) if name in options)
    return " ".join(name for name in given if name is not None)


def _values(field: str, options: Options) -> str:
    """As on the command line; of a prompt file named several times, once."""
    given = [options[name] for name in KEYS.get(field, ()) if name in options]
    return " ".join(" ".join(words(value)).partition(",")[0] or "given" for value in given)


def differences(settings: Settings, version: str) -> Iterator[tuple[str, str]]:
    """The fields that this release only approximates, and how."""
    aggregation = settings.loss.aggregation
    yield "seed", PROMPT_ORDER
    yield from _kl(settings)
    if version == FLAT and aggregation == "token_mean":
        yield "loss.aggregation", MICRO_BATCHES
    if version != FLAT and aggregation == "sequence_mean" and settings.kl.placement == "loss":
        yield "loss.aggregation", KL_BY_TOKENS
    if settings.optimizer.weight_decay > 0:
        yield "optimizer.weight_decay", "biases and norm weights are left out"
    if settings.optimizer.num_warmup_steps > 0:
        yield "optimizer.num_warmup_steps", "counted from 0: the first train step has rate 0"
    if settings.model.chat_template == "none":
        yield "model.chat_template", "a prompt gets no beginning-of-sequence token either"
    if settings.batch.num_minibatches > 1:
        yield "batch.num_minibatches", SHUFFLED
    if settings.max_staleness_steps > 0:
        yield "max_staleness_steps", QUEUE


def _kl(settings: Settings) -> Iterator[tuple[str, str]]:
    kl = settings.kl
    if kl.placement is None or kl.beta == 0:
        return
    if kl.placement == "reward":
        yield "kl.placement", REWARD_TO_GO
        yield "kl.estimator", CLAMPED
    elif kl.estimator not in UNBIASED:
        yield "kl.estimator", f"{CLAMPED}; where the clamp binds it has no gradient"
    elif kl.estimator.endswith("+"):
        yield "kl.estimator", f"{CLAMPED}, its gradient is not: the ratio there is 1"
    else:
        yield "kl.estimator", WEIGHTED.format(kl.estimator, UNBIASED[kl.estimator])
