"""Each setting of a cell as SkyRL has it: its keys, and how faithful they are."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from backends.skyrl.releases import (
    ADVANTAGES,
    AGGREGATIONS,
    ALGORITHM,
    ASYNC,
    NO_CLIP,
    OPTIMIZER,
    SAMPLING,
    SCHEDULES,
    SINCE,
    Loss,
    before,
)
from orchestrator.settings import Clip, Kl, Settings

NEEDS = "needs.json"
FROM_ZERO = (
    "counted from 0: the first train step has rate 0, and the full rate is reached one step later"
)


class Line(NamedTuple):
    """One field of a cell, the overrides that carry it, and the ledger's word on it."""

    field: str
    overrides: Mapping[str, object]
    status: Literal["exact", "approximated", "extension"] = "exact"
    note: str = ""


def lines(settings: Settings, version: str) -> Iterator[Line]:
    """One line or more for every field of a cell that SkyRL can express."""
    yield from _model_and_data(settings)
    yield from _objective(settings, version)
    yield from _kl(settings)
    yield from _sampling(settings)
    yield from _optimizer(settings)
    yield from _length(settings, version)


def _model_and_data(settings: Settings) -> Iterator[Line]:
    model, data = settings.model, settings.data
    path = {"trainer.policy.model.path": model.path, "trainer.ref.model.path": model.path}
    yield Line("model.name", {}, note=f"for people; {NEEDS} keeps it")
    yield Line("model.path", path)
    if model.chat_template == "default":
        yield Line("model.chat_template", {}, note="the tokenizer's own")
    else:
        yield Line(
            "model.chat_template",
            {"orch.chat_template": "none"},
            "extension",
            "SkyRL always applies a template: orch_skyrl.py gives the tokenizer one that adds only "
            "its first token",
        )
    for name in ("name", "path", "split", "num_prompts", "instruction"):
        yield Line(f"data.{name}", {}, note=f"data/train.parquet is to be made of it ({NEEDS})")
    yield Line(
        "data.reward",
        {"environment.env_class": "orch"},
        "extension",
        "SkyRL has no such reward: reward.py, in an environment that orch_skyrl.py registers",
    )
    yield Line(
        "data.max_prompt_tokens",
        {
            "trainer.max_prompt_length": data.max_prompt_tokens,
            "generator.max_input_length": data.max_prompt_tokens,
        },
        note="longer prompts are left out, not cut",
    )


def _objective(settings: Settings, version: str) -> Iterator[Line]:
    name, by_std = ADVANTAGES[settings.advantage.estimator]
    overrides = {
        f"{ALGORITHM}.advantage_estimator": name,
        f"{ALGORITHM}.grpo_norm_by_std": by_std,
    }
    if settings.advantage.estimator == "reinforce":
        note = "SkyRL's reinforce++ whitens over the batch: orch_skyrl.py registers the plain one"
        yield Line("advantage.estimator", overrides, "extension", note)
    else:
        note = "of the reward summed over the response, any KL penalty included"
        yield Line("advantage.estimator", overrides, note=note)
    loss = settings.loss
    yield Line("loss.aggregation", {f"{ALGORITHM}.loss_reduction": AGGREGATIONS[loss.aggregation]})
    yield Line("loss.constant_tokens", {f"{ALGORITHM}.max_seq_len": loss.constant_tokens})
    yield _clip(settings, version)


def _clip(settings: Settings, version: str) -> Line:
    clip = settings.loss.clip
    kind = loss_type(settings, version)
    low, high = NO_CLIP if clip is None else (clip.low, clip.high)
    overrides: dict[str, object] = {
        f"{ALGORITHM}.policy_loss_type": kind,
        f"{ALGORITHM}.eps_clip_low": low,
        f"{ALGORITHM}.eps_clip_high": high,
    }
    if clip is not None and clip.dual is not None:
        overrides[f"{ALGORITHM}.clip_ratio_c"] = clip.dual
    if kind.startswith("orch_"):
        return Line(
            "loss.clip",
            overrides,
            "extension",
            "SkyRL refuses its PPO losses here, whose old policy is not the one that sampled: "
            "orch_skyrl.py registers one whose ratio is to the policy that sampled",
        )
    if settings.max_staleness_steps:
        return Line(
            "loss.clip",
            overrides,
            "approximated",
            "the old log-probabilities are the current policy's, so the ratio is 1: nothing is "
            "clipped and no staleness corrected",
        )
    note = "the ratio is to the policy as it was when the rollout batch was sampled"
    return Line("loss.clip", overrides, note=note)


