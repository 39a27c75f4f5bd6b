"""Every gradient form of the table passes every check: none is named here, so none can escape.

A form is an estimator of the table in a placement, with a ratio, a policy whose KL is in the
reward, on- or off-policy. The brute force has every sequence, torch's autograd and the entry's
`value`; it shares neither the slope nor the recursion with the laboratory. A gradient form or a
credit that it does not know is an error.
"""

from functools import cache
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch

from orchestrator.estimators import TABLE, EstimatorEntry, GradientForm
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import WIDE
from orchestrator.kl.configuration import PLACEMENTS, KlConfiguration
from tests.kl.forms import every_form

TWO = (ToyPolicy(0.3, -0.2), ToyPolicy(-0.5, 0.15), ToyPolicy(0.6, -0.05))
WHERE = ("on", "off")
KNOWN: frozenset[str] = frozenset(get_args(GradientForm))


def setting_of(name: str, where: str, num_tokens: int | None = None) -> LabSetting:
    """Return eight tokens for an estimator that keeps some of them, else two."""
    wide = TABLE[name].top is not None
    policy, reference, rollout = (WIDE[0] if where == "on" else WIDE[1]) if wide else TWO
    length = num_tokens or (2 if wide else 4)
    return LabSetting(policy, reference, length, rollout if where == "off" else None)


# The brute force.


@cache
def _sequences(vocabulary: int, length: int) -> tuple[Any, Any]:
    """Return tokens and counts of odd tokens before them, [N, T]."""
    tokens = torch.tensor(list(product(range(vocabulary), repeat=length)))
    odd = tokens % 2
    return tokens, odd.cumsum(1) - odd


def _logp(policy: Any, theta: Any, length: int) -> Any:
    """Return log-probabilities [V, T] by token and count, differentiable in theta."""
    counts = torch.arange(length, dtype=torch.float64)
    a, b = theta.view(2, -1)
    logits = a[:, None] + b[:, None] * counts
    return torch.cat([torch.zeros(1, length), logits]).log_softmax(0)


def _flat(policy: Any) -> Any:
    return torch.tensor(np.concatenate([np.atleast_1d(each) for each in policy]))


def _state_value(form: EstimatorEntry, q: Any, p: Any) -> Any:
    """Return the estimate over the vocabulary of each state, [T]; q and p are [V, T]."""
    if form.top is None:
        return (q.exp() * form.value(q - p)).sum(0)
    best = (q if form.top_of == "policy" else p).detach().topk(form.top, 0).indices
    kept = torch.zeros_like(q).scatter(0, best, 1.0)
    total = (kept * q.exp() * form.value(q - p)).sum(0)
    if form.tail:
        rest_q, rest_p = (((1 - kept) * each.exp()).sum(0).log() for each in (q, p))
        total = total + rest_q.exp() * form.value(rest_q - rest_p)
    return total


