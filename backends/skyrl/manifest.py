"""One table: how each field of a cell reaches SkyRL 0.4.0, 0.3.0 and 0.2.0.

Keys are SkyRL's overrides. Keys that begin with `orch.` are options of launch/orch_skyrl.py, which
every launch runs. `needs.json`, which orch writes beside a launch, holds the fields without a key.
options.json holds the keys, types, defaults and closed lists of each release.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from backends.skyrl.system import FIELDS_OF_KEYS, SYSTEM
from orchestrator.library import key_tables, lora
from orchestrator.library.key_tables import driven, is_since, load_options
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
    ReleaseTable,
    Row,
    Status,
    Such,
    Values,
    beta_rows,
    equal,
    fixed,
    named,
    one_format,
    same,
    sampling_rows,
    weighs_policy_loss,
)
from orchestrator.library.needs import NEEDS, backend_rows, label_row, prompts_row
from orchestrator.losses.table import SAPO_TEMPERATURES
from orchestrator.settings import ALL_LINEAR, Clip, Settings

FACTS = Path(__file__).with_name("options.json")
VERSIONS = driven(FACTS)
"""The releases that orch drives, newest first. 0.3.0 is
the newest for Python 3.11; 0.2.0 the first whose KL in the loss has a gradient, and the last that
trains asynchronously with its plain PPO loss."""
NEWEST = VERSIONS[0]
READ = "0.4.0"
"""The release since which orch has read what SkyRL claims of Ray, and runs it without a GPU."""
COUNTS_STEPS = "0.3.0"
"""The first release that counts train steps, that has DPPO, and whose asynchronous trainer refuses
its own PPO losses."""

ALGORITHM, OPTIMIZER = "trainer.algorithm", "trainer.policy.optimizer_config"
PLACEMENT, ASYNC = "trainer.placement", "trainer.fully_async"
SAMPLING, EVAL_SAMPLING = "generator.sampling_params", "generator.eval_sampling_params"
ENGINE = "generator.inference_engine"
ADVANTAGE, BY_STD = f"{ALGORITHM}.advantage_estimator", f"{ALGORITHM}.grpo_norm_by_std"
REDUCTION, DIVISOR = f"{ALGORITHM}.loss_reduction", f"{ALGORITHM}.max_seq_len"
LOSS_TYPE, DUAL = f"{ALGORITHM}.policy_loss_type", f"{ALGORITHM}.clip_ratio_c"
CLIP_LOW, CLIP_HIGH = f"{ALGORITHM}.eps_clip_low", f"{ALGORITHM}.eps_clip_high"
CISPO, DPPO = f"{ALGORITHM}.cispo", f"{ALGORITHM}.dppo"
CISPO_LOW, CISPO_HIGH = f"{CISPO}.cispo_eps_clip_low", f"{CISPO}.cispo_eps_clip_high"
ANCHOR, DPPO_TYPE = f"{CISPO}.cispo_anchor", f"{DPPO}.dppo_type"
DELTA_LOW, DELTA_HIGH = f"{DPPO}.delta_low", f"{DPPO}.delta_high"
IN_REWARD, IN_LOSS = f"{ALGORITHM}.use_kl_in_reward", f"{ALGORITHM}.use_kl_loss"
KL_TYPE, KL_COEFFICIENT = f"{ALGORITHM}.kl_estimator_type", f"{ALGORITHM}.kl_loss_coef"
BETAS = f"{OPTIMIZER}.adam_betas"
STEPS, OUR_STEPS = "trainer.max_training_steps", "orch.max_training_steps"
BATCH, MINIBATCH = "trainer.train_batch_size", "trainer.policy_mini_batch_size"
OFF_POLICY = f"{ALGORITHM}.off_policy_correction"
TIS, OF_RESPONSES = f"{OFF_POLICY}.tis_ratio_type", f"{OFF_POLICY}.sequence_mask_metric"
ENABLED, BOUND = f"{ASYNC}.enabled", f"{ASYNC}.max_staleness_steps"
ASYNCHRONOUS = "orch.asynchronous"

FIXED: Values = {
    "trainer.logger": "tensorboard",
    "trainer.resume_mode": "latest",
    "trainer.max_ckpts_to_keep": 2,
    "trainer.critic.model.path": None,
    "trainer.update_epochs_per_batch": 1,
    "trainer.eval_before_train": True,
    "trainer.dump_eval_results": False,
    f"{ALGORITHM}.kl_ctrl.type": "fixed",
    f"{ALGORITHM}.use_entropy_loss": False,
    f"{ALGORITHM}.advantage_batch_normalize": False,
    f"{ALGORITHM}.zero_variance_filter": False,
    f"{ALGORITHM}.dynamic_sampling.type": None,
    f"{ALGORITHM}.use_tis": False,
    f"{OFF_POLICY}.outlier_token_is_threshold_low": None,
    f"{OFF_POLICY}.outlier_token_is_threshold_high": None,
    "generator.batched": False,
    "generator.max_turns": 1,
    "generator.zero_reward_on_non_stop": False,
    "generator.apply_overlong_filtering": False,
    "generator.eval_n_samples_per_prompt": 1,
    f"{SAMPLING}.top_k": -1,
    f"{SAMPLING}.min_p": 0.0,
    f"{SAMPLING}.logprobs": 1,
}
"""Keys and values that every launch sends, because a release may change their defaults."""

NO_CLIP = (1.0, 1e9)
"""eps_clip_low and eps_clip_high without a clip. SkyRL bounds the ratio by e^20 < 1e9 before."""
HELD: Values = {
    key: value
    for key, value in FIXED.items()
    if key.startswith((ALGORITHM, "trainer.update_epochs_per_batch", "generator."))
    and key
    not in (
        f"{ALGORITHM}.kl_ctrl.type",
        f"{ALGORITHM}.use_entropy_loss",
        "generator.batched",
        "generator.eval_n_samples_per_prompt",
        f"{SAMPLING}.logprobs",
    )
}
"""Keys that would change the training data, with the values that orch always sends."""
LOSSES = ("regular", "dual_clip", "orch_rollout_ppo", "orch_rollout_dual_clip")
"""PPO's loss, without and with a dual clip: first SkyRL's, then orch_skyrl.py's."""
SAPO_TAU = dict(
    zip((f"{ALGORITHM}.sapo.tau_pos", f"{ALGORITHM}.sapo.tau_neg"), SAPO_TEMPERATURES, strict=True)
)
"""The keys of SAPO's temperatures, and their values in the table of losses."""
POLICIES: Mapping[str, tuple[str, Values]] = {
    "gspo": ("gspo", {}),
    "sapo": ("sapo", SAPO_TAU),
    "cispo": ("cispo", {}),
    "dppo_tv": ("dppo", {DPPO_TYPE: "binary_tv"}),
    "dppo_kl": ("dppo", {DPPO_TYPE: "binary_kl"}),
    "rollout_is": ("rollout_is", {}),
}
"""loss.policy, other than ppo -> policy_loss_type, and the keys that belong to it."""
BOUNDS_OF: Mapping[str, tuple[str, str]] = {
    "gspo": (CLIP_LOW, CLIP_HIGH),
    "cispo": (CISPO_LOW, CISPO_HIGH),
    "dppo_tv": (DELTA_LOW, DELTA_HIGH),
    "dppo_kl": (DELTA_LOW, DELTA_HIGH),
    "rollout_is": (CLIP_LOW, CLIP_HIGH),
}
"""loss.policy -> the keys of its two bounds."""
TO_ENGINE = ("dppo_tv", "dppo_kl", "rollout_is")
"""Policy losses whose ratio is to the engine's probabilities, in every launch."""


