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


class Versions:
    """An offer: None, and every version that names a dialect the trainer has."""

    def __contains__(self, value: object) -> bool:
        try:
            dialect(None if value is None else str(value))
        except UnsupportedSetting:
            return False
        return True

    def __str__(self) -> str:
        return f"{VERSION}, {VERSION}+kl_reward=to_go, ..."


_POSITIVE, _COUNT = Number(null=True), Number(least=0, whole=True, null=True)
OFFERS: dict[str, Offer] = {
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
    "loss.constant_tokens": _COUNT,
    "loss.policy": same(*losses.choices()),
    "loss.clip": same(None),
    "loss.clip.low": _POSITIVE,
    "loss.clip.high": _POSITIVE,
    "loss.clip.dual": _POSITIVE,
    "kl.estimator": EstimatorsOfTheTable(),
    "kl.placement": same(None, *get_args(Placement)),
    "kl.beta": _POSITIVE,
    "kl.reset_reference_every_steps": _COUNT,
    "rollout.group_size": _COUNT,
    "rollout.max_response_tokens": Number(ANSWER_TOKENS, LONGEST_RESPONSE + 1, whole=True),
    "rollout.temperature": _POSITIVE,
    "rollout.top_p": _POSITIVE,
    "batch.num_prompts": Number(1, NUM_TRAIN_PROBLEMS + 1, whole=True),
    "batch.num_minibatches": _COUNT,
    "optimizer.learning_rate": _POSITIVE,
    "optimizer.weight_decay": _POSITIVE,
    "optimizer.beta1": _POSITIVE,
    "optimizer.beta2": _POSITIVE,
    "optimizer.epsilon": _POSITIVE,
    "optimizer.max_grad_norm": _POSITIVE,
    "optimizer.schedule": same("constant", "linear", "cosine"),
    "optimizer.num_warmup_steps": _COUNT,
    "num_train_steps": _COUNT,
    "backend.name": same("micro"),
    "backend.version": Versions(),
    "max_staleness_steps": _COUNT,
    "seed": _COUNT,
    "precision.training": same(None, "fp32"),
    "precision.rollout": same(None, *get_args(EngineFormat)),
    "precision.checkpoint": same(None, "fp32"),
    "kl.reference": same(None),
    "kl.reference.kind": same(*get_args(ReferenceKind)),
    "kl.reference.share": _POSITIVE,
    "kl.reference.every_steps": _COUNT,
    "kl.reference.path": same(None, *(PREFIX + name for name in names())),
    "kl.reference.task_reward": same(True, False),
    "kl.controller": same(None),
    "kl.controller.target": _POSITIVE,
    "kl.controller.horizon": _COUNT,
    "loss.ratio_level": same(*get_args(RatioLevel)),
    "kl.ratio_level": same(*get_args(RatioLevel)),
    "loss.correction": same(None),
    "loss.correction.kind": same(*get_args(CorrectionKind)),
    "loss.correction.least": _POSITIVE,
    "loss.correction.most": _POSITIVE,
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
    "advantage.estimator": "over the shaped reward of the response, one advantage for all its "
    "tokens; grpo divides by the unbiased standard deviation + 1e-6",
    "loss.policy": "the ratio is to the rollout policy; with loss.correction to the proximal one",
    "kl.estimator": "log-probabilities at rollout.temperature, over the whole vocabulary, "
    "not clamped",
    "backend.version": "what it names after a + is another library's way",
    "kl.placement": "in the reward: summed over the response, of the rollout policy, subtracted "
    "before the group baseline (as verl does); in the loss: of the policy, aggregated as the "
    "policy loss is",
    "kl.beta": "0 leaves the term out: the run is bit for bit that of estimator none",
    "kl.reset_reference_every_steps": "at the end of the rollout batch in which it falls due",
    "kl.reference.kind": "sampler: the KL of a rollout batch is to the engine that sampled it, "
    "that of evaluations to the model before training; ema: of weights",
    "kl.reference.every_steps": "at the end of the rollout batch in which it falls due",
    "kl.reference.task_reward": "false: every advantage is of reward 0; rewards are still logged",
    "kl.controller.target": "of the estimate in the reward, of the batch that was just trained on",
    "rollout.top_p": "truncates sampling only; log-probabilities are of the whole distribution",
    "batch.num_minibatches": "equal parts of the rollout batch by prompt, each used once",
    "max_staleness_steps": "rollouts are sampled from the policy of exactly this many train steps "
    "before their rollout batch, or the first; one process, nothing runs concurrently",
    "precision.training": "it computes in fp32",
    "precision.rollout": "null and fp32: the policy itself samples; else a copy of it, whose "
    "weights and logits are rounded (8 bits: the matrices of its layers, with a scale for each "
    "output; all else in bf16) and whose activations are fp32",
    "loss.correction.kind": "the proximal policy is that before the batch's first train step: "
    "ratios are to it, and a KL in the reward is its own",
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
