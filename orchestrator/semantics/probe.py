"""Probing somebody else's KL code: which objective does its gradient belong to?

The function is run on every sequence of the autoregressive model, weighted by its probability
under the rollout policy, so its expected gradient is exact; the objective is then named as for
our own configurations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.semantics.catalogue import Naming
from orchestrator.semantics.estimators import Array, Ratio
from orchestrator.semantics.model import Policy, Setting, Table, tables
from orchestrator.semantics.naming import distances, generic_settings, name_objective
from orchestrator.semantics.objectives import gradients

Term = Callable[[Any, Any, Any, Any], Any]
"""(logp, logp_ref, logp_old, mask), each [N, T + 1], -> [N, T + 1], [N], or one number.

The last column is padding: mask 0. One number is taken as the mean over what it was given, and
asked for sequence by sequence.
"""

Kind = Literal["loss", "reward"]
Credit = Literal["sequence", "to_go", "token"]
"""Which tokens' score a token's KL in the reward multiplies: all of its sequence (the paper,
verl, SkyRL), itself and the earlier ones (OpenRLHF), or its own alone."""

NUM_TOKENS = 4
STEP = 1e-3
"""Of the fourth-order differences that give a NumPy loss its gradient: error about 1e-12."""
DIFFERENCE_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Probe:
    """What a function's expected gradient turned out to be."""

    naming: Naming
    gradient: Table
    """[settings, 2 parameters]."""
    distances: dict[str, float]
    """To each candidate of catalogue.py, nearest first; see naming.distances."""

    @property
    def objective(self) -> str:
        return str(self.naming.kind)


def probe(
    term: Term,
    *,
    kind: Kind,
    on_policy: bool = True,
    arrays: Literal["torch", "numpy"] = "torch",
    ratio: Ratio = "token",
    credit: Credit = "sequence",
    settings: Sequence[Setting] | None = None,
) -> Probe:
    """Name the objective whose gradient `term` is, exactly, on every sequence of the model.

    A `loss` term is differentiated as autograd would (NumPy: by differences in the policy, which
    cannot see a stop-gradient); a `reward` term is multiplied by the score, with the importance
    `ratio` and the `credit` given. Raises LaboratoryError, saying which, on a result of the wrong
    shape, on NaN or infinity, and on a loss without a gradient.
    """
    settings = settings or generic_settings(on_policy=on_policy, num_tokens=NUM_TOKENS)
    gradient = np.stack([_expected(term, each, kind, arrays, ratio, credit) for each in settings])
    candidates = [gradients(each) for each in settings]
    size = max(float(np.abs(row).max()) for each in candidates for row in each.values())
    naming = name_objective(
        gradient,
        candidates,
        magnitude=size,
        **({"tolerance": DIFFERENCE_TOLERANCE} if (arrays, kind) == ("numpy", "loss") else {}),
    )
    return Probe(naming, gradient, distances(gradient, candidates))


def _expected(
    term: Term, setting: Setting, kind: Kind, arrays: str, ratio: Ratio, credit: Credit
) -> Table:
    batch = _Batch(setting)
    if kind == "reward":
        return _reward(term, batch, arrays, ratio, credit)
    if arrays == "torch":
        return _torch_loss(term, batch)
    total = np.zeros(2)
    for j in range(2):
        for factor, weight in ((-2, 1), (-1, -8), (1, 8), (2, -1)):
            moved = list(setting.policy)
            moved[j] += factor * STEP
            values = _called(term, batch, batch.logp_of(Policy(*moved)), np.asarray)
            total[j] += weight * (batch.probability @ _per_sequence(values, batch)) / (12 * STEP)
    return total


class _Batch:
    """Every sequence of a setting, [N = 2^T, T + 1], the last column padding."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        num_tokens = setting.num_tokens
        self.tokens = np.array(list(product((0, 1), repeat=num_tokens)))
        self.counts = np.cumsum(self.tokens, axis=1) - self.tokens
        self.mask = np.pad(np.ones(self.tokens.shape), ((0, 0), (0, 1)))
        self.logp_ref = self.logp_of(setting.reference)
        self.logp_old = self.logp_of(setting.sampler)
        self.probability = np.exp((self.logp_old * self.mask).sum(1))

    def logp_of(self, policy: Policy) -> Table:
        """[N, T + 1]; the padding holds a token's log-probability too, as in a trainer."""
        table = policy.logp(self.setting.num_tokens)
        return self.padded(table)

    def padded(self, table: Array) -> Array:
        taken = table[self.tokens, self.counts]
        padding = table[0, 0].reshape(1, 1) * np.ones((len(taken), 1))
        return np.concatenate([taken, padding], axis=1)