@cache
def tables() -> dict[str, ReleaseTable]:
    """Return release -> the table of keys that its configuration has.

    `trainer.fully_async.enabled` has no default here, because some entry points train
    asynchronously without it.
    """
    releases = load_options(FACTS)
    return {
        version: replace(
            key_tables.release_table(version, options, added=("orch.",)),
            defaults={key: each.default for key, each in options.items() if key != ENABLED},
        )
        for version, options in releases.items()
    }


# ------------------------------------------------------------------------------------- reading


def is_asynchronous(launch: Values) -> bool:
    """Return True if a launch's settings ask for asynchronous training."""
    return bool(launch.get(ENABLED, launch.get(ASYNCHRONOUS, False)))


def _advantage(launch: Any) -> str:
    name = launch[ADVANTAGE]
    if name == "grpo" and launch[BY_STD] is False:
        return "dr_grpo"
    names = {"rloo": "rloo", "grpo": "grpo", "orch_reinforce": "reinforce"}
    return names[name]


def _clip(launch: Any) -> Clip | None:
    """Return the clip of a policy loss and its three numbers, or None without a clip."""
    kind = launch[LOSS_TYPE]
    low = float(launch[CLIP_LOW])
    high = float(launch[CLIP_HIGH])
    if kind not in LOSSES:
        raise KeyError(kind)
    if (low, high) == NO_CLIP:
        return None
    return Clip(low=low, high=high, dual=float(launch[DUAL]) if kind in LOSSES[1::2] else None)


