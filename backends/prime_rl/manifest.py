"""One table: how each field of a cell reaches Prime-RL 0.5.0 and 0.8.0.

Keys are those of rl.toml, without the branch of a union. [inference] is the server's own file if
the server runs on a second node. `needs.json`, which orch writes next to them, holds what Prime-RL
has no key for. Fields that go through hooks.py or environment.py have the status `extension`.
"""

import re
from collections.abc import Callable, Mapping

from backends.prime_rl.releases import CURRENT, NAME, OLD, VERSIONS, keys
from backends.prime_rl.system import FIELDS_OF_KEYS, SYSTEM
from orchestrator.library import lora
from orchestrator.library.manifest import (
    ABSENT,
    COUNT,
    OWN_PATH,
    REWARD_RULES,
    SHIPPED_ADVICE,
    TEXT,
    WHOLE,
    Account,
    Constant,
    Manifest,
    Meaning,
    Number,
    Offer,
    ReleaseTable,
    Row,
    Status,
    Values,
    fixed,
    one_format,
    same,
)
from orchestrator.library.memory import longest_sequence
from orchestrator.library.needs import NEEDS, asked
from orchestrator.settings import Settings

TORCH_EPSILON = 1e-8
NO_CLIP_NORM = 1e30
"""The norm that means no clipping of the gradient, because the key does not accept None."""
HOOKS = "orch_prime_rl_hooks"
ESTIMATORS = (
    "k1",
    "k2",
    "k3",
    "abs",
    "rho_k1",
    "rho_k2",
    "sg_rho_k2",
    "rho_k3",
    "k1+",
    "k2+",
    "k3+",
    "abs+",
)
"""The estimators of `token_kl` in hooks.py. A test compares the two."""
ADVANTAGES: Mapping[str, str] = {
    "dr_grpo": "",
    "rloo": "leave_one_out",
    "grpo": "standardised",
    "reinforce": "plain",
}
"""orch's estimator -> a function of hooks.py, or Prime-RL's default (reward minus group mean)."""

_OURS = "through our loss (hooks.py), which its `custom` loss hook calls"
_ESTIMATOR = f"{_OURS}, with the log-probabilities of its teacher model; not clamped"
_PLACEMENT = (
    f"{_OURS}. In the reward: the sum over the response at the current policy, without gradient, "
    "after the group baseline: the same expected gradient as before it, with more variance (with a "
    "baseline that contains the rollout itself, dr_grpo or grpo, the weight of KL against the "
    "reward is group_size / (group_size - 1) of the usual). In the loss: no importance weight but "
    "the estimator's own; divided by the tokens of the trainer rank, as the policy loss is"
)
_NO_KL = "its own kl_tau, which pulls to the rollout policy, is not in our loss"
LAG = (
    "bounds how old the rollout policy is when a batch is full, and how many updates a rollout "
    "may live through: its first tokens may be older than the bound by as many. Not every batch is "
    "this stale: the newest weights are used"
)
_DROPPED = "rollouts in flight when the policy is updated are dropped"
_LAG_OF_CURRENT = (
    "one batch is generated while another trains; a rollout may live through one update, and its "
    "first tokens are then older by one"
)
AGGREGATION = {
    "token_mean": "each trainer rank divides by the tokens of its own share; ranks are averaged",
    "constant": "its trainer divides by the tokens of each rank's share, not by constant_tokens x "
    "rollouts: the same direction, and the same weight of KL, in a step of another length, most of "
    "which AdamW takes out again",
}
_TOKENS_OF_CURRENT = "the sum over the batch is divided by its tokens, on all ranks"
_CONSTANT_OF_CURRENT = (
    "its trainer divides by the tokens of the batch, not by constant_tokens x rollouts: the same "
    "direction in a step of another length, most of which AdamW takes out again"
)
LINEAR = (
    "reaches 0 at the last train step: its decay ends one step sooner than a decay that would "
    "reach 0 at the step after the last"
)
FROM_ZERO = (
    "counted from 0: the first train step has 1e-8 of the rate, and the full rate is reached one "
    "step later"
)
_NO_WARMUP = "its constant schedule has no warm-up, and no key for one"
_MEAN = "its default: reward minus the group mean"
_ADVANTAGE_NOTES = {
    "rloo": "leave_one_out of hooks.py, which its `custom` advantage hook calls",
    "grpo": "standardised of hooks.py: over the unbiased standard deviation + 1e-6",
    "reinforce": "plain of hooks.py, which its `custom` advantage hook calls",
}
_RLOO_OF_CURRENT = "its own, reward minus the group mean, times n / (n - 1) in our loss"
_PROMPT = (
    "seq_len is prompt and response together: a longer prompt is not left out, it leaves less room "
    "for its response"
)
_SEED = (
    "seeds the order of prompts and the servers' sampling; Prime-RL does not read "
    "orchestrator.seed, and concurrent work is not reproducible"
)
_SEED_OF_CURRENT = (
    "seeds the servers' sampling only: its order of prompts is the same in every run, by the "
    "number of the epoch, and concurrent work is not reproducible"
)
_TOKENIZER = (
    "trainer.tokenizer.name as well: without it the trainer saves its default model's tokenizer"
)
_DATA = "an argument of our environment (environment.py), which its `env.id` names"
_LABEL = "a label, not sent to Prime-RL"
_RESPONSE = {
    OLD: "orchestrator.sampling.max_tokens",
    CURRENT: "orchestrator.train.sampling.max_completion_tokens",
}
_HAS_OLD = f"Set backend.version={OLD}, which has it"


