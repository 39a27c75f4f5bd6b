"""Exact gradients of the objectives in catalogue.py.

They are computed by occupancies and value functions, not by the moments of laboratory.py, so that
naming an objective is a comparison of two independent calculations.
"""

import numpy as np

from orchestrator.semantics.catalogue import PLAIN, SURROGATES
from orchestrator.semantics.estimators import clamped_value, slope
from orchestrator.semantics.model import Policy, Setting, Table, Tables, tables


def gradients(setting: Setting) -> dict[str, Table]:
    """Exact gradient [2] of every candidate that is distinct in this setting, by its key."""
    table = tables(setting)
    q, mu = _Walk(setting.policy, table), _Walk(setting.sampler, table)
    p = _Walk(setting.reference, table)
    found = {
        "sequence_reverse_kl": q.policy_gradient(table.x, table.logp),
        "sequence_forward_kl": -p.direct(np.ones_like(table.x), table.logp_ref),
    }
    found |= _token_level(q, table, "")
    for k in SURROGATES:
        cost = clamped_value(k, table.x)
        score = q.policy_gradient(cost, table.logp)
        found[f"mean_{k}"] = score + q.direct(slope(k, table.x), table.logp)
    if setting.on_policy:
        return found
    found |= _token_level(mu, table, "@rollout")
    lag = table.logp_rollout - table.logp_ref
    for k in PLAIN:
        found[f"sampled_{k}"] = mu.direct(slope(k, table.x), table.logp_rollout)
        found[f"ppo_{k}"] = mu.policy_gradient(clamped_value(k, table.x), table.logp)
        found[f"frozen_{k}"] = q.policy_gradient(clamped_value(k, lag), table.logp)
        found[f"ppo_{k}@rollout_kl"] = mu.policy_gradient(clamped_value(k, lag), table.logp)
        weighted = table.w * clamped_value(k, table.x)
        found[f"ppo_rho_{k}"] = mu.policy_gradient(weighted, table.logp)
    return found


def _token_level(walk: "_Walk", table: Tables, at: str) -> dict[str, Table]:
    """Objectives that hold the states of `walk` fixed and differentiate the next token only."""
    found = {
        f"token_reverse_kl{at}": walk.direct(table.x, table.logp),
        f"token_forward_kl{at}": -walk.direct(np.ones_like(table.x), table.logp_ref),
        f"total_variation{at}": walk.direct(np.sign(table.x), table.logp),
    }
    for k in SURROGATES:
        inner = clamped_value(k, table.x) + slope(k, table.x)
        found[f"token_{k}{at}"] = walk.direct(inner, table.logp)
    return found


class _Walk:
    """Where one policy goes: its occupancy of (t, c), and its expected future costs."""

    def __init__(self, policy: Policy, table: Tables) -> None:
        self.score = table.score
        num_tokens = table.x.shape[1]
        self.probability = np.exp(policy.logp(num_tokens))
        self.occupancy = np.zeros((num_tokens, num_tokens))
        at = np.eye(1, num_tokens)[0]
        for t in range(num_tokens):
            self.occupancy[t] = at
            stay, move = self.probability * at
            at = stay + np.concatenate([[0.0], move[:-1]])

    def direct(self, inner: Table, logp_token: Table) -> Table:
        """Sum over visited states of E_(y ~ token) [inner(y, c) score(y, c)], [2]."""
        weight = self.occupancy.sum(0) * np.exp(logp_token)
        gradient: Table = (self.score * weight * inner).sum((1, 2))
        return gradient

    def policy_gradient(self, cost: Table, logp_token: Table) -> Table:
        """Policy gradient of a frozen cost: this policy's states and future, `token`'s next step.

        With the policy's own token distribution it is the gradient of its expected cost; with
        another's it is that of PPO's surrogate.
        """
        num_tokens = cost.shape[1]
        token = np.exp(logp_token)
        future = np.zeros(num_tokens + 1)
        total = np.zeros(2)
        for t in reversed(range(num_tokens)):
            to_go = cost + np.stack([future[:-1], future[1:]])
            total += (self.score * token * to_go * self.occupancy[t]).sum((1, 2))
            future = np.append((self.probability * to_go).sum(0), 0.0)
        return total