def _policy(launch: Any) -> str:
    """Return the policy loss of a launch. Raise KeyError for one that is not in orch's table."""
    kind = launch[LOSS_TYPE]
    if kind in LOSSES:
        return "ppo"
    to_engine = launch.get(ANCHOR) == "rollout"
    if kind == "cispo" and to_engine != is_asynchronous(launch):
        raise KeyError(f"cispo with {ANCHOR}={launch.get(ANCHOR)}")
    for name, (theirs, more) in POLICIES.items():
        if kind == theirs and all(equal(launch.get(key), value) for key, value in more.items()):
            return name
    raise KeyError(kind)


def _bounds(low: str, high: str) -> Callable[[Values], object]:
    def read(launch: Any) -> object:
        return Clip(low=float(launch[low]), high=float(launch[high]))

    return read


def _minibatches(launch: Any) -> int:
    return int(launch[BATCH]) // int(launch[MINIBATCH])


class Cut(NamedTuple):
    """A correction as SkyRL's keys give it: a truncated ratio, a mask of tokens or of responses."""

    ratio: str | None
    """tis_ratio_type: the ratio that multiplies the loss; None: 1."""
    mask: str | None
    """The names of the keys of a mask, without `_low` and `_high`; None: nothing is masked."""
    metric: str | None = None
    """sequence_mask_metric, for a mask of responses."""

    @property
    def cap(self) -> str:
        """The key of the upper bound of the ratio."""
        return f"{OFF_POLICY}.{self.ratio}_tis_ratio_clip_high"

    def bound(self, side: str) -> str:
        """Return the key of a mask's bound, `low` or `high`."""
        return f"{OFF_POLICY}.{self.mask}_{side}"


TOKENS, PRODUCT, GEOMETRIC = "token_mask_is_threshold", "product_mask", "geo_mask"
CUTS: Mapping[str, Cut] = {
    "tis_token": Cut("token", None),
    "tis_sequence": Cut("sequence", None),
    "mis_token": Cut("token", TOKENS),
    "mis_sequence": Cut("sequence", PRODUCT, "product"),
    "reject_token": Cut(None, TOKENS),
    "reject_sequence": Cut(None, PRODUCT, "product"),
    "geometric": Cut(None, GEOMETRIC, "geometric"),
}
"""loss.correction.kind -> the keys that ask SkyRL for it."""


def masks_tokens(launch: Values) -> bool:
    """Return True if a launch masks tokens, by both bounds of their ratio."""
    bounds = [launch.get(CUTS["mis_token"].bound(side)) for side in ("low", "high")]
    return None not in bounds


def _is_corrected(launch: Values) -> bool:
    return not (launch[TIS] is None and launch[OF_RESPONSES] is None) or masks_tokens(launch)


def _kind(launch: Any) -> object:
    """Return the kind of a launch's correction; ABSENT without one. Raise KeyError for others."""
    if not _is_corrected(launch):
        return ABSENT
    ratio, metric, of_tokens = launch[TIS], launch[OF_RESPONSES], masks_tokens(launch)
    for kind, cut in CUTS.items():
        if (cut.ratio, cut.metric, cut.mask == TOKENS) != (ratio, metric, of_tokens):
            continue
        if cut.ratio and cut.mask and launch[cut.cap] < launch[cut.bound("high")]:
            raise KeyError(launch[cut.cap])
        return kind
    raise KeyError(ratio or metric)


def _bound_of(cut: str, key: str) -> Callable[[Values], object]:
    """Return a reader of a bound of one kind of correction; ABSENT in launches of other kinds."""
    return lambda launch: launch[key] if _kind(launch) == cut else ABSENT


# ------------------------------------------------------------------------------------- writing


def _clip_keys(settings: Settings) -> Values:
    clip = settings.loss.clip
    low, high = NO_CLIP if clip is None else (clip.low, clip.high)
    keys: dict[str, object] = {CLIP_LOW: low, CLIP_HIGH: high}
    return keys if clip is None or clip.dual is None else {**keys, DUAL: clip.dual}


def _loss_of(losses: tuple[str, ...]) -> Callable[[Settings], str]:
    """Return a writer of the loss: of two, the one without or with a dual clip."""
    return lambda settings: losses[bool(settings.loss.clip and settings.loss.clip.dual)]