_KWARGS, _ADVANTAGE = "trainer.loss.kwargs", "orchestrator.advantage"
_SCHEDULER, _SCALE = "trainer.scheduler", f"{_KWARGS}.advantage_scale"
_ARGS = {OLD: "orchestrator.env.args", CURRENT: "orchestrator.train.source.legacy.args"}


def _data(name: str, offer: Offer = TEXT, note: str = _DATA, advice: str = "") -> list[Row]:
    """Return the rows of an argument of orch's environment."""
    return [
        Row(
            f"data.{name}",
            f"{_ARGS[version]}.{name}",
            offer,
            status="extension",
            note=note,
            advice=advice,
            since=since,
            until=until,
        )
        for version, since, until in ((OLD, "", CURRENT), (CURRENT, CURRENT, ""))
    ]


def _moved(field: str, old: str, current: str, offer: Number) -> list[Row]:
    """Return the rows of a field whose key has another name in 0.8.0."""
    return [
        # versions between the two have either name
        Row(field, old, offer, read=lambda e: e.get(old, e.get(current, ABSENT)), until=CURRENT),
        Row(field, current, offer, since=CURRENT),
    ]


def _constant_tokens(settings: Settings) -> Account:
    exact = settings.loss.constant_tokens is None
    return ("exact", "") if exact else ("approximated", AGGREGATION["constant"])


def _beta(settings: Settings) -> Account:
    return ("exact", _NO_KL) if settings.kl.beta == 0 else ("extension", _OURS)


def _warmup(settings: Settings) -> Account:
    optimizer = settings.optimizer
    if optimizer.num_warmup_steps:
        return "approximated", FROM_ZERO
    return "exact", _NO_WARMUP if optimizer.schedule == "constant" else ""


def _lag(settings: Settings) -> Account:
    return ("exact", _DROPPED) if settings.max_staleness_steps == 0 else ("approximated", LAG)


def schedule_type(settings: Settings) -> str:
    """Return the library's schedule.

    Its `linear` without decay is orch's `constant` with a warm-up.
    """
    optimizer = settings.optimizer
    warms_up = optimizer.schedule == "constant" and optimizer.num_warmup_steps
    return "linear" if warms_up else optimizer.schedule


def _schedule_keys(settings: Settings) -> Values:
    """Return the keys of the schedule's table. A constant schedule has none."""
    kind, optimizer = schedule_type(settings), settings.optimizer
    if kind == "constant":
        return {}
    if kind == "cosine":
        return {f"{_SCHEDULER}.min_lr": 0.0}
    steps = settings.num_train_steps - optimizer.num_warmup_steps
    decays = optimizer.schedule == "linear"
    return {f"{_SCHEDULER}.decay_steps": steps if decays else 0, f"{_SCHEDULER}.min_lr": 0.0}


