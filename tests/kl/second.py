"""A second computation of every KL term and every objective: finite differences, without orch.

It takes a model as plain arrays: `states`, `tokens` and `mask` [N, T] list every response, and a
logit is `features` [states, V, P] @ parameters [P]. A term and an objective are numbers whose
gradient is taken by central differences; formulas are written from their definitions.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = Any

STEP = 1e-5

VALUES: dict[str, Callable[[Array], Array]] = {
    "k1": lambda x: x,
    "k2": lambda x: x**2 / 2,
    "k3": lambda x: np.exp(-x) - 1 + x,
    "abs": abs,
}


def _js(q: Array, p: Array) -> Array:
    middle = np.logaddexp(q, p) - np.log(2)
    return (np.exp(q) * (q - middle) + np.exp(p) * (p - middle)).sum(1) / 2


DIVERGENCES: dict[str, Callable[[Array, Array], Array]] = {
    "full": lambda q, p: (np.exp(q) * (q - p)).sum(1),
    "full_forward": lambda q, p: (np.exp(p) * (p - q)).sum(1),
    "js": _js,
}
DIVERGENCES |= {"rb": DIVERGENCES["full"], "rb_k1": DIVERGENCES["full"]}


def chain(length: int, policy: Array, reference: Array) -> SimpleNamespace:
    """Return the paper's model of binary tokens; a state is the count of ones before."""
    tokens = (np.arange(2**length)[:, None] >> np.arange(length)) & 1
    features = np.zeros((length, 2, 2))
    features[:, 1] = np.stack([np.ones(length), np.arange(length)], axis=1)
    states = np.cumsum(tokens, axis=1) - tokens
    return SimpleNamespace(
        states=states,
        tokens=tokens,
        mask=np.ones_like(tokens),
        features=features,
        policy=policy,
        reference=reference,
    )


