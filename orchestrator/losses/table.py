"""The table of policy losses: one entry each, from which everything that lists losses derives.

A policy loss turns the advantage A of a token into a number to minimise. Notation: pi is the
policy, old the policy that the ratio is to, r = pi / old of a token, x = log r, T the tokens of a
response, s_t = grad log pi of a token, sg: no gradient. `old` is the rollout policy; with a
correction of the engine it is the proximal policy, the trainer's own before the batch's first train
step (settings.EngineCorrection).

An entry says which ratio it has, what bounds it, what of the gradient is kept, and computes value
and slope of each token for NumPy arrays and torch tensors alike. The weight or mask against the
engine is no entry: `loss.correction` multiplies any policy loss. How a library spells a loss is
that library's own fact and stays in its backend.

losses.toml has the entries, `_COMPUTE` below their functions.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from math import inf
from typing import Literal, NamedTuple

from orchestrator.errors import did_you_mean
from orchestrator.estimators import Array, elementwise

LossRatio = Literal["none", "token", "sequence_mean", "sequence"]
"""The ratio pi / old of the loss: none, each token's, the geometric mean over the response, or the
product over it."""

Bound = Literal["none", "cut", "weight", "soft", "mask", "penalty"]
"""What bounds the step. cut: no gradient beyond the bound on the side to which the advantage
pushes; weight: the weight stays at its bound and the gradient goes on; soft: the weight decays and
is never 0; mask: no gradient beyond a distance; penalty: a pull back to `old`."""

Measure = Literal["", "ratio", "log_ratio", "probability", "nats"]
"""What `loss.clip` bounds. ratio: r within [1 - low, 1 + high]; log_ratio: x within [-low, high];
probability: pi - old within [-low, high]; nats: the KL of this token against all others; empty:
no clip."""


class Bounds(NamedTuple):
    """The bounds of a loss, in the measure of its entry; without any, those that never hold."""

    low: float = inf
    high: float = inf
    dual: float = inf
    """ppo, gspo: c of the dual clip; dppo_tv, dppo_kl: the most that the ratio weighs."""


class Tokens(NamedTuple):
    """The tokens of responses. Shapes: [..., T]; the advantage is [..., 1] or [..., T]."""

    logp: Array
    """log pi"""
    logp_old: Array
    advantage: Array
    mask: Array
    """1 for a response's tokens, 0 for others."""
    bounds: Bounds = Bounds()


class TokenLoss(NamedTuple):
    """A policy loss by token, [..., T]. What it is at masked tokens has no meaning."""

    value: Array
    """The loss, before aggregation."""
    slope: Array
    """d (sum of the values of the token's response) / d log pi of the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStep:
    """What a policy loss does as a step grows, in the audit's words."""

    name: str
    """The name in a spec: letters, digits and `_`."""
    said: str
    """Its name for a reader of an audit; empty for PPO's, which needs none."""
    ratio: LossRatio
    bound: Bound
    acts: str = ""
    """The bound, as a clause with `{span}` and `{high}`; empty if nothing bounds a step."""
    drops: str = ""
    """What loses its gradient."""
    failure: str = ""
    """What is known to go wrong with it."""
    pulls_back: bool = False
    """True if its gradient can point back to `old`, against the advantage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossEntry(LossStep):
    """One policy loss that orch computes."""

    title: str
    formula: str
    """The loss of a token, in the notation of the module."""
    keeps: str
    """What is left of the on-policy gradient, A s_t, and what is dropped."""
    compute: Callable[[Tokens], TokenLoss]
    source: str
    """Paper and equation."""
    measure: Measure = ""
    usual: Bounds | None = None
    """The bounds that a spec gets which gives no `loss.clip`: the paper's. None: no clip."""
    dual: bool = False
    """True if it takes `loss.clip.dual`."""
    aggregation: str = ""
    """The only aggregation with which it is what its paper says; empty: any."""
    instead: str = ""
    """What to use instead, or beside it."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Library and release -> its own name, and the function's file."""
    in_specs: bool = True
    """True if a spec may name it. Otherwise only `orch explain` and the audit know it."""

    @property
    def bounds_in_words(self) -> str:
        """Return what the usual bounds hold, as `loss.clip` gives them; empty for no clip."""
        if self.usual is None or not self.measure:
            return ""
        low, high, _ = self.usual
        between = f"in [{-low:g}, {high:g}]"
        if self.measure == "ratio":
            between = f"in [{1 - low:g}, {1 + high:g}]" if low < 1 else f"at most {1 + high:g}"
        words = {
            "ratio": f"the {'geometric mean ' * (self.ratio == 'sequence_mean')}ratio {between}",
            "log_ratio": f"the log-ratio {between}",
            "probability": f"the change of a token's probability {between}",
            "nats": f"the KL of a token at most {high:g} nats",
        }[self.measure]
        none = ", no lower bound" if self.measure == "ratio" and low >= 1 else ""
        return f"{words}{none} (loss.clip low {low:g}, high {high:g}, where a spec gives none)"


