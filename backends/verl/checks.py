"""What verl composes without a word and then ignores, or dies of an hour later.

Of all faults below verl's own validate_config finds one, an unknown loss_agg_mode.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from backends.verl.arguments import (
    ACTOR,
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTION,
    ENGINES,
    KL_NAMES,
    LOGGERS,
    NEWEST,
    OPTIMIZER,
    OUTDATED_REWARD_KEYS,
    ROLLOUT,
    SAMPLER,
    SEPARATE,
    STRATEGIES,
    WEIGHTED,
    WORKER_ENV,
)
from orchestrator.errors import Fault, did_you_mean

KL_KEYS = (
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    "algorithm.kl_ctrl.type",
    "algorithm.kl_ctrl.kl_coef",
    "algorithm.kl_ctrl.horizon",
    "algorithm.kl_ctrl.target_kl",
    f"{ACTOR}.use_kl_loss",
    f"{ACTOR}.kl_loss_type",
    f"{ACTOR}.kl_loss_coef",
    f"{ACTOR}.policy_loss.kl_cov_ratio",
    f"{ACTOR}.policy_loss.ppo_kl_coef",
)
_LIKE_KL = re.compile(rf"(?:algorithm|{re.escape(ACTOR)})\.(?:\w+\.)*\w*kl_?\w*")
EXTERNAL = f"{WORKER_ENV}.VERL_USE_EXTERNAL_MODULES"
Found = Iterator[tuple[str, str]]
"""Keys and what is wrong with them."""


class Launch(NamedTuple):
    """What a launch says, that over the release's defaults, and the size of its data set."""

    given: Mapping[str, object]
    values: Mapping[str, object]
    version: str
    num_prompts: object = None


def faults(launch: Launch) -> Iterator[Fault]:
    """Every fault of a launch."""
    for key, offered in _offered(launch).items():
        value = launch.values.get(key)
        if value not in offered:
            names = ", ".join(map(str, offered))
            hint = did_you_mean(str(value), map(str, offered))
            yield Fault(f"{key}={value} is none of {names}{hint}", f"$.{key}")
    for rule in _RULES:
        for key, message in rule(launch):
            yield Fault(f"{key}={launch.values.get(key)}: {message}", f"$.{key}")


def _offered(launch: Launch) -> dict[str, tuple[object, ...]]:
    """Key -> the values that work, for keys whose value verl does not check."""
    external = EXTERNAL in launch.given
    advantages = {name for name, _ in ADVANTAGES.values() if external or "orch" not in name}
    offered: dict[str, tuple[object, ...]] = {
        "algorithm.norm_adv_by_std_in_grpo": (True, False),
        "algorithm.use_kl_in_reward": (True, False),
        f"{ACTOR}.use_kl_loss": (True, False),
        "algorithm.kl_penalty": tuple(KL_NAMES),
        f"{ACTOR}.kl_loss_type": (*KL_NAMES, *(WEIGHTED if external else ())),
        "algorithm.kl_ctrl.type": ("fixed",),
        "algorithm.adv_estimator": tuple(sorted(advantages)),
        f"{ACTOR}.loss_agg_mode": tuple(AGGREGATIONS.values()),
        f"{ACTOR}.policy_loss.loss_mode": ("vanilla",),
        f"{ACTOR}.ppo_epochs": (1,),
        f"{ACTOR}.entropy_coeff": (0,),
        f"{OPTIMIZER}.lr_scheduler_type": ("constant", "cosine"),
        f"{ROLLOUT}.name": ENGINES,
        f"{ROLLOUT}.top_k": (-1,),
    }
    if launch.version == NEWEST:
        offered |= {
            "trainer.use_v1": (True,),
            "trainer.v1.trainer_mode": ("sync", "separate_async"),
            f"{SAMPLER}.max_off_policy_strategy": STRATEGIES,
        }
    return offered


def _loggers(launch: Launch) -> Found:
    chosen = launch.values["trainer.logger"]
    for name in chosen if isinstance(chosen, list) else [chosen]:
        if name not in LOGGERS:
            yield "trainer.logger", f"{name} is none of {', '.join(LOGGERS)}"


def _reward(launch: Launch) -> Found:
    for key in launch.given:
        if key.startswith(OUTDATED_REWARD_KEYS) and launch.version == NEWEST:
            yield key, f"is ignored by verl {launch.version}: write reward.{key}"


def _named_kl(launch: Launch) -> Found:
    """Names that look like its KL's and are none: Hydra's `+` adds them, and nothing reads them."""
    for key in launch.given:
        if _LIKE_KL.match(key) and key not in KL_KEYS:
            hint = did_you_mean(key, KL_KEYS)
            yield key, f"verl {launch.version} has no such key and would read none{hint}"


def _batches(launch: Launch) -> Found:
    batch, minibatch = _batch(launch)
    if not minibatch or not batch or batch % minibatch:
        message = f"must be a multiple of {ACTOR}.ppo_mini_batch_size={minibatch}, both in prompts"
        yield "data.train_batch_size", message