class Brute:
    """Every sequence of a setting: its chance, and a scalar whose gradient is its estimate."""

    def __init__(self, configuration: KlConfiguration, setting: LabSetting) -> None:
        self.configuration, self.setting = configuration, setting
        self.form = TABLE[configuration.estimator]
        self.length = setting.num_tokens
        tables = [
            _logp(each, _flat(each), self.length)
            for each in (setting.policy, setting.reference, setting.sampler)
        ]
        self.q, self.p, self.mu = tables
        self.tokens, self.counts = _sequences(len(self.q), self.length)
        self.chance = self.taken(self.mu).sum(1).exp()

    def taken(self, table: Any) -> Any:
        """Return a table's values at each sequence's tokens, [N, T]."""
        return table[self.tokens, self.counts]

    def at_state(self, values: Any) -> Any:
        """Return a state's values at each sequence's states, [N, T]."""
        return values[self.counts]

    def charged(self) -> Any:
        """Return R_t [N, T], without gradient."""
        form, how = self.form, self.configuration
        q = self.mu if how.reward_kl_of == "rollout" else self.q
        if form.is_of_vocabulary and not form.in_reward:
            kl = self.at_state(_state_value(form, q, self.p))
        else:
            plain = TABLE[form.in_reward or form.base]
            kl = plain.value(self.taken(q) - self.taken(self.p))
            if form.is_weighted and how.reward_kl_of == "policy" and how.ratio == "token":
                kl = kl * (self.taken(self.q) - self.taken(self.mu)).exp()
        later = kl.flip(1).cumsum(1).flip(1) - kl
        by_credit = {
            "sequence": kl.sum(1, keepdim=True) + 0 * kl,
            "to_go": kl + later,
            "later": later,
        }
        return by_credit[how.credit].detach()

    def surrogate(self, theta: Any) -> Any:
        """Return one number a sequence, [N], whose gradient in theta is the estimate."""
        how, now = self.configuration, _logp(self.setting.policy, theta, self.length)
        log_ratio = self.taken(self.q) - self.taken(self.mu)
        powers = {"sequence": 1.0, "sequence_mean": 1 / self.length}
        whole = (powers.get(how.ratio, 0.0) * log_ratio.sum(1)).exp()
        total = torch.zeros(len(self.tokens), dtype=torch.float64)
        if how.placement != "loss":
            own = log_ratio.exp() if how.ratio == "token" else torch.ones_like(log_ratio)
            moved = (self.taken(now) - self.taken(self.q)).exp()
            total = total + whole * (own * moved * self.charged()).sum(1)
        if how.placement != "reward":
            total = total + self.loss(now)
        return total

    def loss(self, now: Any) -> Any:
        """Return the KL in the loss of each sequence, [N], at log-probabilities `now` [V, T]."""
        form, ratio = self.form, self.configuration.ratio
        if form.form not in KNOWN:
            raise NotImplementedError(f"the gradient form '{form.form}' has no brute force")
        if form.is_of_vocabulary:
            return self.at_state(_state_value(form, now, self.p)).sum(1)
        x = self.taken(now) - self.taken(self.p)
        value = (TABLE["k2"] if form.form == "straight_through" else form).value(x)
        if not form.is_weighted:
            return value.sum(1)
        attached = form.form == "ratio_attached"
        log_ratio = self.taken(now if attached else self.q) - self.taken(self.mu)
        if ratio == "token":
            return (log_ratio.exp() * value).sum(1)
        if ratio == "none":
            # without a ratio its value keeps its gradient, and the weight is 1
            if attached:
                here = self.taken(now) - self.taken(self.q)
                return (here.exp() * value).sum(1)
            return value.sum(1)
        power = {"sequence": 1.0, "sequence_mean": 1 / self.length}[ratio]
        return (power * log_ratio.sum(1)).exp() * value.sum(1)

    def moments(self) -> tuple[Any, Any]:
        """Return mean and variance of the estimate by autograd, [parameters] each."""
        theta = _flat(self.setting.policy).requires_grad_()
        value = self.surrogate(theta)
        rows = torch.eye(len(value), dtype=torch.float64)
        (each,) = torch.autograd.grad(value, theta, rows, is_grads_batched=True)
        mean = self.chance @ each
        return mean.numpy(), (self.chance @ (each - mean) ** 2).numpy()


def faults(configuration: KlConfiguration, setting: LabSetting) -> list[str]:
    """Return what the laboratory's moments differ in from the brute force."""
    known, brute = exact(setting, [configuration]), Brute(configuration, setting)
    mean, variance = brute.moments()
    size = known.magnitude[0] + 1e-3
    wrong = {
        "enumeration": np.abs(known.mean[0] - mean) / size > 1e-10,
        "variance": np.abs(known.variance[0] - variance) / size**2 > 1e-9,
    }
    return [f"{configuration.label}: {name}" for name, off in wrong.items() if off.any()]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", list(TABLE))
def test_it_is_exact_against_enumeration(name: str, where: str) -> None:
    """To 1e-10 of one sequence's gradient by autograd."""
    chosen = every_form([name])
    assert {each.placement for each in chosen} == set(PLACEMENTS)
    setting = setting_of(name, where)
    assert [fault for each in chosen for fault in faults(each, setting)] == []


@pytest.mark.parametrize("name", list(TABLE))
def test_nothing_pulls_where_the_policy_is_the_reference(name: str) -> None:
    """On-policy, over two tokens: of eight, a truncated sum pulls even there."""
    same = LabSetting(TWO[0], TWO[0], 6)
    known = exact(same, every_form([name]))
    assert np.abs(known.mean).max() < 1e-14