def _masked_by(settings: Settings) -> Values:
    """Return the keys of both masks as null where nothing uses them, and of a ratio that is cut.

    A ratio that is masked too has the mask's upper bound.
    """
    correction = settings.loss.correction
    cut = CUTS[correction.kind] if correction else Cut(None, None)
    keys: dict[str, object] = {OF_RESPONSES: cut.metric}
    if cut.mask != TOKENS:
        keys |= {CUTS["mis_token"].bound(side): None for side in ("low", "high")}
    if correction and cut.ratio and cut.mask:
        keys[cut.cap] = correction.most
    return keys


def _batches(settings: Settings) -> int:
    return settings.num_train_steps // settings.batch.num_minibatches


def _asynchronous_keys(settings: Settings) -> Values:
    prompts, bound = settings.batch.num_prompts, settings.max_staleness_steps
    return {
        ASYNCHRONOUS: True,
        BOUND: bound,
        f"{ASYNC}.num_parallel_generation_workers": prompts * (bound + 1),
    }


# ----------------------------------------------------------------------------------- accounts


def _placement_account(settings: Settings) -> Account:
    placement, by_sequence = settings.kl.placement, settings.loss.aggregation == "sequence_mean"
    averaged = "In the loss the KL is averaged over each response, then over the responses" + (
        ", as the policy loss is"
        if by_sequence
        else ", whatever loss.aggregation is: beta weighs otherwise than in verl or OpenRLHF"
    )
    if placement == "reward_and_loss":
        return (
            "extension",
            "SkyRL's validator refuses both: orch_skyrl.py turns the second on after it. "
            + averaged,
        )
    if placement == "loss":
        return ("exact", "") if by_sequence else ("approximated", averaged)
    if placement is None:
        return "exact", "SkyRL has the loss's KL on by default"
    if settings.max_staleness_steps:
        return (
            "approximated",
            "of the current policy's log-probabilities, not of those of the policy that sampled",
        )
    return (
        "exact",
        "subtracted token by token, summed over the response before the group's baseline",
    )


def _warmup_account(settings: Settings) -> Account:
    if settings.optimizer.num_warmup_steps == 0:
        return "exact", ""
    return "approximated", _FROM_ZERO


_FROM_ZERO = (
    "counted from 0: the first train step has rate 0, and the full rate is reached one step later"
)
_ESTIMATOR_ADVICE = "Its loss is computed in SkyRL's workers, which no registry reaches."
_RESET_ADVICE = (
    "SkyRL renews the reference policy at the end of every epoch or never. Leave it out; of orch's "
    "backends only the embedded trainer resets it."
)
_ROLLOUT_RATIO = (
    "SkyRL refuses its PPO losses here, whose old policy is not the one that sampled: "
    "orch_skyrl.py registers one whose ratio is to the policy that sampled"
)
_NO_RATIO = (
    "the old log-probabilities are the current policy's, so the ratio is 1: nothing is clipped and "
    "no staleness corrected"
)
_AGGREGATE_BOUND = (
    "held over all rollouts together: single ones may be older, which SkyRL only warns of; weights "
    "change while a response is being sampled. No entry point of the wheel trains asynchronously: "
    "orch_skyrl.py is one"
)
_SEED = (
    "seeds the order of prompts, the trainer and vLLM's engines, all with this one seed; equal "
    "seeds do not give equal bits"
)
_EPOCHS = (
    "SkyRL < 0.3.0 counts epochs only: orch_skyrl.py repeats the data to exactly so many rollout "
    "batches"
)
_TEMPLATE = (
    "SkyRL always applies a template: orch_skyrl.py gives the tokenizer one that adds only its "
    "first token"
)
_REWARD = "SkyRL has no such reward: reward.py, in an environment that orch_skyrl.py registers"
_WHITENS = "SkyRL's reinforce++ whitens over the batch: orch_skyrl.py registers the plain one"
_PREPARED = f"data/train.parquet is prepared from it ({NEEDS})"
_CLAMPED = "log r is held within 20 and the estimate within 10; the gradient is 0 beyond"

# ------------------------------------------------------------------------------------ the table

