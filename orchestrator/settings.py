"""The field's words: what one training run is made of, in no library's vocabulary.

Everything in `Settings` changes the result and is hashed into the cell's id. What only changes
where or how visibly it runs (`Resources`, `Cadence`) is kept apart. Symbols: P prompts of a
rollout batch, G rollouts of a group, T tokens of a response, beta the coefficient of the KL to
the reference policy.
"""

import json
import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from orchestrator import estimators
from orchestrator.losses import table as losses


class _CheckedText:
    """Holds a text to a rule, with the errors of a Literal."""

    def check(self, value: object) -> str:
        """Return the text itself. Raise the error of a Literal on any other value.

        A subclass has the rule.
        """
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


def _not_one_of(expected: str) -> PydanticCustomError:
    return PydanticCustomError(
        "literal_error", "Input should be {expected}", {"expected": expected}
    )


class NameOfTable(_CheckedText):
    """Holds a name to a table whose entries other packages may add to.

    Errors and JSON Schema are those of a Literal of the same names.
    """

    def __init__(self, names: Callable[[], tuple[str, ...]], has: Callable[[str], bool]) -> None:
        self._names, self._has = names, has

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that pass."""
        return self._names()

    def check(self, value: object) -> str:
        """Return the name itself. Raise the error of a Literal on any other value."""
        if isinstance(value, str) and self._has(value):
            return value
        quoted = [f"'{name}'" for name in self.choices]
        raise _not_one_of(f"{', '.join(quoted[:-1])} or {quoted[-1]}")

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"enum": list(self.choices), "type": "string"}


Estimator = Annotated[str, NameOfTable(estimators.choices, estimators.is_choice)]
"""How one token's KL is estimated: `none`, or an estimator of the table (estimators.py).

With log r = log pi_ref - log pi_theta: k1 = -log r; k2 = (log r)^2 / 2; k3 = r - 1 - log r;
abs = |log r| (Schulman 2020). rho_x: x times the importance ratio pi_theta / pi_rollout of its
token; sg_rho_x: the ratio carries no gradient. `x+`: the value of x with the gradient of k2
(straight-through, verl >= 0.8.0).
"""

Placement = Literal["reward", "loss", "reward_and_loss"]
"""The place of the KL: in the reward (no gradient flows through it), in the loss, or both (paper,
§3.1)."""

PolicyLossName = Annotated[str, NameOfTable(losses.choices, losses.is_choice)]
"""The policy loss: an entry of losses/table.py, such as ppo, gspo, cispo, sapo, gmpo or dppo_tv."""

AdvantageEstimator = Literal["rloo", "grpo", "dr_grpo", "reinforce"]
RatioLevel = Literal["token", "sequence", "sequence_mean"]
"""The importance ratio of a term: each token's own, the product over its response, or their
geometric mean (GSPO)."""

LossAggregation = Literal["token_mean", "sequence_mean", "constant"]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
"""A name that can be part of a file name: letters, digits, `.`, `_`, `+`, `-`; at most 64."""

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


_SLOTS = tuple(
    BaseModel.__dict__[name]
    for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
"""Attributes of a model beside its fields. These descriptors set them on a frozen model."""


class Frozen(BaseModel):
    """An immutable object that refuses unknown fields and silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def but(self, **changes: object) -> Self:
        """Return a copy with other values for fields that were given. Nothing is checked.

        The copy shares all else, down to the set of given fields: `model_copy` copies that too,
        which is most of the time and half of the memory of 100,000 cells.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, **changes)
        for slot in _SLOTS:
            slot.__set__(twin, slot.__get__(self))
        return twin


class Model(Frozen):
    """The policy before training, which is also the reference policy."""

    name: Name
    """The name in the report, in tags and in filters."""
    path: str
    """A Hugging Face id, a directory, or `micro:<name>` for a policy shipped with orch."""
    chat_template: Literal["default", "none"] = "default"
    """default: prompts go through the model's own template; none: as they are."""


ALL_LINEAR = "all-linear"


