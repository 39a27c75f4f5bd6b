"""verl's manifest: how each field of a cell reaches releases 0.9.1 and 0.8.0.

A row here has every fact of orch about a field in verl. `orchestrator.library.manifest` lists what
is derived from the rows. options.json has the keys of each release, their defaults and closed
lists of values, read from its configuration and source. Sources of the notes on arithmetic:
trainer/ppo/core_algos.py (kl_penalty_forward, compute_policy_loss_vanilla, agg_loss),
trainer/ppo/ray_trainer.py (apply_kl_penalty) and workers/utils/losses.py (ppo_loss).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from backends.verl import extension
from backends.verl.system import FIELDS_OF_KEYS, SYSTEM
from orchestrator.estimators import TABLE
from orchestrator.library import key_tables, lora
from orchestrator.library.key_tables import driven, is_since, load_options
from orchestrator.library.manifest import (
    ABSENT,
    COUNT,
    OWN_PATH,
    SHIPPED_ADVICE,
    Account,
    AllBut,
    Constant,
    Manifest,
    Meaning,
    Number,
    ReleaseTable,
    Row,
    Status,
    Such,
    Values,
    When,
    beta_rows,
    fixed,
    named,
    one_format,
    same,
    sampling_rows,
)
from orchestrator.library.needs import NEEDS, backend_rows, prompts_row
from orchestrator.losses.table import SAPO_TEMPERATURES
from orchestrator.settings import ALL_LINEAR, Settings

FACTS = Path(__file__).with_name("options.json")
VERSIONS = driven(FACTS)
"""The releases that orch drives, newest first."""
NEWEST = VERSIONS[0]
V1 = "0.9.0"
"""The first release with the trainer (V1) that has modes."""
READ = "0.9.1"
"""The release since which orch has read and wrapped the trainer."""

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VALIDATION = f"{ROLLOUT}.val_kwargs"
MODEL, OPTIMIZER = "actor_rollout_ref.model", "actor_rollout_ref.actor.optim"
REWARD, CORRECTION = "reward.custom_reward_function", "algorithm.rollout_correction"
IS_WEIGHTS, IS_THRESHOLD = f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_is_threshold"
REJECTION, RS_THRESHOLD = f"{CORRECTION}.rollout_rs", f"{CORRECTION}.rollout_rs_threshold"
SEPARATE, SAMPLER = "trainer.v1.separate_async", "trainer.v1.sampler"
WORKER_ENV = "ray_kwargs.ray_init.runtime_env.env_vars"

ADVANTAGE, BY_DEVIATION = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"
USE_REWARD, USE_LOSS = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
PENALTY, LOSS_TYPE = "algorithm.kl_penalty", f"{ACTOR}.kl_loss_type"
CONTROL = "algorithm.kl_ctrl"
CONTROLLER = f"{CONTROL}.type"
REWARD_BETA, LOSS_BETA = f"{CONTROL}.kl_coef", f"{ACTOR}.kl_loss_coef"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
AGGREGATION, CONSTANT_TOKENS = f"{ACTOR}.loss_agg_mode", f"{ACTOR}.loss_scale_factor"
CLIP_LOW, CLIP_HIGH = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
CLIP_DUAL = f"{ACTOR}.clip_ratio_c"
BATCH, MINIBATCH = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"
BETAS, EXTRA = f"{OPTIMIZER}.betas", f"{OPTIMIZER}.override_optimizer_config"
WARMUP, CLIP_GRADIENT = f"{OPTIMIZER}.lr_warmup_steps", f"{OPTIMIZER}.clip_grad"
STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
MODE, AHEAD = "trainer.v1.trainer_mode", f"{SEPARATE}.num_warmup_batches"
PARTS, LIMIT = f"{SEPARATE}.parameter_sync_step", f"{SAMPLER}.max_off_policy_threshold"
STRATEGY, ENGINE = f"{SAMPLER}.max_off_policy_strategy", f"{ROLLOUT}.checkpoint_engine.backend"
TRAINED_IN = f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"
REFERENCE_IN = "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype"
SAMPLED_IN = f"{ROLLOUT}.dtype"
RULE = f"{REWARD}.reward_kwargs.rule"

OFF = 1e9
"""The number that means no bound, for clips of verl that need one: of a ratio, a gradient norm."""
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing, because verl always applies one."""

SEEDS = (f"{ACTOR}.data_loader_seed", f"{ACTOR}.fsdp_config.seed")
LONGER_PROMPTS = "longer prompts are dropped, chat template included"

ADDED = (
    f"{REWARD}.reward_kwargs.",
    f"{WORKER_ENV}.",
    f"{MODEL}.override_config.",
    "hydra.",
    TRAINED_IN.removesuffix("param_dtype"),
    REFERENCE_IN.removesuffix("param_dtype"),
)
"""Prefixes of keys that verl, Ray or Hydra reads and that no configuration of verl has. The engine
reads `mixed_precision`, which the configuration leaves null."""
TABLES: Mapping[str, ReleaseTable] = {
    version: replace(
        key_tables.release_table(version, options, added=ADDED),
        defaults={key: option.default for key, option in options.items()},
    )
    for version, options in load_options(FACTS).items()
}