def _read_schedule(launch: Values) -> object:
    kind = launch[f"{_SCHEDULER}.type"]
    plateau = kind == "linear" and launch.get(f"{_SCHEDULER}.decay_steps") == 0
    return "constant" if plateau else kind


def _read_warmup(launch: Values) -> object:
    """Return the warm-up. A table without it has 10 steps, a constant schedule none."""
    plain = 0 if launch[f"{_SCHEDULER}.type"] == "constant" else 10
    return launch.get(f"{_SCHEDULER}.warmup_steps", plain)


def _read_prompt_tokens(launch: Values) -> object:
    response = launch.get(_RESPONSE[OLD], launch.get(_RESPONSE[CURRENT]))
    return int(launch["seq_len"]) - int(response)  # type: ignore[call-overload]  # a launch's numbers


def _read_scaled(launch: Values) -> object:
    """Return rloo if the scale turns the group's mean into a leave-one-out baseline."""
    size = int(launch["orchestrator.group_size"])  # type: ignore[call-overload]  # a launch's number
    scale = launch.get(_SCALE, 1.0)
    if scale not in (1.0, size / max(size - 1, 1)):
        raise KeyError(scale)
    return "dr_grpo" if scale == 1.0 else "rloo"


def _asked(name: str, otherwise: object) -> Callable[[Values], object]:
    """Return a reader of a field that no key carries. otherwise: in a launch of others."""

    def read(launch: Values) -> object:
        value = asked(launch, name)
        return otherwise if value is ABSENT else value

    return read


def _read_clip(launch: Values) -> object:
    """Return None for a launch without a clip. The bounds of a clip have other rows."""
    bounds = (f"{_KWARGS}.clip_{name}" for name in ("low", "high", "dual"))
    return ABSENT if any(key in launch for key in bounds) else None


def _read_prompts(launch: Values) -> object:
    size = launch.get("orchestrator.group_size", launch.get("orchestrator.rollouts_per_example"))
    batch = launch["orchestrator.batch_size"]
    return int(batch) // int(size)  # type: ignore[call-overload]  # a launch's numbers


def _scale(settings: Settings) -> Values:
    size = settings.rollout.group_size
    scale = size / (size - 1) if settings.advantage.estimator == "rloo" else ABSENT
    return {_SCALE: scale}


def _placements(*values: str) -> tuple[Meaning, ...]:
    placed = (Meaning(each, each, "extension", _PLACEMENT) for each in values)
    return (Meaning(None, ABSENT, "exact", _NO_KL), *placed)