def _targets(value: object) -> str:
    """Return the adapted modules as one text: `all-linear`, or their names, sorted."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        plain = sorted({name.strip() for name in names})
        if all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name) for name in plain):
            return ",".join(plain)
        if plain == [ALL_LINEAR]:
            return ALL_LINEAR
    raise PydanticCustomError(
        "targets", "targets are all-linear, or names of modules such as [q_proj, v_proj]"
    )


_NAMES: dict[str, object] = {"type": "array", "items": {"type": "string"}, "minItems": 1}
Targets = Annotated[
    str,
    PlainValidator(_targets),
    WithJsonSchema({"anyOf": [{"type": "string"}, _NAMES]}),
]
"""Modules by the last part of their names: one text, so that axes and filters can name it."""


class Lora(Frozen):
    """Low-rank adapters that train in place of the weights (Hu et al. 2022, arXiv 2106.09685).

    A weight W acts as W + alpha / rank * B A; only A and B train. A begins random and B at 0, so
    that the policy begins as the model. There is no dropout.
    """

    rank: PositiveInt
    """Rows of A and columns of B."""
    alpha: PositiveInt
    """The update is scaled by alpha / rank."""
    targets: Targets = ALL_LINEAR
    """The weights with an adapter: all-linear (every linear layer but the head), or names of
    modules."""

    @property
    def modules(self) -> list[str]:
        """Return the names of `targets`."""
        return self.targets.split(",")


class RewardRule(_CheckedText):
    """Holds a reward to the rules of orchestrator/scoring, and to files of the user's own.

    A spec writes such a file as `{file: my_reward.py, function: score}`. Loading the spec replaces
    it by `my_reward.py:score@<16 hexadecimal digits of its SHA-256>`, which is part of a cell's id.
    """

    rules = ("math_boxed", "countdown", "exact", "reasoning_gym")
    own = re.compile(r"[A-Za-z0-9._-]+\.py:[A-Za-z_][A-Za-z0-9_]*@[0-9a-f]{16}")

    def check(self, value: object) -> str:
        """Return the rule itself. Raise the error of a Literal on any other value."""
        if isinstance(value, str) and (value in self.rules or self.own.fullmatch(value)):
            return value
        listed = ", ".join(f"'{rule}'" for rule in self.rules)
        raise _not_one_of(f"{listed} or a mapping of file and function")

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        text: dict[str, object] = {"type": "string"}
        own = {
            "type": "object",
            "properties": {
                "file": text | {"description": "Python; relative to the spec's folder."},
                "function": text | {"description": "Called with response, answer and row."},
            },
            "required": ["file"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"enum": list(self.rules), "type": "string"}, own]}


class Data(Frozen):
    """The prompts trained on and how an answer is rewarded."""

    name: Name
    """The name in the report, in tags and in filters."""
    path: str
    """A Hugging Face dataset id, a file, `reasoning-gym:<dataset>` for generated problems, or
    `micro:<skill>` for an embedded task."""
    split: str = "train"
    """The split of the data set that is trained on."""
    num_prompts: PositiveInt | None = None
    """Size of the training split, if known. It is checked, and does not limit the prompts."""
    instruction: str = ""
    """Text appended to each prompt."""
    reward: Annotated[str, RewardRule()] = "math_boxed"
    """math_boxed: the last boxed answer; countdown: the equation; exact: the text itself;
    reasoning_gym: its data set's own scorer; or `{file, function}`, a function of your own. See
    orchestrator/scoring."""
    max_prompt_tokens: PositiveInt = 1024
    """The longest prompt. The ledger states what the library does with longer ones."""


class Advantage(Frozen):
    """The rule that turns rewards into advantages, over the G rollouts of a group.

    rloo: reward minus the mean of the others; grpo: minus the group mean, over the group's standard
    deviation; dr_grpo: minus the group mean; reinforce: the reward itself.
    """

    estimator: AdvantageEstimator
    """The rule's name."""


