"""One table: which values of each field of a cell the embedded trainer trains, and what they mean.

The trainer reads cell.json, so a field's key is the field's name. The manifest refuses a field
without a row, and a value without one. The row of `kl.estimator` is the table of estimators
(orchestrator/estimators.py), with the entries that other packages add, because the trainer computes
with the functions of that table.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import get_args

from backends.micro.shipped import PREFIX, names
from backends.micro.skills import ANSWER_TOKENS, NUM_TRAIN_PROBLEMS, PROMPT_TOKENS, SKILLS
from backends.micro.version import VERSION, dialect
from orchestrator import estimators
from orchestrator.errors import UnsupportedSetting
from orchestrator.kl.library_semantics import DIFFERENCES, PLAIN, describe, differing
from orchestrator.library.manifest import (
    TEXT,
    Account,
    Manifest,
    Number,
    Offer,
    ReleaseTable,
    Row,
    Such,
    same,
)
from orchestrator.losses import table as losses
from orchestrator.settings import (
    AdvantageEstimator,
    Corrected,
    CorrectionKind,
    EngineFormat,
    LossAggregation,
    Placement,
    RatioLevel,
    ReferenceKind,
    Settings,
)

LONGEST_RESPONSE = 56
"""Tokens of the longest response: a prompt leaves so many of the policies' 64 positions."""


