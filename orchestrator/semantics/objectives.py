"""The objectives a KL term's gradient may belong to, and their exact gradients.

They are computed by occupancies and value functions, not by the moments of laboratory.py, so that
naming an objective is a comparison of two independent calculations.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from orchestrator.semantics.estimators import clamped_value, slope
from orchestrator.semantics.model import Policy, Setting, Table, Tables, tables


class Objective(StrEnum):
    """The kind of objective whose gradient a KL term is, in expectation."""

    SEQUENCE_REVERSE_KL = "sequence_reverse_kl"
    TOKEN_REVERSE_KL = "token_reverse_kl"  # noqa: S105
    SEQUENCE_FORWARD_KL = "sequence_forward_kl"
    TOKEN_FORWARD_KL = "token_forward_kl"  # noqa: S105
    ZERO = "zero"
    SURROGATE = "surrogate"
    MIXTURE = "mixture"
    NONE = "none"
    """There is no KL term."""
    UNKNOWN = "unknown"
    """No combination of the candidates; only a probe can end here."""


class Candidate(NamedTuple):
    """An objective with a name, the words for it, and its formula.

    q is the policy, p the reference policy, mu the rollout policy; c the state (the tokens so
    far), which token-level objectives hold fixed.
    """

    kind: Objective
    words: str
    formula: str


_K = {"k1": "k1", "k2": "k2", "k3": "k3", "abs": "|log r|"}


def _catalogue() -> dict[str, Candidate]:
    o = Objective
    found = {
        "sequence_reverse_kl": Candidate(
            o.SEQUENCE_REVERSE_KL, "sequence-level reverse KL", "∇ KL(q‖p)"
        ),
        "sequence_forward_kl": Candidate(
            o.SEQUENCE_FORWARD_KL, "sequence-level forward KL", "∇ KL(p‖q)"
        ),
    }
    for at, states, where in (("", "q", ""), ("@rollout", "μ", " at the rollout policy's states")):
        head = f"Σ_t E_(c~{states}) ∇"
        found |= {
            f"token_reverse_kl{at}": Candidate(
                o.TOKEN_REVERSE_KL, f"token-level reverse KL{where}", f"{head} KL(q(·|c)‖p(·|c))"
            ),
            f"token_forward_kl{at}": Candidate(
                o.TOKEN_FORWARD_KL, f"token-level forward KL{where}", f"{head} KL(p(·|c)‖q(·|c))"
            ),
            f"total_variation{at}": Candidate(
                o.SURROGATE, f"token-level total variation (twice){where}", f"{head} Σ_y |q - p|"
            ),
        }
        for k in ("k2", "abs"):
            found[f"token_{k}{at}"] = Candidate(
                o.SURROGATE, f"token-level mean of {_K[k]}{where}", f"{head} E_(y~q(·|c)) {_K[k]}"
            )
    for k in ("k2", "abs"):
        found[f"mean_{k}"] = Candidate(
            o.SURROGATE, f"mean of {_K[k]} over sequences", f"∇ E_q Σ_t {_K[k]}"
        )
    for k, name in _K.items():
        found[f"sampled_{k}"] = Candidate(
            o.SURROGATE, f"mean of {name} under the frozen rollout policy", f"∇ E_μ Σ_t {name}"
        )
    found["sampled_k1"] = Candidate(
        o.SURROGATE, "unlikelihood of the rollout policy's samples", "∇ E_μ log q = -∇ KL(μ‖q)"
    )
    costs = {
        **{f"ppo_{k}": name for k, name in _K.items()},
        **{f"ppo_rho_{k}": f"w {_K[k]}" for k in ("k1", "k2", "k3")},
        **{f"ppo_{k}@rollout_kl": f"{name} of μ" for k, name in _K.items()},
    }
    for key, name in costs.items():
        found[key] = Candidate(
            o.SURROGATE,
            f"PPO's local surrogate with cost {name}",
            f"Σ_t E_(c~μ) ∇ E_(y~q(·|c)) [sg({name}) + future under μ]",
        )
    return found


CATALOGUE: Mapping[str, Candidate] = _catalogue()
"""Every candidate by its key."""

OFF_POLICY_ONLY = frozenset(
    key for key in CATALOGUE
    if "@rollout" in key or key.startswith("sampled_") or key.startswith("ppo_")
)  # fmt: skip
"""On-policy they coincide with another candidate, or with a combination of others."""


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
    for k in ("k2", "abs"):
        cost = clamped_value(k, table.x)
        score = q.policy_gradient(cost, table.logp)
        found[f"mean_{k}"] = score + q.direct(_slope(k, table), table.logp)
    if setting.on_policy:
        return found
    found |= _token_level(mu, table, "@rollout")
    lag = table.logp_rollout - table.logp_ref
    for k in _K:
        found[f"sampled_{k}"] = mu.direct(_slope(k, table), table.logp_rollout)
        found[f"ppo_{k}"] = mu.policy_gradient(clamped_value(k, table.x), table.logp)
        found[f"ppo_{k}@rollout_kl"] = mu.policy_gradient(clamped_value(k, lag), table.logp)
    for k in ("k1", "k2", "k3"):
        found[f"ppo_rho_{k}"] = mu.policy_gradient(
            table.w * clamped_value(k, table.x), table.logp
        )  # fmt: skip
    return found


def _token_level(walk: "_Walk", table: Tables, at: str) -> dict[str, Table]:
    """Objectives that hold the states of `walk` fixed and differentiate the next token only."""
    found = {
        f"token_reverse_kl{at}": walk.direct(table.x, table.logp),
        f"token_forward_kl{at}": -walk.direct(np.ones_like(table.x), table.logp_ref),
        f"total_variation{at}": walk.direct(np.sign(table.x), table.logp),
    }
    for k in ("k2", "abs"):
        inner = clamped_value(k, table.x) + _slope(k, table)
        found[f"token_{k}{at}"] = walk.direct(inner, table.logp)
    return found


def _slope(k: str, table: Tables) -> Table:
    return slope(k, table.x)  # type: ignore[arg-type]


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
