"""Every response of a small model written out: each KL term and each objective, by autograd.

A model is plain arrays: `states`, `tokens` and `mask` [N, T] list every response, and a logit is
`features` [states, V, P] @ parameters [P]. No slope and no recursion of the laboratory is used: a
term is what a loss has, of its entry's `value`; an objective is a number from its definition.
"""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from orchestrator.estimators import TABLE, EstimatorEntry, GradientForm
from orchestrator.kl.configuration import KlConfiguration

Array = Any
Number = Callable[[Tensor], Tensor]
"""Of the policy's log-probabilities [states, V]: a number, or one for each response."""
KNOWN: frozenset[str] = frozenset(get_args(GradientForm))
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda x: x,
    "k2": lambda x: x**2 / 2,
    "k3": lambda x: torch.exp(-x) - 1 + x,
    "abs": abs,
}
torch.set_num_threads(1)  # of so small a size several wait longer for each other than they compute


def _js(q: Tensor, p: Tensor) -> Tensor:
    middle = torch.logaddexp(q, p) - np.log(2)
    return (q.exp() * (q - middle) + p.exp() * (p - middle)).sum(1) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "full": lambda q, p: (q.exp() * (q - p)).sum(1),
    "full_forward": lambda q, p: (p.exp() * (p - q)).sum(1),
    "js": _js,
}
DIVERGENCES |= {"rb": DIVERGENCES["full"], "rb_k1": DIVERGENCES["full"]}


def chain(length: int, policy: Array, reference: Array) -> SimpleNamespace:
    """Return the paper's model; a state is the count of odd tokens before. Each token but the
    first has two parameters, as ToyPolicy's a and b."""
    policy, reference = (
        np.concatenate([np.atleast_1d(x) for x in of]) for of in (policy, reference)
    )
    words = len(policy) // 2 + 1
    tokens = np.array(list(product(range(words), repeat=length)))
    odd = tokens % 2
    features = np.zeros((length, words, 2, words - 1))
    for token in range(1, words):
        features[:, token, :, token - 1] = np.stack([np.ones(length), np.arange(length)], axis=1)
    return SimpleNamespace(
        states=np.cumsum(odd, axis=1) - odd,
        tokens=tokens,
        mask=np.ones_like(tokens),
        features=features.reshape(length, words, -1),
        policy=policy,
        reference=reference,
    )


def state_value(form: EstimatorEntry, q: Tensor, p: Tensor) -> Tensor:
    """Return the estimate over the vocabulary of each state; q and p are [states, V]."""
    if form.top is None:
        return (q.exp() * form.value(q - p)).sum(1)
    best = (q if form.top_of == "policy" else p).detach().topk(form.top, 1).indices
    kept = torch.zeros_like(q).scatter(1, best, 1.0)
    total = (kept * q.exp() * form.value(q - p)).sum(1)
    if form.tail:
        rest_q, rest_p = (((1 - kept) * each.exp()).sum(1).log() for each in (q, p))
        total = total + rest_q.exp() * form.value(rest_q - rest_p)
    return total