# What the losses share. The ratio of a token is held where exp would overflow, as in verl.
_MOST = 20.0


def _log_ratio(tokens: Tokens) -> Array:
    return (tokens.logp - tokens.logp_old).clip(-_MOST, _MOST) * tokens.mask


def _mean(x: Array, mask: Array) -> Array:
    """Return the mean over a response's tokens, [..., 1]. An empty response has 0."""
    return (x * mask).sum(-1)[..., None] / mask.sum(-1)[..., None].clip(1.0, None)


def _exp(x: Array) -> Array:
    return elementwise("exp", x)


def pick(condition: Array, x: Array, y: Array) -> Array:
    """Return x where the condition is True, and y elsewhere."""
    if hasattr(condition, "detach"):
        import torch

        return torch.where(condition, x, y)
    import numpy as np

    return np.where(condition, x, y)


def _kept(keep: Array, x: Array) -> Array:
    """Return x where a token is kept, and 0 elsewhere."""
    return pick(keep, x, 0.0 * x)


def _clipped(tokens: Tokens, ratio: Array) -> TokenLoss:
    """Return PPO's surrogate of a ratio, [..., 1] or [..., T], for each token."""
    low, high, dual = tokens.bounds
    ratio = ratio + 0.0 * tokens.logp
    gained = tokens.advantage + 0.0 * tokens.logp
    free = -gained * ratio
    bounded = -gained * ratio.clip(1 - low, 1 + high)
    cut = pick(gained > 0, ratio > 1 + high, ratio < 1 - low)
    value = pick(cut, bounded, free)
    if dual < inf:
        over = (gained < 0) & (ratio > dual)
        value, cut = pick(over, -gained * dual, value), cut | over
    return TokenLoss(value, _kept(~cut, free))


def _ppo(tokens: Tokens) -> TokenLoss:
    return _clipped(tokens, _exp(_log_ratio(tokens)))


def _gspo(tokens: Tokens) -> TokenLoss:
    return _clipped(tokens, _exp(_mean(_log_ratio(tokens), tokens.mask)))


def _weighted(tokens: Tokens, weight: Array) -> TokenLoss:
    """Return -sg(weight) A log pi."""
    slope = -tokens.advantage * weight
    return TokenLoss(slope * tokens.logp, slope)


def _reinforce(tokens: Tokens) -> TokenLoss:
    return _weighted(tokens, 1.0 + 0.0 * tokens.logp)


def _cispo(tokens: Tokens) -> TokenLoss:
    low, high, _ = tokens.bounds
    return _weighted(tokens, _exp(_log_ratio(tokens)).clip(max(0.0, 1 - low), 1 + high))


def _rollout_is(tokens: Tokens) -> TokenLoss:
    low, high, _ = tokens.bounds
    ratio = _exp(_log_ratio(tokens))
    return _weighted(tokens, _kept((ratio > 1 - low) & (ratio < 1 + high), ratio))