_CLIPS = Such(
    "null, or a clip",
    lambda x: x is None or (isinstance(x, Clip) and (x.low, x.high) != NO_CLIP),
)
_BOUNDS = Such("low and high, without dual", lambda x: isinstance(x, Clip) and x.dual is None)
_COUNT = Number(least=1, whole=True, null=True)
_SYNCHRONOUS: Mapping[str, Any] = {"max_staleness_steps": (0,)}
_STALE: Mapping[str, Any] = {"max_staleness_steps": COUNT}
_PPO: Mapping[str, Any] = {"loss.policy": ("ppo",)}
_OLD = "the ratio is to the policy as it was when the rollout batch was sampled"
_TO_ENGINE = "the ratio is to the engine's probabilities of the tokens it sampled"


def _only_to_engine(settings: Settings) -> str:
    if settings.loss.policy not in POLICIES or not settings.max_staleness_steps:
        return ""
    return (
        "SkyRL's asynchronous trainer keeps no old policy for the ratio of this loss: set "
        "loss.policy=rollout_is, whose ratio is to the policy that sampled, or "
        "max_staleness_steps=0."
    )


def _losses(*names: str, note: str = _OLD, **more: Any) -> tuple[Meaning, ...]:
    """Return the meanings of policy losses; `more`: a key that all of them send, and its value."""
    return tuple(
        Meaning(name, POLICIES[name][0], note=note, also={**POLICIES[name][1], **more})
        for name in names
    )


POLICY_LOSSES = (
    Row(
        "loss.policy",
        carried_by=f"{LOSS_TYPE}, which loss.clip sends",
        offer=same("ppo"),
        read=_policy,
    ),
    Row(
        "loss.policy",
        LOSS_TYPE,
        offer=_losses("gspo", "sapo"),
        read=_policy,
        when=_SYNCHRONOUS,
        advice=_only_to_engine,
    ),
    *(
        Row("loss.policy", LOSS_TYPE, offer, read=_policy, when=when, since=since, until=until)
        for offer, when, since, until in (
            (_losses("cispo"), _SYNCHRONOUS, "", NEWEST),
            (_losses("cispo", **{ANCHOR: "old"}), _SYNCHRONOUS, NEWEST, ""),
            (_losses("cispo", note=_TO_ENGINE, **{ANCHOR: "rollout"}), _STALE, NEWEST, ""),
            (_losses("rollout_is", note=_TO_ENGINE), None, "", ""),
            (_losses("dppo_tv", "dppo_kl", note=_TO_ENGINE), None, COUNTS_STEPS, ""),
        )
    ),
)


def _bounded(name: str, low: str, high: str) -> Row:
    """Return the row of the bounds of a policy loss, which both keys send."""

    def more(settings: Settings) -> Values:
        return {high: settings.loss.clip.high} if settings.loss.clip else {}

    return Row(
        "loss.clip",
        low,
        offer=_BOUNDS,
        write=lambda s: s.loss.clip.low if s.loss.clip else None,
        adds=more,
        read=_bounds(low, high),
        when={"loss.policy": (name,)},
        since=COUNTS_STEPS if name.startswith("dppo") else "",
        advice=f"SkyRL's {POLICIES[name][0]} has no further bound: leave loss.clip.dual out.",
    )