class Brute:
    """A model under one sampler."""

    def __init__(self, model: Any, sampler: Array) -> None:
        self.states, self.tokens = map(torch.as_tensor, (model.states, model.tokens))
        self.mask = torch.as_tensor(model.mask, dtype=torch.float64)
        self.features = torch.as_tensor(model.features, dtype=torch.float64)
        self.theta = torch.tensor(model.policy, dtype=torch.float64)
        self.logq = self.words(self.theta)
        self.logp, self.logm = (
            self.words(torch.tensor(np.array(each), dtype=torch.float64))
            for each in (model.reference, sampler)
        )
        self.q, self.mu = (self.taken(each).sum(1).exp() for each in (self.logq, self.logm))
        self.log_ratio = self.taken(self.logq - self.logm)
        length = self.mask.sum(1, keepdim=True)
        self.powers: dict[str, Any] = {"sequence": 1.0, "sequence_mean": 1 / length}

    def words(self, parameters: Tensor) -> Tensor:
        """Return the log-probabilities of each state, [states, V]."""
        return (self.features @ parameters).log_softmax(1)

    def taken(self, table: Tensor) -> Tensor:
        """Return a table's values at each response's tokens, [N, T]."""
        return table[self.states, self.tokens] * self.mask

    def at_states(self, values: Tensor) -> Tensor:
        """Return a state's value at each response's states, [N, T]."""
        return values[self.states] * self.mask

    def gradient(self, number: Number) -> Array:
        """Return d number / d parameters."""
        theta = self.theta.clone().requires_grad_()
        return torch.autograd.grad(number(self.words(theta)), theta)[0].numpy()

    def scores(self) -> Array:
        """Return d log q of each token / d parameters, [N, T, P]."""
        of = torch.autograd.functional.jacobian(lambda x: self.taken(self.words(x)), self.theta)
        return of.numpy()

    # The terms, as a trainer's loss has them.

    def mean(self, how: KlConfiguration) -> Array:
        """Return the expected gradient of a term, [P]."""
        return self.gradient(lambda now: (self.mu * self.surrogate(how, now)).sum())

    def moments(self, how: KlConfiguration) -> tuple[Array, Array]:
        """Return mean and variance of a term's gradient, [P] each."""
        theta = self.theta.clone().requires_grad_()
        value = self.surrogate(how, self.words(theta))
        rows = torch.eye(len(value), dtype=torch.float64)
        (each,) = torch.autograd.grad(value, theta, rows, is_grads_batched=True)
        mean = self.mu @ each
        return mean.numpy(), (self.mu @ (each - mean) ** 2).numpy()

    def surrogate(self, how: KlConfiguration, now: Tensor) -> Tensor:
        """Return one number a response, [N], whose gradient is the estimate."""
        total = torch.zeros(len(self.tokens), dtype=torch.float64)
        if how.placement != "loss":
            own = self.log_ratio if how.ratio == "token" else torch.zeros_like(self.log_ratio)
            moved = (own + self.taken(now - self.logq)).exp()
            total = total + self._whole(how, self.log_ratio) * (moved * self._charged(how)).sum(1)
        if how.placement != "reward":
            total = total + self._in_loss(how, now)
        return total

    def _whole(self, how: KlConfiguration, log_ratio: Tensor) -> Tensor:
        """Return the ratio that a whole response has, [N]."""
        return (self.powers.get(how.ratio, 0.0) * log_ratio.sum(1, keepdim=True)).exp()[:, 0]

    def _charged(self, how: KlConfiguration) -> Tensor:
        """Return what the reward of each token is charged, [N, T], held fixed."""
        form, q = TABLE[how.estimator], self.logm if how.reward_kl_of == "rollout" else self.logq
        if form.is_of_vocabulary and not form.in_reward:
            kl = self.at_states(state_value(form, q, self.logp))
        else:
            plain = TABLE[form.in_reward or form.base]
            kl = plain.value(self.taken(q - self.logp)) * self.mask
            if form.is_weighted and how.reward_kl_of == "policy" and how.ratio == "token":
                kl = kl * self.log_ratio.exp()
        to_go = kl.flip(1).cumsum(1).flip(1)
        whole = kl.sum(1, keepdim=True) * self.mask
        return {"sequence": whole, "to_go": to_go, "later": to_go - kl}[how.credit]

    def _in_loss(self, how: KlConfiguration, now: Tensor) -> Tensor:
        """Return the KL in the loss of each response, [N]."""
        form, ratio = TABLE[how.estimator], how.ratio
        if form.form not in KNOWN:
            raise NotImplementedError(f"the gradient form '{form.form}' has no brute force")
        if form.is_of_vocabulary:
            return self.at_states(state_value(form, now, self.logp)).sum(1)
        entry = TABLE["k2"] if form.form == "straight_through" else form
        value = entry.value(self.taken(now - self.logp)) * self.mask
        if not form.is_weighted:
            return value.sum(1)
        attached = form.form == "ratio_attached"
        log_ratio = self.taken((now if attached else self.logq) - self.logm)
        if ratio == "none":  # the value keeps its gradient, and the weight is 1
            log_ratio = log_ratio - self.log_ratio
        if ratio in ("token", "none"):
            return (log_ratio.exp() * value).sum(1)
        return self._whole(how, log_ratio) * value.sum(1)

    # The objectives, from their definitions.

    def objective(self, key: str) -> Array:
        name, _, suffix = key.partition("@")
        kind, _, of = name.partition("_")
        states = self.mu if suffix == "rollout" else self.q
        whole: dict[str, Number] = {
            "sequence_reverse_kl": lambda now: self._mean(now, self.taken(now - self.logp)),
            "sequence_forward_kl": lambda now: (
                self.taken(self.logp).sum(1).exp() @ -self.taken(now).sum(1)
            ),
            "token_reverse_kl": lambda now: self._over(states, DIVERGENCES["full"](now, self.logp)),
            "token_forward_kl": lambda now: self._over(
                states, DIVERGENCES["full_forward"](now, self.logp)
            ),
            "total_variation": lambda now: self._over(
                states, abs(now.exp() - self.logp.exp()).sum(1)
            ),
            "token_kl_to_rollout": lambda now: self._over(
                self.mu, DIVERGENCES["full"](now, self.logm)
            ),
        }
        if name in whole:
            return self.gradient(whole[name])
        if kind == "mean":
            return self.gradient(lambda now: self._mean(now, self.costs(of, now)))
        if kind == "frozen":
            return self.gradient(lambda now: self._mean(now, self.costs(of, self.logm)))
        if kind == "sampled":
            return self.gradient(lambda now: self.mu @ self.costs(of, now).sum(1))
        if kind == "ppo":
            return self._ppo(of, of_rollout=suffix == "rollout_kl")
        assert kind == "token", key
        if of in DIVERGENCES:
            return self.gradient(lambda now: self._over(states, DIVERGENCES[of](now, self.logp)))
        value = VALUES[of]
        return self.gradient(
            lambda now: self._over(states, (now.exp() * value(now - self.logp)).sum(1))
        )

    def _mean(self, now: Tensor, costs: Tensor) -> Tensor:
        return self.taken(now).sum(1).exp() @ costs.sum(1)

    def _over(self, chance: Tensor, values: Tensor) -> Tensor:
        return chance @ self.at_states(values).sum(1)

    def costs(self, of: str, now: Tensor) -> Tensor:
        """Return each token's cost, [N, T]."""
        if of in DIVERGENCES and of != "rb_k1":
            return self.at_states(DIVERGENCES[of](now, self.logp))
        return VALUES[of.removeprefix("rb_")](self.taken(now - self.logp)) * self.mask

    def _ppo(self, of: str, *, of_rollout: bool) -> Array:
        """Return the gradient of a word's cost and of the future that the sampler writes.

        The mean over responses that pass a word gives the cost from it on.
        """
        costs = self.costs(of.removeprefix("rho_"), self.logm if of_rollout else self.logq)
        if of.startswith("rho_"):
            costs = costs * self.log_ratio.exp()
        to_go = costs.flip(1).cumsum(1).flip(1) - (costs if of in ("rb", "rb_k1") else 0)
        by_word = torch.zeros_like(self.logq)
        passed = (self.mu[:, None] * to_go * self.mask).flatten()
        by_word.index_put_((self.states.flatten(), self.tokens.flatten()), passed, accumulate=True)
        return self.gradient(lambda now: (by_word * (now - self.logm).exp()).sum())