_AGGREGATIONS: tuple[tuple[Status, str, str, str, str], ...] = (
    ("approximated", AGGREGATION["token_mean"], AGGREGATION["constant"], "", CURRENT),
    ("exact", _TOKENS_OF_CURRENT, _CONSTANT_OF_CURRENT, CURRENT, ""),
)
"""Status and note of token_mean, note of constant, first release, first release without them."""
_POSITIVE = Number(least=0)
_CHAT = (
    "Its environments are asked through the chat endpoint, which applies the template. Set "
    "model.chat_template=default, or train with verl."
)
ROWS: tuple[Row, ...] = (
    Row("model.name", carried_by=_LABEL),
    Row(
        "model.path",
        "model.name",
        OWN_PATH,
        adds=lambda s: {"trainer.tokenizer.name": s.model.path},
        note=_TOKENIZER,
        advice=SHIPPED_ADVICE,
        until=CURRENT,
    ),
    Row("model.path", "model.name", OWN_PATH, advice=SHIPPED_ADVICE, since=CURRENT),
    Row("model.chat_template", offer=same("default"), carried_by="the chat endpoint", advice=_CHAT),
    Row("data.name", carried_by=_LABEL),
    *_data("path", OWN_PATH, advice=SHIPPED_ADVICE),
    *_data("split"),
    *_data(
        "num_prompts",
        Number(1, null=True, off=ABSENT, whole=True),
        f"{_DATA}; checked when it is loaded",
    ),
    *_data("instruction"),
    *_data("reward", REWARD_RULES),
    Row(
        "data.max_prompt_tokens",
        "seq_len",
        COUNT,
        write=longest_sequence,
        adds=lambda s: {"inference.model.max_model_len": longest_sequence(s)},
        read=_read_prompt_tokens,
        status="approximated",
        note=_PROMPT,
    ),
    Row(
        "advantage.estimator",
        f"{_ADVANTAGE}.type",
        (
            *(
                Meaning(ours, "custom", "extension", note, also={f"{_ADVANTAGE}.import_path": path})
                for ours, note in _ADVANTAGE_NOTES.items()
                for path in [f"{HOOKS}.{ADVANTAGES[ours]}"]
            ),
            Meaning("dr_grpo", "default", "exact", _MEAN),
        ),
        until=CURRENT,
    ),
    Row(
        "advantage.estimator",
        "orchestrator.algo.type",
        (
            Meaning("dr_grpo", "grpo", "exact", _MEAN, also={_SCALE: ABSENT}),
            Meaning("rloo", "grpo", "extension", _RLOO_OF_CURRENT),
        ),
        adds=_scale,
        read=_read_scaled,
        advice="Its advantages are named in its own code, with no hook: the reward minus the group "
        f"mean, which our loss scales for rloo. Set advantage.estimator=dr_grpo. {_HAS_OLD} as a "
        "hook.",
        since=CURRENT,
    ),
    *(
        Row(
            "loss.aggregation",
            offer=(
                Meaning("token_mean", ABSENT, status, tokens),
                Meaning("constant", ABSENT, "approximated", constant),
            ),
            carried_by=NEEDS,
            read=_asked("loss.aggregation", "token_mean"),
            advice="Its trainer divides the sum over tokens by the number of tokens. Set "
            "loss.aggregation=token_mean, or train with verl.",
            since=since,
            until=until,
        )
        for status, tokens, constant, since, until in _AGGREGATIONS
    ),
    Row(
        "loss.constant_tokens",
        offer=Number(least=1, null=True, whole=True),
        carried_by=NEEDS,
        account=_constant_tokens,
    ),
    Row(
        "loss.clip",
        offer=(Meaning(None, ABSENT, "extension", f"no clip; {_OURS}"),),
        carried_by="its absence",
        read=_read_clip,
    ),
    Row("loss.clip.low", f"{_KWARGS}.clip_low", _POSITIVE, status="extension", note=_OURS),
    Row("loss.clip.high", f"{_KWARGS}.clip_high", _POSITIVE, status="extension", note=_OURS),
    Row(
        "loss.clip.dual",
        f"{_KWARGS}.clip_dual",
        Number(least=1, null=True, off=ABSENT),
        status="extension",
        note=_OURS,
    ),
    Row(
        "kl.estimator",
        f"{_KWARGS}.estimator",
        (
            Meaning("none", ABSENT, "exact", _NO_KL),
            *(Meaning(each, each, "extension", _ESTIMATOR) for each in ESTIMATORS),
        ),
        until=CURRENT,
    ),
    Row(
        "kl.placement",
        f"{_KWARGS}.placement",
        _placements("reward", "loss", "reward_and_loss"),
        when=lambda s: s.advantage.estimator != "grpo",
        until=CURRENT,
    ),
    Row(
        "kl.placement",
        f"{_KWARGS}.placement",
        _placements("loss"),
        when=lambda s: s.advantage.estimator == "grpo",
        advice="Its advantage hook sees no log-probabilities, so grpo would divide the reward by "
        "the group's standard deviation and the KL by none. Set advantage.estimator=dr_grpo or "
        "rloo.",
        until=CURRENT,
    ),
    Row(
        "kl.beta",
        f"{_KWARGS}.beta",
        fixed(0.0, _NO_KL),
        when=lambda s: s.kl.placement is None,
        until=CURRENT,
    ),
    Row(
        "kl.beta",
        f"{_KWARGS}.beta",
        _POSITIVE,
        when=lambda s: s.kl.placement is not None,
        account=_beta,
        until=CURRENT,
    ),
    *(
        Row(
            field,
            offer=fixed(value, _NO_KL),
            carried_by="our loss, which has no reference policy",
            advice=advice,
            since=CURRENT,
        )
        for field, value, advice in (
            (
                "kl.estimator",
                "none",
                (
                    "Its RL loss is handed no reference log-probabilities, and its `kl_tau` pulls "
                    f"to the rollout policy. {_HAS_OLD} through our loss."
                ),
            ),
            (
                "kl.placement",
                None,
                f"Its RL loss is handed no reference log-probabilities. {_HAS_OLD} in our loss.",
            ),
            ("kl.beta", 0.0, ""),
        )
    ),
    Row(
        "kl.reset_reference_every_steps",
        offer=fixed(None, "the reference policy's server never changes its weights"),
        carried_by="the reference policy's server",
        advice="The reference policy is a server whose weights never change. Leave it out; of "
        "orch's backends only the embedded trainer resets it.",
    ),
    *_moved(
        "rollout.group_size", "orchestrator.rollouts_per_example", "orchestrator.group_size", COUNT
    ),
    *_moved(
        "rollout.max_response_tokens",
        _RESPONSE[OLD],
        _RESPONSE[CURRENT],
        COUNT,
    ),
    Row(
        "rollout.temperature",
        "orchestrator.sampling.temperature",
        _POSITIVE,
        when=lambda s: s.kl.estimator == "none",
        until=CURRENT,
    ),
    Row(
        "rollout.temperature",
        "orchestrator.sampling.temperature",
        same(1.0),
        when=lambda s: s.kl.estimator != "none",
        advice="Its reference log-probabilities are always of temperature 1, the policy's of the "
        "rollout's: their difference would be no KL. Set rollout.temperature=1.0.",
        until=CURRENT,
    ),
    Row("rollout.temperature", "orchestrator.train.sampling.temperature", _POSITIVE, since=CURRENT),
    Row(
        "rollout.top_p",
        offer=same(1.0, note="it always sends 1.0"),
        carried_by="its orchestrator",
        advice="The orchestrator sends top_p=1.0 with every request. Set rollout.top_p=1.0.",
    ),
    Row(
        "batch.num_prompts",
        "orchestrator.batch_size",
        COUNT,
        write=lambda s: s.batch.num_prompts * s.rollout.group_size,
        read=_read_prompts,
        note="counted in rollouts: num_prompts x group_size",
    ),
    Row(
        "batch.num_minibatches",
        offer=same(1, note="it makes one optimizer step a batch"),
        carried_by="its trainer",
        advice="It makes one optimizer step of a rollout batch. Set batch.num_minibatches=1 (and "
        "max_staleness_steps for samples of older policies), or train with verl.",
    ),
    Row("optimizer.learning_rate", "trainer.optim.lr", _POSITIVE),
    Row("optimizer.weight_decay", "trainer.optim.weight_decay", _POSITIVE),
    Row("optimizer.beta1", "trainer.optim.betas1", Number(0, 1)),
    Row("optimizer.beta2", "trainer.optim.betas2", Number(0, 1)),
    Row(
        "optimizer.epsilon",
        offer=same(TORCH_EPSILON, note="torch's default"),
        carried_by="torch",
        advice="It builds AdamW with torch's epsilon. Set optimizer.epsilon=1e-8.",
    ),
    Row(
        "optimizer.max_grad_norm",
        "trainer.optim.max_norm",
        Number(0, NO_CLIP_NORM, null=True, off=NO_CLIP_NORM),
        note=f"{NO_CLIP_NORM:g} turns it off",
        advice="Set it to null: no clipping.",
    ),
    Row(
        "optimizer.schedule",
        f"{_SCHEDULER}.type",
        (*same("constant", "cosine"), *same("linear", status="approximated", note=LINEAR)),
        write=schedule_type,
        adds=_schedule_keys,
        read=_read_schedule,
    ),
    Row(
        "optimizer.num_warmup_steps",
        f"{_SCHEDULER}.warmup_steps",
        WHOLE,
        write=lambda s: (
            ABSENT
            if s.optimizer.schedule == "constant" and not s.optimizer.num_warmup_steps
            else s.optimizer.num_warmup_steps
        ),
        read=_read_warmup,
        account=_warmup,
    ),
    Row("num_train_steps", "max_steps", COUNT),
    Row("backend.name", offer=fixed(NAME), carried_by="the launch itself"),
    *(
        Row(
            "backend.version",
            offer=same(None, *VERSIONS),
            carried_by=NEEDS,
            read=_asked("backend.version", unsaid),
            since=since,
            until=until,
        )
        for unsaid, since, until in ((None, "", CURRENT), (CURRENT, CURRENT, ""))
    ),
    Row(
        "max_staleness_steps",
        "max_async_level",
        WHOLE,
        adds=lambda s: {"orchestrator.max_off_policy_steps": s.max_staleness_steps},
        account=_lag,
        until=CURRENT,
    ),
    Row(
        "max_staleness_steps",
        "orchestrator.max_off_policy_steps",
        same(1, status="approximated", note=_LAG_OF_CURRENT),
        advice="One batch is generated while another trains; there is no key for it. Set "
        f"max_staleness_steps=1. {_HAS_OLD} as max_async_level.",
        since=CURRENT,
    ),
    Row(
        "seed",
        "orchestrator.buffer.seed",
        WHOLE,
        adds=lambda s: {"inference.seed": s.seed},
        status="approximated",
        note=_SEED,
        until=CURRENT,
    ),
    Row(
        "seed",
        "inference.seed",
        WHOLE,
        status="approximated",
        note=_SEED_OF_CURRENT,
        since=CURRENT,
    ),
)


