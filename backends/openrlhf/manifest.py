"""One table: how each field of a cell reaches OpenRLHF 0.11.2 and 0.10.1.post2.

Keys are flags by their dotted names (flags.py). `needs.json`, which orch writes next to a launch,
holds the fields without a flag.
"""

import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from backends.openrlhf.flags import (
    FLAT,
    NEWEST,
    READ,
    VERSIONS,
    is_flat,
    is_given,
    release_table,
    spelled,
)
from backends.openrlhf.system import FIELDS_OF_KEYS, SYSTEM
from orchestrator.errors import Fault, SpecError
from orchestrator.library import lora
from orchestrator.library.manifest import (
    ABSENT,
    COUNT,
    OWN_PATH,
    SHIPPED_ADVICE,
    WHOLE,
    Account,
    AllBut,
    Manifest,
    Meaning,
    Number,
    Row,
    Such,
    Values,
    approximated_if,
    beta_rows,
    fixed,
    named,
    one_format,
    same,
    sampling_rows,
    weighs_policy_loss,
)
from orchestrator.library.memory import longest_sequence
from orchestrator.library.needs import NEEDS, asked, backend_rows, label_row, prompts_row
from orchestrator.settings import Settings

PROMPTS, HELD_OUT = "data/train.jsonl", "data/validation.jsonl"
NO_CLIP = (float("inf"), float("inf"))
PLAIN_ESTIMATORS = ("k1", "k2", "k3")
UNBIASED: Mapping[str, str] = {
    "k1+": "k1",
    "k2+": "k2",
    "k3+": "k3",
    "sg_rho_k2": "k2",
    "rho_k3": "k3",
}
"""Estimator in the loss with the gradient of --algo.kl.unbiased_gradient -> that of its value."""
STRAIGHT_THROUGH, WEIGHTED = ("k1+", "k2+", "k3+"), ("sg_rho_k2", "rho_k3")

REWARD_TO_GO = (
    "subtracted token by token after the group baseline, as a reward to go: no leave-one-out of "
    "the KL, no division by a group's standard deviation; equal in expectation where the baseline "
    "is rloo's, with another variance, and relatively heavier otherwise. It is computed once a "
    "rollout batch, from the trainer's policy"
)
CLAMPED = "each token's estimate is clamped to [-10, 10]"
KL_BY_TOKENS = "the mean of the policy loss only; the KL is a mean over tokens in any case"
BY_RESPONSES = (
    "micro-batches are of responses; several of the library's examples make them of a number of "
    "tokens (--train.dynamic_batch_enable), with which it does not shuffle a rollout batch, and no "
    "test of orch trained: system.tokens_per_gpu asks for it"
)
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
WEIGHTED_VALUE = (
    "the gradient is {}'s, with the ratio at most 10; the value, which is only logged, is {}'s "
    "without the ratio, clamped to [-10, 10]"
)
NAME = "a label, not sent to OpenRLHF"
ADVANTAGE_NOTE = (
    "computed from the task reward only; an estimator that divides uses the unbiased standard "
    "deviation + 1e-9. The clip of the reward is widened to 1000, so that it never acts"
)
STEPS_NOTE = (
    "OpenRLHF has no such flag: it gets just the prompts of these train steps. A step of its own "
    "log is a rollout batch"
)


def num_rows(settings: Settings) -> int:
    """Return the number of prompts, with repetitions, that makes exactly num_train_steps."""
    return settings.num_train_steps // settings.batch.num_minibatches * settings.batch.num_prompts


def num_copies(settings: Settings) -> int:
    """Return how often the prompt file is named so that it has at least num_rows."""
    return math.ceil(num_rows(settings) / (settings.data.num_prompts or 1))


def _path_account(settings: Settings) -> Account:
    copies, rows = num_copies(settings), num_rows(settings)
    if copies == 1 and rows == settings.data.num_prompts:
        return "exact", "one shuffle over the prompt file, which `orch data prepare` makes"
    if copies == 1:
        return "approximated", f"only the first {rows} prompts of the file are used (max_samples)"
    return (
        "approximated",
        (
            f"prompts are drawn from {copies} copies of the file, shuffled together and cut by "
            "max_samples: a prompt may occur twice in a batch, or in no batch of a pass"
        ),
    )


# ------------------------------------------------------------------------------------- reading


