"""The exact laboratory: bias and variance of a KL term's gradient on a small autoregressive model.

The model is the paper's (eq. 17, 18). A policy writes T binary tokens; P(y_t = 1) =
sigmoid(a + b c), where c counts the ones so far. Every quantity of a token depends only on (c, y),
so a table has shape [2, T]: token y, count c. For effects of the vocabulary's size, a `WidePolicy`
has V tokens, c counts the odd ones, and tables are [V, T].

The gradient of one sequence is W (F S + L) for every configuration. F is the KL summed over tokens,
S the (weighted) score, L the sum of each token's own gradient, W the ratio of the sequence or 1. F,
S and L are sums over tokens of tables f, s, l, so their joint moments follow by dynamic programming
over the count. `moments` carries E[F^i S^j L^k; c] from token to token in O(T) each, for all rows
(configurations and parameters) at once. `exact` combines them to a mean and a variance.

If a token's score is multiplied by the KL of some tokens only, `credited` computes the moments. One
sequence's gradient is then sum_t s_t R_t + l_t, with R_t = own k_t + later (k_{t+1} + ...). R_t is
the KL to go (own = later = 1), the KL of later tokens (own = 0), or the token's own (later = 0).
Let S be the sum of the scores so far. Then a token adds own s k + later k S + l to the gradient A.
So the moments of (S, A) follow by dynamic programming over the count, too.

`Sequences` lists every sequence of the model as one batch, for functions of whole batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import Array, entry, plain_names
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import clamped_value, slope, vocabulary_kl, vocabulary_slope

FloatTable = np.ndarray[Any, np.dtype[Any]]

PARTS = {"to_go": (1.0, 1.0), "later": (0.0, 1.0), "token": (1.0, 0.0)}
"""Credit -> (own, later): the factors of a token's own KL and of later tokens' KL in R_t."""


PARAMETERS = ("a", "b")

MAX_LOGIT = 300.0
"""Maximum |logit|. Beyond it a token's probability is below 1e-130 and sequence ratios overflow."""


class ToyPolicy(NamedTuple):
    """A policy that writes a 1 after c ones with probability sigmoid(a + b c)."""

    a: float
    b: float

    def logits(self, num_tokens: int) -> FloatTable:
        """Return the logit of a 1 by count, [T]."""
        return self.a + self.b * np.arange(num_tokens)

    def logp(self, num_tokens: int) -> FloatTable:
        """Return the log-probability of a 0 and of a 1 by count, [2, T]."""
        logits = self.logits(num_tokens)
        # log sigmoid(-z) and log sigmoid(z), in a form that does not overflow.
        return np.stack([-np.logaddexp(0.0, logits), -np.logaddexp(0.0, -logits)])


class WidePolicy(NamedTuple):
    """A policy over V tokens: softmax of a_v + b_v c, with 0 for token 0; c counts odd tokens."""

    a: tuple[float, ...]
    """Parameters of tokens 1 to V - 1."""
    b: tuple[float, ...]

    def logits(self, num_tokens: int) -> FloatTable:
        """Return the logit of each token by count, [V, T]."""
        a, b = (np.array((0.0, *each))[:, None] for each in self)
        return np.asarray(a + b * np.arange(num_tokens))

    def logp(self, num_tokens: int) -> FloatTable:
        """Return the log-probability of each token by count, [V, T]."""
        logits = self.logits(num_tokens)
        return np.asarray(logits - np.logaddexp.reduce(logits, axis=0))


LabPolicy = ToyPolicy | WidePolicy


