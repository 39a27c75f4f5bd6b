"""The Monte-Carlo estimate of a configuration's gradient, as in the paper's Fig. 1 (§3.3).

A sequence is known by how often each (count, token) occurred: while the count is c, the number of
zeros before the next one is geometric. So a whole sequence costs T + 1 draws, whatever its order,
and every sum along it is one row of a matrix product.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.semantics.configuration import Configuration
from orchestrator.semantics.laboratory import Exact, sums_of
from orchestrator.semantics.model import Policy, Setting, Table, tables

TRIALS_AT_ONCE = 20


class Estimate(NamedTuple):
    """Over trials, [configurations, 2 parameters]; a trial is a mean over its sequences."""

    mean: Table
    variance: Table
    """Sample variance of a trial's estimate."""
    trials: int
    sequences: int

    def bias(self, truth: Table) -> Table:
        """|mean over trials - gradient of the sequence reverse KL| (`truth`, [2])."""
        gap: Table = np.abs(self.mean - truth)
        return gap

    def z(self, exact: Exact) -> Table:
        """How many standard errors the mean over trials is from the exact expectation."""
        spread = np.sqrt(exact.variance / (self.trials * self.sequences))
        noise = 1e-9 * exact.magnitude
        score: Table = (self.mean - exact.mean) / np.maximum(spread, noise + 1e-300)
        return score


def monte_carlo(
    setting: Setting,
    configurations: Sequence[Configuration],
    *,
    trials: int = 200,
    sequences: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Estimate every configuration's gradient from the same `trials` x `sequences` samples.

    Raises LaboratoryError on a centred configuration: its exact variance needs no sampling.
    """
    if trials < 2 or sequences < 1:
        raise LaboratoryError(
            f"trials must be at least 2 and sequences at least 1, got {trials} and {sequences}"
        )
    centred = [c.label for c in configurations if c.centring != "none"]
    if centred:
        raise LaboratoryError(f"{centred[0]} is centred over a group; sample it with centring none")
    estimator = _estimator(setting, configurations)
    rng = np.random.default_rng(seed)
    parts = [
        estimator(visits).reshape(here, sequences, -1).mean(1)
        for here in _chunks(trials)
        for visits in [sample_visits(setting.sampler, setting.num_tokens, here * sequences, rng)]
    ]
    means = np.concatenate(parts).reshape(trials, len(configurations), 2)
    return Estimate(means.mean(0), means.var(0, ddof=1), trials, sequences)


def sample_visits(policy: Policy, num_tokens: int, count: int, rng: np.random.Generator) -> Table:
    """[count, 2 T]: how often each sampled sequence wrote a 0, then a 1, at counts 0 .. T - 1."""
    rate = np.logaddexp(0.0, policy.logits(num_tokens))
    zeros = np.floor(rng.standard_exponential((count, num_tokens)) / rate)
    written = np.cumsum(np.minimum(zeros, num_tokens) + 1, axis=1)
    before = np.concatenate([np.zeros((count, 1)), written[:, :-1]], axis=1)
    visits = np.empty((count, 2 * num_tokens))
    visits[:, :num_tokens] = np.clip(num_tokens - before, 0, zeros)
    visits[:, num_tokens:] = written <= num_tokens
    return visits


def _estimator(
    setting: Setting, configurations: Sequence[Configuration]
) -> Callable[[Table], Table]:
    """visits -> [sequences, configurations * 2]: one matrix product, each distinct sum once."""
    table = tables(setting)
    columns: dict[bytes, int] = {}
    weights: list[Table] = []

    def column(values: Table) -> int:
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

    def gradients(visits: Table) -> Table:
        sums = visits @ matrix
        out = np.empty((len(visits), len(rows)))
        ratio = np.exp(sums[:, log_ratio])
        for i, (f, s, inner, weighted) in enumerate(rows):
            gradient = sums[:, f] * sums[:, s] + sums[:, inner]
            out[:, i] = gradient * ratio if weighted else gradient
        return out

    return gradients


def _chunks(trials: int) -> Iterator[int]:
    for start in range(0, trials, TRIALS_AT_ONCE):
        yield min(TRIALS_AT_ONCE, trials - start)
