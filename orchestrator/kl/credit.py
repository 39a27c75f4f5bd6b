"""Moments of the gradient if each token's score is multiplied by the KL of some tokens only.

One sequence's gradient is sum_t s_t R_t + l_t, with R_t = own k_t + later (k_{t+1} + ...). R_t is
the KL to go (own = later = 1), the KL of later tokens (own = 0), or the token's own (later = 0).
Let S be the sum of the scores so far. Then a token adds own s k + later k S + l to the gradient A.
So the moments of (S, A) follow by dynamic programming over the count, as in laboratory.py.

In a group of n, the baseline of R_t is the mean of R_t over the other n - 1 sequences. It adds a
U-statistic of second order to the variance: a sum over s_t and R_u of two different sequences. The
formula uses E[s_t | state] = 0, which holds on-policy and for scores weighted by the token ratio.
"""

from typing import Any

import numpy as np

FloatTable = np.ndarray[Any, np.dtype[Any]]

PARTS = {"to_go": (1.0, 1.0), "later": (0.0, 1.0), "token": (1.0, 0.0)}
"""Credit -> (own, later): the factors of a token's own KL and of later tokens' KL in R_t."""


def credited(
    chance: FloatTable,
    kl: FloatTable,
    score: FloatTable,
    inner: FloatTable,
    credit: str,
    group: int | None,
    shrink: float = 1.0,
) -> tuple[FloatTable, FloatTable, FloatTable]:
    """Return mean, variance and root mean square of one sequence's gradient, [parameters] each.

    `chance` and `kl` are [V, T], by token and count. `score` and `inner` are [parameters, V, T].
    `group`: the number of sequences in a group with a leave-one-out baseline; the variance is then
    the variance of a group's mean times `group`. None: no baseline. `shrink` multiplies the KL in
    the reward.
    """
    own, later = (shrink * part for part in PARTS[credit])
    num_tokens = chance.shape[1]
    bare = inner + own * kl * score
    raw = _sums(chance, later * kl, score, [bare] * num_tokens)
    if group is None:
        return raw[0], raw[1] - raw[0] ** 2, np.sqrt(raw[1])
    walk = _Walk(chance, kl, score, own, later)
    mean, square = _sums(
        chance, later * kl, score, [bare - score * walk.expected[t] for t in range(num_tokens)]
    )
    variance = square - mean**2 + walk.between() / (group - 1)
    return mean, variance, np.sqrt(raw[1])


def _sums(
    chance: FloatTable, kl: FloatTable, score: FloatTable, own: list[FloatTable]
) -> tuple[FloatTable, FloatTable]:
    """Return E[A] and E[A^2], [parameters] each.

    `own`: one array [parameters, V, T] for each of T steps, the part of A that depends on no other
    token.
    """
    rows, num_tokens = len(score), chance.shape[1]
    m = np.zeros((6, rows, num_tokens + 1))  # E of 1, S, S^2, A, S A, A^2, for each count
    m[0, :, 0] = 1
    for t in range(num_tokens):
        n = t + 1
        one, s1, s2, a1, sa, a2 = m[:, :, :n]
        new = np.zeros_like(m)
        for y, weight in enumerate(chance[:, :n]):
            s, k, o = score[:, y, :n], kl[y, :n], own[t][:, y, :n]
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
    total = m.sum(-1)
    return total[3], total[5]


class _Walk:
    """The moments of R_t and s_t R_u over the states that the sampling policy visits."""

    def __init__(
        self, chance: FloatTable, kl: FloatTable, score: FloatTable, own: float, later: float
    ) -> None:
        num_tokens = chance.shape[1]
        first = np.zeros(num_tokens + 1)
        second = np.zeros(num_tokens + 1)
        occupancy = _occupancies(chance)
        self.expected = np.empty(num_tokens)
        variance = np.empty(num_tokens)
        for t in reversed(range(num_tokens)):
            ahead, ahead2 = (_after(each, chance) for each in (first, second))
            mean = (chance * (own * kl + later * ahead)).sum(0) @ occupancy[t]
            squares = own**2 * kl**2 + 2 * own * later * kl * ahead + later**2 * ahead2
            variance[t] = (chance * squares).sum(0) @ occupancy[t] - mean**2
            self.expected[t] = mean
            first = np.append((chance * (kl + ahead)).sum(0), 0.0)
            # The second moment of k + ahead, multiplied out.
            second = np.append((chance * (kl**2 + 2 * kl * ahead + ahead2)).sum(0), 0.0)
        self._spread = (chance * score**2).sum(1) @ occupancy.T @ variance  # [parameters]
        self._joint = self._covariances(chance, kl, score, occupancy, own, later)

    def between(self) -> FloatTable:
        """Return the sum over t, u of E[s_t s_u] Cov(R_t, R_u) + Cov(s_t, R_u) Cov(s_u, R_t)."""
        crossed = (self._joint * self._joint.transpose(0, 2, 1)).sum((1, 2))
        return np.asarray(self._spread + crossed)

    @staticmethod
    def _covariances(
        chance: FloatTable,
        kl: FloatTable,
        score: FloatTable,
        occupancy: FloatTable,
        own: float,
        later: float,
    ) -> FloatTable:
        """Return Cov(s_t, R_u), [parameters, T, T]."""
        num_tokens = chance.shape[1]
        carried = np.zeros((len(score), num_tokens, num_tokens + 1))  # E[s_t; count], t < u
        met = np.zeros((len(score), num_tokens, num_tokens))  # E[s_t k_u], t <= u
        mean = (chance * kl).sum(0)
        for u in range(num_tokens):
            met[:, :, u] = carried[:, :, :-1] @ mean
            met[:, u, u] = (chance * kl * score).sum(1) @ occupancy[u]
            moved = np.zeros_like(carried)
            for y, weight in enumerate(chance):
                to = slice(y % 2, num_tokens + y % 2)
                moved[:, :, to] += carried[:, :, :-1] * weight
                moved[:, u, to] += occupancy[u] * weight * score[:, y]
            carried = moved
        # The sum over all tokens after u.
        beyond = met[:, :, ::-1].cumsum(-1)[:, :, ::-1] - met
        result: FloatTable = own * met + later * beyond
        return result


def _occupancies(chance: FloatTable) -> FloatTable:
    """Return the probability of each count before each token, [T, counts]."""
    num_tokens = chance.shape[1]
    result = np.zeros((num_tokens, num_tokens))
    at = np.eye(1, num_tokens + 1)[0]
    for t in range(num_tokens):
        result[t] = at[:-1]
        at = np.zeros(num_tokens + 1)
        for y, weight in enumerate(chance):
            at[y % 2 : num_tokens + y % 2] += result[t] * weight
    return result


def _after(value: FloatTable, chance: FloatTable) -> FloatTable:
    """Return the value at the count that follows each token, [V, T]. `value`: [T + 1], by count."""
    num_tokens = chance.shape[1]
    return np.stack([value[y % 2 : num_tokens + y % 2] for y in range(len(chance))])