IN_REWARD = {"kl.placement": ("reward",)}
IN_LOSS = {"kl.placement": ("loss",)}
IN_BOTH = {"kl.placement": ("reward_and_loss",)}
NO_KL = {"kl.placement": (None,)}
STALE = {"max_staleness_steps": Number(least=1)}


def is_read(version: str) -> bool:
    """Return True for READ and the releases after it."""
    return is_since(version, READ)


def updates_per_tick(settings: Settings) -> int:
    """Return the train steps between two moves of verl's learning-rate schedule.

    The schedule moves once per call of update_actor. That is once per rollout batch when
    synchronous, and once per minibatch in separate_async.
    """
    return 1 if settings.max_staleness_steps else settings.batch.num_minibatches


# The KL's estimators. verl compares names in kl_penalty_forward; `+` is straight-through.

_K3 = (
    "verl holds the log-ratio within ±20 and the estimate within ±10: where k3 > 10 its "
    "gradient is 0"
)
_K3_STRAIGHT = "the value is held within ±10; the gradient is k2's everywhere"
_NO_GRADIENT = "no gradient passes through the reward: the + changes nothing there"

LOSS_TYPES = (
    Meaning("k1", "k1", spellings=("kl",)),
    Meaning("k2", "k2", spellings=("mse",)),
    Meaning("k3", "k3", "approximated", _K3, spellings=("low_var_kl",)),
    Meaning("abs", "abs"),
    Meaning("k1+", "k1+", spellings=("kl+",)),
    Meaning("k2+", "k2+", spellings=("mse+",)),
    Meaning("k3+", "k3+", "approximated", _K3_STRAIGHT, spellings=("low_var_kl+",)),
    Meaning("abs+", "abs+"),
)
"""The estimators in the loss."""

PENALTIES = (
    Meaning("k1", "kl", spellings=("k1",)),
    *(
        replace(each, note=each.note or (_NO_GRADIENT if str(each.ours).endswith("+") else ""))
        for each in LOSS_TYPES[1:]
    ),
)
"""The estimators in the reward. k1 has the spelling of Table 2 of the paper."""


def _weighted(in_both: bool) -> tuple[Meaning, ...]:
    """Return the meanings of the estimators that only extension.py adds to verl."""
    also = "; in the reward, where the ratio is 1, without it" if in_both else ""
    return tuple(
        Meaning(
            name,
            name,
            "extension",
            f"orch_verl multiplies verl's own KL by exp(logp - old logp)"
            f"{'; k3 held within ±10' if plain == 'k3' else ''}{also}",
        )
        for name, (plain, _) in extension.WEIGHTED.items()
    )


def unweighted(estimator: str) -> str:
    """Return the estimator without its importance weight."""
    plain, _ = extension.WEIGHTED.get(estimator, (estimator, False))
    return plain


_PENALTY_OF = {each.ours: each.theirs for each in PENALTIES}


def _estimator_in_both(values: Values) -> object:
    """Return the loss's estimator if the reward's is the same, apart from the weight."""
    estimator = _LOSS_ROW.ours(values[LOSS_TYPE])
    if _REWARD_ROW.ours(values[PENALTY]) != unweighted(str(estimator)):
        raise KeyError(values[PENALTY])
    return estimator


_OF_SAMPLES = (
    "verl's loss gets the reference policy's log-probabilities of sampled tokens only "
    "(workers/utils/losses.py, ppo_loss, line 133 in 0.8.0 and 0.9.1): another process makes them "
    "(workers/engine_workers.py, compute_ref_log_prob), and no hook hands on the logits that a KL "
    "over the vocabulary needs. TRL trains full, full_forward, rb and rb_k1: set "
    "backend.name=trl."
)


def _estimator_advice(settings: Settings) -> str:
    """Return why verl lacks an estimator, as far as it is known."""
    estimator = settings.kl.estimator
    form = TABLE.get(estimator)
    if form is not None and form.is_of_vocabulary:
        return _OF_SAMPLES
    if settings.kl.placement == "reward" and estimator in extension.WEIGHTED:
        return (
            f"The KL in the reward is the rollout policy's own, whose ratio is 1: {estimator} is "
            f"{unweighted(estimator)} there. kl.placement=loss has {estimator}."
        )
    return ""


_REWARD_ROW = Row("kl.estimator", PENALTY, PENALTIES, when=IN_REWARD, advice=_estimator_advice)
_TO_GO_NOTE = (
    "an advantage estimator of orch_verl: a token is charged its own k1 and that of later tokens, "
    "and the baseline is of each position, where a response that has ended counts with its task "
    "reward"
)
_TO_GO_ROW = Row(
    "kl.estimator",
    carried_by=ADVANTAGE,
    offer=(Meaning("k1_to_go", ABSENT, "extension", _TO_GO_NOTE),),
    adds=lambda _: {PENALTY: "kl"},
    read=lambda values: "k1_to_go" if values[ADVANTAGE] in extension.TO_GO.values() else ABSENT,
    when=IN_REWARD,
)
_LOSS_ROW = Row(
    "kl.estimator",
    LOSS_TYPE,
    LOSS_TYPES + _weighted(in_both=False),
    when=IN_LOSS,
    advice=_estimator_advice,
)

