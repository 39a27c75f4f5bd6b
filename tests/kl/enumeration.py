"""Brute force, sharing nothing with the laboratory: every sequence, one token at a time.

`xp` is `math` or `mpmath.mp`; the formulas are written out per configuration, from the paper.
"""

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from orchestrator.exact.laboratory import LabSetting, Sequences
from orchestrator.kl.configuration import KlConfiguration


def sequences(setting: LabSetting, xp: Any) -> Iterator[SimpleNamespace]:
    """Each sequence: its probability under the rollout policy, and per-token quantities."""
    for tokens in product((0, 1), repeat=setting.num_tokens):
        count, rows = 0, []
        for y in tokens:
            rows.append(_token(setting, xp, y, count))
            count += y
        yield SimpleNamespace(
            probability=_prod(row.mu for row in rows), rows=rows, ratio=_prod(row.w for row in rows)
        )


def _token(setting: LabSetting, xp: Any, y: int, count: int) -> SimpleNamespace:
    def probability(policy: Any) -> Any:
        one = 1 / (1 + xp.exp(-(xp.mpf(policy.a) + xp.mpf(policy.b) * count)))
        return one if y else 1 - one

    q, p = probability(setting.policy), probability(setting.reference)
    mu = probability(setting.sampler)
    residual = 1 - q if y else q - 1
    return SimpleNamespace(
        q=q,
        p=p,
        mu=mu,
        w=q / mu,
        x=xp.log(q / p),
        x_mu=xp.log(mu / p),
        score=(residual, residual * count),
    )


def gradient(configuration: KlConfiguration, sequence: SimpleNamespace, j: int, xp: Any) -> Any:
    """One sequence's gradient in parameter j, before any centring."""
    value, slope = PLAIN[configuration.estimator.removesuffix("+").rpartition("rho_")[2]]
    if configuration.estimator.endswith("+"):
        slope = PLAIN["k2"][1]
    rho = "rho" in configuration.estimator
    attached = rho and not configuration.estimator.startswith("sg_")
    token = configuration.ratio == "token"
    total = xp.mpf(0)
    if configuration.placement != "loss":
        total += kl_sum(configuration, sequence, xp) * score_sum(configuration, sequence, j)
    if configuration.placement != "reward":
        inner = sum(
            (row.w if rho and token else 1)
            * (slope(row.x, xp) + (value(row.x, xp) if attached and token else 0))
            * row.score[j]
            for row in sequence.rows
        )
        if rho and configuration.ratio.startswith("sequence"):
            whole = sum(value(row.x, xp) for row in sequence.rows)
            score = sum(row.score[j] for row in sequence.rows)
            power = _power(configuration, sequence)
            inner = sequence.ratio**power * (inner + (power * whole * score if attached else 0))
        total += inner
    return total


def kl_sum(configuration: KlConfiguration, sequence: SimpleNamespace, xp: Any) -> Any:
    """The KL a reward is charged."""
    value, _ = PLAIN[configuration.estimator.removesuffix("+").rpartition("rho_")[2]]
    rho = "rho" in configuration.estimator and configuration.ratio == "token"
    if configuration.reward_kl_of == "rollout":
        return sum(value(row.x_mu, xp) for row in sequence.rows)
    return sum((row.w if rho else 1) * value(row.x, xp) for row in sequence.rows)


def score_sum(configuration: KlConfiguration, sequence: SimpleNamespace, j: int) -> Any:
    """What a reward multiplies."""
    token = configuration.ratio == "token"
    whole = sequence.ratio ** _power(configuration, sequence)
    return whole * sum((row.w if token else 1) * row.score[j] for row in sequence.rows)


def _power(configuration: KlConfiguration, sequence: SimpleNamespace) -> Any:
    """The power of the sequence's ratio that weights it."""
    powers = {"sequence": 1, "sequence_mean": 1 / len(sequence.rows)}
    return powers.get(configuration.ratio, 0)


PLAIN: dict[str, tuple[Any, Any]] = {
    "k1": (lambda x, xp: x, lambda x, xp: 1),
    "k2": (lambda x, xp: x * x / 2, lambda x, xp: x),
    "k3": (lambda x, xp: xp.exp(-x) - 1 + x, lambda x, xp: 1 - xp.exp(-x)),
    "abs": (lambda x, xp: abs(x), lambda x, xp: (x > 0) - (x < 0)),
}


def mean_and_variance(configuration: KlConfiguration, setting: LabSetting, j: int, xp: Any) -> Any:
    """Over sequences."""
    found = [(s.probability, gradient(configuration, s, j, xp)) for s in sequences(setting, xp)]
    mean = sum(p * g for p, g in found)
    return mean, sum(p * (g - mean) ** 2 for p, g in found)


def _prod(values: Any) -> Any:
    total = 1
    for value in values:
        total = total * value
    return total


def logp_for_autograd(batch: Sequences) -> tuple[Any, Any]:
    """The policy's parameters [2], and its log-probabilities [N, T + 1], differentiable in them."""
    theta = torch.tensor([*batch.setting.policy], dtype=torch.float64, requires_grad=True)
    logits = theta[0] + theta[1] * torch.arange(batch.setting.num_tokens, dtype=torch.float64)
    log_sigmoid = torch.nn.functional.logsigmoid
    table = torch.stack([log_sigmoid(-logits), log_sigmoid(logits)])
    padding = table[0, :1].expand(len(batch.tokens), 1)
    return theta, torch.cat([batch.taken(table), padding], dim=1)