# Number formats: trainer/model.py (MixedPrecisionPolicy), trainer/ckpt.py, configs/inference.py.

SERVED_IN: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_PASSES = "of the passes (FSDP); weights and AdamW are fp32"
_ROUNDED = (
    "the weights that reach the server were rounded to bf16 on the way; the reference policy's "
    "server has the same format"
)
PRECISION: tuple[Row, ...] = (
    one_format(
        "training",
        "bf16",
        (f"its own: bf16 {_PASSES}", _PASSES),
        "Its trainer's FSDP policy is bfloat16 in its own code. Set "
        "precision.training=bf16, or train with verl.",
    ),
    Row(
        "precision.rollout",
        "inference.model.dtype",
        (
            Meaning(
                None,
                ABSENT,
                note="its own: `auto`, which is bf16 for a model in bf16 and fp16 for one in fp32",
                spellings=("auto",),
            ),
            Meaning("bf16", SERVED_IN["bf16"], note="of the reference policy's server, too"),
            Meaning("fp16", SERVED_IN["fp16"], "approximated", _ROUNDED),
            Meaning("fp32", SERVED_IN["fp32"], "approximated", _ROUNDED),
        ),
    ),
    one_format(
        "checkpoint",
        "bf16",
        ("its own: every weight is rounded to bf16", "every weight is rounded to it"),
        "Its trainer gathers weights in bfloat16 to save them. Set precision.checkpoint=bf16.",
    ),
)