@dataclass(frozen=True, slots=True)
class LabSetting:
    """The policies of an experiment (trained, reference, rollout) and the number of tokens T.

    Raise LaboratoryError for parameters that are not finite, for less than one token, and for
    logits beyond MAX_LOGIT.
    """

    policy: LabPolicy
    reference: LabPolicy
    num_tokens: int
    rollout: LabPolicy | None = None
    """The policy that wrote the samples; None: the policy itself (on-policy)."""

    def __post_init__(self) -> None:
        if isinstance(self.num_tokens, bool) or not isinstance(self.num_tokens, int):
            raise LaboratoryError(f"num_tokens must be a whole number, got {self.num_tokens!r}")
        if self.num_tokens < 1:
            raise LaboratoryError(f"num_tokens must be at least 1, got {self.num_tokens}")
        for name in ("policy", "reference", "rollout"):
            self._check(name)

    def _check(self, name: str) -> None:
        policy: LabPolicy | None = getattr(self, name)
        if policy is None:
            return
        if len(policy.logp(1)) != len(self.policy.logp(1)):
            raise LaboratoryError(f"{name} must have as many tokens as the policy")
        for parameter, value in zip("ab", policy, strict=True):
            if not np.all(np.isfinite(np.asarray(value))):
                raise LaboratoryError(f"{name}.{parameter} must be finite, got {value}")
        worst = float(np.abs(policy.logits(self.num_tokens)).max())
        if worst > MAX_LOGIT and name == "rollout":
            raise LaboratoryError(
                "the rollout policy has no support on tokens the policy writes: its logit reaches "
                f"{worst:g} within {self.num_tokens} tokens (at most {MAX_LOGIT:g} is "
                "allowed); bring rollout.a and rollout.b nearer to the policy's"
            )
        if worst > MAX_LOGIT:
            raise LaboratoryError(
                f"|{name}.a + {name}.b c| must stay below {MAX_LOGIT:g} for counts c up to "
                f"num_tokens - 1, got {worst:g}; use smaller parameters or fewer tokens"
            )

    @property
    def on_policy(self) -> bool:
        """Return True if the policy itself wrote the samples."""
        return self.rollout is None or self.rollout == self.policy

    @property
    def sampler(self) -> LabPolicy:
        """Return the policy that wrote the samples."""
        return self.rollout or self.policy


class Tables(NamedTuple):
    """The quantities of one token by token and count, [V, T]; `score` is [parameters, V, T]."""

    logp: FloatTable
    logp_ref: FloatTable
    logp_rollout: FloatTable
    score: FloatTable
    """d log pi / d (a, b) = (y - P(1)) (1, c). For a WidePolicy: first all a_v, then all b_v."""

    @property
    def x(self) -> FloatTable:
        """Return log pi / pi_ref, [V, T]."""
        return self.logp - self.logp_ref

    @property
    def w(self) -> FloatTable:
        """Return pi / pi_rollout, [V, T]."""
        return np.asarray(np.exp(self.logp - self.logp_rollout))


def tables(setting: LabSetting) -> Tables:
    """Return the tables of a setting."""
    num_tokens = setting.num_tokens
    logp = setting.policy.logp(num_tokens)
    # d log pi(y) / d logit_v is [y = v] - P(v). Token 0 has no parameters.
    residual = np.eye(len(logp))[1:, :, None] - np.exp(logp[1:, None])
    return Tables(
        logp=logp,
        logp_ref=setting.reference.logp(num_tokens),
        logp_rollout=setting.sampler.logp(num_tokens),
        score=np.concatenate([residual, residual * np.arange(num_tokens)]),
    )


class SequenceMoments(NamedTuple):
    """Moments of (F, S, L) under one measure. The last axis of each array is [rows]."""

    fs: FloatTable
    """[3, 3, rows]: E[F^i S^j]."""
    fsl: FloatTable
    """[2, 2, rows]: E[F^i S^j L]."""
    ll: FloatTable
    """[rows]: E[L^2]."""