class EstimatorsOfTheTable:
    """An offer: `none`, and every estimator in the table at the time of the look-up."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and estimators.is_choice(value)

    def __str__(self) -> str:
        return ", ".join(estimators.choices())


def _names_a_dialect(version: object) -> bool:
    try:
        dialect(None if version is None else str(version))
    except UnsupportedSetting:
        return False
    return True


_NUMBERS = """
loss.clip.low loss.clip.high loss.clip.dual kl.beta rollout.temperature rollout.top_p
optimizer.learning_rate optimizer.weight_decay optimizer.beta1 optimizer.beta2 optimizer.epsilon
optimizer.max_grad_norm kl.reference.share kl.controller.target loss.correction.least
loss.correction.most
"""
_COUNTS = """
loss.constant_tokens kl.reset_reference_every_steps rollout.group_size batch.num_minibatches
optimizer.num_warmup_steps num_train_steps max_staleness_steps seed kl.reference.every_steps
kl.controller.horizon
"""
OFFERS: dict[str, Offer] = {
    **dict.fromkeys(_NUMBERS.split(), Number(null=True)),
    **dict.fromkeys(_COUNTS.split(), Number(least=0, whole=True, null=True)),
    "model.name": TEXT,
    "model.path": same(*(PREFIX + name for name in names())),
    "model.chat_template": same("default", "none"),
    "lora": same(None),
    "data.name": TEXT,
    "data.path": same(*(PREFIX + skill for skill in SKILLS)),
    "data.split": same("train"),
    "data.num_prompts": same(None, NUM_TRAIN_PROBLEMS),
    "data.instruction": same(""),
    "data.reward": same("exact"),
    "data.max_prompt_tokens": Number(least=PROMPT_TOKENS, whole=True),
    "advantage.estimator": same(*get_args(AdvantageEstimator)),
    "loss.aggregation": same(*get_args(LossAggregation)),
    "loss.policy": same(*losses.choices()),
    "loss.clip": same(None),
    "kl.estimator": EstimatorsOfTheTable(),
    "kl.placement": same(None, *get_args(Placement)),
    "rollout.max_response_tokens": Number(ANSWER_TOKENS, LONGEST_RESPONSE + 1, whole=True),
    "batch.num_prompts": Number(1, NUM_TRAIN_PROBLEMS + 1, whole=True),
    "optimizer.schedule": same("constant", "linear", "cosine"),
    "backend.name": same("micro"),
    "backend.version": Such(f"{VERSION}, {VERSION}+kl_reward=to_go, ...", _names_a_dialect),
    "precision.training": same(None, "fp32"),
    "precision.rollout": same(None, *get_args(EngineFormat)),
    "precision.checkpoint": same(None, "fp32"),
    "kl.reference": same(None),
    "kl.reference.kind": same(*get_args(ReferenceKind)),
    "kl.reference.path": same(None, *(PREFIX + name for name in names())),
    "kl.reference.task_reward": same(True, False),
    "kl.controller": same(None),
    "loss.ratio_level": same(*get_args(RatioLevel)),
    "kl.ratio_level": same(*get_args(RatioLevel)),
    "loss.correction": same(None),
    "loss.correction.kind": same(*get_args(CorrectionKind)),
    "loss.correction.applies_to": same(*get_args(Corrected)),
}
_FP32 = "The embedded trainer computes and saves in fp32 only: leave it out."
_ADVICE = {
    "model.path": "Leave backend.name to the site: a rehearsal chooses the policy by itself.",
    "lora": "The embedded trainer has no adapters and trains its small policies whole: leave lora "
    "out.",
    "data.path": "Leave backend.name to the site: a rehearsal chooses the skill by itself.",
    "data.reward": "Set data.reward=exact: an embedded answer is right or wrong as a whole.",
    "data.max_prompt_tokens": f"Set data.max_prompt_tokens={PROMPT_TOKENS} or more.",
    "rollout.max_response_tokens": "Set rollout.max_response_tokens within that range.",
    "batch.num_prompts": "Set batch.num_prompts within that range.",
    "kl.estimator": "Set kl.estimator to one of the table.",
    "loss.policy": "Set loss.policy to one of the table.",
    **dict.fromkeys(("precision.training", "precision.checkpoint"), _FP32),
}
_NOTES = {
    "model.chat_template": "the embedded policies have none; a prompt is given as it is",
    "data.max_prompt_tokens": f"every prompt has {PROMPT_TOKENS} tokens",
    "data.num_prompts": f"the split has {NUM_TRAIN_PROBLEMS} prompts",
    "advantage.estimator": "one for all tokens of a response; grpo adds 1e-6 to the deviation",
    "loss.policy": "the ratio is to the rollout policy; with loss.correction to the proximal one",
    "kl.estimator": "not clamped; log-probabilities are at rollout.temperature",
    "backend.version": "what it names after a + is another library's way",
    "kl.placement": "in the reward before the group baseline, in the loss as the policy loss is",
    "kl.beta": "0 leaves the term out: the run is bit for bit that of estimator none",
    "kl.reset_reference_every_steps": "at the end of the rollout batch in which it falls due",
    "kl.reference.kind": "sampler: evaluations are to the model before training; ema: of weights",
    "kl.reference.every_steps": "at the end of the rollout batch in which it falls due",
    "kl.reference.task_reward": "false: every advantage is of reward 0; rewards are still logged",
    "kl.controller.target": "of the estimate in the reward, of the batch that was trained on",
    "rollout.top_p": "truncates sampling only; log-probabilities are of the whole distribution",
    "batch.num_minibatches": "equal parts of the rollout batch by prompt, each used once",
    "max_staleness_steps": "the policy of exactly so many train steps before samples, or the first",
    "precision.training": "it computes in fp32",
    "precision.rollout": "null, fp32: the policy itself samples; else a copy of it, rounded",
    "loss.correction.kind": "ratios and a KL in the reward are to the policy before the batch",
    "loss.correction.applies_to": "a token of weight 0 stays in the divisor of a mean",
    "precision.checkpoint": "saved in fp32, as it is trained",
    "seed": "seeds prompts and sampling by (seed, number of the rollout batch)",
}


def _account(name: str) -> Callable[[Settings], Account]:
    """Return status and note of a field: those of the cell's dialect, else the field's own."""
    return lambda settings: _account_in(name, settings.backend.version)


@lru_cache(maxsize=4096)
def _account_in(name: str, version: str | None) -> Account:
    """Return status and note of a field in the dialect of a version. Cached: cells share it."""
    trained_in = dialect(version)
    meant = [
        f"{DIFFERENCES[cause].title}: {describe(trained_in, cause)}"
        for cause in differing(trained_in, PLAIN)
        if name in DIFFERENCES[cause].settings
    ]
    return "exact", "; ".join(meant) or _NOTES.get(name, "")


class EmbeddedManifest(Manifest):
    """The embedded trainer's manifest. A version names a dialect, and not a release."""

    def release(self, version: str | None) -> str:
        """Return the one release. Raise UnsupportedSetting for a version that names no dialect."""
        dialect(version)
        return VERSION


MANIFEST = EmbeddedManifest(
    "micro",
    (VERSION,),
    tuple(
        Row(name, f"settings.{name}", offer, account=_account(name), advice=_ADVICE.get(name, ""))
        for name, offer in OFFERS.items()
    ),
    {VERSION: ReleaseTable(VERSION, frozenset(f"settings.{name}" for name in OFFERS))},
)