def _integer(launch: Any, flag: str) -> int:
    return int(launch[flag])


def _number(launch: Any, flag: str) -> float:
    return float(launch[flag])


def _item(flag: str, at: int, absent: object = None) -> Callable[[Values], object]:
    """Return a reader of one of a flag's two numbers; ABSENT where they are the pair `absent`."""

    def read(launch: Any) -> object:
        first, second = launch[flag]
        return ABSENT if (first, second) == absent else (first, second)[at]

    return read


def _minibatches(launch: Any) -> int:
    return _samples(launch) // _integer(launch, "train.batch_size")


def _samples(launch: Any) -> int:
    groups = _integer(launch, "rollout.batch_size")
    return groups * _integer(launch, "rollout.n_samples_per_prompt")


def _train_steps(launch: Any) -> int:
    if not isinstance(launch["data.max_samples"], int):
        raise KeyError(launch["data.max_samples"])
    batches = launch["data.max_samples"] // launch["rollout.batch_size"]
    epochs = launch["train.num_episodes"] * launch["train.max_epochs"]
    return int(batches * _minibatches(launch) * epochs)


def _clip(launch: Any) -> Any:
    return launch["actor.eps_clip_low_high"]


def _no_kl(launch: Any) -> bool:
    """Return True if a launch asks for no KL: it names no estimator, and its coefficient is 0."""
    return bool(launch["algo.kl.init_coef"] == 0 and "algo.kl.estimator" not in launch)


def _placement(launch: Any) -> str | None:
    if _no_kl(launch):
        return None
    return "loss" if launch["algo.kl.use_loss"] else "reward"


def _plain_estimator(launch: Any) -> str:
    name = launch.get("algo.kl.estimator", PLAIN_ESTIMATORS[0])
    if name not in PLAIN_ESTIMATORS:
        raise KeyError(name)
    return str(name)


def _unbiased_estimator(launch: Any) -> object:
    """Return the estimator that needs.json names. Several estimators have the same flags."""
    if not (launch["algo.kl.use_loss"] and launch.get("algo.kl.unbiased_gradient")):
        return ABSENT
    value = _plain_estimator(launch)
    requested = asked(launch, "kl.estimator")
    name = f"{value}+" if requested in (ABSENT, None) else requested
    if UNBIASED.get(name) != value:
        sentence = f"{NEEDS} asks for {name}, the flags for the value of {value}"
        raise SpecError("OpenRLHF launch", [Fault(sentence)])
    return name


def _trained_in(launch: Any) -> object:
    """Return precision.training. bf16 is the flag's default, so a cell may leave it None."""
    given = launch["ds.param_dtype"]
    if given != "bf16":
        raise KeyError(given)
    return asked(launch, "precision.training")


# ------------------------------------------------------------------------ accounts and advice


def _kl_estimator_account(settings: Settings) -> Account:
    kl = settings.kl
    if kl.beta == 0:
        return "exact", ""
    if kl.placement == "reward":
        return "approximated", CLAMPED
    if kl.estimator in STRAIGHT_THROUGH:
        return "approximated", f"{CLAMPED}, its gradient is not: the ratio there is 1"
    if kl.estimator in WEIGHTED:
        return "approximated", WEIGHTED_VALUE.format(kl.estimator, UNBIASED[kl.estimator])
    return "approximated", f"{CLAMPED}; where the clamp binds it has no gradient"


def _estimator_advice(settings: Settings) -> str:
    """Return why OpenRLHF lacks an estimator, as far as it is known."""
    estimator = settings.kl.estimator
    if settings.kl.placement == "loss":
        if is_flat(MANIFEST.version_of(settings)):
            return f"backend.version={NEWEST} has {estimator}." if estimator in UNBIASED else ""
        # The ratio of its weighted estimators is not the one to a stale rollout policy.
        return "Set kl.estimator=k2." if settings.max_staleness_steps else ""
    plain = estimator.removesuffix("+").rpartition("rho_")[2]
    if plain not in PLAIN_ESTIMATORS:
        return ""
    if estimator.endswith("+"):
        return f"No gradient flows through the reward, so {estimator} is {plain} there."
    return f"It weighs no reward by a ratio, so {estimator} is {plain} there."


def _bf16(note: str) -> tuple[str, str]:
    """Return the notes of a number format for which the library has only bf16."""
    return f"OpenRLHF's own: bf16 {note}", note