def _torch_loss(term: Term, batch: _Batch) -> Table:
    import torch

    theta = torch.tensor(batch.setting.policy, dtype=torch.float64, requires_grad=True)
    counts = torch.arange(batch.setting.num_tokens, dtype=torch.float64)
    logits = theta[0] + theta[1] * counts
    log_sigmoid = torch.nn.functional.logsigmoid
    table = torch.stack([log_sigmoid(-logits), log_sigmoid(logits)])
    taken = table[torch.as_tensor(batch.tokens), torch.as_tensor(batch.counts)]
    logp = torch.cat([taken, table[0, :1].expand(len(taken), 1)], dim=1)
    values = _called(term, batch, logp, torch.as_tensor)
    if not values.requires_grad:
        raise LaboratoryError(
            "the probe's loss term has no gradient with respect to logp: it is detached, or does "
            "not use logp; a term that is meant for the reward is probed with kind='reward'"
        )
    loss = (torch.as_tensor(batch.probability) * _per_sequence(values, batch)).sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    found: Table = gradient.numpy()
    _check_finite(found, "gradient")
    return found


def _reward(term: Term, batch: _Batch, arrays: str, ratio: Ratio, credit: Credit) -> Table:
    if arrays == "torch":
        import torch

        convert: Callable[[Any], Any] = torch.as_tensor
    else:
        convert = np.asarray
    logp = batch.logp_of(batch.setting.policy)
    values = _called(term, batch, convert(logp), convert)
    kl = np.asarray(values.detach() if hasattr(values, "detach") else values)
    table = tables(batch.setting)
    score = np.stack([part[batch.tokens, batch.counts] for part in table.score])
    log_w = (logp - batch.logp_old)[:, :-1]
    token_w = np.exp(log_w) if ratio == "token" else np.ones_like(log_w)
    weight = batch.probability * (np.exp(log_w.sum(1)) if ratio == "sequence" else 1.0)
    if credit != "sequence" and kl.ndim < 2:
        raise LaboratoryError(
            f"credit '{credit}' needs a KL per token: the probe must return [N, T] values, "
            f"got shape {list(kl.shape)}"
        )
    if credit == "sequence":
        earned = _per_sequence(kl, batch)[:, None]
    else:
        tokens = (kl * batch.mask)[:, :-1]
        earned = tokens if credit == "token" else np.cumsum(tokens[:, ::-1], axis=1)[:, ::-1]
    gradient: Table = (weight[:, None] * token_w * earned * score).sum((1, 2))
    return gradient


def _called(term: Term, batch: _Batch, logp: Any, convert: Callable[[Any], Any]) -> Any:
    """The term's values, [N, T + 1] or [N], checked."""
    given = (logp, convert(batch.logp_ref), convert(batch.logp_old), convert(batch.mask))
    values = _checked(term(*given), logp)
    if values.ndim == 0:
        rows = [
            _checked(term(*(part[i : i + 1] for part in given)), logp) for i in range(len(logp))
        ]
        values = rows[0].reshape(1) if len(rows) == 1 else _stacked(rows)
    allowed = ([len(logp)], [len(logp), logp.shape[1]])
    if list(values.shape) not in allowed:
        raise LaboratoryError(
            f"the probe returned shape {list(values.shape)}; it was given {allowed[1]} "
            f"log-probabilities and must return {allowed[1]}, {allowed[0]} or one number"
        )
    plain = values.detach().numpy() if hasattr(values, "detach") else values
    _check_finite(plain * (batch.mask if plain.ndim == 2 else 1), "value")
    return values


def _stacked(rows: Sequence[Any]) -> Any:
    if hasattr(rows[0], "detach"):
        import torch

        return torch.stack(list(rows))
    return np.stack(rows)


def _checked(values: Any, logp: Any) -> Any:
    if isinstance(values, float) and isinstance(logp, np.ndarray):
        return np.asarray(values)
    if not hasattr(values, "ndim") or hasattr(values, "detach") != hasattr(logp, "detach"):
        wanted = "a torch tensor" if hasattr(logp, "detach") else "a NumPy array"
        raise LaboratoryError(
            f"the probe must return {wanted}, as it was given; got {type(values).__name__}"
        )
    return values


def _check_finite(values: Table, what: str) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        name = "NaN" if np.isnan(values[tuple(bad[0])]) else "infinite"
        raise LaboratoryError(
            f"the probe's {what} is {name} at {len(bad)} of {values.size} places, first at index "
            f"{bad[0].tolist()}, on a model whose log-probabilities are all finite"
        )


def _per_sequence(values: Any, batch: _Batch) -> Any:
    """[N]: per-token values summed over the response."""
    if values.ndim == 1:
        return values
    mask = batch.mask
    if hasattr(values, "detach"):
        import torch

        mask = torch.as_tensor(mask)
    return (values * mask).sum(1)