def _batch(launch: Launch) -> tuple[int, int]:
    """Prompts of a rollout batch and of a minibatch; 0 for what is no number."""
    batch, minibatch = (
        launch.values[key] for key in ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    )
    return (
        batch if isinstance(batch, int) else 0,
        minibatch if isinstance(minibatch, int) else 0,
    )


def _steps(launch: Launch) -> Found:
    steps, epochs = (launch.values[f"trainer.total_{x}"] for x in ("training_steps", "epochs"))
    if not isinstance(steps, int):
        yield "trainer.total_training_steps", "set it: it would follow from the data set's size"
    elif not isinstance(epochs, int):
        yield "trainer.total_epochs", "must be a number"
    elif isinstance(launch.num_prompts, int) and (batch := _batch(launch)[0]):
        reached = launch.num_prompts // batch * epochs
        if reached < steps:
            message = f"training ends after {reached} of {steps} steps: raise it"
            yield "trainer.total_epochs", message


def _constant(launch: Launch) -> Found:
    constant = launch.values[f"{ACTOR}.loss_agg_mode"] == AGGREGATIONS["constant"]
    if constant and not isinstance(launch.values[f"{ACTOR}.loss_scale_factor"], int):
        message = "set a number of tokens: verl divides by the padded width, which varies"
        yield f"{ACTOR}.loss_scale_factor", message


def _clips(launch: Launch) -> Found:
    given = launch.given
    bounds = {f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"}
    if f"{ACTOR}.clip_ratio" in given and not bounds <= given.keys():
        yield f"{ACTOR}.clip_ratio", "is ignored: set clip_ratio_low and clip_ratio_high"
    if f"{ACTOR}.grad_clip" in given and f"{OPTIMIZER}.clip_grad" not in given:
        yield f"{ACTOR}.grad_clip", f"is read by nothing: set {OPTIMIZER}.clip_grad"


def _both_places(launch: Launch) -> Found:
    values = launch.values
    if not (values["algorithm.use_kl_in_reward"] and values[f"{ACTOR}.use_kl_loss"]):
        return
    reward, loss = str(values["algorithm.kl_penalty"]), str(values[f"{ACTOR}.kl_loss_type"])
    if KL_NAMES.get(reward) != KL_NAMES.get(loss.rpartition("rho_")[2]):
        yield f"{ACTOR}.kl_loss_type", f"differs from algorithm.kl_penalty={reward}: a cell has one"
    beta = values["algorithm.kl_ctrl.kl_coef"]
    if beta != values[f"{ACTOR}.kl_loss_coef"]:
        yield (
            f"{ACTOR}.kl_loss_coef",
            f"differs from algorithm.kl_ctrl.kl_coef={beta}: a cell has one",
        )


def _correction(launch: Launch) -> Found:
    values = launch.values
    bypass = values[f"{CORRECTION}.bypass_mode"]
    for key in (f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_rs"):
        if values[key] is not None and bypass:
            yield key, "is ignored with bypass_mode=True and policy_loss.loss_mode=vanilla"
        elif values[key] is not None:
            yield key, "no cell has a second importance weight: leave it out"
    if values.get("trainer.v1.trainer_mode") == "separate_async" and not bypass:
        message = "set it, or ratios are to the trainer's policy, not to the one that sampled"
        yield f"{CORRECTION}.bypass_mode", message


def _separate(launch: Launch) -> Found:
    values = launch.values
    if values.get("trainer.v1.trainer_mode") != "separate_async":
        return
    batch, minibatch = _batch(launch)
    if values[f"{SEPARATE}.parameter_sync_step"] != batch // max(1, minibatch):
        message = (
            f"times {ACTOR}.ppo_mini_batch_size={minibatch} must be data.train_batch_size={batch}"
        )
        yield f"{SEPARATE}.parameter_sync_step", message
    if not values[f"{ROLLOUT}.nnodes"]:
        yield f"{ROLLOUT}.nnodes", "separate_async samples on nodes of its own: set 1 or more"
    if values[f"{ROLLOUT}.checkpoint_engine.backend"] == "naive":
        yield f"{ROLLOUT}.checkpoint_engine.backend", "separate_async needs nccl"
    if not values["actor_rollout_ref.hybrid_engine"]:
        yield "actor_rollout_ref.hybrid_engine", "stops verl 0.9.1 at start: leave it True"
    ahead = values[f"{SEPARATE}.num_warmup_batches"]
    if not isinstance(ahead, int) or values[f"{SAMPLER}.max_off_policy_threshold"] != ahead + 1:
        message = f"must be one more than {SEPARATE}.num_warmup_batches={ahead}"
        yield f"{SAMPLER}.max_off_policy_threshold", message
    if values[f"{SAMPLER}.max_off_policy_strategy"] == "drop":
        message = "drops what is slow, which is what is long: set wait"
        yield f"{SAMPLER}.max_off_policy_strategy", message


_RULES: tuple[Callable[[Launch], Found], ...] = (
    _loggers,
    _reward,
    _named_kl,
    _batches,
    _steps,
    _constant,
    _clips,
    _both_places,
    _correction,
    _separate,
)