def moments(measure: FloatTable, f: FloatTable, s: FloatTable, l: FloatTable) -> SequenceMoments:  # noqa: E741  (f, s and l: the three tables of a configuration)
    """Return the moments up to F^2 S^2, F S L and L^2.

    All tables are [V, T, rows]: token, count, row. `measure` is the weight of a token: its
    probability, times a power of its ratio for a weighted sum. It need not sum to 1. The walk has
    moments divided by factorials, such as E[F^2] / 2: then those of a sum are a plain convolution.
    Tokens after which the count is the same take one step together.
    """
    num_tokens, rows = measure.shape[1:]
    kind = measure.dtype
    steps = [_added(measure[odd::2], f[odd::2], s[odd::2], l[odd::2]) for odd in (0, 1)]
    walk = SequenceMoments(
        np.zeros((3, 3, num_tokens + 1, rows), kind),
        np.zeros((2, 2, num_tokens + 1, rows), kind),
        np.zeros((num_tokens + 1, rows), kind),
    )
    # The empty sequence: E[1] is 1 at count 0, and every other moment is 0.
    walk.fs[0, 0, 0] = measure[0, 0] * 0 + 1
    for t in range(num_tokens):
        reached = slice(0, t + 1)
        old = SequenceMoments(*(part[..., reached, :].copy() for part in walk))
        for part in walk:
            part[..., : t + 2, :] = 0
        # An odd token raises the count by one, so its moments move one place up.
        for odd, step in enumerate(steps):
            to = slice(odd, t + 1 + odd)
            fs, fsl = walk.fs[:, :, to], walk.fsl[:, :, to]
            for i, j in product(range(3), repeat=2):
                fs[i:, j:] += old.fs[: 3 - i, : 3 - j] * step.fs[i, j, reached]
            for i, j in product(range(2), repeat=2):
                fsl[i:, j:] += old.fsl[: 2 - i, : 2 - j] * step.fs[i, j, reached]
                fsl[i:, j:] += old.fs[: 2 - i, : 2 - j] * step.fsl[i, j, reached]
            walk.ll[to] += (
                old.ll * step.fs[0, 0, reached]
                + old.fsl[0, 0] * step.fsl[0, 0, reached]
                + old.fs[0, 0] * step.ll[reached]
            )
    factorials = np.array([1, 1, 2])[:, None, None]
    whole = walk.fs.sum(2) * factorials * factorials[:, 0]
    return SequenceMoments(whole, walk.fsl.sum(2), walk.ll.sum(0) * 2)


def _added(measure: FloatTable, f: FloatTable, s: FloatTable, l: FloatTable) -> SequenceMoments:  # noqa: E741  (f, s and l: the three tables of a configuration)
    """Return the moments of one token's f, s and l, divided by factorials. Last axes: [T, rows]."""
    of_f = (1, f, f * f / 2)
    of_s = (1, s, s * s / 2)
    return SequenceMoments(
        np.stack([np.stack([(measure * a * b).sum(0) for b in of_s]) for a in of_f]),
        np.stack([np.stack([(measure * a * b * l).sum(0) for b in of_s[:2]]) for a in of_f[:2]]),
        (measure * l * l / 2).sum(0),
    )


class ConfigurationSums(NamedTuple):
    """The tables of W (F S + L) for one configuration: f, l and s are [parameters, V, T]."""

    f: FloatTable
    s: FloatTable
    l: FloatTable  # noqa: E741  (f, s and l: the three tables of a configuration)
    weighted: float
    """The exponent of the sequence's ratio in W: 1, 1/T for the geometric mean, or 0."""


class Exact(NamedTuple):
    """Exact statistics, [configurations, parameters], in nats per unit of a and b."""

    mean: FloatTable
    """The expected gradient."""
    variance: FloatTable
    """The variance of one sequence's gradient."""
    magnitude: FloatTable
    """Root mean square of one sequence's gradient. A mean far below it counts as zero."""


def exact(setting: LabSetting, configurations: Sequence[KlConfiguration]) -> Exact:
    """Return mean, variance and magnitude of every configuration's gradient.

    Raise LaboratoryError if a variance overflows: the rollout policy differs too much.
    """
    table = tables(setting)
    sums = [sums_of(configuration, table) for configuration in configurations]
    # an overflow becomes inf or nan, which is reported below with its configuration
    with np.errstate(over="ignore", invalid="ignore"):
        whole = [i for i, c in enumerate(configurations) if c.credit == "sequence"]
        powers = [_moments([sums[i] for i in whole], table, power) for power in (0, 1, 2)]
        columns = [
            _credited(c, s, table) if c.credit != "sequence" else ()
            for c, s in zip(configurations, sums, strict=True)
        ]
        for at, i in enumerate(whole):
            columns[i] = _statistics(configurations[i], *(p[at] for p in powers))
    result = Exact(*(np.array(part) for part in zip(*columns, strict=True)))
    if not all(np.isfinite(part).all() for part in result):
        worst = next(
            c.label
            for c, v in zip(configurations, result.variance, strict=True)
            if not np.isfinite(v).all()
        )
        raise LaboratoryError(
            f"the variance of {worst} is not finite: the rollout policy has too little support "
            "where the policy writes; use nearer parameters or fewer tokens"
        )
    return result


