"""Brute force, sharing nothing with the laboratory: every sequence, one token at a time.

`xp` is `math` or `mpmath.mp`; the formulas are written out per configuration, from the paper.
"""

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from orchestrator.exact.laboratory import LabSetting, Sequences


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


PLAIN: dict[str, tuple[Any, Any]] = {
    "k1": (lambda x, xp: x, lambda x, xp: 1),
    "k2": (lambda x, xp: x * x / 2, lambda x, xp: x),
    "k3": (lambda x, xp: xp.exp(-x) - 1 + x, lambda x, xp: 1 - xp.exp(-x)),
    "abs": (lambda x, xp: abs(x), lambda x, xp: (x > 0) - (x < 0)),
}


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
