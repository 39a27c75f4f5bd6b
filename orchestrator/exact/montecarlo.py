"""Monte-Carlo estimates to compare with the exact laboratory: the paper's Fig. 1 (§3.3).

The sampler draws for each sequence how often each (count, token) occurs. While the count is c, the
number of zeros before the next one has a geometric distribution. So a sequence needs one draw per
count, and every sum over its tokens is one row of a matrix product. `sweep` estimates how often the
orderings of Fig. 1 hold over random parameters of the model.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.exact.laboratory import (
    PARTS,
    Exact,
    FloatTable,
    LabSetting,
    ToyPolicy,
    exact,
    sums_of,
    tables,
)
from orchestrator.exact.objectives import gradients
from orchestrator.kl.configuration import FIGURE_1, KlConfiguration
from orchestrator.kl.shares import wilson

TRIALS_AT_ONCE = 20


class MonteCarloEstimate(NamedTuple):
    """Statistics over trials, [configurations, 2 parameters]. A trial is a mean over sequences."""

    mean: FloatTable
    variance: FloatTable
    """Sample variance of a trial's estimate."""
    trials: int
    sequences: int

    def bias(self, truth: FloatTable) -> FloatTable:
        """Return |mean over trials - gradient of the sequence reverse KL| (`truth`, [2])."""
        return np.asarray(np.abs(self.mean - truth))

    def z(self, exact: Exact) -> FloatTable:
        """Return the distance of the mean over trials from the exact mean, in standard errors."""
        spread = np.sqrt(exact.variance / (self.trials * self.sequences))
        # An estimate without variance differs by rounding alone; one that is 0 everywhere must not
        # divide by 0.
        noise = 1e-9 * exact.magnitude
        return np.asarray((self.mean - exact.mean) / np.maximum(spread, noise + 1e-300))


def monte_carlo(
    setting: LabSetting,
    configurations: Sequence[KlConfiguration],
    *,
    trials: int = 200,
    sequences: int = 1000,
    seed: int = 0,
) -> MonteCarloEstimate:
    """Estimate every configuration's gradient from the same `trials` x `sequences` samples.

    Raise LaboratoryError for a policy over more than two tokens: only the exact laboratory has it.
    """
    if trials < 2 or sequences < 1:
        raise LaboratoryError(
            f"trials must be at least 2 and sequences at least 1, got {trials} and {sequences}"
        )
    if not isinstance(setting.sampler, ToyPolicy):
        raise LaboratoryError("sampling is of the paper's model, of two tokens; use two tokens")
    whole = [i for i, c in enumerate(configurations) if c.credit == "sequence"]
    some = [i for i in range(len(configurations)) if i not in whole]
    estimator = _estimator(setting, [configurations[i] for i in whole])
    # A generator of its own: these configurations leave the draws of the others as they are.
    rng, ordered = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    means = np.empty((trials, len(configurations), 2))
    for start in range(0, trials, TRIALS_AT_ONCE):
        chunk = slice(start, min(trials, start + TRIALS_AT_ONCE))
        count = (chunk.stop - chunk.start) * sequences
        visits = sample_visits(setting.sampler, setting.num_tokens, count, rng)
        shape = (chunk.stop - chunk.start, sequences, -1, 2)
        means[chunk, whole] = estimator(visits).reshape(shape).mean(1)
        if some:
            walked = _in_order(setting, [configurations[i] for i in some], count, ordered)
            means[chunk, some] = walked.reshape(shape).mean(1)
    return MonteCarloEstimate(means.mean(0), means.var(0, ddof=1), trials, sequences)


def sample_visits(
    policy: ToyPolicy, num_tokens: int, count: int, rng: np.random.Generator
) -> FloatTable:
    """Return the number of zeros (first T columns) and ones (last T) that each sequence has.

    The shape is [count, 2 T]. The column within each half is the count at that token.
    """
    # P(k zeros or more) = P(0)^k = exp(-k rate), so the whole part of an exponential draw over the
    # rate has the geometric distribution.
    rate = np.logaddexp(0.0, policy.logits(num_tokens))
    zeros = np.floor(rng.standard_exponential((count, num_tokens)) / rate)
    # Where each next one stands: after its zeros. More than T zeros are as good as T.
    written = np.cumsum(np.minimum(zeros, num_tokens) + 1, axis=1)
    before = np.concatenate([np.zeros((count, 1)), written[:, :-1]], axis=1)
    visits = np.empty((count, 2 * num_tokens))
    visits[:, :num_tokens] = np.clip(num_tokens - before, 0, zeros)
    visits[:, num_tokens:] = written <= num_tokens
    return visits