MODEL_AND_DATA = (
    label_row("SkyRL"),
    Row(
        "model.path",
        "trainer.policy.model.path",
        offer=OWN_PATH,
        adds=lambda s: {"trainer.ref.model.path": s.model.path},
        advice=SHIPPED_ADVICE,
    ),
    Row(
        "model.chat_template",
        "orch.chat_template",
        offer=(
            Meaning("default", ABSENT, note="the tokenizer's own", spellings=("default",)),
            Meaning("none", "none", "extension", _TEMPLATE),
        ),
    ),
    prompts_row("path", _PREPARED, offer=OWN_PATH, advice=SHIPPED_ADVICE),
    *(prompts_row(name, _PREPARED) for name in ("name", "split", "num_prompts", "instruction")),
    prompts_row(
        "reward",
        _REWARD,
        key="environment.env_class",
        carried_by="",
        write=lambda _: "orch",
        status="extension",
    ),
    Row(
        "data.max_prompt_tokens",
        "trainer.max_prompt_length",
        offer=COUNT,
        adds=lambda s: {"generator.max_input_length": s.data.max_prompt_tokens},
        note="longer prompts are left out, not cut",
    ),
)
_CLIPPED: tuple[tuple[tuple[str, ...], Mapping[str, Any], str, str, Status, str], ...] = (
    (LOSSES[:2], _SYNCHRONOUS, "", "", "exact", _OLD),
    (LOSSES[:2], _STALE, "", COUNTS_STEPS, "approximated", _NO_RATIO),
    (LOSSES[2:], _STALE, COUNTS_STEPS, "", "extension", _ROLLOUT_RATIO),
)
"""Losses without and with a dual clip, cells, releases, and how exactly the clip is carried."""
OBJECTIVE = (
    Row(
        "advantage.estimator",
        ADVANTAGE,
        offer=(
            *named({"rloo": "rloo", "grpo": "grpo", "dr_grpo": "grpo"}),
            Meaning("reinforce", "orch_reinforce", "extension", _WHITENS),
        ),
        adds=lambda s: {BY_STD: s.advantage.estimator != "dr_grpo"},
        read=_advantage,
        note="of the reward summed over the response, any KL penalty included",
    ),
    Row(
        "loss.aggregation",
        REDUCTION,
        offer=named(
            {
                "token_mean": "token_mean",
                "sequence_mean": "sequence_mean",
                "constant": "seq_mean_token_sum_norm",
            }
        ),
    ),
    Row(
        "loss.constant_tokens",
        DIVISOR,
        offer=_COUNT,
        read=lambda launch: (
            launch[DIVISOR] if launch[REDUCTION] == "seq_mean_token_sum_norm" else None
        ),
    ),
    *(
        Row(
            "loss.clip",
            LOSS_TYPE,
            offer=_CLIPS,
            write=_loss_of(losses),
            adds=_clip_keys,
            read=_clip,
            when={**when, **_PPO},
            since=since,
            until=until,
            status=status,
            note=note,
            advice=f"SkyRL is asked for no clip by {NO_CLIP}: set loss.clip=null.",
        )
        for losses, when, since, until, status, note in _CLIPPED
    ),
    *(_bounded(name, *keys) for name, keys in BOUNDS_OF.items()),
    Row(
        "loss.clip",
        carried_by="the loss, which reads no bound",
        offer=fixed(None),
        when={"loss.policy": ("sapo",)},
    ),
)
_OFF = "the ratio of the trainer's probability before the first minibatch to the engine's"
_ABOVE = "SkyRL always has an upper bound: set loss.correction.most."


def _kinds(offered: Mapping[str, Cut]) -> Mapping[str, tuple[str, ...]]:
    return {"loss.correction.kind": tuple(offered)}