ADAPTER = "trainer.model.lora"
LORA = lora.rows(
    f"{ADAPTER}.rank",
    f"{ADAPTER}.alpha",
    f"{ADAPTER}.target_modules",
    is_on=lambda launch: f"{ADAPTER}.rank" in launch,
    off="no table [trainer.model.lora]",
    adds={f"{ADAPTER}.dropout": 0.0, "trainer.ckpt.weights.save_adapter_separately": True},
    write=lambda adapter: adapter.modules,
    note="its own adapter in fp32, begun as PEFT's, without dropout; alpha / rank is rounded to "
    "bf16; the reference policy is the model; vLLM samples with the adapter; evaluation "
    "merges it with its model",
    of_targets="modules by any part of their names",
    offer=lora.NAMES,
    advice="Prime-RL takes names of modules, such as lora.targets=[q_proj, v_proj].",
)
ENVIRONMENT, LAUNCHER = "orch_prime_rl_environment", "orch_prime_rl_launch"
ENVIRONMENT_ID = ENVIRONMENT.replace("_", "-")
CONSTANTS = (
    Constant("weight_broadcast.type", "filesystem"),
    Constant("trainer.model.ac.freq", 1),
    Constant("trainer.optim.type", "adamw"),
    # Prime-RL's default loss clips no ratio and has a KL to the rollout policy (kl_tau 1e-3)
    Constant("trainer.loss.type", "custom"),
    Constant("trainer.loss.import_path", f"{HOOKS}.loss"),
    Constant("trainer.file_monitor.filename", "logs/trainer.jsonl", since=CURRENT),
    Constant("orchestrator.strict_async_level", False, until=CURRENT),
    Constant("orchestrator.env.id", ENVIRONMENT_ID, until=CURRENT),
    Constant("orchestrator.env.name", "train", until=CURRENT),
    # without it Prime-RL refuses models that it does not know; this applies their chat template
    Constant("orchestrator.renderer.name", "default", since=CURRENT),
    # the default filters drop rollouts without an advantage, and their tokens from the mean
    Constant("orchestrator.pre_batch_filters", [], since=CURRENT),
    Constant("orchestrator.post_batch_filters", [], since=CURRENT),
    Constant("orchestrator.file_monitor.filename", "../logs/orchestrator.jsonl", since=CURRENT),
    Constant("orchestrator.train.source.name", "train", since=CURRENT),
    Constant("orchestrator.train.source.legacy.id", ENVIRONMENT_ID, since=CURRENT),
    Constant("inference.weight_broadcast.type", "filesystem"),
)
"""Keys that every launch sends and no field has. Without them it would train another cell."""