class Clip(Frozen):
    """The bounds of the policy loss, in its own measure.

    PPO, GSPO and CISPO hold the ratio within [1 - low, 1 + high]. GMPO bounds the log-ratio,
    dppo_tv the difference of probabilities, dppo_kl the KL in nats.
    """

    low: PositiveFloat = 0.2
    """The ratio is at least 1 - low."""
    high: PositiveFloat = 0.2
    """The ratio is at most 1 + high."""
    dual: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Dual-clip's c: a bound on the loss where the advantage is negative; of a dppo loss, the most
    that the ratio weighs; None: no bound."""


CorrectionKind = Literal[
    "tis_token",
    "tis_sequence",
    "mis_token",
    "mis_sequence",
    "reject_token",
    "reject_sequence",
    "geometric",
]
"""The weight of a sample for its engine, from the ratio of proximal policy to engine. tis: the
ratio of the token or of the sequence, truncated to its bounds; mis: the ratio, 0 outside its bounds
(of tokens with a lower bound it is IcePop); reject: 1 within the bounds, 0 outside; geometric:
reject by the geometric mean of the ratios of a sequence."""


Corrected = Literal["policy_loss", "kl", "both"]
"""The part that a correction multiplies: the policy loss (with a KL in the reward), the KL in the
loss, or both."""


class EngineCorrection(Frozen):
    """The importance weight of a sample for the inference engine that wrote it.

    Three policies: the policy, the proximal one (the trainer's own before a rollout batch's first
    train step) and the engine (rounded, quantised, stale). With a correction importance ratios are
    to the proximal policy, a KL in the reward is that policy's, and this weight, of proximal over
    engine, carries no gradient. A token of weight 0 stays in the divisor of a mean.
    """

    kind: CorrectionKind
    """The quantity that is bounded, and what happens outside the bounds."""
    least: NonNegativeFloat = 0.0
    """The lower bound of the ratio."""
    most: PositiveFloat | None = None
    """The upper bound of the ratio; None: none."""
    applies_to: Corrected = "policy_loss"
    """The part that the weight multiplies: the policy loss (with a KL in the reward), the KL in the
    loss, or both."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.most is not None and self.least >= self.most:
            raise ValueError(
                f"least must be below most; got least {self.least:g} and most {self.most:g}"
            )
        if not self.kind.startswith("tis") and self.most is None and self.least == 0:
            raise ValueError(
                f"kind '{self.kind}' rejects by bounds; got none: set least, most or both"
            )
        return self


class Loss(Frozen):
    """The policy loss: its kind, divisor and bounds, and the weights of its samples."""

    aggregation: LossAggregation = "token_mean"
    """token_mean: the response tokens of the minibatch; sequence_mean: each sequence by its own
    tokens, then the sequences; constant: each sequence by `constant_tokens`, then the sequences
    (Dr. GRPO)."""
    constant_tokens: PositiveInt | None = None
    """The divisor of aggregation `constant`, in tokens."""
    policy: PolicyLossName = losses.DEFAULT
    """What keeps the policy near the policy that sampled: `orch explain gspo` says what each does.
    ppo is PPO's clip, or importance sampling where clip is null; reinforce has no ratio."""
    clip: Clip | None = Clip()
    """The bounds of the policy loss; None: there are none. Left out: those of the paper of
    `policy`, and 0.2 for ppo."""
    correction: EngineCorrection | None = None
    """The importance weight for the inference engine's mismatch; None: no weight."""
    ratio_level: RatioLevel = "token"
    """The importance ratio of the policy loss, which the clip bounds. `sequence`: one surrogate a
    response, spread evenly over its tokens; `sequence_mean`: each token has their mean."""
    entropy_bonus: NonNegativeFloat = 0.0
    """The coefficient of the policy's entropy over the vocabulary, which is subtracted from the
    loss; 0: no entropy bonus."""

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_the_paper(cls, given: object) -> object:
        """Give a policy loss the bounds of its own paper where the spec has none."""
        if not isinstance(given, Mapping) or "clip" in given:
            return given
        entry = losses.POLICY_LOSSES.get(given.get("policy", losses.DEFAULT))
        if entry is None or not entry.in_specs or entry.name == losses.DEFAULT:
            return given
        usual = entry.usual and {"low": entry.usual.low, "high": entry.usual.high}
        return {**given, "clip": usual}

    @model_validator(mode="after")
    def _policy_takes_its_fields(self) -> Self:
        entry, name = losses.policy_loss_entry(self.policy), f"policy '{self.policy}'"
        if self.clip is not None and not entry.measure:
            raise ValueError(
                f"{name} takes no clip; got low {self.clip.low:g} and high {self.clip.high:g}: "
                "set clip to null"
            )
        if self.clip is not None and self.clip.dual is not None and not entry.dual:
            raise ValueError(f"{name} takes no clip.dual; got {self.clip.dual:g}: leave it out")
        if self.clip is None and entry.measure and self.policy != losses.DEFAULT:
            raise ValueError(
                f"{name} is nothing but its bounds; got clip null: give clip, or use policy "
                "reinforce or ppo"
            )
        if self.ratio_level != "token" and self.policy != losses.DEFAULT:
            raise ValueError(
                f"{name} has a ratio of its own; got ratio_level '{self.ratio_level}': leave "
                "ratio_level out"
            )
        return self

    @model_validator(mode="after")
    def _constant_has_tokens(self) -> Self:
        if (self.aggregation == "constant") != (self.constant_tokens is not None):
            raise ValueError(
                "constant_tokens is needed with aggregation 'constant', and only then; "
                f"got aggregation '{self.aggregation}' and constant_tokens {self.constant_tokens}"
            )
        return self