_BETA_IS_LOST = (
    "verl's controller, whose rule is the cell's; verl saves no β, so a resumed run begins again "
    "at kl.beta"
)


def _is_controlled(values: Values) -> bool:
    """Return True if beta follows the KL."""
    return values.get(CONTROLLER) == "adaptive"


_BESIDE_REWARD = (
    "in the reward: of the policy before its first minibatch, token by token, which rloo and "
    "grpo sum over the response, inside the group baseline"
)
_BESIDE_LOSS = "in the loss: aggregated as the policy loss is, with no importance weight of its own"

KL_ROWS = (
    Row(
        "kl.estimator",
        offer=(Meaning("none", ABSENT, note="no reference policy is loaded"),),
        carried_by=f"{USE_REWARD}=False and {USE_LOSS}=False",
        when=NO_KL,
    ),
    _TO_GO_ROW,
    _REWARD_ROW,
    _LOSS_ROW,
    Row(
        "kl.estimator",
        LOSS_TYPE,
        LOSS_TYPES + _weighted(in_both=True),
        adds=lambda s: {PENALTY: _PENALTY_OF[unweighted(s.kl.estimator)]},
        read=_estimator_in_both,
        when=IN_BOTH,
        advice=_estimator_advice,
    ),
    Row(
        "kl.placement",
        offer=(Meaning(None, ABSENT, also={USE_REWARD: False, USE_LOSS: False}),),
        carried_by=f"{USE_REWARD}=False and {USE_LOSS}=False",
    ),
    Row(
        "kl.placement",
        USE_REWARD,
        (Meaning("reward", True, note=_BESIDE_REWARD, also={USE_LOSS: False}),),
    ),
    Row(
        "kl.placement",
        USE_LOSS,
        (
            Meaning("loss", True, note=_BESIDE_LOSS, also={USE_REWARD: False}),
            Meaning(
                "reward_and_loss",
                True,
                note=f"{_BESIDE_REWARD}; {_BESIDE_LOSS}",
                also={USE_REWARD: True},
            ),
        ),
    ),
    Row("kl.beta", offer=fixed(0.0), carried_by="no KL term", when=NO_KL),
    *(
        Row("kl.beta", key, Number(least=0), when=when, note=note)
        for key, when, note in (
            (REWARD_BETA, IN_REWARD, "fixed; multiplies the sum over a response"),
            (LOSS_BETA, IN_LOSS, "multiplies the aggregated KL"),
        )
    ),
    Row(
        "kl.beta",
        LOSS_BETA,
        Number(least=0),
        adds=lambda s: {REWARD_BETA: s.kl.beta},
        when=IN_BOTH,
        note="the same in both places",
    ),
    Row(
        "kl.controller",
        offer=fixed(None),
        carried_by=f"{CONTROLLER}=fixed",
        read=lambda values: ABSENT if _is_controlled(values) else None,
    ),
    Row(
        "kl.controller.target",
        f"{CONTROL}.target_kl",
        Number(),
        adds=lambda _: {CONTROLLER: "adaptive"},
        read=lambda values: values[f"{CONTROL}.target_kl"] if _is_controlled(values) else ABSENT,
        status="approximated",
        note=_BETA_IS_LOST,
    ),
    Row(
        "kl.controller.horizon",
        f"{CONTROL}.horizon",
        COUNT,
        read=lambda values: values[f"{CONTROL}.horizon"] if _is_controlled(values) else ABSENT,
        note="counted in responses",
    ),
    Row(
        "kl.reset_reference_every_steps",
        offer=fixed(None, "verl never replaces its reference policy"),
        carried_by="verl loads its reference policy once",
        advice="verl loads its reference policy once: leave it out, or ask a backend that resets "
        "it.",
    ),
)


# The model and the prompts.


def _template(values: Values) -> object:
    """Return `none` for orch's plain template. Any other template counts as the model's own."""
    template = values[f"{MODEL}.custom_chat_template"]
    return "none" if template == PLAIN_TEMPLATE else "default"


DATA_ROWS = (
    Row("model.name", carried_by="nothing", note="a label, not sent to verl"),
    Row("model.path", f"{MODEL}.path", OWN_PATH, advice=SHIPPED_ADVICE),
    Row(
        "model.chat_template",
        f"{MODEL}.custom_chat_template",
        (
            Meaning(
                "default", None, note="the tokenizer's own; verl applies it to base models too"
            ),
            Meaning(
                "none",
                PLAIN_TEMPLATE,
                note="a template that only joins the messages, with no token before them",
            ),
        ),
        read=_template,
    ),
    prompts_row("name", "a label, not sent to verl"),
    prompts_row(
        "path",
        f"prepared beforehand as data/train.parquet from what {NEEDS} names",
        key="data.train_files",
    ),
    prompts_row("split", "applied when data/train.parquet is prepared"),
    prompts_row(
        "num_prompts",
        "a check of the prepared file; not sent to verl",
    ),
    prompts_row("instruction", "appended to each prompt when data/train.parquet is prepared"),
    Row(
        "data.reward",
        RULE,
        note="a custom reward function with this rule, reward.py: verl would else choose a "
        "scorer by data_source",
    ),
    Row(
        "data.max_prompt_tokens",
        "data.max_prompt_length",
        COUNT,
        note=LONGER_PROMPTS,
    ),
)