CORRECTION = (
    Row(
        "loss.correction",
        TIS,
        offer=(Meaning(None, None, note="no weight and no mask"),),
        adds=_masked_by,
        read=lambda launch: ABSENT if _is_corrected(launch) else None,
    ),
    Row(
        "loss.correction.kind",
        TIS,
        offer=tuple(Meaning(kind, cut.ratio) for kind, cut in CUTS.items()),
        adds=_masked_by,
        read=_kind,
        note=_OFF,
    ),
    Row(
        "loss.correction.least",
        carried_by="truncation, which has an upper bound only",
        offer=same(0.0),
        when=_kinds({kind: cut for kind, cut in CUTS.items() if cut.mask is None}),
        read=lambda launch: 0.0 if str(_kind(launch)).startswith("tis") else ABSENT,
        advice="SkyRL truncates from above only: leave loss.correction.least out, or set "
        "backend=openrlhf, which truncates the ratio of tokens on both sides.",
    ),
    *(
        Row(
            "loss.correction.least",
            cut.bound("low"),
            offer=Number(least=0),
            when=_kinds({kind: cut}),
            read=_bound_of(kind, cut.bound("low")),
        )
        for kind, cut in CUTS.items()
        if cut.mask
    ),
    *(
        Row(
            "loss.correction.most",
            key,
            offer=Number(least=0),
            when=_kinds({kind: cut}),
            read=_bound_of(kind, key),
            advice=_ABOVE,
        )
        for kind, cut in CUTS.items()
        for key in (cut.bound("high") if cut.mask else cut.cap,)
    ),
    weighs_policy_loss("SkyRL", _is_corrected),
)
KL = (
    Row(
        "kl.estimator",
        carried_by=f"{IN_REWARD}=false and {IN_LOSS}=false",
        offer=fixed("none", "no reference policy is loaded, no KL is logged"),
        when={"kl.placement": (None,)},
    ),
    Row(
        "kl.estimator",
        KL_TYPE,
        offer=(
            *same("k1", "k2", note="not clamped"),
            Meaning("k3", "k3", "approximated", _CLAMPED),
            *same("abs", note="not clamped"),
        ),
        when={"kl.placement": AllBut((None,))},
        advice=_ESTIMATOR_ADVICE,
    ),
    Row(
        "kl.placement",
        IN_REWARD,
        offer=(
            Meaning("reward_and_loss", True, also={IN_LOSS: False, "orch.kl_in_loss_too": True}),
            Meaning("reward", True, also={IN_LOSS: False}),
            Meaning("loss", False, also={IN_LOSS: True}),
            Meaning(None, False, also={IN_LOSS: False}),
        ),
        account=_placement_account,
    ),
    Row(
        "kl.beta",
        KL_COEFFICIENT,
        offer=Number(least=0),
        read=lambda launch: launch[KL_COEFFICIENT] if launch[IN_REWARD] or launch[IN_LOSS] else 0.0,
        note="of the reward and the loss",
    ),
    Row(
        "kl.reset_reference_every_steps",
        "trainer.update_ref_every_epoch",
        offer=(
            Meaning(None, False, note="SkyRL keeps its first reference policy when this is false"),
        ),
        advice=_RESET_ADVICE,
    ),
)
ROLLOUT_AND_BATCH = (
    Row("rollout.group_size", "generator.n_samples_per_prompt", offer=COUNT),
    Row("rollout.max_response_tokens", f"{SAMPLING}.max_generate_length", offer=COUNT),
    *sampling_rows(
        f"{SAMPLING}.temperature",
        f"{SAMPLING}.top_p",
        "log-probabilities are taken at it, too",
        stale_by_engine=True,
        reference_at_one="RefWorkerBase._forward_micro_batch of workers/worker.py",
    ),
    Row("batch.num_prompts", BATCH, offer=COUNT),
    Row(
        "batch.num_minibatches",
        MINIBATCH,
        offer=COUNT,
        write=lambda s: s.batch.num_prompts // s.batch.num_minibatches,
        read=_minibatches,
        note="SkyRL's key is the size of one, in prompts",
    ),
)
OPTIMIZATION = (
    Row("optimizer.learning_rate", f"{OPTIMIZER}.lr", offer=Number()),
    Row("optimizer.weight_decay", f"{OPTIMIZER}.weight_decay", offer=Number()),
    *(
        replace(row, note=f"the {place} number of the pair")
        for place, row in zip(("first", "second"), beta_rows(BETAS), strict=True)
    ),
    Row(
        "optimizer.epsilon",
        carried_by="PyTorch's default",
        offer=same(1e-8),
        note="PyTorch's default; SkyRL has no key for it",
        advice="SkyRL has no key for AdamW's epsilon. Set optimizer.epsilon=1e-8.",
    ),
    Row(
        "optimizer.max_grad_norm",
        f"{OPTIMIZER}.max_grad_norm",
        offer=Number(null=True, off=0.0),
        note="0 is no clipping; then no gradient norm is logged either",
    ),
    Row(
        "optimizer.schedule",
        f"{OPTIMIZER}.scheduler",
        offer=(
            Meaning("constant", "constant_with_warmup", spellings=("constant",)),
            *same("linear", "cosine"),
        ),
    ),
    Row(
        "optimizer.num_warmup_steps",
        f"{OPTIMIZER}.num_warmup_steps",
        offer=WHOLE,
        account=_warmup_account,
    ),
)
RUN = (
    Row(
        "num_train_steps",
        STEPS,
        offer=COUNT,
        write=_batches,
        adds=lambda s: {"trainer.epochs": _batches(s)},
        read=lambda launch: _steps(launch, STEPS, OUR_STEPS),
        since=COUNTS_STEPS,
        note="counted in rollout batches; the number of epochs is large enough for all of them",
    ),
    Row(
        "num_train_steps",
        OUR_STEPS,
        offer=COUNT,
        write=_batches,
        adds=lambda _: {"trainer.epochs": 1},
        read=lambda launch: _steps(launch, OUR_STEPS, STEPS),
        until=COUNTS_STEPS,
        status="extension",
        note=_EPOCHS,
    ),
    *backend_rows("skyrl", VERSIONS),
    Row(
        "max_staleness_steps",
        ENABLED,
        offer=(Meaning(0, False),),
        read=lambda launch: ABSENT if is_asynchronous(launch) else 0,
        since=COUNTS_STEPS,
    ),
    Row(
        "max_staleness_steps",
        carried_by=f"orch_skyrl.py without {ASYNCHRONOUS}",
        offer=same(0),
        read=lambda launch: ABSENT if is_asynchronous(launch) else 0,
        until=COUNTS_STEPS,
    ),
    *(
        Row(
            "max_staleness_steps",
            key,
            offer=COUNT,
            write=lambda _: True,
            adds=_asynchronous_keys,
            read=lambda launch: launch[BOUND],
            since=since,
            until=until,
            status="approximated",
            note=_AGGREGATE_BOUND,
        )
        for key, since, until in ((ENABLED, COUNTS_STEPS, ""), (ASYNCHRONOUS, "", COUNTS_STEPS))
    ),
    Row("seed", "trainer.seed", offer=WHOLE, status="approximated", note=_SEED),
)


