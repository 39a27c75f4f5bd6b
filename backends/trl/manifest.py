"""One table: how each field of a cell reaches TRL.

A KL in the reward is trained by the script `rloo`, unless orch ships it (`orch_trl_kl.py`), every
other cell by `grpo`. Keys are options of the scripts. `needs.json`, which orch writes next to a
launch, holds the fields without an option. Names in capitals are no options: SCRIPT is that of the
command. CHAT, PROCESSES, ESTIMATOR and PLACEMENT are arguments of `orch_trl.py` and of accelerate.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from backends.trl.options import VERSIONS, Script, release_table
from backends.trl.system import FIELDS_OF_KEYS, SYSTEM
from orchestrator.library import lora
from orchestrator.library.manifest import (
    ABSENT,
    COUNT,
    WHOLE,
    Account,
    AllBut,
    Constant,
    Manifest,
    Meaning,
    Number,
    Row,
    Such,
    Values,
    approximated_if,
    equal,
    fixed,
    named,
    one_format,
    same,
    sampling_rows,
    weighs_policy_loss,
)
from orchestrator.library.needs import NEEDS, asked, backend_rows, label_row, prompts_row
from orchestrator.library.quiet_kl import ESTIMATORS, IN_REWARD_ONLY, OVER_VOCABULARY
from orchestrator.losses.table import SAPO_TEMPERATURES, VESPO_SHAPE
from orchestrator.settings import ALL_LINEAR, Lora, Settings

PROMPTS = "data/train.jsonl"
SCRIPT, CHAT, PROCESSES = "SCRIPT", "CHAT", "PROCESSES"
ESTIMATOR, PLACEMENT = "KL_ESTIMATOR", "KL_PLACEMENT"
REWARD = "orch_reward.task_reward"
NO_CLIP = float("inf")
NOT_IN_REWARD, SHIPPED_IN_REWARD = (None, "loss"), ("reward", "reward_and_loss")
LOSS_TYPES = {"token_mean": "dapo", "sequence_mean": "grpo"}
BY_SEQUENCES, BY_LENGTH = "luspo", "dr_grpo"
"""Loss types that sum the tokens of a sequence: the first averages sequences, the second divides by
`max_completion_length` too."""
LUSPO_SUMS = "1.10.0"
"""luspo of older releases is another: it weighs the mean over tokens and padding by the length of
each response, unless there is one ratio a response (grpo_trainer.py, _compute_loss)."""

NAME = "a label, not sent to TRL"
TOKENS_OF_BATCH = (
    "each minibatch is divided by the mean number of tokens of the batch's minibatches, not by its "
    "own"
)
SHUFFLED = "the rollouts of a batch are shuffled: those of one group fall into several minibatches"
WEIGHTED = (
    "`reward_weights` multiplies the reward by G / (G - 1), which makes the group mean the "
    "leave-one-out baseline"
)
SEQUENCE_RATIO = "one importance ratio a response, the product of its tokens', clipped as one"
LEVEL = "importance_sampling_level"
LEVELS = {"token": "token", "sequence_mean": "sequence"}
_ENGINE = "vllm_importance_sampling"
WEIGHS, MODE = f"{_ENGINE}_correction", f"{_ENGINE}_mode"
LEAST, MOST = f"{_ENGINE}_clip_min", f"{_ENGINE}_clip_max"
MODES = {
    f"{short}_{level}": f"{level}_{name}"
    for short, name in (("tis", "truncate"), ("mis", "mask"))
    for level in ("token", "sequence")
}
"""loss.correction.kind -> TRL's mode."""
WEIGHT = (WEIGHS, MODE, LEAST, MOST)
_KINDS = {mode: kind for kind, mode in MODES.items()}
OWN_LOSS_TYPES = {"cispo": "token_mean", "sapo": "sequence_mean", "vespo": "token_mean"}
"""Policy losses that are a loss type of TRL's, of the same name -> the aggregation of each."""
CLIPPED = {"loss.policy": ("ppo", "gspo")}
UNBOUNDED = {"loss.policy": ("sapo", "vespo")}
SHAPES: Mapping[str, Mapping[str, object]] = {
    "cispo": {},
    "sapo": {
        f"sapo_temperature_{sign}": value
        for sign, value in zip(("pos", "neg"), SAPO_TEMPERATURES, strict=True)
    },
    "vespo": {
        f"vespo_{name}_{sign}": value
        for sign, values in zip(("pos", "neg"), VESPO_SHAPE, strict=True)
        for name, value in zip(("k", "lambda"), values, strict=True)
    },
}
"""The numbers of each loss, which the table of losses fixes."""
GSPO = "one ratio a response, the geometric mean of its tokens', clipped as one"
RESET = (
    "the policy replaces the reference policy (`ref_model_mixup_alpha` 1); TRL saves no reference "
    "policy, so orch_trl.py gives a resumed run that of its checkpoint, and checkpoints are saved "
    "at such steps only"
)
AVERAGE = (
    "of weights, after train steps; TRL saves no reference policy, so orch_trl.py writes it into "
    "each checkpoint, and a resumed run takes it from there"
)
BY_DEFAULT = "always sent: False by default up to 1.9.2, True since 1.10.0: another objective"
BETA_BY_DEFAULT = (
    "always sent: by default 0.0 of grpo and 0.05 of rloo. 0 loads no reference policy, so nothing "
    "of the drift from it is measured"
)
SHIPPED = (
    "orch_trl_kl.py puts it into GRPOTrainer: a KL in the loss goes through its own reduction, one "
    "in the reward into the advantages of its tokens, whose baseline is of each position"
)
BF16 = "by autocast, or by FSDP2, which reduces gradients in bf16 too; weights and AdamW are fp32"
LONGER_PROMPTS = "no release since 0.2x cuts prompts: a longer one is trained on whole"