# ------------------------------------------------------------------------------------ the table

_POLICY_LOSS = "actor.policy_loss_type"


def _of_one_response(launch: Values) -> object:
    """Return how micro-batches of one response average. Dynamic ones hold as many as fit."""
    alone = launch["train.micro_batch_size"] == 1 and not launch.get("train.dynamic_batch_enable")
    return "sequence_mean" if alone else ABSENT


_PPO = Meaning("ppo", ABSENT, spellings=("ppo",))
GSPO: Mapping[str, Container[object]] = {"loss.policy": ("gspo",)}
NOT_GSPO: Mapping[str, Container[object]] = {"loss.policy": AllBut(("gspo",))}
_CLIP, _BETAS = "actor.eps_clip_low_high", "actor.adam.betas"
_NO_CONSTANT = (
    "It divides by tokens or by sequences, never by a constant; the nearest is "
    "loss.aggregation=token_mean (drop constant_tokens) with advantage.estimator=dr_grpo."
)
_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}

MODEL_AND_DATA = (
    label_row("OpenRLHF"),
    Row("model.path", "actor.model_name_or_path", OWN_PATH, advice=SHIPPED_ADVICE),
    Row(
        "model.chat_template",
        "data.apply_chat_template",
        offer=(
            Meaning("default", True),
            Meaning(
                "none", False, "approximated", "a prompt gets no beginning-of-sequence token either"
            ),
        ),
    ),
    prompts_row("name", NAME),
    prompts_row("path", account=_path_account),
    prompts_row("split", "applied when the prompt file is made"),
    prompts_row(
        "num_prompts",
        "a shorter file would end training early, without a message",
        offer=Such("the number of prompts of the split", COUNT.__contains__),
        advice="It has no number of steps and stops when its prompts run out: with "
        "data.num_prompts orch repeats and cuts them to exactly num_train_steps.",
    ),
    prompts_row("instruction", "already part of each prompt of the file"),
    prompts_row(
        "reward",
        "a rule of reward.py, which reward.remote_url names",
    ),
    Row(
        "data.max_prompt_tokens",
        "data.max_len",
        offer=COUNT,
        write=longest_sequence,
        read=lambda launch: (
            _integer(launch, "data.max_len") - _integer(launch, "rollout.max_new_tokens")
        ),
        note="max_len less max_new_tokens; a longer prompt loses its beginning",
    ),
)
OBJECTIVE = (
    Row(
        "advantage.estimator",
        "algo.advantage.estimator",
        offer=named({"rloo": "rloo", "grpo": "group_norm", "dr_grpo": "dr_grpo"}),
        note=ADVANTAGE_NOTE,
        advice="Its `reinforce` subtracts the batch mean and whitens by default, which is "
        "REINFORCE++; the nearest with a baseline per prompt is advantage.estimator=rloo.",
    ),
    Row("loss.policy", _POLICY_LOSS, offer=(_PPO, Meaning("gspo", "gspo")), since=READ),
    Row(
        "loss.policy",
        _POLICY_LOSS,
        offer=(_PPO,),
        until=READ,
        advice=f"orch has read OpenRLHF's gspo of {NEWEST} only: set backend.version={NEWEST}.",
    ),
    Row(
        "loss.aggregation",
        "actor.loss_agg_mode",
        offer=(
            # PolicyLoss of gspo averages by response and does not read the key.
            Meaning("sequence_mean", "seq-mean-token-mean", spellings=("token-mean",)),
        ),
        since=READ,
        when=GSPO,
        account=lambda s: approximated_if(s.kl.placement == "loss", KL_BY_TOKENS),
        advice="OpenRLHF averages gspo by response always: set loss.aggregation=sequence_mean.",
    ),
    Row(
        "loss.aggregation",
        "actor.loss_agg_mode",
        offer=named({"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}),
        since=READ,
        when=NOT_GSPO,
        account=lambda s: approximated_if(
            s.loss.aggregation == "sequence_mean" and s.kl.placement == "loss",
            KL_BY_TOKENS,
            BY_RESPONSES,
        ),
        advice=_NO_CONSTANT,
    ),
    Row(
        "loss.aggregation",
        "train.micro_batch_size",
        offer=named({"sequence_mean": 1}),
        read=_of_one_response,
        until=READ,
        advice=_NO_CONSTANT,
    ),
    Row(
        "loss.aggregation",
        carried_by="micro-batches of several sequences",
        offer=fixed("token_mean", MICRO_BATCHES, "approximated"),
        until=READ,
    ),
    Row(
        "loss.constant_tokens",
        carried_by="the library divides by tokens or by sequences only",
        offer=same(None),
        note="no loss is divided by a constant",
        advice=_NO_CONSTANT,
    ),
    Row(
        "loss.clip",
        _CLIP,
        offer=(Meaning(None, NO_CLIP),),
        read=lambda launch: None if _clip(launch) == NO_CLIP else ABSENT,
    ),
    *(
        Row(
            f"loss.clip.{side}",
            _CLIP,
            offer=Number(),
            write=lambda s: s.loss.clip and (s.loss.clip.low, s.loss.clip.high),
            read=_item(_CLIP, at, absent=NO_CLIP),
        )
        for at, side in enumerate(("low", "high"))
    ),
    Row(
        "loss.clip.dual",
        "actor.dual_clip",
        offer=Number(null=True, off=ABSENT),
        read=lambda launch: ABSENT if _clip(launch) == NO_CLIP else launch.get("actor.dual_clip"),
    ),
)
LEVEL, MODE = "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"
GATING = "algo.advantage.is_correction_gating"
BOUNDS = "algo.advantage.is_correction_threshold"
_BY_TOKEN: Mapping[str, str] = {"tis_token": "clip", "mis_token": "mask"}
_BY_TOKEN_FLAT: Mapping[str, str] = {"tis_token": "tis", "mis_token": "icepop"}
_CORRECTS = (
    "OpenRLHF weights tokens by their own ratio, truncated or masked; a ratio or a mask of whole "
    "responses is another weight there. The nearest is loss.correction.kind={}; backend=skyrl has "
    "this one."
)


def _is_corrected(launch: Values) -> bool:
    return launch.get(LEVEL) not in (None, False, "off", ABSENT)


def _kind(names: Mapping[str, str]) -> Callable[[Values], object]:
    """Return a reader of the kind of a correction. It raises KeyError for one that no cell has."""
    ours = {theirs: kind for kind, theirs in names.items()}

    def read(launch: Values) -> object:
        if not _is_corrected(launch):
            return ABSENT
        if launch[LEVEL] == "seq" or launch.get(GATING, "ratio") != "ratio":
            raise KeyError(f"{launch[LEVEL]} {launch.get(GATING)}")
        return ours[str(launch[MODE])]

    return read


def _sending(values: Values) -> Callable[[Settings], Values]:
    return lambda _: values


def _bound(at: int) -> Callable[[Values], object]:
    def read(launch: Any) -> object:
        return launch[BOUNDS][at] if _is_corrected(launch) else ABSENT

    return read


def _corrected_by(settings: Settings) -> str:
    correction = settings.loss.correction
    rejects = correction is not None and not correction.kind.startswith("tis")
    return _CORRECTS.format("mis_token" if rejects else "tis_token")


_WEIGHTS = "the ratio of the trainer's probability before the first minibatch to the engine's"

CORRECTION = (
    Row(
        "loss.correction",
        carried_by="the absence of a level, or of the switch",
        offer=fixed(None, "no weight"),
        read=lambda launch: ABSENT if _is_corrected(launch) else None,
    ),
    *(
        Row(
            "loss.correction.kind",
            MODE,
            offer=named(kinds),
            adds=_sending(level),
            read=_kind(kinds),
            since=since,
            until=until,
            note=_WEIGHTS,
            advice=_corrected_by,
        )
        for kinds, level, since, until in (
            (_BY_TOKEN, {LEVEL: "token", GATING: "ratio"}, READ, ""),
            (_BY_TOKEN_FLAT, {LEVEL: True}, "", READ),
        )
    ),
    *(
        Row(
            f"loss.correction.{side}",
            BOUNDS,
            offer=Number(least=0),
            write=lambda s: s.loss.correction and (s.loss.correction.least, s.loss.correction.most),
            read=_bound(at),
            advice="OpenRLHF always has an upper bound: set loss.correction.most.",
        )
        for at, side in enumerate(("least", "most"))
    ),
    weighs_policy_loss("OpenRLHF", _is_corrected),
)
KL = (
    Row(
        "kl.estimator",
        carried_by="--algo.kl.init_coef 0, which loads no reference policy",
        offer=same("none"),
        read=lambda launch: "none" if _no_kl(launch) else ABSENT,
    ),
    Row(
        "kl.estimator",
        "algo.kl.unbiased_gradient",
        offer=tuple(
            Meaning(name, True, also={"algo.kl.estimator": value})
            for name, value in UNBIASED.items()
        ),
        read=_unbiased_estimator,
        when={"kl.placement": ("loss",)},
        since=READ,
        account=_kl_estimator_account,
    ),
    Row(
        "kl.estimator",
        "algo.kl.estimator",
        offer=same(*PLAIN_ESTIMATORS),
        read=_plain_estimator,
        account=_kl_estimator_account,
        advice=_estimator_advice,
    ),
    Row(
        "kl.placement",
        "algo.kl.use_loss",
        offer=(Meaning(None, False), Meaning("reward", False), Meaning("loss", True)),
        read=_placement,
        account=lambda s: approximated_if(
            s.kl.placement == "reward" and s.kl.beta > 0, REWARD_TO_GO
        ),
        advice="--algo.kl.use_loss would silently turn the KL in the reward off; the nearest are "
        "kl.placement=reward with k1, and kl.placement=loss with k2.",
    ),
    Row(
        "kl.beta",
        "algo.kl.init_coef",
        offer=Number(least=0),
        note="0 loads no reference policy, so nothing of the drift from it is measured",
    ),
    Row(
        "kl.reset_reference_every_steps",
        carried_by="the library never renews its reference policy",
        offer=same(None),
        note="the reference policy stays the first policy",
        advice="Its reference policy stays the first policy: leave the field out.",
    ),
)
ROLLOUT_AND_BATCH = (
    Row("rollout.group_size", "rollout.n_samples_per_prompt", offer=COUNT),
    Row(
        "rollout.max_response_tokens",
        "rollout.max_new_tokens",
        offer=COUNT,
    ),
    *sampling_rows("rollout.temperature", "rollout.top_p"),
    Row(
        "batch.num_prompts",
        "rollout.batch_size",
        offer=COUNT,
        note="counts prompts",
    ),
    Row(
        "batch.num_minibatches",
        "train.batch_size",
        offer=COUNT,
        write=lambda s: s.batch.num_prompts * s.rollout.group_size // s.batch.num_minibatches,
        read=_minibatches,
        account=lambda s: approximated_if(s.batch.num_minibatches > 1, SHUFFLED),
    ),
)
OPTIMIZER = (
    Row("optimizer.learning_rate", "actor.adam.lr", offer=Number()),
    Row(
        "optimizer.weight_decay",
        "actor.adam.weight_decay",
        offer=Number(least=0),
        account=lambda s: approximated_if(
            s.optimizer.weight_decay > 0, "biases and norm weights are left out"
        ),
    ),
    *beta_rows(_BETAS, tuple),
    Row("optimizer.epsilon", "actor.adam.eps", offer=Number(), since=READ),
    Row(
        "optimizer.epsilon",
        carried_by="DeepSpeed's own default",
        offer=same(1e-8),
        until=READ,
        advice=f"{FLAT} has no flag for it; backend.version={NEWEST} has --actor.adam.eps.",
    ),
    Row(
        "optimizer.max_grad_norm",
        "actor.max_norm",
        offer=Number(null=True, off=0.0),
        note="0 turns it off",
    ),
    Row("optimizer.schedule", "actor.lr_scheduler", offer=named(_SCHEDULES), since=READ),
    Row(
        "optimizer.schedule",
        "actor.lr_scheduler",
        offer=named({"constant": _SCHEDULES["constant"]}),
        until=READ,
        advice=f"{FLAT} gives every schedule a min_lr that this one refuses once training starts; "
        f"backend.version={NEWEST} runs it.",
    ),
    Row(
        "optimizer.num_warmup_steps",
        "actor.lr_warmup_ratio",
        offer=WHOLE,
        # The library rounds steps x ratio up. Half a step less keeps rounding from adding one.
        write=lambda s: (
            (s.optimizer.num_warmup_steps - 0.5) / s.num_train_steps
            if s.optimizer.num_warmup_steps
            else 0.0
        ),
        read=lambda launch: math.ceil(
            _train_steps(launch) * _number(launch, "actor.lr_warmup_ratio")
        ),
        account=lambda s: approximated_if(
            s.optimizer.num_warmup_steps > 0, "counted from 0: the first train step has rate 0"
        ),
    ),
)
RUN = (
    Row(
        "num_train_steps",
        "data.max_samples",
        offer=COUNT,
        write=num_rows,
        adds=lambda _: {"train.num_episodes": 1, "train.max_epochs": 1},
        read=_train_steps,
        note=STEPS_NOTE,
    ),
    *backend_rows("openrlhf", VERSIONS),
    Row(
        "max_staleness_steps",
        "train.async_enable",
        offer=(Meaning(0, False),),
        note="synchronous",
    ),
    Row(
        "max_staleness_steps",
        "train.async_queue_size",
        offer=COUNT,
        write=lambda s: s.max_staleness_steps // s.batch.num_minibatches,
        adds=lambda _: {"train.async_enable": True},
        read=lambda launch: _integer(launch, "train.async_queue_size") * _minibatches(launch),
        status="approximated",
        note=QUEUE,
    ),
    Row(
        "seed",
        "train.seed",
        offer=WHOLE,
        status="approximated",
        note=PROMPT_ORDER,
    ),
)


_ENGINES = (
    "Its engines are built in bfloat16 and refuse weights of another type (vllm_worker_wrap). Set "
    "{}=bf16."
)
_PASSES = "of the passes and of the gradients; DeepSpeed's AdamW keeps the weights in fp32"
PRECISION = (
    Row(
        "precision.training",
        "ds.param_dtype",
        offer=(
            Meaning(None, "bf16", note=f"OpenRLHF's own: bf16 {_PASSES}"),
            Meaning("bf16", "bf16", note=_PASSES),
        ),
        read=_trained_in,
        advice=_ENGINES.format("precision.training"),
    ),
    one_format(
        "rollout",
        "bf16",
        _bf16("it builds its engines in bfloat16"),
        _ENGINES.format("precision.rollout"),
    ),
    one_format(
        "checkpoint",
        "bf16",
        _bf16("it saves DeepSpeed's consolidated 16-bit weights"),
        "It saves DeepSpeed's consolidated 16-bit weights, and has no flag for others. Set "
        "precision.checkpoint=bf16.",
    ),
)


def _spelled(name: str, value: object, version: str) -> str:
    """Return a flag on the command line, as the release spells it."""
    return (spelled(name, version) or name) if is_given(value) else ""


def _of_tokens(settings: Settings) -> Account:
    """Return how exactly the entropy bonus is the policy loss's aggregate."""
    notes = []
    if is_flat(MANIFEST.version_of(settings)):
        notes.append("the mean over the tokens of each micro-batch")
    elif settings.loss.aggregation != "token_mean":
        notes.append("the mean over tokens, whatever the policy loss has")
    if settings.rollout.temperature != 1:
        notes.append("of the distribution at temperature 1")
    return ("approximated" if notes and settings.loss.entropy_bonus else "exact"), (
        "; ".join(notes) if settings.loss.entropy_bonus else "0 logs the entropy and adds nothing"
    )


ENTROPY = (
    Row(
        "loss.entropy_bonus",
        "actor.entropy_coef",
        Number(least=0),
        read=lambda launch: launch["actor.entropy_coef"] or 0.0,  # null: none, and none is logged
        account=_of_tokens,
    ),
)

NO_LORA = lora.none(
    "ds.lora.rank, which is 0",
    "OpenRLHF has ds.lora, but sends vLLM each weight under PEFT's name, and the adapter's too "
    "(ppo_actor.py, broadcast_to_vllm), which vLLM does not have: leave lora out, or set "
    "backend=trl, verl or skyrl.",
)

MANIFEST = Manifest(
    library="openrlhf",
    versions=VERSIONS,
    system=SYSTEM,
    passes_keys=True,
    fields_of_keys=FIELDS_OF_KEYS,
    rows=(
        *MODEL_AND_DATA,
        *OBJECTIVE,
        *CORRECTION,
        *KL,
        *ROLLOUT_AND_BATCH,
        *OPTIMIZER,
        *RUN,
        *PRECISION,
        *ENTROPY,
        NO_LORA,
    ),
    tables={version: release_table(version) for version in VERSIONS},
    spelled=_spelled,
    version_advice="orch knows the flags of these releases only; they were all renamed at 0.10.2. "
    f"Set backend.version={NEWEST}.",
)
