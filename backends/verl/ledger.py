"""How each field of a cell reached verl: exactly, nearly, or through extension.py."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal

from backends.verl.arguments import ACTOR, MODEL, NEWEST, OPTIMIZER, REWARD, ROLLOUT, SEPARATE
from orchestrator.identity import flatten
from orchestrator.records import LedgerEntry
from orchestrator.settings import Settings

Status = Literal["exact", "approximated", "extension"]
Account = tuple[Status, str]
"""Status and note."""

KEYS: Mapping[str, str] = {
    "model.path": f"{MODEL}.path",
    "model.chat_template": f"{MODEL}.custom_chat_template",
    "data.path": "data.train_files",
    "data.reward": f"{REWARD}.reward_kwargs.rule",
    "data.max_prompt_tokens": "data.max_prompt_length",
    "advantage.estimator": "algorithm.adv_estimator",
    "loss.aggregation": f"{ACTOR}.loss_agg_mode",
    "loss.constant_tokens": f"{ACTOR}.loss_scale_factor",
    "loss.clip": f"{ACTOR}.clip_ratio_high",
    "loss.clip.low": f"{ACTOR}.clip_ratio_low",
    "loss.clip.high": f"{ACTOR}.clip_ratio_high",
    "loss.clip.dual": f"{ACTOR}.clip_ratio_c",
    "rollout.group_size": f"{ROLLOUT}.n",
    "rollout.max_response_tokens": "data.max_response_length",
    "rollout.temperature": f"{ROLLOUT}.temperature",
    "rollout.top_p": f"{ROLLOUT}.top_p",
    "batch.num_prompts": "data.train_batch_size",
    "batch.num_minibatches": f"{ACTOR}.ppo_mini_batch_size",
    "optimizer.learning_rate": f"{OPTIMIZER}.lr",
    "optimizer.weight_decay": f"{OPTIMIZER}.weight_decay",
    "optimizer.beta1": f"{OPTIMIZER}.betas",
    "optimizer.beta2": f"{OPTIMIZER}.betas",
    "optimizer.epsilon": f"{OPTIMIZER}.override_optimizer_config",
    "optimizer.max_grad_norm": f"{OPTIMIZER}.clip_grad",
    "optimizer.schedule": f"{OPTIMIZER}.lr_scheduler_type",
    "optimizer.num_warmup_steps": f"{OPTIMIZER}.lr_warmup_steps",
    "num_train_steps": "trainer.total_training_steps",
    "seed": "data.seed",
}

NOTES: Mapping[str, str] = {
    "model.name": "a label, not sent to verl",
    "data.name": "a label, not sent to verl",
    "data.path": "prepared beforehand as data/train.parquet from what data.json names",
    "data.split": "applied when data/train.parquet is prepared",
    "data.instruction": "appended to each prompt when data/train.parquet is prepared",
    "data.num_prompts": "a check of the prepared file; not sent to verl",
    "data.reward": "a custom reward function with this rule, reward.py: verl would else "
    "choose a scorer by data_source",
    "data.max_prompt_tokens": "longer prompts are dropped, chat template included",
    "rollout.top_p": "truncates sampling only; the trainer's log-probabilities are of the whole "
    "distribution",
    "batch.num_prompts": "prompts, not rollouts; verl multiplies by rollout.n",
    "batch.num_minibatches": "equal parts of the rollout batch in its order, each used once",
    "num_train_steps": "counted by verl in rollout batches; trainer.total_epochs, which would end "
    "training earlier, is raised to the same number",
    "kl.reset_reference_every_steps": "verl never replaces its reference policy",
}


def entries(settings: Settings, arguments: Mapping[str, object]) -> tuple[LedgerEntry, ...]:
    """One entry for every leaf of the settings. `arguments`: what the launch says."""
    accounts = {field: account(settings) for field, account in _ACCOUNTS.items()}
    found = []
    for field, value in flatten(settings.model_dump()):
        status, note = accounts.get(field, ("exact", NOTES.get(field, "")))
        key = _key(settings, field)
        sent = arguments.get(key, value)
        found.append(_entry(field, status, key, str(sent), note))
    return tuple(found)


@lru_cache(maxsize=4096)
def _entry(field: str, status: Status, key: str, value: str, note: str) -> LedgerEntry:
    return LedgerEntry(field=field, status=status, key=key, value=value, note=note)


def _key(settings: Settings, field: str) -> str:
    if field == "max_staleness_steps":
        return f"{SEPARATE}.num_warmup_batches" if settings.max_staleness_steps else ""
    if not field.startswith("kl.") or settings.kl.placement is None:
        return KEYS.get(field, "")
    in_loss = settings.kl.placement != "reward"
    return {
        "kl.estimator": f"{ACTOR}.kl_loss_type" if in_loss else "algorithm.kl_penalty",
        "kl.placement": f"{ACTOR}.use_kl_loss" if in_loss else "algorithm.use_kl_in_reward",
        "kl.beta": f"{ACTOR}.kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef",
    }.get(field, "")


def _chat_template(settings: Settings) -> Account:
    if settings.model.chat_template == "none":
        return "exact", "a template that only joins the messages, with no token before them"
    return "exact", "the tokenizer's own; verl applies it to base models too"


def _advantage(settings: Settings) -> Account:
    name = settings.advantage.estimator
    if name == "reinforce":
        return "extension", "registered by orch_verl: verl's own variants whiten the advantages"
    if name == "grpo":
        return "exact", "divides by the unbiased standard deviation + 1e-6, a KL in the reward too"
    if name == "dr_grpo":
        return "exact", "grpo with algorithm.norm_adv_by_std_in_grpo=False"
    return "exact", ""


def _aggregation(settings: Settings) -> Account:
    if settings.loss.aggregation == "token_mean":
        return "exact", "over the whole minibatch, all GPUs together"
    return "exact", "the KL in the loss is aggregated alike"


def _constant(settings: Settings) -> Account:
    if settings.loss.constant_tokens is None:
        return "exact", ""
    return "exact", "left out, verl would divide by the width of the padded batch, which varies"


def _clip(settings: Settings) -> Account:
    note = "the log-ratio is held within ±20"
    if settings.loss.clip is None:
        return "exact", f"bounds no ratio reaches, dual clip included; {note}"
    return "exact", note


def _dual(settings: Settings) -> Account:
    if settings.loss.clip and settings.loss.clip.dual is None:
        return "exact", "a bound no ratio reaches: verl always clips twice, by default at 3"
    return "exact", ""


def _estimator(settings: Settings) -> Account:
    kl = settings.kl
    if kl.placement is None:
        return "exact", "no reference policy is loaded"
    if "rho_" in kl.estimator:
        clamp = "; k3 held within ±10" if kl.estimator.endswith("k3") else ""
        both = "; in the reward, where the ratio is 1, without it" if _both(settings) else ""
        return (
            "extension",
            f"orch_verl multiplies verl's own KL by exp(logp - old logp){clamp}{both}",
        )
    if kl.estimator == "k3":
        return "approximated", (
            "verl holds the log-ratio within ±20 and the estimate within ±10: where k3 > 10 its "
            "gradient is 0"
        )
    if kl.estimator == "k3+":
        return "approximated", "the value is held within ±10; the gradient is k2's everywhere"
    if kl.estimator.endswith("+") and kl.placement == "reward":
        return "exact", "no gradient passes through the reward: the + changes nothing there"
    return "exact", ""


def _both(settings: Settings) -> bool:
    return settings.kl.placement == "reward_and_loss"


def _placement(settings: Settings) -> Account:
    reward = (
        "in the reward: of the policy before its first minibatch, token by token, which rloo and "
        "grpo sum over the response, inside the group baseline"
    )
    loss = "in the loss: aggregated as the policy loss is, with no importance weight of its own"
    match settings.kl.placement:
        case "reward":
            return "exact", reward
        case "loss":
            return "exact", loss
        case "reward_and_loss":
            return "exact", f"{reward}; {loss}"
    return "exact", ""


def _beta(settings: Settings) -> Account:
    if settings.kl.placement == "reward":
        return "exact", "fixed; multiplies the sum over a response"
    if settings.kl.placement == "loss":
        return "exact", "multiplies the aggregated KL"
    return "exact", "the same in both places" if _both(settings) else ""


def _schedule(settings: Settings) -> Account:
    coarse = settings.batch.num_minibatches > 1 and not settings.max_staleness_steps
    if settings.optimizer.schedule != "constant" and coarse:
        return "approximated", "verl moves it once a rollout batch, not once a train step"
    return "exact", ""


def _warmup(settings: Settings) -> Account:
    if settings.optimizer.num_warmup_steps:
        return "approximated", (
            "counted from 0, so that the first update has learning rate 0; verl moves it once a "
            "rollout batch, or once a minibatch when asynchronous"
        )
    return "exact", ""


def _max_grad_norm(settings: Settings) -> Account:
    if settings.optimizer.max_grad_norm is None:
        return "exact", "a bound no gradient reaches: verl insists on one"
    return "exact", "actor.grad_clip, which has the same default, is read by nothing"


def _staleness(settings: Settings) -> Account:
    if settings.max_staleness_steps:
        return "approximated", (
            "separate_async: a bound, not the lag of every rollout, held by waiting, counted in "
            "rollout batches; a response interrupted by new weights goes on with them; ratios are "
            "to the sampler's own log-probabilities (bypass_mode)"
        )
    if _version_of(settings) == NEWEST:
        return "exact", "trainer.v1.trainer_mode=sync; old log-probabilities are recomputed"
    return "exact", "the synchronous trainer; old log-probabilities are recomputed"


def _version_of(settings: Settings) -> str:
    return settings.backend.version or NEWEST


def _seed(settings: Settings) -> Account:
    what = (
        "prompt order, minibatches, sampling"
        if _version_of(settings) == NEWEST
        else ("prompt order, minibatches; sampling cannot be seeded before 0.9")
    )
    return "approximated", f"seeds {what}; equal seeds do not give equal bits"


def _version(settings: Settings) -> Account:
    asked = settings.backend.version
    return "exact", "" if asked else f"not asked for: the newest orch drives, {NEWEST}"


_ACCOUNTS: Mapping[str, Callable[[Settings], Account]] = {
    "model.chat_template": _chat_template,
    "advantage.estimator": _advantage,
    "loss.aggregation": _aggregation,
    "loss.constant_tokens": _constant,
    "loss.clip": _clip,
    "loss.clip.low": _clip,
    "loss.clip.high": _clip,
    "loss.clip.dual": _dual,
    "kl.estimator": _estimator,
    "kl.placement": _placement,
    "kl.beta": _beta,
    "optimizer.schedule": _schedule,
    "optimizer.num_warmup_steps": _warmup,
    "optimizer.max_grad_norm": _max_grad_norm,
    "max_staleness_steps": _staleness,
    "seed": _seed,
    "backend.version": _version,
}
