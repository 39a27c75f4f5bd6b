"""What libraries are asked about: batches, and what is read from their answers about them."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from orchestrator.errors import EnvironmentFault
from orchestrator.matrix.asking import Batch
from orchestrator.semantics.model import Setting, Table, tables
from orchestrator.semantics.sequences import Sequences

GROUP = 2


def every_group(setting: Setting) -> Batch:
    """Every group of two rollouts that a policy can write, once; task rewards are 0."""
    batch = Sequences(setting)
    rows = _rows(len(batch.tokens))
    old = batch.logp_old[:, :-1]
    return Batch(
        logp=_listed(batch.logp_of(setting.policy)[:, :-1][rows]),
        ref=_listed(batch.logp_ref[:, :-1][rows]),
        old=_listed(old[rows]),
        mask=_listed(np.ones_like(old)[rows]),
        rewards=[0.0] * len(rows),
        groups=[i // GROUP for i in range(len(rows))],
    )


def expected_gradient(setting: Setting, gradient: Sequence[Sequence[float]], beta: float) -> Table:
    """[2 parameters]: a loss's gradient in every_group's log-probabilities, expected over rollouts,
    per sequence and unit of beta. Takes the loss for a mean over tokens."""
    batch = Sequences(setting)
    rows = _rows(len(batch.tokens))
    probability = batch.probability[rows].reshape(-1, GROUP).prod(1).repeat(GROUP)
    score = batch.taken(tables(setting).score)[:, rows]
    per_token = np.asarray(gradient) * len(rows) * setting.num_tokens
    found: Table = (score * per_token * probability[:, None]).sum((1, 2)) / GROUP / beta
    return found


def _rows(count: int) -> Table:
    """Which sequence each row holds: all pairs, one after the other."""
    return np.array(list(product(range(count), repeat=GROUP))).reshape(-1)


def _listed(table: Table) -> list[list[float]]:
    listed: list[list[float]] = table.tolist()
    return listed


CURVE = np.round(np.arange(-3000, 3001) / 100, 2)
"""log pi / pi_ref of tokens, past every bound."""


NEAR = CURVE[np.abs(CURVE) <= 1.5]
"""... within every bound of k1, k2, k3 and abs at 10."""


def curve(log_weight: float | None = None) -> Batch:
    """One rollout with a token at each point of CURVE, on-policy; with `log_weight`, at each point
    of NEAR, with that log pi / pi_rollout."""
    points = CURVE if log_weight is None else NEAR
    old = points - (log_weight or 0.0)
    one = [1.0] * len(points)
    return Batch(
        logp=[points.tolist()], ref=[[0.0] * len(points)], old=[old.tolist()], mask=[one],
        rewards=[0.0], groups=[0],
    )  # fmt: skip


def ratios() -> Batch:
    """One rollout with advantages 1 whose tokens have log pi / pi_rollout = CURVE."""
    whole = curve()
    old = [[0.0] * len(CURVE)]
    return Batch(**{**whole, "old": old, "ref": whole["logp"], "advantages": whole["mask"]})


SIZE = 4
LENGTHS = (3, 3, 1, 2, 3, 2, 3, 3)
AT = (0, 1)
"""Row and token whose KL is changed."""
STEP = 1e-3


def two_groups(changed: float = 0.0) -> Batch:
    """Two groups of four rollouts, on-policy; the KL (k1) of token AT raised by `changed`."""
    rng = np.random.default_rng(5)
    logp = -rng.uniform(0.2, 2.0, (len(LENGTHS), max(LENGTHS)))
    ref = logp - rng.uniform(-0.5, 0.5, logp.shape)
    ref[AT] -= changed
    mask = np.array([[float(t < n) for t in range(max(LENGTHS))] for n in LENGTHS])
    return Batch(
        logp=_listed(logp), ref=_listed(ref), old=_listed(logp), mask=_listed(mask),
        rewards=[1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25],
        groups=[i // SIZE for i in range(len(LENGTHS))],
    )  # fmt: skip


def scaled(batch: Batch, reward: float, kl: float) -> Batch:
    """The same rollouts with all rewards and all KLs (k1) so many times as large."""
    ref = np.asarray(batch["logp"]) + kl * (np.asarray(batch["ref"]) - np.asarray(batch["logp"]))
    rewards = [reward * each for each in batch["rewards"]]
    return Batch(**{**batch, "ref": _listed(ref), "rewards": rewards})


def ragged() -> Batch:
    """Two rollouts of 3 and 1 tokens, on-policy, advantages 1, task rewards 0."""
    logp = [[-1.0, -0.5, -2.0], [-0.7, -1.0, -1.0]]
    ref = [[-1.2, -0.9, -1.5], [-0.9, -1.0, -1.0]]
    return Batch(
        logp=logp, ref=ref, old=logp, mask=[[1.0] * 3, [1.0, 0.0, 0.0]], rewards=[0.0, 0.0],
        groups=[0, 0], advantages=[[1.0] * 3, [1.0, 0.0, 0.0]],
    )  # fmt: skip


def as_array(answer: Mapping[str, Any], key: str) -> Table:
    """An array of an answer. Raises EnvironmentFault if the library raised instead."""
    if "error" in answer:
        raise EnvironmentFault(f"the library's own functions raised {answer['error']}")
    return np.asarray(answer[key], dtype=float)