BY_RLOO: Mapping[str, Container[object]] = {
    "kl.placement": ("reward",),
    "kl.estimator": AllBut(ESTIMATORS),
}
BY_GRPO: tuple[Mapping[str, Container[object]], ...] = (
    {"kl.placement": NOT_IN_REWARD},
    {"kl.placement": SHIPPED_IN_REWARD, "kl.estimator": ESTIMATORS},
)
"""Conditions of the cells that `grpo` trains, which are of two kinds."""


def script_of(settings: Settings) -> Script:
    """Return the script that trains a cell."""
    kl = settings.kl
    return "rloo" if kl.placement == "reward" and kl.estimator not in ESTIMATORS else "grpo"


def _by_grpo(*rows: Row) -> Iterator[Row]:
    """Yield rows for the cells of both kinds that `grpo` trains."""
    for when in BY_GRPO:
        for row in rows:
            own = row.when if isinstance(row.when, Mapping) else {}
            yield replace(row, when={**when, **own})


# ------------------------------------------------------------------------------------- reading


def _is_rloo(launch: Values) -> bool:
    return launch.get(SCRIPT) == "rloo"


def _no_kl(launch: Values) -> bool:
    """Return True if a launch asks for no KL: beta 0, and no choice of an estimator."""
    chosen = "use_bias_correction_kl" in launch or ESTIMATOR in launch
    return launch["beta"] == 0 and not _is_rloo(launch) and not chosen


def _placement(launch: Values) -> object:
    if PLACEMENT in launch:
        return launch[PLACEMENT]
    if _is_rloo(launch):
        return "reward"
    return None if _no_kl(launch) else "loss"


def _weight(group_size: Any) -> list[float]:
    return [group_size / (group_size - 1)]


def _weighted_estimator(launch: Values) -> object:
    weights = launch.get("reward_weights")
    if weights is None or launch.get("scale_rewards") != "none":
        return ABSENT
    if not equal(weights, _weight(launch["num_generations"])):
        raise KeyError(weights)
    return "rloo"


def _plain_estimator(launch: Values) -> object:
    if launch.get("reward_weights") is not None:
        return ABSENT
    return {"group": "grpo", "none": "dr_grpo"}[str(launch["scale_rewards"])]


def _aggregation(launch: Values) -> str:
    names = {theirs: ours for ours, theirs in LOSS_TYPES.items()}
    names |= dict.fromkeys((BY_SEQUENCES, BY_LENGTH), "constant") | OWN_LOSS_TYPES
    return names[str(launch["loss_type"])]


def _policy(launch: Values) -> object:
    """Return the policy loss. A launch of anybody with a ratio of the response is read as ppo with
    loss.ratio_level, which is the same."""
    if not _is_rloo(launch) and launch["loss_type"] in OWN_LOSS_TYPES:
        return launch["loss_type"]
    named_policy = asked(launch, "loss.policy")
    return "ppo" if named_policy in (ABSENT, None) else named_policy