ReferenceKind = Literal["ema", "sampler", "teacher"]
"""The reference policy: an average of the policy's weights; the engine that sampled; or another
model (on-policy distillation, with the KL alone or beside a task reward)."""


class ReferencePolicy(Frozen):
    """A reference policy that is not the model before training."""

    kind: ReferenceKind
    """The kind of reference policy."""
    share: Probability | None = None
    """For kind ema: the share of the policy in the new reference. The rest is the old reference."""
    every_steps: PositiveInt | None = None
    """For kind ema: train steps between two updates of the reference."""
    path: str | None = None
    """For kind teacher: a model, named as in model.path. It must have the policy's vocabulary."""
    task_reward: bool = True
    """Reward the answers as well. False, for kind teacher: only the KL trains."""

    @model_validator(mode="after")
    def _each_kind_has_its_own(self) -> Self:
        fields = {name for name in ("share", "every_steps", "path") if getattr(self, name)}
        needed = {"ema": {"share", "every_steps"}, "teacher": {"path"}}.get(self.kind, set())
        if fields != needed:
            raise ValueError(
                f"reference kind '{self.kind}' takes {' and '.join(sorted(needed)) or 'no field'}; "
                f"got {', '.join(sorted(fields)) or 'none'}"
            )
        if not self.task_reward and self.kind != "teacher":
            raise ValueError(
                f"task_reward false leaves nothing to learn from but a teacher; got reference "
                f"kind '{self.kind}': leave it out"
            )
        return self


class BetaController(Frozen):
    """A beta that follows the KL (Ziegler et al. 2019, arXiv 1909.08593).

    After each rollout batch of n responses beta is multiplied by 1 + e n / horizon, with
    e = KL / target - 1 within [-0.2, 0.2].
    """

    target: PositiveFloat
    """The KL that is sought: the estimate in the reward, each response's mean over its tokens, then
    the mean over responses; nats a token."""
    horizon: PositiveInt
    """Responses in which beta moves by about the factor 1 + e."""