def _estimator(
    setting: LabSetting, configurations: Sequence[KlConfiguration]
) -> Callable[[FloatTable], FloatTable]:
    """Return a function from visits [n, 2 T] to gradients [n, configurations * 2].

    Equal tables share a column, so one matrix product computes all sums.
    """
    table = tables(setting)
    columns: dict[bytes, int] = {}
    weights: list[FloatTable] = []

    def column(values: FloatTable) -> int:
        flat = np.ascontiguousarray(values).reshape(-1)
        key = flat.tobytes()
        if key not in columns:
            columns[key] = len(weights)
            weights.append(flat)
        return columns[key]

    log_ratio = column(table.logp - table.logp_rollout)
    rows = [
        (column(sums.f[j]), column(sums.s[j]), column(sums.l[j]), sums.weighted)
        for sums in (sums_of(configuration, table) for configuration in configurations)
        for j in range(2)
    ]
    matrix = np.stack(weights, axis=1)

    def gradients(visits: FloatTable) -> FloatTable:
        sums = visits @ matrix
        out = np.empty((len(visits), len(rows)))
        for i, (f, s, inner, weighted) in enumerate(rows):
            gradient = sums[:, f] * sums[:, s] + sums[:, inner]
            out[:, i] = gradient * np.exp(weighted * sums[:, log_ratio]) if weighted else gradient
        return out

    return gradients


def _in_order(
    setting: LabSetting,
    configurations: Sequence[KlConfiguration],
    count: int,
    rng: np.random.Generator,
) -> FloatTable:
    """Return gradients [count, configurations * 2] for credits other than `sequence`.

    They depend on the order of the tokens, so sample token by token.
    """
    table = tables(setting)
    rows = [
        (sums.f[0], sums.s[j], sums.l[j], *PARTS[configuration.credit])
        for configuration in configurations
        for sums in [sums_of(configuration, table)]
        for j in range(2)
    ]
    kl, score, own = (
        np.stack(each, axis=-1)
        for each in (
            [later * f for f, _, _, _, later in rows],
            [s for _, s, _, _, _ in rows],
            [charged * f * s + inner for f, s, inner, charged, _ in rows],
        )
    )
    ones, so_far, total = np.zeros(count, int), np.zeros((count, len(rows))), 0.0
    chance = np.exp(table.logp_rollout[1])
    for _ in range(setting.num_tokens):
        y = (rng.random(count) < chance[ones]).astype(int)
        total = total + kl[y, ones] * so_far + own[y, ones]
        so_far += score[y, ones]
        ones = ones + y
    return np.asarray(total)


ORDERINGS = (
    "k1 in reward is unbiased",
    "k3 in reward has the highest bias of the four",
    "k1 in loss has the lowest variance of the four",
    "k1 in loss has a lower variance than k1 in reward",
    "k3 in reward has the highest bias and k1 in loss the lowest variance",
)
"""Each must hold for both parameters. All hold in the paper's Fig. 1."""

A_RANGE, B_RANGE = 1.5, 0.15
"""Ranges of the uniform draws: a in +- A_RANGE and b in +- B_RANGE, for policy and reference."""


def sweep(*, draws: int = 500, num_tokens: int = 32, seed: int = 0) -> dict[str, Any]:
    """Return the share of random settings in which each ordering holds, with 95% intervals."""
    if draws < 1:
        raise LaboratoryError(f"draws must be at least 1, got {draws}")
    rng = np.random.default_rng(seed)
    spread = np.array([A_RANGE, B_RANGE, A_RANGE, B_RANGE])
    parameters = rng.uniform(-spread, spread, (draws, 4))
    columns = np.array(
        [
            _orderings(
                LabSetting(ToyPolicy(*map(float, p[:2])), ToyPolicy(*map(float, p[2:])), num_tokens)
            )
            for p in parameters
        ]
    )
    return {
        "draws": draws,
        "num_tokens": num_tokens,
        "seed": seed,
        "ranges": {"a": A_RANGE, "b": B_RANGE},
        "orderings": [
            {
                "ordering": name,
                "share": float(column.mean()),
                "interval": wilson(int(column.sum()), len(column)),
            }
            for name, column in zip(ORDERINGS, columns.T, strict=True)
        ],
    }


def _orderings(setting: LabSetting) -> list[bool]:
    statistics = exact(setting, FIGURE_1)
    truth = gradients(setting)["sequence_reverse_kl"]
    bias, variance = np.abs(statistics.mean - truth), statistics.variance
    # Places in FIGURE_1: 0 is k1 in reward, 1 is k1 in loss, 2 is k3 in reward.
    unbiased = bool((bias[0] <= 1e-9 * statistics.magnitude[0]).all())
    highest = bool((bias.argmax(0) == 2).all())
    lowest = bool((variance.argmin(0) == 1).all())
    return [unbiased, highest, lowest, bool((variance[1] < variance[0]).all()), highest and lowest]