def loss_type(settings: Settings, version: str) -> Loss:
    """SkyRL's policy loss. Its own PPO losses are refused asynchronously since 0.3.0."""
    dual = settings.loss.clip is not None and settings.loss.clip.dual is not None
    if settings.max_staleness_steps and not before(version, "0.3.0"):
        return "orch_rollout_dual_clip" if dual else "orch_rollout_ppo"
    return "dual_clip" if dual else "regular"


def _kl(settings: Settings) -> Iterator[Line]:
    kl = settings.kl
    in_reward = kl.placement in ("reward", "reward_and_loss")
    flags: dict[str, object] = {
        f"{ALGORITHM}.use_kl_in_reward": in_reward,
        f"{ALGORITHM}.use_kl_loss": kl.placement == "loss",
    }
    yield _estimator(kl)
    if kl.placement == "reward_and_loss":
        yield Line(
            "kl.placement",
            {**flags, "orch.kl_in_loss_too": True},
            "extension",
            "SkyRL's validator refuses both: orch_skyrl.py turns the second on after it. "
            + _of_loss(settings),
        )
    elif kl.placement == "loss" and settings.loss.aggregation != "sequence_mean":
        yield Line("kl.placement", flags, "approximated", _of_loss(settings))
    elif in_reward and settings.max_staleness_steps:
        yield Line(
            "kl.placement",
            flags,
            "approximated",
            "of the current policy's log-probabilities, not of those of the policy that sampled",
        )
    else:
        yield Line("kl.placement", flags, note=_of_placement(kl))
    yield Line("kl.beta", {f"{ALGORITHM}.kl_loss_coef": kl.beta}, note="of the reward and the loss")
    yield Line("kl.reset_reference_every_steps", {"trainer.update_ref_every_epoch": False})


def _estimator(kl: Kl) -> Line:
    key = f"{ALGORITHM}.kl_estimator_type"
    if kl.estimator == "none":
        return Line("kl.estimator", {}, note="no reference policy is loaded, no KL is logged")
    if kl.estimator == "k3":
        return Line(
            "kl.estimator",
            {key: "k3"},
            "approximated",
            "log r is held within 20 and the estimate within 10; the gradient is 0 beyond",
        )
    return Line("kl.estimator", {key: kl.estimator}, note="not clamped")


def _of_loss(settings: Settings) -> str:
    text = "In the loss the KL is averaged over each response, then over the responses"
    if settings.loss.aggregation == "sequence_mean":
        return f"{text}, as the policy loss is"
    return f"{text}, whatever loss.aggregation is: beta weighs otherwise than in verl or OpenRLHF"


def _of_placement(kl: Kl) -> str:
    if kl.placement == "reward":
        return "subtracted token by token, summed over the response before the group's baseline"
    return "SkyRL has the loss's KL on unless told otherwise" if kl.placement is None else ""