_READ = (
    "trainer.optim<adamw>.weight_decay",
    "trainer.optim<adamw>.betas1",
    "trainer.optim<adamw>.betas2",
    "trainer.optim<adamw>.max_norm",
    "trainer.scheduler<constant>.type",
    "orchestrator.advantage<default>.type",
    "orchestrator.max_off_policy_steps",
    "orchestrator.rollouts_per_example",
    "orchestrator.group_size",
    "inference.seed",
)
"""Keys whose defaults count when a launch is read. Of a union: keys of the default branch."""


def table_of(version: str) -> ReleaseTable:
    """Return the keys that a release's own classes accept, from keys/<version>.json."""
    named: set[str] = set()
    added: list[str] = []
    words: dict[str, set[object] | None] = {}
    for key, (spelled, _) in keys("rl", version).items():
        plain = re.sub(r"<[^>]*>", "", key)
        kinds = spelled.split("|")
        named.add(plain)
        added += [f"{plain}."] * ("dict" in kinds)
        closed = {kind.strip("'") for kind in kinds} if all(k[0] == "'" for k in kinds) else None
        before = words.get(plain, set())
        words[plain] = None if closed is None or before is None else {*before, *closed}
    values = {key: frozenset(each) for key, each in words.items() if each is not None}
    known = keys("rl", version)
    defaults = {re.sub(r"<[^>]*>", "", key): known[key][1] for key in _READ if key in known}
    return ReleaseTable(version, frozenset(named), values, tuple(added), defaults=defaults)


MANIFEST = Manifest(
    NAME,
    (CURRENT, OLD),
    (*ROWS, *PRECISION, *LORA),
    {version: table_of(version) for version in VERSIONS},
    default=OLD,
    constants=CONSTANTS,
    system=SYSTEM,
    passes_keys=True,
    fields_of_keys=FIELDS_OF_KEYS,
    version_advice="0.5.0 is the last release with a configurable async level and reference "
    "log-probabilities in the RL loss; 0.8.0 has one fixed overlap and rejects a teacher beside "
    "RL. Set backend=prime_rl@0.5.0.",
)