class Second:
    """A model under one sampler; `differences` takes the gradient of a number in the policy."""

    def __init__(self, model: Any, sampler: Array) -> None:
        self.model, self.theta = model, np.array(model.policy, dtype=float)
        self.logp, self.logm = self.words(model.reference), self.words(sampler)
        self.logq = self.words(self.theta)
        self.mu = np.exp(self.taken(self.logm).sum(1))
        self.q = np.exp(self.taken(self.logq).sum(1))
        self.at = SimpleNamespace(q=self.q, mu=self.mu)

    def words(self, parameters: Array) -> Array:
        logits = self.model.features @ np.array(parameters, dtype=float)
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def taken(self, table: Array) -> Array:
        return np.where(self.model.mask > 0, table[self.model.states, self.model.tokens], 0.0)

    def of_states(self, values: Array) -> Array:
        """Return the sum over a response's states of a value of each state, [N]."""
        return (values[self.model.states] * self.model.mask).sum(1)

    def differences(self, number: Callable[[Array], float]) -> Array:
        """Return d number(log-probabilities of the policy) / d parameters."""
        gradient = []
        for i in range(len(self.theta)):
            step = np.eye(len(self.theta))[i] * STEP
            up, down = (number(self.words(self.theta + s)) for s in (step, -step))
            gradient.append((up - down) / (2 * STEP))
        return np.array(gradient)

    # The terms, as a trainer's loss has them.

    def term(self, estimator: str, placement: str, ratio: str, reward_kl_of: str) -> Array:
        def loss(logq: Array) -> float:
            total = 0.0
            if placement != "loss":
                total += self._in_reward(estimator, ratio, reward_kl_of, logq)
            if placement != "reward":
                total += self._in_loss(estimator, ratio, logq)
            return total

        return self.differences(loss)

    def _ratios(self, logq: Array, level: str) -> Array:
        log_ratio = self.taken(logq - self.logm)
        if level == "token":
            return np.exp(log_ratio)
        length = self.model.mask.sum(1, keepdims=True)
        mean = 1 if level == "sequence" else length
        # The geometric mean is not divided by the length again: it counts as a sum of tokens.
        return (length if level != "sequence" else 1) * np.exp(
            log_ratio.sum(1, keepdims=True) / mean
        )

    def _in_reward(self, estimator: str, ratio: str, of: str, logq: Array) -> float:
        """Return importance ratio times KL, the KL held fixed."""
        base = estimator.removesuffix("+").removesuffix("_to_go").rpartition("rho_")[2]
        fixed = self.logm if of == "rollout" else self.logq
        if base in DIVERGENCES and base != "rb_k1":
            kl = DIVERGENCES[base](fixed, self.logp)[self.model.states] * self.model.mask
        else:
            value = VALUES["k1" if base == "rb_k1" else base]
            kl = value(self.taken(fixed - self.logp)) * self.model.mask
        if "rho" in estimator and ratio == "token" and of == "policy":
            kl = kl * np.exp(self.taken(self.logq - self.logm))
        if estimator.endswith("_to_go") or estimator in ("rb", "rb_k1"):
            to_go = np.cumsum(kl[:, ::-1], axis=1)[:, ::-1]
            charged = to_go if estimator.endswith("_to_go") else to_go - kl
            return float(self.mu @ (self._ratios(logq, "token") * charged).sum(1))
        ratios = self._ratios(logq, ratio)
        if ratio == "token":
            ratios = ratios * self.model.mask
        return float(self.mu @ (ratios.sum(1) * kl.sum(1)))

    def _in_loss(self, estimator: str, ratio: str, logq: Array) -> float:
        if estimator in DIVERGENCES:
            return float(self.mu @ self.of_states(DIVERGENCES[estimator](logq, self.logp)))
        base = estimator.removesuffix("_to_go").rpartition("rho_")[2]
        if estimator.endswith("+"):
            base = "k2"
        kl = VALUES[base](self.taken(logq - self.logp)) * self.model.mask
        if "rho" not in estimator:
            return float(self.mu @ kl.sum(1))
        weighing = self.logq if estimator.startswith("sg_") else logq
        log_ratio = self.taken(weighing - self.logm)
        if ratio != "token":
            length = self.model.mask.sum(1, keepdims=True)
            log_ratio = log_ratio.sum(1, keepdims=True) / (1 if ratio == "sequence" else length)
        return float(self.mu @ (np.exp(log_ratio) * kl).sum(1))

    # The objectives, from their definitions.

    def objective(self, key: str) -> Array:
        name, _, suffix = key.partition("@")
        kind, _, of = name.partition("_")
        states = self.at.mu if suffix == "rollout" else self.at.q
        whole: dict[str, Callable[[Array], float]] = {
            "sequence_reverse_kl": lambda logq: self._mean(
                logq, self.taken(logq - self.logp).sum(1)
            ),
            "sequence_forward_kl": lambda logq: float(
                np.exp(self.taken(self.logp).sum(1)) @ -self.taken(logq).sum(1)
            ),
            "token_reverse_kl": lambda logq: self._states(
                states, DIVERGENCES["full"](logq, self.logp)
            ),
            "token_forward_kl": lambda logq: self._states(
                states, DIVERGENCES["full_forward"](logq, self.logp)
            ),
            "total_variation": lambda logq: self._states(
                states, abs(np.exp(logq) - np.exp(self.logp)).sum(1)
            ),
            "token_kl_to_rollout": lambda logq: self._states(
                self.mu, DIVERGENCES["full"](logq, self.logm)
            ),
        }
        if name in whole:
            return self.differences(whole[name])
        if kind == "mean":
            return self.differences(lambda logq: self._mean(logq, self._costs(of, logq).sum(1)))
        if kind == "frozen":
            fixed = self._costs(of, self.logm).sum(1)
            return self.differences(lambda logq: self._mean(logq, fixed))
        if kind == "sampled":
            return self.differences(lambda logq: float(self.mu @ self._costs(of, logq).sum(1)))
        if kind == "ppo":
            return self._ppo(of, of_rollout=suffix == "rollout_kl")
        assert kind == "token", key
        if of in DIVERGENCES:
            return self.differences(
                lambda logq: self._states(states, DIVERGENCES[of](logq, self.logp))
            )
        value = VALUES[of]
        return self.differences(
            lambda logq: self._states(states, (np.exp(logq) * value(logq - self.logp)).sum(1))
        )

    def _mean(self, logq: Array, values: Array) -> float:
        return float(np.exp(self.taken(logq).sum(1)) @ values)

    def _states(self, chance: Array, values: Array) -> float:
        return float(chance @ self.of_states(values))

    def _costs(self, of: str, logq: Array) -> Array:
        """Return each token's cost, [N, T]."""
        if of in DIVERGENCES and of != "rb_k1":
            return DIVERGENCES[of](logq, self.logp)[self.model.states] * self.model.mask
        return VALUES[of](self.taken(logq - self.logp)) * self.model.mask

    def _ppo(self, of: str, *, of_rollout: bool) -> Array:
        """Return the gradient of a word's cost and of the future that the sampler writes.

        The mean over responses that pass a word gives the cost from it on.
        """
        name = of.removeprefix("rho_")
        if name == "rb_k1":
            name = "k1"
        costs = self._costs(name, self.logm if of_rollout else self.logq)
        if of.startswith("rho_"):
            costs = costs * np.exp(self.taken(self.logq - self.logm))
        later_only = of in ("rb", "rb_k1")
        to_go = np.cumsum(costs[:, ::-1], axis=1)[:, ::-1] - (costs if later_only else 0)
        totals: dict[Any, Array] = {}
        for n, t in zip(*np.nonzero(self.model.mask), strict=True):
            word = (t, self.model.states[n, t], self.model.tokens[n, t])
            totals[word] = totals.get(word, 0) + self.mu[n] * np.array([1, to_go[n, t]])

        def surrogate(logq: Array) -> float:
            total = 0.0
            for (_, state, token), (_chance, cost) in totals.items():
                # chance is that of the state times mu of the word; a word of q has q instead.
                total += cost * np.exp(logq[state, token] - self.logm[state, token])
            return float(total)

        return self.differences(surrogate)

    def differences_of_responses(self) -> Array:
        """Return d log q of each token / d parameters, [N, T, P]."""
        columns = []
        for i in range(len(self.theta)):
            step = np.eye(len(self.theta))[i] * STEP
            up, down = (self.taken(self.words(self.theta + s)) for s in (step, -step))
            columns.append((up - down) / (2 * STEP))
        return np.stack(columns, axis=-1)