class Kl(Frozen):
    """The KL term between the policy and the reference policy."""

    estimator: Estimator
    """k1, k2, k3 or another of `orch explain --all`; none: no KL term."""
    placement: Placement | None = None
    """reward: off the task reward; loss: its own gradient; reward_and_loss: beta in each."""
    beta: NonNegativeFloat = 0.0
    """Strength of the KL term."""
    reset_reference_every_steps: PositiveInt | None = None
    """Make the policy of that moment the new reference policy every so many train steps."""
    ratio_level: RatioLevel = "token"
    """The importance ratio of a rho estimator in the loss. rho_k1 with `sequence` has the gradient
    of the sequence-level reverse KL, off-policy too."""

    @model_validator(mode="after")
    def _none_has_no_placement(self) -> Self:
        if self.estimator == "none" and (self.placement is not None or self.beta != 0):
            raise ValueError(
                "estimator 'none' takes no placement and no beta; "
                f"got placement {self.placement} and beta {self.beta:g}: leave them out"
            )
        if self.estimator != "none" and self.placement is None:
            raise ValueError(
                f"estimator '{self.estimator}' needs a placement: reward, loss or reward_and_loss"
            )
        return self

    reference: ReferencePolicy | None = None
    """The reference policy; None: the model before training."""
    controller: BetaController | None = None
    """The rule that changes beta during training; None: beta is constant."""

    @model_validator(mode="after")
    def _one_reference(self) -> Self:
        if self.reference is None:
            return self
        if self.estimator == "none" or self.reset_reference_every_steps is not None:
            raise ValueError(
                f"kl.reference.kind '{self.reference.kind}' is of a KL term whose reference "
                f"nothing else replaces; got {self.label} and reset_reference_every_steps "
                f"{self.reset_reference_every_steps}: leave one of them out"
            )
        if not self.reference.task_reward and self.beta == 0:
            raise ValueError(
                "kl.reference.task_reward false leaves the KL alone to train; got beta 0: give a "
                "beta above 0"
            )
        return self

    @model_validator(mode="after")
    def _controlled_kl_is_in_the_reward(self) -> Self:
        if self.controller is not None and (self.placement in (None, "loss") or self.beta == 0):
            raise ValueError(
                "kl.controller follows the KL in the reward and scales a beta above 0; got "
                f"{self.label} and beta {self.beta:g}: use placement reward, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _ratio_has_a_weight(self) -> Self:
        if self.ratio_level == "token":
            return self
        if self.placement != "loss" or not estimators.entry(self.estimator).is_weighted:
            raise ValueError(
                f"kl.ratio_level '{self.ratio_level}' is of a rho estimator in the loss; got "
                f"{self.label}: use rho_k1 in the loss, or leave it out"
            )
        return self

    @property
    def label(self) -> str:
        """`none`, or estimator and placement: `k1.reward`, `k3.both`."""
        if self.placement is None:
            return "none"
        return f"{self.estimator}.{self.placement.replace('reward_and_loss', 'both')}"


class Rollout(Frozen):
    """The sampling of responses from the rollout policy."""

    group_size: PositiveInt
    """G, rollouts per prompt."""
    max_response_tokens: PositiveInt
    """Longer responses are cut to this length."""
    temperature: PositiveFloat = 1.0
    """Temperature of sampling in training."""
    top_p: Probability = 1.0
    """Nucleus of sampling in training: the likeliest tokens that have this probability together.
    1.0: the whole vocabulary."""


class Batch(Frozen):
    """One rollout batch of `num_prompts` groups, used for `num_minibatches` train steps."""

    num_prompts: PositiveInt
    """Prompts, so groups, in a rollout batch."""
    num_minibatches: PositiveInt = 1
    """Train steps a rollout batch is used for; more than 1 is off-policy from the second."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.num_prompts % self.num_minibatches:
            raise ValueError(
                f"num_minibatches must divide num_prompts; got {self.num_minibatches} and "
                f"{self.num_prompts}"
            )
        return self


class Optimizer(Frozen):
    """AdamW. `learning_rate` is the peak; the schedule runs over num_train_steps."""

    learning_rate: PositiveFloat
    """The peak."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled, as AdamW does."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean of squared gradients."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Longer gradients are scaled to this norm; None: never."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after warm-up, over num_train_steps."""
    num_warmup_steps: NonNegativeInt = 0
    """Train steps in which the learning rate rises from 0."""


NumberFormat = Literal["bf16", "fp16", "fp32"]
"""bfloat16, IEEE half precision, IEEE single precision."""

EngineFormat = Literal["bf16", "fp16", "fp32", "fp8", "int8"]
"""The same; fp8 (e4m3) and int8: weights quantised to 8 bits, with one scale for each output."""


class Precision(Frozen):
    """The number formats of a run. None: the library's own, which the ledger names.

    The trainer and the inference engine round differently, so that their log-probabilities of one
    token differ. This is the main reason why ratios are not 1 on policy.
    """

    training: NumberFormat | None = None
    """Format of the forward and backward passes of policy and reference policy. The weights that
    AdamW updates are always fp32."""
    rollout: EngineFormat | None = None
    """Format of the inference engine's weights and activations."""
    checkpoint: NumberFormat | None = None
    """Format of the weights in an exported checkpoint. Evaluation scores exported checkpoints."""


_SCALARS = (str, int, float, bool, type(None))


def _passed_keys(value: Any) -> tuple[tuple[str, str], ...]:
    """Return keys of a library with their values as JSON, so that 1, 1.0 and true differ."""
    if isinstance(value, tuple):  # already checked
        return value
    if not isinstance(value, Mapping):
        raise PydanticCustomError("extra", "extra is a mapping of the library's own keys")
    for key, item in value.items():
        if not isinstance(key, str) or not key.strip("+-"):
            raise PydanticCustomError("extra", "a key of extra is the text that the library reads")
        if not all(isinstance(x, _SCALARS) for x in (item if isinstance(item, list) else [item])):
            raise PydanticCustomError(
                "extra",
                "{key} is a text, a number, true, false, null or a list of these: write the keys "
                "inside a mapping with dots",
                {"key": key},
            )
    return tuple((key, json.dumps(value[key], allow_nan=False)) for key in sorted(value))


PassedKeys = Annotated[
    tuple[tuple[str, str], ...],
    PlainValidator(_passed_keys),
    PlainSerializer(lambda pairs: {key: json.loads(text) for key, text in pairs}),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]
"""The library's own keys -> their values, as a spec writes them. Hashable."""


class BackendRef(Frozen):
    """The library that trains the cell. `version` None: the newest that the backend supports."""

    name: Name
    """verl, openrlhf, skyrl, prime_rl, trl, micro, or a backend of your own."""
    version: str | None = None
    """The library's release; None: the newest that the backend drives."""
    extra: PassedKeys = ()
    """Further keys of the library's own configuration. They are passed on and not judged."""

    @property
    def passed(self) -> dict[str, Any]:
        """Return the keys of `extra` with their values."""
        return {key: json.loads(text) for key, text in self.extra}


class Settings(Frozen):
    """All that changes the result of a training run, and nothing else."""

    model: Model
    data: Data
    advantage: Advantage
    loss: Loss
    kl: Kl
    rollout: Rollout
    batch: Batch
    optimizer: Optimizer
    num_train_steps: PositiveInt
    """Optimizer updates of the policy; a rollout batch yields batch.num_minibatches of them."""
    backend: BackendRef
    max_staleness_steps: NonNegativeInt = 0
    """Largest lag, in train steps, between the rollout policy and the policy. 0: on-policy at the
    first minibatch."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    precision: Precision = Precision()
    lora: Lora | None = None
    """Low-rank adapters that train; None: all weights train."""

    @model_validator(mode="after")
    def _one_ratio_has_one_charge(self) -> Self:
        level, kl = self.loss.ratio_level, self.kl
        if level == "token" or kl.placement in (None, "loss"):
            return self
        form = estimators.entry(kl.estimator)
        if kl.placement == "reward" and form.credit == "sequence" and not form.is_weighted:
            return self
        raise ValueError(
            f"loss.ratio_level '{level}' weights a KL in the reward as a whole; got {kl.label}: "
            "use k1 in the reward, a KL in the loss, or loss.ratio_level token"
        )

    @model_validator(mode="after")
    def _corrected_kl_is_in_the_loss(self) -> Self:
        correction = self.loss.correction
        if correction is None or correction.applies_to == "policy_loss":
            return self
        if self.kl.placement not in ("loss", "reward_and_loss"):
            raise ValueError(
                f"loss.correction.applies_to '{correction.applies_to}' is about a KL in the loss; "
                f"got kl.placement {self.kl.placement}: leave applies_to out (a KL in the reward "
                "is part of the policy loss)"
            )
        return self

    @model_validator(mode="after")
    def _whole_batches(self) -> Self:
        if self.num_train_steps % self.batch.num_minibatches:
            raise ValueError(
                "num_train_steps must be a multiple of batch.num_minibatches; got "
                f"{self.num_train_steps} and {self.batch.num_minibatches}"
            )
        if self.advantage.estimator in ("rloo", "grpo", "dr_grpo") and self.rollout.group_size < 2:
            raise ValueError(
                f"advantage.estimator '{self.advantage.estimator}' compares the rollouts of a "
                f"group; rollout.group_size must be at least 2, got {self.rollout.group_size}"
            )
        return self


def without_seed(settings: Settings) -> tuple[int, ...]:
    """Return a key that settings share which differ in nothing but the seed.

    It is made of the identities of their parts, which `expand` shares between cells: it holds while
    the settings live, and settings that are equal by chance only have keys of their own.
    """
    return tuple(map(id, _ALL_BUT_SEED(settings.__dict__)))


_ALL_BUT_SEED = itemgetter(*[name for name in Settings.model_fields if name != "seed"])


class Resources(Frozen):
    """The nodes and GPUs of one cell on a cluster. Never part of a cell's identity."""

    num_nodes: PositiveInt = 1
    """Nodes of the job."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs on each node; 0: none."""
    gpu: str = "a100-80gb"
    """Their kind, for the cost in GPU-hours."""
    reserved_gpus_per_node: PositiveInt | None = None
    """GPUs that a job keeps from others on each node, for the cost; None: as many as it uses. With
    `site.options.exclusive: true` orch sets it to all that a node has."""
    hours: PositiveFloat | None = None
    """Expected wall-clock hours, where the spec's author knows them; else the cost model's."""

    @property
    def reserved_gpus(self) -> int:
        """Return the GPUs that a job keeps from others, on all of its nodes."""
        return self.num_nodes * max(self.reserved_gpus_per_node or 0, self.gpus_per_node)


class System(Frozen):
    """How a library uses the machine: memory and speed. Never part of a cell's identity.

    None: what orch's launch sends by itself. Where a value would change the mathematics of a cell,
    it is refused: the library's own key in `backend.extra` is part of the identity.
    """

    micro_batch: PositiveInt | None = None
    """Sequences of one forward and backward pass on a GPU. Fewer take less memory."""
    tokens_per_gpu: PositiveInt | None = None
    """Tokens of one forward and backward pass on a GPU, where the library fills it by tokens."""
    engine_memory: Probability | None = None
    """The share of a GPU's memory that the inference engine takes."""
    engine_sequences: PositiveInt | None = None
    """Responses that an inference engine writes at the same time."""
    tensor_parallel: PositiveInt | None = None
    """GPUs that share one inference engine."""
    offload: bool | None = None
    """True: weights and optimizer wait in the node's memory while a GPU does not need them."""
    gradient_checkpointing: bool | None = None
    """True: activations are computed again in the backward pass, and take less memory."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.micro_batch is not None and self.tokens_per_gpu is not None:
            raise ValueError(
                "a micro batch is counted in sequences or in tokens; got micro_batch "
                f"{self.micro_batch} and tokens_per_gpu {self.tokens_per_gpu}: give one"
            )
        return self


AS_SENT = System()
"""No setting of the machine: launches are as orch sends them by itself."""


class Cadence(Frozen):
    """The steps at which a cell is evaluated and writes checkpoints. Never part of a cell's
    identity.
    """

    checkpoint_every_steps: PositiveInt | None = None
    """None: only after the last train step."""
    evaluate_every_steps: PositiveInt | None = None
    """None: at the first and the last train step."""