_PASSES = "of the passes (FSDP and autocast); weights and AdamW are fp32"
PRECISION = (
    one_format(
        "training",
        "bf16",
        (f"SkyRL's own: bf16 {_PASSES}", _PASSES),
        "Its workers wrap every pass in torch.autocast(torch.bfloat16), which no key turns "
        "off. Set precision.training=bf16, or train with verl.",
    ),
    Row(
        "precision.rollout",
        f"{ENGINE}.model_dtype",
        offer=(
            Meaning(None, ABSENT, note="SkyRL's own: bf16"),
            *named({"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}),
        ),
    ),
    one_format(
        "checkpoint",
        "fp32",
        (
            "SkyRL's own: the fp32 weights, not rounded",
            "the weights that AdamW updates, not rounded",
        ),
        "It exports its fp32 weights as they are. Set precision.checkpoint=fp32.",
    ),
)


def _steps(launch: Any, *keys: str) -> object:
    batches = next((launch[key] for key in keys if launch.get(key)), None)
    return ABSENT if batches is None else batches * _minibatches(launch)


ENTROPY = (
    Row(
        "loss.entropy_bonus",
        carried_by=f"{ALGORITHM}.use_entropy_loss=false",
        offer=fixed(0.0),
        read=lambda launch: ABSENT if launch.get(f"{ALGORITHM}.use_entropy_loss") else 0.0,
    ),
    Row(
        "loss.entropy_bonus",
        f"{ALGORITHM}.entropy_loss_coef",
        Number(least=1e-300),
        adds=lambda _: {f"{ALGORITHM}.use_entropy_loss": True},
        read=lambda launch: (
            launch[f"{ALGORITHM}.entropy_loss_coef"]
            if launch.get(f"{ALGORITHM}.use_entropy_loss")
            else ABSENT
        ),
        status="approximated",
        note="the mean over the tokens of each micro batch, then of micro batches by their "
        "number of responses: a token of a short one weighs more",
    ),
)

ADAPTER = "trainer.policy.model.lora"
LORA = lora.rows(
    f"{ADAPTER}.rank",
    f"{ADAPTER}.alpha",
    f"{ADAPTER}.target_modules",
    is_on=lambda launch: bool(launch.get(f"{ADAPTER}.rank")),
    off="rank, which is 0",
    adds={f"{ADAPTER}.dropout": 0.0, f"{ADAPTER}.init_method": "kaiming"},
    write=lambda adapter: adapter.targets,
    note="PEFT's adapter in fp32, without dropout; the reference policy is the model, a copy "
    "of its own; vLLM samples with the adapter, which it reads from lora_sync_path; "
    "an export is the adapter, which evaluation merges with its model",
    of_targets="every linear layer but the head (PEFT)",
    offer=Such(ALL_LINEAR, lambda value: value == ALL_LINEAR),
    advice="SkyRL's key is one text, which PEFT would match with whole names of modules: set "
    "lora.targets=all-linear.",
)

MANIFEST = Manifest(
    library="skyrl",
    versions=VERSIONS,
    system=SYSTEM,
    passes_keys=True,
    held=HELD,
    fields_of_keys=FIELDS_OF_KEYS,
    rows=(
        *ENTROPY,
        *MODEL_AND_DATA,
        *POLICY_LOSSES,
        *OBJECTIVE,
        *CORRECTION,
        *KL,
        *ROLLOUT_AND_BATCH,
        *OPTIMIZATION,
        *RUN,
        *PRECISION,
        *LORA,
    ),
    tables=tables(),
    extensions={ADVANTAGE: ("orch_reinforce",), LOSS_TYPE: LOSSES[2:]},
    version_advice=f"Set backend=skyrl@{NEWEST}, or leave the version out.",
)


def is_read(version: str) -> bool:
    """Return True for READ and the releases after it."""
    return is_since(version, READ)


def counts_steps(version: str) -> bool:
    """Return True if a release counts train steps, False if it counts only epochs."""
    return is_since(version, COUNTS_STEPS)