SAPO_TEMPERATURES = (1.0, 1.05)
"""Of positive and of negative advantages: the paper's, and the default of verl, SkyRL and TRL."""


def _sapo(tokens: Tokens) -> TokenLoss:
    ratio = _exp(_log_ratio(tokens))
    positive, negative = (x + 0.0 * ratio for x in SAPO_TEMPERATURES)
    heat = pick(tokens.advantage + 0.0 * ratio > 0, positive, negative)
    gate = 1 / (1 + _exp(-heat * (ratio - 1)))
    return TokenLoss(
        -tokens.advantage * 4 / heat * gate,
        -tokens.advantage * 4 * gate * (1 - gate) * ratio,
    )


def _gmpo(tokens: Tokens) -> TokenLoss:
    low, high, _ = tokens.bounds
    x = _log_ratio(tokens)
    gained = tokens.advantage + 0.0 * x
    cut = pick(gained > 0, x > high, x < -low)
    ratio = _exp(_mean(pick(cut, x.clip(-low, high), x), tokens.mask))
    slope = -gained * ratio
    return TokenLoss(slope, _kept(~cut, slope))


def _masked_ratio(tokens: Tokens, keep: Array) -> TokenLoss:
    """Return -1[keep] r A; with a bound on the weight r, -1[keep] sg(min(r, c)) A log pi."""
    dual, ratio = tokens.bounds.dual, _exp(_log_ratio(tokens))
    if dual < inf:
        return _weighted(tokens, _kept(keep, ratio.clip(None, dual)))
    slope = _kept(keep, -tokens.advantage * ratio)
    return TokenLoss(slope, slope)


def _dppo_tv(tokens: Tokens) -> TokenLoss:
    low, high, _ = tokens.bounds
    moved = _exp(tokens.logp) - _exp(tokens.logp_old)
    gained = tokens.advantage + 0.0 * moved
    out = ((gained > 0) & (moved > high)) | ((gained < 0) & (moved < -low))
    return _masked_ratio(tokens, ~out)


_LEAST = 1e-8
"""Added to 1 - pi and 1 - old, as verl and SkyRL do: a token of probability 1 is there."""


def _dppo_kl(tokens: Tokens) -> TokenLoss:
    low, high, _ = tokens.bounds
    policy, old = _exp(tokens.logp), _exp(tokens.logp_old)
    other = elementwise("log", (1 - old + _LEAST) / (1 - policy + _LEAST))
    kl = old * (tokens.logp_old - tokens.logp) + (1 - old) * other
    gained = tokens.advantage + 0.0 * kl
    rose = (gained > 0) & (policy > old) & (kl > high)
    fell = (gained < 0) & (policy < old) & (kl > low)
    return _masked_ratio(tokens, ~(rose | fell))


VESPO_SHAPE = ((2.0, 3.0), (3.0, 2.0))
"""(k, lambda) of advantages of at least 0, and of negative ones: TRL's defaults."""


def _vespo(tokens: Tokens) -> TokenLoss:
    summed = _log_ratio(tokens).sum(-1)[..., None] + 0.0 * tokens.logp
    log_weight = summed.clip(_LOG_LEAST, _MOST)
    weight = _exp(log_weight)
    (k, heat), (k_negative, heat_negative) = VESPO_SHAPE
    up = heat + k * log_weight - heat * weight
    down = heat_negative + k_negative * log_weight - heat_negative * weight
    return _weighted(tokens, _exp(pick(tokens.advantage + 0.0 * summed >= 0, up, down)))


_LOG_LEAST = -18.420680743952367
"""log 1e-8, where TRL holds the log of the weight."""


def _dro(tokens: Tokens) -> TokenLoss:
    x, strength = tokens.logp - tokens.logp_old, tokens.bounds.low
    return TokenLoss(
        -tokens.advantage * tokens.logp + strength * x * x / 2, -tokens.advantage + strength * x
    )