def estimates(setting: LabSetting) -> dict[str, tuple[float, float]]:
    """Return mean (nats) and variance of each plain estimate, summed over a sequence's tokens."""
    table, plain = tables(setting), plain_names()
    f = np.stack([clamped_value(name, table.x) for name in plain], axis=-1)
    nothing = np.zeros_like(f)
    measure = np.repeat(np.exp(table.logp_rollout)[..., None], len(plain), axis=-1)
    fs = moments(measure, f, nothing, nothing).fs
    means, squares = fs[1, 0], fs[2, 0]
    return {
        k: (float(mean), float(square - mean**2))
        for k, mean, square in zip(plain, means, squares, strict=True)
    }


def sums_of(configuration: KlConfiguration, table: Tables) -> ConfigurationSums:
    """Return the tables of a configuration. On-policy every w is 1."""
    form = entry(configuration.estimator)
    x, w, score, clamp = table.x, table.w, table.score, configuration.clamp
    powers = {"sequence": 1.0, "sequence_mean": 1 / table.x.shape[1]}
    weighted = powers.get(configuration.ratio, 0.0)
    token_w = w if configuration.ratio == "token" else np.ones_like(w)
    zero = np.zeros_like(score)
    f, s, inner = zero, zero, zero
    if configuration.placement != "loss":
        if configuration.reward_kl_of == "rollout":
            kl = charged(configuration, table.logp_rollout, table.logp_ref)
        else:
            kl = charged(configuration, table.logp, table.logp_ref)
            kl = kl * (token_w if form.is_weighted else 1.0)
        # in the reward the KL is a number: its gradient is that of the score function
        f, s = kl + zero, token_w * score
    if configuration.placement != "reward" and form.is_of_vocabulary:
        inner = zero + averaged(configuration.estimator, table)
    elif configuration.placement != "reward":
        gradient = slope(configuration.estimator, x, clamp)
        # a ratio that is not detached has the gradient w·score, so it adds value times score
        if form.form == "ratio_attached" and weighted:
            f, s = clamped_value(form.base, x, clamp) + zero, weighted * score
        elif form.form == "ratio_attached":
            gradient = gradient + clamped_value(form.base, x, clamp)
        inner = gradient * score * (token_w if form.is_weighted else 1.0)
    return ConfigurationSums(f, s, inner, weighted)


def charged(configuration: KlConfiguration, logp: FloatTable, logp_ref: FloatTable) -> FloatTable:
    """Return the KL in the reward of each token [V, T], or of each state [T].

    `logp`: [V, T], the policy whose KL is in the reward.
    """
    form = entry(configuration.estimator)
    if form.is_of_vocabulary and not form.in_reward:
        return np.asarray(vocabulary_kl(form.name, logp.T, logp_ref.T))
    plain = form.in_reward or form.base
    return np.asarray(clamped_value(plain, logp - logp_ref, configuration.clamp))


def averaged(estimator: str, table: Tables) -> FloatTable:
    """Return the gradient of a vocabulary estimate at each state, [parameters, 1, T]."""
    inner = vocabulary_slope(estimator, table.logp.T, table.logp_ref.T).T
    return np.asarray((np.exp(table.logp) * inner * table.score).sum(1, keepdims=True))


def _moments(sums: Sequence[ConfigurationSums], table: Tables, power: int) -> list[SequenceMoments]:
    """Return the moments of each configuration's (F, S, L), weighted by W^power.

    For configurations without a sequence ratio W is 1: compute them at power 0 only.
    """
    rows = [i for i, each in enumerate(sums) if each.weighted or power == 0]
    if not rows:
        return [_NONE] * len(sums)
    width = len(table.score)
    measure = np.concatenate(
        [
            np.repeat(
                (np.exp(table.logp_rollout) * table.w ** (power * sums[i].weighted))[..., None],
                width,
                axis=-1,
            )
            for i in rows
        ],
        axis=-1,
    )
    stacked = (_stack([sums[i][part] for i in rows]) for part in range(3))
    stacked_moments = moments(measure, *stacked)
    result: list[SequenceMoments] = [_NONE] * len(sums)
    for at, i in enumerate(rows):
        part_of = slice(width * at, width * (at + 1))
        result[i] = SequenceMoments(*(part[..., part_of] for part in stacked_moments))
    return result