# The advantage, the loss and the rollouts.

_CLAMPED = "the log-ratio is held within ±20"
_SAME_KL = "the KL in the loss is aggregated alike"
_GMPO = (
    "verl adds the mean of each micro batch instead of the minibatch's (core_algos.py, "
    "compute_policy_loss_geo_mean): the gradient is as many times larger as there are micro "
    "batches, so beta of a KL in the loss counts that much less, and a response in a small micro "
    "batch counts more"
)

SAPO_TAU = dict(zip((f"{ACTOR}.tau_pos", f"{ACTOR}.tau_neg"), SAPO_TEMPERATURES, strict=True))
"""The keys of SAPO's temperatures, and their values in the table of losses."""

POLICY_LOSSES = (
    Meaning("ppo", "vanilla"),
    Meaning("reinforce", "gpg"),
    Meaning("gspo", "gspo", note="the log of the mean ratio is held below 10"),
    Meaning("cispo", "cispo", note=_CLAMPED),
    Meaning("sapo", "sapo", also=SAPO_TAU),
    Meaning("gmpo", "geo_mean", "approximated", _GMPO),
    Meaning("dppo_tv", "dppo_tv", note="clip_ratio_low and _high bound a probability"),
    Meaning("dppo_kl", "dppo_kl", note="clip_ratio_low and _high bound a KL in nats"),
)
"""The policy losses. verl's clip_cov, kl_cov and dro are no entry of orch's table for specs."""
UNBOUNDED = ("reinforce", "sapo")
"""Losses that read no bound."""
DUAL = ("ppo", "dppo_tv", "dppo_kl")
"""Losses that read clip_ratio_c: a second clip, or the most that the ratio weighs."""
UNHELD = ("gspo", "gmpo")
"""Losses whose ratio by token verl does not hold within ±20."""
BY_RESPONSE = ("sapo", "gmpo")
"""Losses that verl averages by response, whatever loss_agg_mode is."""
_BY_RESPONSE_ADVICE = (
    "verl averages this policy loss by response, and a KL by loss_agg_mode: set "
    "loss.aggregation=sequence_mean."
)