def _is_weighed(launch: Values) -> bool:
    """Return True if a launch weighs its policy loss by the ratio to vLLM."""
    return not _is_rloo(launch) and bool(launch.get("use_vllm") and launch.get(WEIGHS))


def _bound_of(key: str, absent: float | None) -> Callable[[Values], object]:
    """Return a reader of a bound of the weight. `absent`: the bound of a launch without one."""

    def read(launch: Values) -> object:
        if not _is_weighed(launch):
            return ABSENT
        given = launch.get(key)
        return absent if given is None else given

    return read


def _plus_one(high: float) -> float:
    return float(Decimal(repr(high)) + 1)


def _less_one(bound: Any) -> float:
    """Return the upper bound of CISPO. Raise KeyError for one below 1, or that is left out."""
    if bound is None or bound <= 1:
        raise KeyError(bound)
    return float(Decimal(repr(float(bound))) - 1)


_CISPO_BOUNDS = Such(
    "numbers of at most 15 digits",
    lambda value: isinstance(value, float) and _less_one(_plus_one(value)) == value,
)
"""Bounds that TRL's epsilon_high, which is 1 more, keeps to the last digit."""


def _cispo_high(settings: Settings) -> object:
    clip = settings.loss.clip
    return None if clip is None else _plus_one(clip.high)


def _constant_tokens(launch: Values) -> object:
    if _is_rloo(launch) or launch["loss_type"] == BY_SEQUENCES:
        return 1
    return launch["max_completion_length"] if launch["loss_type"] == BY_LENGTH else None


def _constant_loss_type(settings: Settings) -> str:
    """Return the loss type of a constant divisor. translate.py refuses cells that neither fits."""
    longest = settings.rollout.max_response_tokens
    return BY_LENGTH if settings.loss.constant_tokens == longest else BY_SEQUENCES


def _side_of_clip(launch: Values, key: str) -> object:
    """Return a bound of the clip. An upper one of None is the lower (grpo_trainer.py, 1.16.0)."""
    if launch["epsilon"] == NO_CLIP:
        return ABSENT
    return launch["epsilon"] if launch[key] is None else launch[key]


def _minibatches(launch: Any) -> int:
    return int(launch["steps_per_generation"]) // int(launch["gradient_accumulation_steps"])


