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

To add a policy loss, write its entry into `_ENTRIES` below.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.estimators import Array, OpenTable, elementwise

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


@dataclass(frozen=True, slots=True)
class PolicyLossEntry:
    """One policy loss."""

    name: str
    """The name in a spec: letters, digits and `_`."""
    title: str
    formula: str
    """The loss of a token, in the notation of the module."""
    ratio: LossRatio
    bound: Bound
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
    pulls_back: bool = False
    """True if its gradient can point back to `old`, against the advantage."""
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
    free, bounded = -gained * ratio, -gained * ratio.clip(1 - low, 1 + high)
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


_NO_PULL = "add a KL to a reference: this loss only bounds one update, and the drift adds up"
_CORE = "verl/trainer/ppo/core_algos.py"
_SKYRL = "skyrl/backends/skyrl_train/utils/ppo_utils.py"
_TRL = "trl/trainer/grpo_trainer.py _compute_loss"
_PRIME = "src/prime_rl/trainer/rl/loss.py"

_ENTRIES: dict[str, PolicyLossEntry] = {
    entry.name: entry
    for entry in (
        PolicyLossEntry(
            name="ppo",
            title="PPO's clip (GRPO, DAPO, RLOO in libraries); without a clip, importance sampling",
            formula="-min(r A, clip(r, 1 - low, 1 + high) A); dual: at most -c A where A < 0",
            ratio="token",
            bound="cut",
            measure="ratio",
            usual=Bounds(0.2, 0.2),
            dual=True,
            keeps="r A s_t; 0 once the token went beyond the bound to the side of its advantage, "
            "and with the dual clip where A < 0 and r > c",
            compute=_ppo,
            instead="cispo, if tokens beyond the clip should go on learning; "
            "dppo_tv, if rare tokens should not be cut first",
            source="Schulman et al. 2017, arXiv 1707.06347, eq. 7; dual clip: Ye et al. 2020, "
            "arXiv 1912.09729, eq. 5; clip-higher: Yu et al. 2025, arXiv 2503.14476, eq. 10",
            files={
                "verl 0.9.1": f"vanilla, {_CORE} compute_policy_loss_vanilla",
                "SkyRL 0.3.0": f"regular, dual_clip, {_SKYRL} ppo_policy_loss",
                "TRL 1.16.0": f"grpo, bnpo, dr_grpo, dapo, {_TRL}",
                "OpenRLHF 0.11.2": "ppo, openrlhf/models/loss.py PolicyLoss",
            },
        ),
        PolicyLossEntry(
            name="reinforce",
            title="REINFORCE, RLOO: no ratio",
            formula="-A log pi",
            ratio="none",
            bound="none",
            keeps="A s_t of the samples; off-policy they are not reweighted, and where A < 0 "
            "nothing ends the push down",
            compute=_reinforce,
            instead="cispo with low 1: the same, reweighted with a bound",
            source="Williams 1992; Ahmadian et al. 2024, arXiv 2402.14740, eq. 6",
            files={"verl 0.9.1": f"gpg, {_CORE} compute_policy_loss_gpg"},
        ),
        PolicyLossEntry(
            name="gspo",
            title="GSPO: PPO's clip of the geometric mean ratio of a response",
            formula="-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean of x)",
            ratio="sequence_mean",
            bound="cut",
            measure="ratio",
            usual=Bounds(3e-4, 4e-4),
            dual=True,
            aggregation="sequence_mean",
            keeps="s A s_t of all tokens of the response, or of none: s is not the response's "
            "weight, which is s^T",
            compute=_gspo,
            instead="bounds of the paper, 3e-4 and 4e-4: at PPO's 0.2 it cuts hardly anything; "
            + _NO_PULL,
            source="Zheng et al. 2025, arXiv 2507.18071, eq. 5 to 7, bounds of §5.1",
            files={
                "verl 0.9.1": f"gspo, {_CORE} compute_policy_loss_gspo",
                "SkyRL 0.3.0": f"gspo, {_SKYRL} gspo_policy_loss",
                "TRL 1.16.0": f"importance_sampling_level=sequence, {_TRL}",
                "OpenRLHF 0.11.2": "gspo, openrlhf/models/loss.py PolicyLoss",
            },
        ),
        PolicyLossEntry(
            name="cispo",
            title="CISPO: a bounded weight; REINFORCE with TIS where low is 1 or more",
            formula="-sg(clip(r, 1 - low, 1 + high)) A log pi",
            ratio="token",
            bound="weight",
            measure="ratio",
            usual=Bounds(1.0, 4.0),
            keeps="clip(r) A s_t of every token: one that is beyond the bound goes on",
            compute=_cispo,
            instead=f"low 1 for no lower bound, as the paper has it; {_NO_PULL}",
            source="MiniMax 2025, arXiv 2506.13585, eq. 4 and 5; bounds 0 to 5: Khatri et al. "
            "2025, arXiv 2510.13786 (ScaleRL)",
            files={
                "verl 0.9.1": f"cispo, {_CORE} compute_policy_loss_cispo; its reinforce of "
                "bypass_mode, with the sampler as old",
                "SkyRL 0.3.0": f"cispo, {_SKYRL} compute_policy_loss_cispo",
                "TRL 1.16.0": f"cispo, {_TRL}: epsilon_high is the bound itself, no lower one",
            },
        ),
        PolicyLossEntry(
            name="sapo",
            title="SAPO: a soft gate on the ratio",
            formula="-A (4 / tau) sigmoid(tau (r - 1)), tau 1 where A > 0, else 1.05",
            ratio="token",
            bound="soft",
            aggregation="sequence_mean",
            keeps="4 p (1 - p) r A s_t with p = sigmoid(tau (r - 1)): all at r = 1, less on both "
            "sides, never 0; where A < 0 a token that fell keeps at least 0.77 of r A s_t",
            compute=_sapo,
            instead=f"ppo or dppo_tv, if negative advantages must stop; {_NO_PULL}",
            source="Gao et al. 2025, arXiv 2511.20347",
            files={
                "verl 0.9.1": f"sapo, {_CORE} compute_policy_loss_sapo",
                "SkyRL 0.3.0": f"sapo, {_SKYRL} sapo_policy_loss",
                "TRL 1.16.0": f"sapo, {_TRL}",
            },
        ),
        PolicyLossEntry(
            name="gmpo",
            title="GMPO: the geometric mean of ratios that are clipped one by one",
            formula="-A exp(mean of x', x' = x held within [-low, high] on the side of A)",
            ratio="sequence_mean",
            bound="cut",
            measure="log_ratio",
            usual=Bounds(0.4, 0.4),
            aggregation="sequence_mean",
            keeps="g A s_t with g the clipped geometric mean; 0 for a token beyond the bound to "
            "the side of its advantage",
            compute=_gmpo,
            instead=f"gspo, whose aggregation libraries normalise alike; {_NO_PULL}",
            source="Zhao et al. 2025, arXiv 2507.20673, eq. 4",
            files={
                "verl 0.9.1": f"geo_mean, {_CORE} compute_policy_loss_geo_mean",
                "TRL 1.16.0": "trl/experimental/gmpo/gmpo_trainer.py",
            },
        ),
        PolicyLossEntry(
            name="dppo_tv",
            title="DPPO: a mask by the difference of probabilities",
            formula="-1[kept] r A; dropped: A > 0 and pi - old > high, or A < 0 and "
            "old - pi > low; with a bound c on the weight: -1[kept] sg(min(r, c)) A log pi",
            ratio="token",
            bound="mask",
            measure="probability",
            usual=Bounds(0.2, 0.2),
            dual=True,
            keeps="r A s_t of kept tokens; a token of probability below the bound is never "
            "dropped, however large its ratio",
            compute=_dppo_tv,
            instead="clip.dual 20, which bounds the weight of a rare token; Prime-RL's pull to "
            "the sampler: kl.reference.kind sampler with k2 in the loss",
            source="arXiv 2602.04879, eq. 13; the bound of the weight: §5.4",
            files={
                "verl 0.9.1": f"dppo_tv, {_CORE} compute_policy_loss_dppo_tv",
                "SkyRL 0.3.0": f"dppo, binary_tv, {_SKYRL} dppo_policy_loss",
                "Prime-RL 0.8.0": f"default, {_PRIME} default_loss_fn, with a pull",
            },
        ),
        PolicyLossEntry(
            name="dppo_kl",
            title="DPPO: a mask by the KL of the token against all others",
            formula="-1[kept] r A; dropped: old log(old / pi) + (1 - old) log((1 - old) / "
            "(1 - pi)) > bound and pi moved to the side of A",
            ratio="token",
            bound="mask",
            measure="nats",
            usual=Bounds(0.05, 0.05),
            dual=True,
            keeps="r A s_t of kept tokens; a rare token is dropped later than a frequent one",
            compute=_dppo_kl,
            instead="dppo_tv, whose bound is a probability; clip.dual 20 for rare tokens",
            source="arXiv 2602.04879, eq. 14",
            files={
                "verl 0.9.1": f"dppo_kl, {_CORE} compute_policy_loss_dppo_kl",
                "SkyRL 0.3.0": f"dppo, binary_kl, {_SKYRL} dppo_policy_loss",
            },
        ),
        PolicyLossEntry(
            name="rollout_is",
            title="a ratio that is 0 outside its bounds, on either side",
            formula="-sg(r 1[1 - low < r < 1 + high]) A log pi",
            ratio="token",
            bound="mask",
            measure="ratio",
            usual=Bounds(0.2, 0.2),
            keeps="r A s_t within the bounds, 0 outside, whatever the advantage: a token that "
            "moved against its advantage is dropped too",
            compute=_rollout_is,
            instead="ppo, which lets a token come back; cispo, which keeps every token",
            source="SkyRL 0.3.0",
            files={"SkyRL 0.3.0": f"rollout_is, {_SKYRL} rollout_is_policy_loss"},
        ),
        PolicyLossEntry(
            name="vespo",
            title="VESPO: a smooth weight of the whole response",
            formula="-sg(e^(l + k log W - l W)) A log pi, W the product of r; (k, l) = (2, 3) "
            "where A >= 0, else (3, 2)",
            ratio="sequence",
            bound="soft",
            keeps="all on policy; nothing for W towards 0 or without bound; the weight falls with "
            "W at W = 1 where A >= 0, and rises where A < 0",
            compute=_vespo,
            instead=f"gspo or cispo for long responses, whose W is far from 1; {_NO_PULL}",
            source="arXiv 2602.10693, as TRL 1.16.0 quotes it",
            files={"TRL 1.16.0": f"vespo, {_TRL}, get_gamma_weights"},
        ),
        PolicyLossEntry(
            name="dppo_tv_pull",
            title="Prime-RL's default: dppo_tv and a pull to the sampler",
            formula="-1[kept] r A + 0.001 x^2, the second on dropped tokens too",
            ratio="token",
            bound="mask",
            measure="probability",
            usual=Bounds(0.2, 0.2),
            keeps="as dppo_tv; every token is pulled back by 0.002 x",
            compute=_dppo_tv_pull,
            pulls_back=True,
            instead="in a spec: dppo_tv with kl.reference.kind sampler, k2 in the loss and beta "
            "0.002",
            source="arXiv 2602.04879, eq. 13, and 2602.02276, as its docstring says",
            files={"Prime-RL 0.8.0": f"default, {_PRIME} default_loss_fn"},
            in_specs=False,
        ),
        PolicyLossEntry(
            name="ipo",
            title="Prime-RL's ipo: a mask on both sides and a pull to the sampler",
            formula="-1[|pi - old| <= bound] r A + 0.001 x^2",
            ratio="token",
            bound="mask",
            measure="probability",
            usual=Bounds(0.1, 0.1),
            keeps="r A s_t of tokens that moved by less than the bound, whatever the advantage",
            compute=_ipo,
            pulls_back=True,
            instead="dppo_tv, which drops no token that moved against its advantage",
            source="Prime-RL 0.8.0",
            files={"Prime-RL 0.8.0": f"ipo, {_PRIME} ipo_loss_fn"},
            in_specs=False,
        ),
        PolicyLossEntry(
            name="dro",
            title="DRO: no ratio, and a quadratic pull to old",
            formula="-(A log pi - (b / 2) x^2)",
            ratio="none",
            bound="penalty",
            measure="",
            usual=Bounds(low=0.1),
            keeps="A s_t, not reweighted, less b x s_t: at rest at x = A / b",
            compute=_dro,
            pulls_back=True,
            instead="in a spec: reinforce with kl.reference.kind sampler, k2 in the loss and "
            "beta b",
            source="verl 0.9.1",
            files={"verl 0.9.1": f"dro, {_CORE} compute_policy_loss_dro"},
            in_specs=False,
        ),
    )
}

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


POLICY_LOSSES: OpenTable[PolicyLossEntry] = OpenTable("policy loss", _ENTRIES)
policy_loss_entry = POLICY_LOSSES.entry


def choices() -> tuple[str, ...]:
    """Return the values that `loss.policy` may have."""
    return tuple(name for name, entry in POLICY_LOSSES.items() if entry.in_specs)


def is_choice(name: str) -> bool:
    """Return whether `loss.policy` may have this value."""
    entry = POLICY_LOSSES.get(name)
    return entry is not None and entry.in_specs


def register(new: PolicyLossEntry) -> None:
    """Add a policy loss at the end of the table. Raise EnvironmentFault on a name that is taken, or
    that is no word."""
    if new.name in _ENTRIES:
        raise EnvironmentFault(
            f"the policy loss '{new.name}' is in the table already; give yours another name"
        )
    if not new.name.isidentifier():
        raise EnvironmentFault(
            f"the name of a policy loss is letters, digits and '_'; got '{new.name}'"
        )
    _ENTRIES[new.name] = new


def unregister(name: str) -> None:
    """Take a policy loss out of the table again; for tests."""
    del _ENTRIES[name]