def _clipped(*, but: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> When:
    """Return the cells with a clip, whose loss.clip is a section, of some policy losses."""
    return {"loss.clip": (ABSENT,), "loss.policy": only or AllBut(but)}


def _aggregations(by_response: tuple[str, ...], since: str, until: str) -> tuple[Row, Row]:
    """Return the rows of loss.aggregation in releases that average these losses by response."""
    by_length = Meaning("sequence_mean", "seq-mean-token-mean", note=_SAME_KL)
    whole = Meaning("token_mean", "token-mean", note="over the whole minibatch, all GPUs together")
    constant = Meaning("constant", "seq-mean-token-sum-norm", note=_SAME_KL)
    any_loss = Row(
        "loss.aggregation",
        AGGREGATION,
        (whole, by_length, constant),
        when={"loss.policy": AllBut(by_response)},
        since=since,
        until=until,
    )
    return any_loss, replace(
        any_loss,
        offer=(by_length,),
        when={"loss.policy": by_response},
        advice=_BY_RESPONSE_ADVICE,
    )


LOSS_ROWS = (
    Row("loss.policy", LOSS_MODE, POLICY_LOSSES),
    Row(
        "advantage.estimator",
        ADVANTAGE,
        tuple(
            Meaning(ours, theirs, "extension", _TO_GO_NOTE)
            for ours, theirs in extension.TO_GO.items()
        ),
        when={"kl.placement": ("reward",), "kl.estimator": ("k1_to_go",)},
    ),
    Row(
        "advantage.estimator",
        ADVANTAGE,
        (
            Meaning("rloo", "rloo"),
            Meaning(
                "grpo",
                "grpo",
                note="divides by the unbiased standard deviation + 1e-6, a KL in the reward too",
                also={BY_DEVIATION: True},
            ),
            Meaning(
                "dr_grpo",
                "grpo",
                note="grpo with algorithm.norm_adv_by_std_in_grpo=False",
                also={BY_DEVIATION: False},
            ),
            Meaning(
                "reinforce",
                extension.REINFORCE,
                "extension",
                "registered by orch_verl: verl's own variants whiten the advantages",
            ),
        ),
        when={"kl.estimator": AllBut(("k1_to_go",))},
    ),
    *_aggregations(BY_RESPONSE, since="0.9.1", until=""),
    *_aggregations((*BY_RESPONSE, "gspo"), since="", until="0.9.1"),
    Row(
        "loss.constant_tokens",
        CONSTANT_TOKENS,
        (Meaning(None, None),),
        read=lambda _: None,
        when={"loss.aggregation": ("token_mean", "sequence_mean")},
    ),
    Row(
        "loss.constant_tokens",
        CONSTANT_TOKENS,
        COUNT,
        when={"loss.aggregation": ("constant",)},
        note="left out, verl would divide by the width of the padded batch, which varies",
    ),
    Row(
        "loss.clip",
        CLIP_HIGH,
        (
            Meaning(
                None,
                OFF,
                note=f"bounds no ratio reaches, dual clip included; {_CLAMPED}",
                also={CLIP_LOW: 1.0, CLIP_DUAL: OFF},
            ),
        ),
        read=lambda values: None if values[CLIP_HIGH] == OFF else ABSENT,
        when={"loss.policy": AllBut(UNBOUNDED)},
    ),
    Row(
        "loss.clip",
        offer=fixed(None),
        carried_by="the loss, which reads no bound",
        when={"loss.policy": UNBOUNDED},
    ),
    *(
        Row(field, key, Number(most=most), when=when, note=note, advice=advice)
        for when, note in (
            (_clipped(but=UNHELD), _CLAMPED),
            (_clipped(only=UNHELD), ""),
        )
        for field, key, most, advice in (
            ("loss.clip.low", CLIP_LOW, float("inf"), ""),
            ("loss.clip.high", CLIP_HIGH, OFF, "Set loss.clip=null for no bound."),
        )
    ),
    *(
        Row(
            "loss.clip.dual",
            CLIP_DUAL,
            (Meaning(None, OFF, note=f"a bound no ratio reaches: {note}"),),
            when=_clipped(only=policies),
        )
        for policies, note in (
            (("ppo",), "verl always clips twice, by default at 3"),
            (("dppo_tv", "dppo_kl"), "verl bounds the ratio's weight, by default at 3"),
        )
    ),
    Row(
        "loss.clip.dual",
        CLIP_DUAL,
        Number(most=OFF),
        when=_clipped(only=DUAL),
        advice="Set loss.clip.dual=null for no bound.",
    ),
    Row(
        "loss.clip.dual",
        offer=fixed(None),
        carried_by="the loss, which reads no clip_ratio_c",
        when=_clipped(but=DUAL),
        advice="verl's loss does not read clip_ratio_c: leave loss.clip.dual out.",
    ),
    Row("rollout.group_size", f"{ROLLOUT}.n", COUNT),
    Row("rollout.max_response_tokens", "data.max_response_length", COUNT),
    *sampling_rows(f"{ROLLOUT}.temperature", f"{ROLLOUT}.top_p", "", stale_by_engine=True),
)


# The optimizer and the number of steps.


def _updates(values: Values) -> int:
    """Return the train steps of one rollout batch. Raise KeyError if a batch makes none."""
    updates = _whole(values, BATCH) // _whole(values, MINIBATCH)
    if not updates:
        raise KeyError(MINIBATCH)
    return updates


def _whole(values: Values, key: str) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise KeyError(value)
    return value


def _epsilon(values: Values) -> object:
    """Return AdamW's epsilon. If the launch gives none, return torch's default, 1e-8."""
    extra = values[EXTRA]
    return extra.get("eps", 1e-8) if isinstance(extra, Mapping) else 1e-8


def _warmup(values: Values) -> object:
    """Return the train steps of the warm-up.

    A ratio refers to verl's own steps and is rounded down.
    """
    per_tick = 1 if _staleness(values) else _updates(values)
    ticks, ratio = values[WARMUP], values[f"{WARMUP}_ratio"]
    if isinstance(ticks, int) and ticks > 0:
        return ticks * per_tick
    if isinstance(ratio, float) and ratio > 0:
        return int(ratio * _train_steps(values) / per_tick) * per_tick
    return 0


def _train_steps(values: Values) -> int:
    return _whole(values, STEPS) * _updates(values)


def _staleness(values: Values) -> int:
    if values.get(MODE) != "separate_async":
        return 0
    return _whole(values, AHEAD) * _updates(values)


def _schedule_account(settings: Settings) -> Account:
    if settings.optimizer.schedule != "constant" and updates_per_tick(settings) > 1:
        return "approximated", "verl moves it once a rollout batch, not once a train step"
    return "exact", ""


def _asynchronous(settings: Settings) -> Values:
    """Return the keys that bound staleness. verl counts in rollout batches.

    It waits if a batch would be older than the bound.
    """
    updates = settings.batch.num_minibatches
    batches = settings.max_staleness_steps // updates
    return {PARTS: updates, LIMIT: batches + 1, MODE: "separate_async"}


def _seeding(keys: Iterable[str]) -> Callable[[Settings], Values]:
    return lambda settings: dict.fromkeys(keys, settings.seed)


def _steps(settings: Settings) -> int:
    return settings.num_train_steps // settings.batch.num_minibatches


OPTIMIZER_ROWS = (
    Row("optimizer.learning_rate", f"{OPTIMIZER}.lr", Number()),
    Row("optimizer.weight_decay", f"{OPTIMIZER}.weight_decay", Number()),
    *beta_rows(BETAS),
    Row(
        "optimizer.epsilon",
        EXTRA,
        Number(),
        write=lambda s: {"eps": s.optimizer.epsilon},
        read=_epsilon,
    ),
    Row(
        "optimizer.max_grad_norm",
        CLIP_GRADIENT,
        (Meaning(None, OFF, note="a bound no gradient reaches: verl insists on one"),),
    ),
    Row(
        "optimizer.max_grad_norm",
        CLIP_GRADIENT,
        Number(most=OFF),
        note="verl does not read actor.grad_clip, which has the same default",
        advice="Set optimizer.max_grad_norm=null for no bound.",
    ),
    Row(
        "optimizer.schedule",
        f"{OPTIMIZER}.lr_scheduler_type",
        same("constant", "cosine"),
        account=_schedule_account,
        advice="Set optimizer.schedule=constant or cosine.",
    ),
    Row("optimizer.num_warmup_steps", WARMUP, (Meaning(0, 0),), read=_warmup),
    Row(
        "optimizer.num_warmup_steps",
        WARMUP,
        COUNT,
        write=lambda s: s.optimizer.num_warmup_steps // updates_per_tick(s),
        read=_warmup,
        status="approximated",
        note="counted from 0, so that the first update has learning rate 0; verl moves it once"
        " a rollout batch, or once a minibatch when asynchronous",
    ),
)

STEP_ROWS = (
    Row(
        "batch.num_prompts",
        BATCH,
        COUNT,
        note="prompts, not rollouts; verl multiplies by rollout.n",
    ),
    Row(
        "batch.num_minibatches",
        MINIBATCH,
        COUNT,
        write=lambda s: s.batch.num_prompts // s.batch.num_minibatches,
        read=_updates,
        note="equal parts of the rollout batch in its order, each used once",
    ),
    Row(
        "num_train_steps",
        STEPS,
        COUNT,
        write=_steps,
        adds=lambda s: {EPOCHS: _steps(s)},
        read=_train_steps,
        note="counted by verl in rollout batches; trainer.total_epochs, which would end "
        "training earlier, is raised to the same number",
    ),
    *backend_rows("verl", VERSIONS),
    Row(
        "max_staleness_steps",
        offer=(
            Meaning(
                0,
                ABSENT,
                note="trainer.v1.trainer_mode=sync; old log-probabilities are recomputed",
                also={MODE: "sync"},
            ),
        ),
        carried_by=MODE,
        since=V1,
    ),
    Row(
        "max_staleness_steps",
        AHEAD,
        COUNT,
        write=lambda s: s.max_staleness_steps // s.batch.num_minibatches,
        adds=_asynchronous,
        read=_staleness,
        since=V1,
        status="approximated",
        note="separate_async: a bound, not the lag of every rollout, held by waiting, counted "
        "in rollout batches; a response that new weights interrupt continues with them; "
        "ratios are to the sampler's own log-probabilities (bypass_mode)",
    ),
    Row(
        "max_staleness_steps",
        offer=fixed(0, "the synchronous trainer; old log-probabilities are recomputed"),
        carried_by="the only trainer of the release",
        until=V1,
        advice=f"Asynchronous training needs the trainer of {NEWEST}: set "
        f"backend.version={NEWEST}, or max_staleness_steps=0.",
    ),
    *(
        Row(
            "seed",
            "data.seed",
            Number(least=0, most=2**32, whole=True),
            adds=_seeding(seeded),
            read=lambda values: values["data.seed"] or 0,
            since=since,
            until=until,
            status="approximated",
            note=f"seeds prompt order, minibatches{sampling}; equal seeds do not give equal bits",
            advice="Choose a smaller seed.",
        )
        for seeded, sampling, since, until in (
            ((*SEEDS, f"{ROLLOUT}.seed"), ", sampling", V1, ""),
            (SEEDS, "; sampling cannot be seeded before 0.9", "", V1),
        )
    ),
)

# Number formats: workers/engine/fsdp/transformer_impl.py, model_merger/fsdp_model_merger.py.

_AUTOCAST = "of the passes (autocast); weights, sums of gradients and AdamW are fp32"


def _trained_in(ours: str, theirs: str, note: str) -> Meaning:
    return Meaning(ours, ours, note=note, spellings=(theirs,), also={REFERENCE_IN: ours})


def _sampled_in(note: str = "", status: Status = "exact") -> tuple[Meaning, ...]:
    """Return the meanings of the engine's formats. Formats except bf16 have `note` and `status`."""
    return (
        Meaning(None, ABSENT, note="verl's own: bf16"),
        Meaning("bf16", "bfloat16"),
        Meaning("fp16", "float16", status, note, spellings=("half",)),
        Meaning("fp32", "float32", status, note, spellings=("float",)),
    )


PRECISION_ROWS = (
    Row(
        "precision.training",
        TRAINED_IN,
        (
            Meaning(
                None,
                ABSENT,
                note=f"verl's own: bf16 {_AUTOCAST}. Against fp32 it moved the norm of a gradient "
                "by up to 9 % (verl 0.9.1, 20 train steps). verl does not read fsdp_config.dtype",
            ),
            _trained_in("bf16", "bfloat16", _AUTOCAST),
            _trained_in(
                "fp16", "float16", f"{_AUTOCAST}; a gradient that overflows skips its train step"
            ),
            _trained_in("fp32", "float32", "no autocast; the reference policy's passes too"),
        ),
    ),
    Row("precision.rollout", SAMPLED_IN, _sampled_in(), since=V1),
    Row(
        "precision.rollout",
        SAMPLED_IN,
        _sampled_in("the weights that reach it were rounded to bf16 on the way", "approximated"),
        until=V1,
    ),
    one_format(
        "checkpoint",
        "bf16",
        (
            "verl's own: model_merger rounds every weight to bf16",
            "model_merger rounds every weight to it",
        ),
        "model_merger, which makes the Hugging Face directory, rounds every weight to bf16 "
        "and has no key for another format. Set precision.checkpoint=bf16.",
    ),
)


# The correction of the engine's mismatch: trainer/ppo/rollout_corr_helper.py,
# compute_rollout_correction_weights and compute_rollout_rejection_mask, and
# trainer/ppo/core_algos.py, compute_policy_loss_vanilla.

_WEIGHTS = {f"{cut}_{level}": level for cut in ("tis", "mis") for level in ("token", "sequence")}
"""loss.correction.kind -> rollout_is."""
REJECTED = {
    "reject_token": "token_k1",
    "reject_sequence": "seq_sum_k1",
    "geometric": "seq_mean_k1",
}
"""loss.correction.kind -> rollout_rs. Its bounds are of the inverse ratio."""
_OFF = "the ratio of the trainer's probability before the first minibatch to the engine's"
_UPPER = "verl has an upper bound always: set loss.correction.most."


def _of_kinds(kinds: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    return {"loss.correction.kind": tuple(kinds)}


def _inverse(x: float) -> float:
    return float(f"{1 / x:.15g}")


_INVERTED = Such(
    "positive numbers of at most 15 digits",
    lambda x: isinstance(x, float | int) and x > 0 and _inverse(1 / x) == x,
)
"""Positive numbers that two inversions give back."""


def _threshold(settings: Settings) -> object:
    """Return the upper bound alone (truncate), or both bounds as verl writes them (mask)."""
    correction = settings.loss.correction
    if correction is None or correction.kind.startswith("tis"):
        return None if correction is None else correction.most
    return f"{correction.least:.17g}_{correction.most}"


def _inverse_threshold(settings: Settings) -> object:
    """Return both bounds of the inverse ratio."""
    correction = settings.loss.correction
    if correction is None or correction.most is None:
        return None
    return f"{1 / correction.most:.17g}_{1 / correction.least:.17g}"


def _bounds(values: Values) -> tuple[float | None, float]:
    """Return both bounds of the ratio; the lower is None if verl truncates. Raise KeyError for
    other text."""
    rejects = bool(values.get(REJECTION))
    text = str(values[RS_THRESHOLD if rejects else IS_THRESHOLD])
    least, _, most = text.rpartition("_")
    try:
        if rejects:
            return _inverse(float(most)), _inverse(float(least))
        return (float(least) if least else None), float(most)
    except (ValueError, ZeroDivisionError):
        raise KeyError(text) from None


def is_corrected(values: Values) -> bool:
    """Return True if a launch weighs its samples for the engine, or rejects some."""
    return bool(values.get(IS_WEIGHTS) or values.get(REJECTION))


def _weight(values: Values) -> object:
    level = values.get(IS_WEIGHTS)
    if not level:
        return ABSENT
    if level not in ("token", "sequence") or values.get(REJECTION):
        raise KeyError(level)
    return f"{'tis' if _bounds(values)[0] is None else 'mis'}_{level}"


def _rejection(values: Values) -> object:
    rejection = values.get(REJECTION)
    if not rejection:
        return ABSENT
    if values.get(IS_WEIGHTS):
        raise KeyError(rejection)
    return {theirs: ours for ours, theirs in REJECTED.items()}[str(rejection)]


def _reads(side: int) -> Callable[[Values], object]:
    return lambda values: _bounds(values)[side] if is_corrected(values) else ABSENT


def _applies_to(values: Values) -> object:
    if not is_corrected(values):
        return ABSENT
    return "both" if values.get(REJECTION) and values.get(USE_LOSS) else "policy_loss"


_CORRECTION_ROWS = (
    Row(
        "loss.correction",
        offer=fixed(None, "rollout_is and rollout_rs are left out: no weight"),
        carried_by=f"the absence of {IS_WEIGHTS} and of {REJECTION}",
        read=lambda values: ABSENT if is_corrected(values) else None,
    ),
    *(
        Row(
            "loss.correction.kind",
            key,
            named(kinds),
            read=read,
            note=note,
        )
        for key, kinds, read, note in (
            (IS_WEIGHTS, _WEIGHTS, _weight, _OFF),
            (REJECTION, REJECTED, _rejection, f"{_OFF}; what is rejected stays in the divisor"),
        )
    ),
    Row(
        "loss.correction.least",
        offer=same(0.0),
        carried_by="truncation, which has an upper bound only",
        read=lambda values: 0.0 if values.get(IS_WEIGHTS) else ABSENT,
        when=_of_kinds(("tis_token", "tis_sequence")),
        advice="verl truncates from above only: leave loss.correction.least out.",
    ),
    Row(
        "loss.correction.least",
        IS_THRESHOLD,
        Number(least=1e-12),
        carried_by=f"{IS_THRESHOLD}, as least_most",
        read=_reads(0),
        when=_of_kinds(("mis_token", "mis_sequence")),
        advice="verl masks between two bounds: set loss.correction.least above 0.",
    ),
    Row(
        "loss.correction.most",
        IS_THRESHOLD,
        Number(),
        write=_threshold,
        read=_reads(1),
        when=_of_kinds(_WEIGHTS),
        advice=_UPPER,
    ),
    Row(
        "loss.correction.least",
        RS_THRESHOLD,
        _INVERTED,
        carried_by=f"{RS_THRESHOLD}, as 1/most_1/least: verl bounds the inverse ratio",
        read=_reads(0),
        when=_of_kinds(REJECTED),
        advice="verl rejects between two bounds: set loss.correction.least above 0.",
    ),
    Row(
        "loss.correction.most",
        RS_THRESHOLD,
        _INVERTED,
        write=_inverse_threshold,
        read=_reads(1),
        when=_of_kinds(REJECTED),
        advice=_UPPER,
    ),
    *(
        Row(
            "loss.correction.applies_to",
            offer=same(part),
            carried_by=why,
            read=_applies_to,
            when=when,
            advice=f"In verl {why}: set loss.correction.applies_to={part}.",
        )
        for part, why, when in (
            ("policy_loss", "the KL in the loss is not weighted", _of_kinds(_WEIGHTS)),
            (
                "policy_loss",
                "a rejected sample leaves the policy loss",
                {**_of_kinds(REJECTED), "kl.placement": (None, "reward")},
            ),
            (
                "both",
                "a rejected sample leaves the policy loss and the KL in the loss",
                {**_of_kinds(REJECTED), "kl.placement": ("loss", "reward_and_loss")},
            ),
        )
    ),
)
CORRECTION_ROWS = tuple(replace(row, since=V1) for row in _CORRECTION_ROWS)


ENTROPY_ROWS = (
    Row(
        "loss.entropy_bonus",
        f"{ACTOR}.entropy_coeff",
        Number(least=0),
        write=lambda s: s.loss.entropy_bonus or 0,
        note="at the temperature of sampling, aggregated as the policy loss is",
    ),
)

LORA_ROWS = lora.rows(
    f"{MODEL}.lora_rank",
    f"{MODEL}.lora_alpha",
    f"{MODEL}.target_modules",
    is_on=lambda values: bool(values.get(f"{MODEL}.lora_rank")),
    off="lora_rank, which is 0",
    # As verl's own examples have it (examples/grpo_trainer, *_lora.sh): vLLM reads the model from
    # its files, and adapters are gathered layer by layer.
    adds={f"{ROLLOUT}.load_format": "safetensors", f"{ROLLOUT}.layered_summon": True},
    write=lambda adapter: adapter.modules if adapter.targets != ALL_LINEAR else ALL_LINEAR,
    note="PEFT's adapter in the weights' format, without dropout; the reference policy is the "
    "actor with its adapter off (ref_in_actor); vLLM samples with the adapter; "
    "evaluation merges it with its model",
    of_targets="all-linear is every linear layer but the head (PEFT)",
)

CONSTANTS = (
    Constant("data.filter_overlong_prompts", True),
    Constant("data.shuffle", True),
    Constant("critic.enable", False),
    Constant(BY_DEVIATION, True, accepts=(True, False)),
    Constant(
        CONTROLLER,
        "fixed",
        accepts=("fixed", "adaptive"),
        when={"kl.placement": ("reward", "reward_and_loss")},
    ),
    Constant(f"{ACTOR}.ppo_epochs", 1, accepts=(1,)),
    Constant(f"{ACTOR}.shuffle", False),
    Constant(f"{ACTOR}.use_dynamic_bsz", True),
    Constant(f"{ROLLOUT}.name", "vllm", accepts=("vllm", "sglang", "trtllm")),
    Constant(f"{ROLLOUT}.top_k", -1, accepts=(-1,)),
    Constant(f"{ROLLOUT}.calculate_log_probs", True),
    Constant(f"{ROLLOUT}.tensor_model_parallel_size", 1),
    Constant(f"{ROLLOUT}.gpu_memory_utilization", 0.6),
    Constant("trainer.val_before_train", True),
    Constant("trainer.resume_mode", "auto"),
    Constant("trainer.use_v1", True, accepts=(True,), since=V1),
    Constant(MODE, "separate_async", accepts=("sync", "separate_async"), when=STALE, since=V1),
    Constant(STRATEGY, "wait", accepts=("drop", "wait"), when=STALE, since=V1),
    Constant(ENGINE, "nccl", when=STALE, since=V1),
    Constant(f"{CORRECTION}.bypass_mode", True, when=STALE, since=V1),
    Constant(f"{ACTOR}.calculate_entropy", True, when=STALE, since=V1),
)
"""Keys that every launch sends and no field has. Without them it would train another cell."""

MANIFEST = Manifest(
    library="verl",
    versions=VERSIONS,
    rows=(
        *DATA_ROWS,
        *LOSS_ROWS,
        *CORRECTION_ROWS,
        *KL_ROWS,
        *OPTIMIZER_ROWS,
        *STEP_ROWS,
        *PRECISION_ROWS,
        *ENTROPY_ROWS,
        *LORA_ROWS,
    ),
    system=SYSTEM,
    passes_keys=True,
    adds_keys=True,
    fields_of_keys=FIELDS_OF_KEYS,
    tables=TABLES,
    constants=CONSTANTS,
    extensions={
        LOSS_TYPE: frozenset(extension.WEIGHTED),
        ADVANTAGE: {extension.REINFORCE, *extension.TO_GO.values()},
    },
)