def _num_prompts(launch: Any) -> int:
    rollouts = launch["per_device_train_batch_size"] * launch["steps_per_generation"]
    if launch[PROCESSES] is None:
        raise KeyError(PROCESSES)
    return int(rollouts * launch[PROCESSES] // launch["num_generations"])


def _has_weighted_kl(settings: Settings) -> bool:
    """Return True if TRL itself weights the KL in the loss by an importance ratio."""
    return settings.kl.estimator == "rho_k3"


def _level(launch: Values) -> object:
    return {theirs: ours for ours, theirs in LEVELS.items()}[str(launch[LEVEL])]


def _is_averaged(launch: Values) -> bool:
    """Return True if the reference policy becomes an average of itself and the policy."""
    return bool(launch["sync_ref_model"]) and launch["ref_model_mixup_alpha"] != 1.0


def _reset(launch: Values) -> object:
    if not launch["sync_ref_model"] or _is_averaged(launch):
        return ABSENT
    return launch["ref_model_sync_steps"]


def _of_average(launch: Values, value: object) -> object:
    return value if _is_averaged(launch) else ABSENT


def _read_warmup(launch: Values) -> object:
    """Return the warm-up; transformers' `constant` has none, whatever warmup_steps says."""
    steps = launch["warmup_steps"]
    if steps not in WHOLE:
        raise KeyError(steps)
    return 0 if launch.get("lr_scheduler_type") == "constant" else steps


def _many(settings: Settings) -> bool:
    return settings.batch.num_minibatches > 1


def _tokens_of_batch(settings: Settings) -> Account:
    by_token = settings.loss.aggregation == "token_mean"
    return approximated_if(_many(settings) and by_token, TOKENS_OF_BATCH)


# ------------------------------------------------------------------------------------ the table

_NO_REWARD_ELSEWHERE = (
    "A KL in the reward is trained by RLOOTrainer, which has advantage.estimator=rloo, "
    "loss.aggregation=constant and loss.constant_tokens=1 only."
)
_MEAN_ALWAYS = "TRL subtracts the group's mean always; the nearest is advantage.estimator=dr_grpo."
_NOT_IN_BOTH = (
    "No trainer of TRL has a KL in both places; the nearest are kl.placement=reward with k1, and "
    f"kl.placement=loss with rho_k3. What orch adds has: {', '.join(OVER_VOCABULARY)}."
)

MODEL_AND_DATA = (
    label_row("TRL"),
    Row(
        "model.path",
        "model_name_or_path",
        carried_by=NEEDS,
        note="a policy that ships with orch is linked beside the launch as `model`",
    ),
    Row(
        "model.chat_template",
        carried_by="--chat of orch_trl.py, which makes each prompt a user's message",
        offer=(Meaning("default", True), Meaning("none", False)),
        read=lambda launch: "default" if launch[CHAT] else "none",
        note="without it the tokenizer's beginning of a text precedes the prompt",
    ),
    prompts_row("name", NAME),
    prompts_row("path", "the prompt file, made by `orch data prepare`"),
    prompts_row("split", "applied when the prompt file is made"),
    prompts_row("num_prompts", "a pass leaves out what makes no whole rollout batch"),
    prompts_row("instruction", "already part of each prompt of the file"),
    prompts_row("reward", "a rule of orch_reward.py, which `reward_funcs` names"),
    prompts_row("max_prompt_tokens", LONGER_PROMPTS, status="approximated"),
)
OBJECTIVE = (
    Row(
        "advantage.estimator",
        "normalize_advantages",
        offer=(Meaning("rloo", False),),
        when=BY_RLOO,
        advice=_NO_REWARD_ELSEWHERE,
    ),
    *_by_grpo(
        Row(
            "advantage.estimator",
            "reward_weights",
            offer=same("rloo"),
            write=lambda s: _weight(s.rollout.group_size),
            adds=lambda _: {"scale_rewards": "none"},
            read=_weighted_estimator,
            note=WEIGHTED,
            advice=_MEAN_ALWAYS,
        ),
        Row(
            "advantage.estimator",
            "scale_rewards",
            offer=named({"grpo": "group", "dr_grpo": "none"}),
            read=_plain_estimator,
            note="grpo adds 1e-4 to the unbiased standard deviation",
            advice=_MEAN_ALWAYS,
        ),
    ),
    Row(
        "loss.aggregation",
        carried_by="RLOOTrainer has one loss: a sum over a response's tokens, a mean of responses",
        offer=fixed("constant"),
        when=BY_RLOO,
        advice=_NO_REWARD_ELSEWHERE,
    ),
    *_by_grpo(
        Row(
            "loss.policy",
            carried_by="the loss types grpo, dapo, dr_grpo and luspo",
            offer=same("ppo"),
            read=_policy,
        ),
        Row("loss.policy", LEVEL, offer=(Meaning("gspo", "sequence", note=GSPO),), read=_policy),
        *(
            Row(
                "loss.policy",
                "loss_type",
                offer=(Meaning(name, name, also=shape),),
                read=_policy,
            )
            for name, shape in SHAPES.items()
        ),
        Row(
            "loss.aggregation",
            "loss_type",
            offer=named(LOSS_TYPES),
            read=_aggregation,
            when=CLIPPED,
            account=_tokens_of_batch,
        ),
        Row(
            "loss.aggregation",
            "loss_type",
            offer=(Meaning("constant", BY_LENGTH),),
            write=_constant_loss_type,
            read=_aggregation,
            when=CLIPPED,
        ),
        *(
            Row(
                "loss.aggregation",
                carried_by=f"the loss type {name}",
                offer=same(aggregation),
                read=_aggregation,
                when={"loss.policy": (name,)},
                account=_tokens_of_batch,
                advice=f"TRL's {name} has one aggregation: set loss.aggregation={aggregation}.",
            )
            for name, aggregation in OWN_LOSS_TYPES.items()
        ),
    ),
    Row(
        "loss.policy",
        carried_by="RLOOTrainer has one loss",
        offer=same("ppo"),
        when=BY_RLOO,
        read=_policy,
        advice="A KL in the reward is trained by RLOOTrainer, which has loss.policy=ppo only: put "
        "the KL into the loss, or leave it out.",
    ),
    Row(
        "loss.constant_tokens",
        carried_by="the loss type: luspo divides by 1, dr_grpo by max_completion_length",
        offer=Number(least=1, whole=True, null=True),
        read=_constant_tokens,
    ),
    Row(
        "loss.correction",
        carried_by="RLOOTrainer, which has no weight against vLLM",
        offer=fixed(None),
        when=BY_RLOO,
        advice="A KL in the reward is trained by RLOOTrainer, which has no weight: put the KL into "
        "the loss, or leave loss.correction out.",
    ),
    *_by_grpo(
        Row(
            "loss.correction",
            carried_by=f"{WEIGHS}=false where vLLM samples",
            offer=fixed(None),
            read=lambda launch: ABSENT if _is_weighed(launch) else None,
        ),
        Row(
            "loss.correction.kind",
            MODE,
            offer=named(MODES),
            adds=lambda _: {WEIGHS: True},
            read=lambda launch: _KINDS[str(launch[MODE])] if _is_weighed(launch) else ABSENT,
            note="the ratio of the trainer's probability before the first minibatch to vLLM's",
            advice="TRL weighs by the ratio and masks it, and has no mask of weight 1: set one of "
            f"{', '.join(MODES)}, or backend=skyrl or verl.",
        ),
        *(
            Row(
                f"loss.correction.{field}",
                key,
                offer=Number(least=0, null=field == "most"),
                read=_bound_of(key, absent),
            )
            for field, key, absent in (("least", LEAST, 0.0), ("most", MOST, None))
        ),
        replace(
            weighs_policy_loss("TRL", _is_weighed),
            advice="TRL weighs its policy loss and never the KL in the loss: set "
            "loss.correction.applies_to=policy_loss.",
        ),
        Row(
            "loss.ratio_level",
            LEVEL,
            offer=named(LEVELS),
            when={"loss.policy": AllBut(("gspo",))},
            account=lambda s: ("exact", GSPO if s.loss.ratio_level != "token" else ""),
            advice="GRPOTrainer has ratios of tokens and their geometric mean: set "
            "loss.ratio_level=sequence_mean.",
        ),
        Row(
            "loss.ratio_level",
            carried_by="loss.policy, whose ratio is of the response",
            offer=fixed("token"),
            when={"loss.policy": ("gspo",)},
        ),
    ),
    Row(
        "loss.ratio_level",
        carried_by="RLOOTrainer has one ratio",
        offer=fixed("sequence", SEQUENCE_RATIO),
        when={**BY_RLOO, "batch.num_minibatches": AllBut((1,))},
        advice="RLOOTrainer's ratio is of the response: set loss.ratio_level=sequence.",
    ),
    Row(
        "loss.ratio_level",
        carried_by="RLOOTrainer, whose ratio is 1 with one update a batch",
        offer=fixed("token"),
        when={**BY_RLOO, "batch.num_minibatches": (1,)},
        advice="With one update a batch every ratio is 1: leave loss.ratio_level out.",
    ),
    Row(
        "loss.clip",
        "epsilon",
        offer=(Meaning(None, NO_CLIP),),
        adds=lambda _: {"epsilon_high": NO_CLIP},
        read=lambda launch: None if launch["epsilon"] == NO_CLIP else ABSENT,
        when=CLIPPED,
    ),
    Row(
        "loss.clip",
        carried_by="the loss type, which reads no bound",
        offer=fixed(None),
        when=UNBOUNDED,
    ),
    Row(
        "loss.clip.low",
        "epsilon",
        offer=Number(),
        read=lambda launch: _side_of_clip(launch, "epsilon"),
        when=CLIPPED,
    ),
    Row(
        "loss.clip.low",
        carried_by="cispo itself, which has no lower bound",
        offer=fixed(1.0),
        when={"loss.policy": ("cispo",)},
        advice="TRL's cispo has no lower bound: set loss.clip.low=1.",
    ),
    Row(
        "loss.clip.high",
        "epsilon_high",
        offer=Number(),
        read=lambda launch: _side_of_clip(launch, "epsilon_high"),
        when=CLIPPED,
    ),
    Row(
        "loss.clip.high",
        "epsilon_high",
        offer=_CISPO_BOUNDS,
        write=_cispo_high,
        read=lambda launch: _less_one(launch.get("epsilon_high")),
        when={"loss.policy": ("cispo",)},
        note="TRL's cispo takes the bound of the ratio itself, 1 + loss.clip.high",
    ),
    Row(
        "loss.clip.dual",
        carried_by="cispo itself, which reads no delta",
        offer=fixed(None),
        when={"loss.policy": ("cispo",)},
    ),
    *_by_grpo(
        Row(
            "loss.clip.dual",
            "delta",
            offer=Number(null=True, off=ABSENT),
            when=CLIPPED,
            read=lambda launch: (
                ABSENT if launch["epsilon"] == NO_CLIP else launch.get("delta") or None
            ),
            account=lambda s: (
                "exact",
                "a bound on the ratio, which is dual clip where it is above 1 + loss.clip.high"
                if s.loss.clip and s.loss.clip.dual
                else "",
            ),
        ),
    ),
    Row(
        "loss.clip.dual",
        carried_by="RLOOTrainer has no dual clip",
        offer=same(None),
        when=BY_RLOO,
        read=lambda launch: ABSENT if launch["epsilon"] == NO_CLIP else None,
        advice="RLOOTrainer has no dual clip: leave loss.clip.dual out.",
    ),
)
ENTROPY = (
    *_by_grpo(
        Row(
            "loss.entropy_bonus",
            "entropy_coef",
            offer=fixed(0.0),
            read=lambda launch: ABSENT if launch.get("entropy_coef") else 0.0,
        ),
        Row(
            "loss.entropy_bonus",
            "entropy_coef",
            offer=Number(least=1e-300),
            read=lambda launch: launch.get("entropy_coef") or ABSENT,
            status="approximated",
            note="the mean over the tokens of each micro batch, then of micro batches: a "
            "token of a short one weighs more",
        ),
    ),
    Row(
        "loss.entropy_bonus",
        carried_by="RLOOTrainer has no entropy bonus",
        offer=same(0.0),
        when=BY_RLOO,
        read=lambda launch: 0.0 if _is_rloo(launch) else ABSENT,
        advice="RLOOTrainer has no entropy bonus: put the KL into the loss, or leave it out.",
    ),
)
KL = (
    Row(
        "kl.estimator",
        carried_by="beta 0, which loads no reference policy",
        offer=same("none"),
        when={"kl.placement": (None,)},
        read=lambda launch: "none" if _no_kl(launch) else ABSENT,
    ),
    *(
        Row(
            "kl.estimator",
            carried_by="--kl-estimator of orch_trl.py",
            offer=same(*estimators, status="extension", note=SHIPPED),
            when={"kl.placement": placements},
            read=lambda launch: launch.get(ESTIMATOR, ABSENT),
        )
        for estimators, placements in (
            (OVER_VOCABULARY, ("loss", "reward", "reward_and_loss")),
            (IN_REWARD_ONLY, ("reward",)),
        )
    ),
    Row(
        "kl.estimator",
        "use_bias_correction_kl",
        offer=named({"k3": False, "rho_k3": True}),
        when={"kl.placement": ("loss",)},
        note=BY_DEFAULT,
    ),
    Row(
        "kl.ratio_level",
        carried_by="a KL without an importance ratio",
        offer=same("token"),
        when=lambda s: not _has_weighted_kl(s),
        read=lambda launch: ABSENT if launch.get("use_bias_correction_kl") else "token",
    ),
    Row(
        "kl.ratio_level",
        LEVEL,
        offer=named(LEVELS),
        when=_has_weighted_kl,
        read=lambda launch: _level(launch) if launch.get("use_bias_correction_kl") else ABSENT,
        advice="TRL has one option for both ratios: set kl.ratio_level to loss.ratio_level.",
    ),
    Row(
        "kl.estimator",
        carried_by="RLOOTrainer's only estimator, summed over the response before the baseline",
        offer=fixed("k1"),
        when={"kl.placement": ("reward",)},
    ),
    Row(
        "kl.placement",
        carried_by="the script: rloo puts the KL into the reward, grpo into the loss",
        offer=same(None, "loss", "reward"),
        read=_placement,
        advice=_NOT_IN_BOTH,
    ),
    Row(
        "kl.placement",
        carried_by="--kl-placement of orch_trl.py",
        offer=same("reward_and_loss", status="extension", note=SHIPPED),
        when=lambda s: s.kl.estimator in OVER_VOCABULARY,
        read=_placement,
        advice=_NOT_IN_BOTH,
    ),
    Row(
        "kl.beta",
        "beta",
        offer=Number(least=0),
        note=BETA_BY_DEFAULT,
    ),
    Row(
        "kl.reset_reference_every_steps",
        "sync_ref_model",
        offer=(Meaning(None, False),),
        when=lambda s: s.kl.reference is None,
        read=lambda launch: None if not launch["sync_ref_model"] else ABSENT,
    ),
    Row(
        "kl.reset_reference_every_steps",
        carried_by="ref_model_mixup_alpha below 1: an average instead of resets",
        offer=same(None),
        when=lambda s: s.kl.reference is not None,
        read=lambda launch: None if _is_averaged(launch) else ABSENT,
        advice="An average is no reset: leave one of them out.",
    ),
    Row(
        "kl.reset_reference_every_steps",
        "ref_model_sync_steps",
        offer=COUNT,
        when=lambda s: s.kl.reference is None,
        adds=lambda _: {"sync_ref_model": True, "ref_model_mixup_alpha": 1.0},
        read=_reset,
        status="extension",
        note=RESET,
    ),
    Row(
        "kl.reference",
        carried_by="sync_ref_model, which is off or resets",
        offer=fixed(None),
        read=lambda launch: ABSENT if _is_averaged(launch) else None,
    ),
    Row(
        "kl.reference.kind",
        "sync_ref_model",
        offer=(Meaning("ema", True),),
        read=lambda launch: _of_average(launch, "ema"),
        status="extension",
        note=AVERAGE,
        advice="Of references that are not the model before training TRL has an average of "
        "weights: set kl.reference.kind=ema, or leave kl.reference out.",
    ),
    Row(
        "kl.reference.share",
        "ref_model_mixup_alpha",
        offer=Number(most=1),
        read=lambda launch: launch["ref_model_mixup_alpha"] if _is_averaged(launch) else ABSENT,
        advice="The whole share is a reset: set kl.reset_reference_every_steps instead.",
    ),
    Row(
        "kl.reference.every_steps",
        "ref_model_sync_steps",
        offer=COUNT,
        read=lambda launch: launch["ref_model_sync_steps"] if _is_averaged(launch) else ABSENT,
    ),
    Row(
        "kl.reference.path",
        carried_by="the policy's own path: an average starts at the model before training",
        offer=same(None),
        read=lambda launch: _of_average(launch, None),
    ),
    Row(
        "kl.reference.task_reward",
        carried_by="the reward function, which every launch has",
        offer=same(True),
        read=lambda launch: _of_average(launch, True),
    ),
)
ROLLOUT_AND_BATCH = (
    Row("rollout.group_size", "num_generations", offer=Number(least=2, whole=True)),
    Row("rollout.max_response_tokens", "max_completion_length", offer=COUNT),
    *sampling_rows("temperature", "top_p"),
    Row(
        "batch.num_prompts",
        "per_device_train_batch_size",
        carried_by="the numbers of rollouts that a process takes at once and in turn",
        offer=COUNT,
        read=_num_prompts,
        note="counted in rollouts: prompts x group size, over processes and turns",
    ),
    Row(
        "batch.num_minibatches",
        "steps_per_generation",
        carried_by="steps_per_generation over gradient_accumulation_steps",
        offer=COUNT,
        read=_minibatches,
        account=lambda s: approximated_if(
            _many(s), SHUFFLED, "steps_per_generation over gradient_accumulation_steps"
        ),
    ),
)
OPTIMIZER = (
    Row("optimizer.learning_rate", "learning_rate", offer=Number()),
    Row(
        "optimizer.weight_decay",
        "weight_decay",
        offer=Number(least=0),
        account=lambda s: approximated_if(
            s.optimizer.weight_decay > 0, "biases and norm weights are left out"
        ),
    ),
    Row("optimizer.beta1", "adam_beta1", offer=Number()),
    Row("optimizer.beta2", "adam_beta2", offer=Number()),
    Row("optimizer.epsilon", "adam_epsilon", offer=Number()),
    Row(
        "optimizer.max_grad_norm",
        "max_grad_norm",
        offer=Number(null=True, off=0.0),
        note="0 turns it off",
    ),
    Row(
        "optimizer.schedule",
        "lr_scheduler_type",
        offer=(
            Meaning("constant", "constant_with_warmup", spellings=("constant",)),
            *same("linear", "cosine"),
        ),
    ),
    Row(
        "optimizer.num_warmup_steps",
        "warmup_steps",
        offer=WHOLE,
        read=_read_warmup,
        account=lambda s: approximated_if(
            s.optimizer.num_warmup_steps > 0, "counted from 0: the first train step has rate 0"
        ),
    ),
)
RUN = (
    Row("num_train_steps", "max_steps", offer=COUNT),
    *backend_rows("trl", VERSIONS),
    Row(
        "max_staleness_steps",
        carried_by="sampling and training take turns",
        offer=fixed(0),
        advice="TRL's asynchronous trainer is experimental and has no KL to a reference policy: "
        "set max_staleness_steps=0.",
    ),
    Row(
        "seed",
        "seed",
        offer=WHOLE,
        status="approximated",
        note="the order of prompts; with vLLM not the samples: its seed is its process's number",
    ),
)
PRECISION = (
    Row(
        "precision.training",
        "bf16",
        offer=(
            Meaning(None, ABSENT, note=f"TRL's own: bf16 {BF16}"),
            Meaning("bf16", True, note=BF16),
            Meaning("fp32", False),
        ),
        advice="The launch loads fp32 weights and may pass in bf16: set precision.training=fp32.",
    ),
    Row(
        "precision.rollout",
        carried_by="vLLM, or the policy itself where there is no GPU",
        offer=fixed(
            None,
            "vLLM's own: the format in the model's config.json. On a CPU, and where rollouts are "
            "dumped, the policy samples by the trainer's forward pass: bf16, unless "
            "precision.training is fp32",
        ),
        advice="TRL has no option for it: leave it out.",
    ),
    one_format(
        "checkpoint",
        "fp32",
        (
            "TRL's own: the fp32 weights, not rounded",
            "the weights that AdamW updates, not rounded",
        ),
        "It saves its fp32 weights as they are. Set precision.checkpoint=fp32.",
    ),
)


def _lora_targets(adapter: Lora) -> list[str]:
    """Return the modules as TRL takes them. It makes one name a text, which PEFT would match with
    a module's whole name (trl/trainer/model_config.py): twice, it stays a list."""
    names = adapter.modules
    return names * 2 if len(names) == 1 and adapter.targets != ALL_LINEAR else names


LORA = lora.rows(
    "lora_r",
    "lora_alpha",
    "lora_target_modules",
    is_on=lambda launch: bool(launch.get("use_peft")),
    off="use_peft, which is off",
    adds={"use_peft": True, "lora_dropout": 0.0},
    write=_lora_targets,
    note="PEFT's adapter in fp32, without dropout (TRL's default is 0.05); the reference policy "
    "is the model with its adapter off; vLLM samples from both merged; a checkpoint is the "
    "adapter, which evaluation merges with its model",
    of_targets="all-linear is every linear layer but the head (PEFT)",
    trained=True,
)
CONSTANTS = (
    Constant("reward_funcs", [REWARD]),
    Constant("num_iterations", 1, accepts=(1,)),
    Constant("top_k", 0, accepts=(0,)),
    Constant("repetition_penalty", 1.0, accepts=(1.0,)),
    Constant("shuffle_dataset", True),
    Constant("mask_truncated_completions", False, accepts=(False,)),
    Constant("optim", "adamw_torch"),
    Constant("dtype", "float32"),
    Constant("report_to", "none"),
    Constant("logging_strategy", "steps"),
    Constant("logging_steps", 1),
    Constant("save_strategy", "steps"),
    Constant("disable_tqdm", True),
)

MANIFEST = Manifest(
    library="trl",
    versions=VERSIONS,
    rows=(
        *MODEL_AND_DATA,
        *OBJECTIVE,
        *ENTROPY,
        *KL,
        *ROLLOUT_AND_BATCH,
        *OPTIMIZER,
        *RUN,
        *PRECISION,
        *LORA,
    ),
    system=SYSTEM,
    passes_keys=True,
    fields_of_keys=FIELDS_OF_KEYS,
    constants=CONSTANTS,
    tables={version: release_table(version) for version in VERSIONS},
    version_advice="orch has read and run these releases; one before and one since 1.10.0, which "
    f"changed the default objective. Set backend.version={VERSIONS[0]}.",
)