KL_TAU = 1e-3
"""Prime-RL's default coefficient of (log r)^2."""


def _with_pull(tokens: Tokens, masked: TokenLoss) -> TokenLoss:
    """Return a loss plus KL_TAU (log r)^2, on every token."""
    x = tokens.logp - tokens.logp_old
    return TokenLoss(masked.value + KL_TAU * x * x, masked.slope + 2 * KL_TAU * x)


def _dppo_tv_pull(tokens: Tokens) -> TokenLoss:
    return _with_pull(tokens, _dppo_tv(tokens))


def _ipo(tokens: Tokens) -> TokenLoss:
    moved = _exp(tokens.logp) - _exp(tokens.logp_old)
    near = (moved >= -tokens.bounds.low) & (moved <= tokens.bounds.high)
    return _with_pull(tokens, _masked_ratio(tokens, near + 0.0 * tokens.advantage > 0))


_COMPUTE: dict[str, Callable[[Tokens], TokenLoss]] = {
    "ppo": _ppo,
    "reinforce": _reinforce,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "gmpo": _gmpo,
    "dppo_tv": _dppo_tv,
    "dppo_kl": _dppo_kl,
    "rollout_is": _rollout_is,
    "vespo": _vespo,
    "dppo_tv_pull": _dppo_tv_pull,
    "ipo": _ipo,
    "dro": _dro,
}


def _entries() -> dict[str, LossStep]:
    """Return the entries of losses.toml, with what computes those that orch computes."""
    text = files("orchestrator.losses").joinpath("losses.toml").read_text(encoding="utf-8")
    entries: dict[str, LossStep] = {}
    for name, fields in tomllib.loads(text).items():
        if name not in _COMPUTE:
            entries[name] = LossStep(name=name, **fields)
            continue
        usual = fields.pop("usual", None)
        bounds = None if usual is None else Bounds(*usual)
        entries[name] = PolicyLossEntry(name=name, compute=_COMPUTE[name], usual=bounds, **fields)
    return entries


ALSO: Mapping[str, tuple[str, str]] = {
    "dppo": ("dppo_tv", "dppo_tv masks by probabilities; dppo_kl, its other form, by nats"),
    "luspo": (
        "gspo",
        "LUSPO (arXiv 2602.05261) sums the tokens that gspo averages; the table is of gspo",
    ),
    "geo_mean": ("gmpo", "verl's name of gmpo"),
}
"""Other names of losses -> the entry, and a sentence."""

DEFAULT = "ppo"
"""The value of `loss.policy` that means what orch trained before the field existed."""


LOSS_STEPS: Mapping[str, LossStep] = _entries()
"""Every policy loss that the audit has words for."""
POLICY_LOSSES: Mapping[str, PolicyLossEntry] = {
    name: entry for name, entry in LOSS_STEPS.items() if isinstance(entry, PolicyLossEntry)
}
"""Those that orch computes."""


def policy_loss_entry(name: str) -> PolicyLossEntry:
    """Return the entry of that name. Raise LookupError with a sentence if there is none."""
    if name not in POLICY_LOSSES:
        raise LookupError(
            f"no policy loss is called '{name}'{did_you_mean(name, POLICY_LOSSES)} "
            f"(there are: {', '.join(POLICY_LOSSES)})"
        )
    return POLICY_LOSSES[name]


def said(name: str) -> str:
    """Return the name of a policy loss for a reader of an audit; empty for PPO's."""
    return LOSS_STEPS[name].said if name in LOSS_STEPS else name


def choices() -> tuple[str, ...]:
    """Return the values that `loss.policy` may have."""
    return tuple(name for name, entry in POLICY_LOSSES.items() if entry.in_specs)


def is_choice(name: str) -> bool:
    """Return whether `loss.policy` may have this value."""
    return name in choices()