_NONE = SequenceMoments(np.empty(0), np.empty(0), np.empty(0))


def _stack(parts: list[Any]) -> FloatTable:
    """Stack n tables of [P, V, T] to one array [V, T, n P], with the P parameters innermost."""
    stacked = np.stack(parts)
    return np.ascontiguousarray(
        np.moveaxis(stacked, (2, 3), (0, 1)).reshape(*stacked.shape[2:], -1)
    )


def _statistics(
    configuration: KlConfiguration,
    at_0: SequenceMoments,
    at_1: SequenceMoments,
    at_2: SequenceMoments,
) -> tuple[FloatTable, FloatTable, FloatTable]:
    """Return mean, variance and root mean square of one configuration's gradient."""
    if not configuration.ratio.startswith("sequence"):
        at_1 = at_2 = at_0
    # E[W (F S + L)] and E[W^2 (F S + L)^2], multiplied out.
    mean = at_1.fs[1, 1] + at_1.fsl[0, 0]
    square = at_2.fs[2, 2] + 2 * at_2.fsl[1, 1] + at_2.ll
    return mean, square - mean**2, np.sqrt(square)


class Sequences:
    """A batch of all N = 2^T sequences of a binary setting, [N, T + 1]; the last column pads."""

    def __init__(self, setting: LabSetting) -> None:
        self.setting = setting
        num_tokens = setting.num_tokens
        self.tokens = np.array(list(product((0, 1), repeat=num_tokens)))
        # The ones before each token: the sum without the token itself.
        self.counts = np.cumsum(self.tokens, axis=1) - self.tokens
        self.mask = np.pad(np.ones(self.tokens.shape), ((0, 0), (0, 1)))
        self.logp_ref = self.logp_of(setting.reference)
        self.logp_old = self.logp_of(setting.sampler)
        self.probability = np.exp((self.logp_old * self.mask).sum(1))

    def logp_of(self, policy: LabPolicy) -> FloatTable:
        """Return log-probabilities [N, T + 1]. The padding also has one, as in a trainer."""
        table = policy.logp(self.setting.num_tokens)
        padding = np.full((len(self.tokens), 1), table[0, 0])
        return np.concatenate([self.taken(table), padding], axis=1)

    def taken(self, table: Array) -> Array:
        """Return the values of a table [..., 2, T] at each sequence's tokens, [..., N, T]."""
        return table[..., self.tokens, self.counts]


def _credited(
    configuration: KlConfiguration, sums: ConfigurationSums, table: Tables
) -> tuple[FloatTable, FloatTable, FloatTable]:
    """Return mean, variance and root mean square for a credit other than `sequence`."""
    of_own, of_later = PARTS[configuration.credit]
    chance, score = np.exp(table.logp_rollout), sums.s
    # What a token adds that depends on no other token, and what multiplies the scores before it.
    own = sums.l + of_own * sums.f[0] * score
    kl = of_later * sums.f[0]
    rows, num_tokens = len(score), chance.shape[1]
    m = np.zeros((6, rows, num_tokens + 1))  # E of 1, S, S^2, A, S A, A^2, for each count
    m[0, :, 0] = 1
    for t in range(num_tokens):
        n = t + 1
        one, s1, s2, a1, sa, a2 = m[:, :, :n]
        new = np.zeros_like(m)
        for y, weight in enumerate(chance[:, :n]):
            s = score[:, y, :n]
            k = kl[y, :n]
            o = own[:, y, :n]
            added = k * s1 + o * one  # E of k S + o
            both = k * s2 + o * s1
            # The moments of S + s and of A + k S + o, multiplied out.
            step = (
                one,
                s1 + s * one,
                s2 + 2 * s * s1 + s * s * one,
                a1 + added,
                sa + both + s * (a1 + added),
                a2 + 2 * (k * sa + o * a1) + k * both + o * added,
            )
            # An odd token raises the count by one, so its moments move one place up.
            new[:, :, y % 2 : n + y % 2] += np.stack(step) * weight
        m = new
    mean, square = m.sum(-1)[[3, 5]]
    return mean, square - mean**2, np.sqrt(square)