def _sampling(settings: Settings) -> Iterator[Line]:
    rollout, batch = settings.rollout, settings.batch
    yield Line("rollout.group_size", {"generator.n_samples_per_prompt": rollout.group_size})
    yield Line(
        "rollout.max_response_tokens",
        {f"{SAMPLING}.max_generate_length": rollout.max_response_tokens},
    )
    yield Line(
        "rollout.temperature",
        {f"{SAMPLING}.temperature": rollout.temperature},
        note="log-probabilities are taken at it, too",
    )
    yield Line(
        "rollout.top_p",
        {f"{SAMPLING}.top_p": rollout.top_p},
        note="truncates sampling only; log-probabilities are of the whole distribution",
    )
    yield Line("batch.num_prompts", {"trainer.train_batch_size": batch.num_prompts})
    yield Line(
        "batch.num_minibatches",
        {"trainer.policy_mini_batch_size": batch.num_prompts // batch.num_minibatches},
        note="SkyRL's key is the size of one, in prompts",
    )


def _optimizer(settings: Settings) -> Iterator[Line]:
    optimizer = settings.optimizer
    yield Line("optimizer.learning_rate", {f"{OPTIMIZER}.lr": optimizer.learning_rate})
    yield Line("optimizer.weight_decay", {f"{OPTIMIZER}.weight_decay": optimizer.weight_decay})
    betas = {f"{OPTIMIZER}.adam_betas": [optimizer.beta1, optimizer.beta2]}
    yield Line("optimizer.beta1", betas)
    yield Line("optimizer.beta2", betas)
    yield Line("optimizer.epsilon", {}, note="PyTorch's default; SkyRL has no key for it")
    yield Line(
        "optimizer.max_grad_norm",
        {f"{OPTIMIZER}.max_grad_norm": optimizer.max_grad_norm or 0.0},
        note="0 is no clipping; then no gradient norm is logged either",
    )
    yield Line("optimizer.schedule", {f"{OPTIMIZER}.scheduler": SCHEDULES[optimizer.schedule]})
    warmup = {f"{OPTIMIZER}.num_warmup_steps": optimizer.num_warmup_steps}
    if optimizer.num_warmup_steps:
        yield Line("optimizer.num_warmup_steps", warmup, "approximated", FROM_ZERO)
    else:
        yield Line("optimizer.num_warmup_steps", warmup)


def _length(settings: Settings, version: str) -> Iterator[Line]:
    batches = settings.num_train_steps // settings.batch.num_minibatches
    if before(version, SINCE["trainer.max_training_steps"]):
        yield Line(
            "num_train_steps",
            {"orch.max_training_steps": batches, "trainer.epochs": 1},
            "extension",
            "SkyRL < 0.3.0 counts epochs only: orch_skyrl.py repeats the data to exactly so many "
            "rollout batches",
        )
    else:
        yield Line(
            "num_train_steps",
            {"trainer.max_training_steps": batches, "trainer.epochs": batches},
            note="in rollout batches; there are more epochs than can be needed",
        )
    yield Line("backend.name", {})
    yield Line("backend.version", {}, note=f"SkyRL {version}")
    yield _staleness(settings, version)
    yield Line(
        "seed",
        {"trainer.seed": settings.seed},
        "approximated",
        "seeds the order of prompts, the trainer and vLLM's engines; equal seeds do not give equal "
        "bits",
    )


def _staleness(settings: Settings, version: str) -> Line:
    bound, prompts = settings.max_staleness_steps, settings.batch.num_prompts
    enabled = {} if before(version, SINCE[f"{ASYNC}.enabled"]) else {f"{ASYNC}.enabled": bound > 0}
    if not bound:
        return Line("max_staleness_steps", enabled)
    overrides = {
        **enabled,
        "orch.asynchronous": True,
        f"{ASYNC}.max_staleness_steps": bound,
        f"{ASYNC}.num_parallel_generation_workers": prompts * (bound + 1),
    }
    return Line(
        "max_staleness_steps",
        overrides,
        "approximated",
        "held over all rollouts together: single ones may be older, which SkyRL only warns of; "
        "weights change while a response is being sampled. No entry point of the wheel trains "
        "asynchronously: orch_skyrl.py is one",
    )


def clip_of(kind: str, low: float, high: float, cap: float) -> Clip | None:
    """The clip that three numbers and a policy loss stand for."""
    if (low, high) == NO_CLIP:
        return None
    return Clip(low=low, high=high, dual=cap if kind.endswith("dual_clip") else None)
