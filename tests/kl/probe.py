"""Probe any KL code: name the objective whose gradient it computes.

The probe calls the function on every sequence of the toy model and weights each sequence by its
probability under the rollout policy. So the expected gradient is exact. `name_objective` then names
it, as for orch's own configurations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import Array, Credit
from orchestrator.exact.laboratory import (
    FloatTable,
    LabSetting,
    Sequences,
    ToyPolicy,
    tables,
)
from orchestrator.exact.objectives import (
    TINY,
    TOLERANCE,
    generic_settings,
    gradients,
    name_objective,
)
from orchestrator.kl.catalogue import Naming, catalogue
from orchestrator.kl.estimators import Ratio, detach

KlTerm = Callable[[Any, Any, Any, Any], Any]
"""(logp, logp_ref, logp_old, mask), each [N, T + 1], -> [N, T + 1], [N], or one number.

The last column is padding: mask 0. If the function returns one number, the probe takes it as a mean
over the batch and calls the function for each sequence separately.
"""

ProbeKind = Literal["loss", "reward"]

NUM_TOKENS = 4
STEP = 1e-3
"""The step of the fourth-order differences of a NumPy loss. Their error is about 1e-12."""
DIFFERENCE_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of probing a function."""

    naming: Naming
    gradient: FloatTable
    """The expected gradient, [settings, 2 parameters]."""
    distances: dict[str, float]
    """The distance to each candidate of catalogue.py, nearest first; see `distances`."""

    @property
    def objective(self) -> str:
        """Return the name of the objective whose gradient the function has."""
        return str(self.naming.kind)


def probe(
    term: KlTerm,
    *,
    kind: ProbeKind,
    on_policy: bool = True,
    arrays: Literal["torch", "numpy"] = "torch",
    ratio: Ratio = "token",
    credit: Credit = "sequence",
    settings: Sequence[LabSetting] | None = None,
) -> Probe:
    """Return the objective whose gradient `term` computes, from every sequence of the toy model.

    Differentiate a `loss` term with autograd. With NumPy, use finite differences in the policy,
    which ignore a stop-gradient. Multiply a `reward` term by the score, with the importance `ratio`
    and the `credit`. Raise LaboratoryError for a result of the wrong shape, for NaN or infinity,
    and for a loss without a gradient.
    """
    settings = settings or generic_settings(on_policy=on_policy, num_tokens=NUM_TOKENS)
    gradient = np.stack([_expected(term, each, kind, arrays, ratio, credit) for each in settings])
    candidates = [gradients(each) for each in settings]
    size = max(float(np.abs(row).max()) for each in candidates for row in each.values())
    tolerance = DIFFERENCE_TOLERANCE if (arrays, kind) == ("numpy", "loss") else TOLERANCE
    naming = name_objective(gradient, candidates, magnitude=size, tolerance=tolerance)
    return Probe(naming, gradient, distances(gradient, candidates))


def _expected(
    term: KlTerm, setting: LabSetting, kind: ProbeKind, arrays: str, ratio: Ratio, credit: Credit
) -> FloatTable:
    batch = Sequences(setting)
    if kind == "reward":
        return _reward(term, batch, arrays, ratio, credit)
    return _torch_loss(term, batch) if arrays == "torch" else _numpy_loss(term, batch)


def _torch_loss(term: KlTerm, batch: Sequences) -> FloatTable:
    import torch

    theta, logp = logp_for_autograd(batch)
    values = _called(term, batch, logp)
    if not values.requires_grad:
        raise LaboratoryError(
            "the probe's loss term has no gradient with respect to logp: it is detached, or does "
            "not use logp; a term that is meant for the reward is probed with kind='reward'"
        )
    loss = (torch.as_tensor(batch.probability) * _per_sequence(values)).sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    result: FloatTable = gradient.numpy()
    _check_finite(result, "gradient")
    return result


def _numpy_loss(term: KlTerm, batch: Sequences) -> FloatTable:
    """Return the gradient by fourth-order differences in the policy, with fixed sampling, [2]."""
    total = np.zeros(2)
    # The central difference (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h.
    for j, (factor, weight) in product(range(2), ((-2, 1), (-1, -8), (1, 8), (2, -1))):
        moved: list[Any] = list(batch.setting.policy)
        moved[j] += factor * STEP
        values = _called(term, batch, batch.logp_of(ToyPolicy(*moved)))
        total[j] += weight * float(batch.probability @ _per_sequence(values))
    return total / (12 * STEP)


def _reward(
    term: KlTerm, batch: Sequences, arrays: str, ratio: Ratio, credit: Credit
) -> FloatTable:
    logp = batch.logp_of(batch.setting.policy)
    logps = logp_for_autograd(batch)[1] if arrays == "torch" else logp
    kl = np.asarray(detach(_called(term, batch, logps)))
    log_w = (logp - batch.logp_old)[:, :-1]
    token_w = np.exp(log_w) if ratio == "token" else np.ones_like(log_w)
    weight = batch.probability * (np.exp(log_w.sum(1)) if ratio == "sequence" else 1.0)
    score = batch.taken(tables(batch.setting).score)
    earned = _earned(kl, batch, credit)
    gradient: FloatTable = (weight[:, None] * token_w * earned * score).sum((1, 2))
    return gradient


def _earned(kl: FloatTable, batch: Sequences, credit: Credit) -> FloatTable:
    """Return the KL that multiplies each token's score: [N, T], or [N, 1] for the sequence."""
    if credit == "sequence":
        per_sequence: FloatTable = _per_sequence(kl)[:, None]
        return per_sequence
    if kl.ndim < 2:
        raise LaboratoryError(
            f"credit '{credit}' needs a KL per token: the probe must return [N, T] values, "
            f"got shape {list(kl.shape)}"
        )
    tokens = kl[:, :-1]
    if credit == "token":
        return tokens
    # The sum from each token to the end.
    to_go = np.cumsum(tokens[:, ::-1], axis=1)[:, ::-1]
    return to_go if credit == "to_go" else to_go - tokens


def _called(term: KlTerm, batch: Sequences, logp: Array) -> Array:
    """Call the term, check its values, and return them, [N, T + 1] or [N]."""
    rest = (_like(logp, part) for part in (batch.logp_ref, batch.logp_old, batch.mask))
    arrays = (logp, *rest)
    values = _checked(term(*arrays), logp)
    if values.ndim == 0:
        one_by_one = ([part[i : i + 1] for part in arrays] for i in range(len(logp)))
        values = _stacked([_checked(term(*row), logp) for row in one_by_one])
    per_token, per_sequence = [len(logp), logp.shape[1]], [len(logp)]
    if list(values.shape) not in (per_token, per_sequence):
        raise LaboratoryError(
            f"the probe returned shape {list(values.shape)}; it was given {per_token} "
            f"log-probabilities and must return {per_token}, {per_sequence} or one number"
        )
    plain = np.asarray(detach(values))
    _check_finite(plain[:, :-1] if plain.ndim == 2 else plain, "value")
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


def _check_finite(values: FloatTable, what: str) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        name = "NaN" if np.isnan(values[tuple(bad[0])]) else "infinite"
        raise LaboratoryError(
            f"the probe's {what} is {name} at {len(bad)} of {values.size} places, first at index "
            f"{bad[0].tolist()}, on a model whose log-probabilities are all finite"
        )


def logp_for_autograd(batch: Sequences) -> tuple[Any, Any]:
    """Return the policy's parameters [2] and its log-probabilities [N, T + 1] as tensors.

    The log-probabilities are differentiable in the parameters.
    """
    import torch

    theta = torch.tensor([*batch.setting.policy], dtype=torch.float64, requires_grad=True)
    logits = theta[0] + theta[1] * torch.arange(batch.setting.num_tokens, dtype=torch.float64)
    log_sigmoid = torch.nn.functional.logsigmoid
    table = torch.stack([log_sigmoid(-logits), log_sigmoid(logits)])
    padding = table[0, :1].expand(len(batch.tokens), 1)
    return theta, torch.cat([batch.taken(table), padding], dim=1)


def _per_sequence(values: Array) -> Array:
    """Return values per sequence, [N]: sum [N, T + 1] over the response; keep [N] as it is."""
    if values.ndim == 1:
        return values
    return values[:, :-1].sum(1)


def _like(array: Array, values: FloatTable) -> Array:
    """Return `values` in the type of `array`: a NumPy array or a torch tensor."""
    if not hasattr(array, "detach"):
        return values
    import torch

    return torch.as_tensor(values)


def distances(
    gradient: FloatTable, candidates: Sequence[Mapping[str, FloatTable]]
) -> dict[str, float]:
    """Return the distance of `gradient` to each candidate, nearest first: |g - c| / max(|g|, |c|).

    Norms are over all settings and both parameters; 0 is equality. The distance `zero` is |g| over
    the longest of the gradient and all candidates.
    """
    others = {
        key: np.stack([np.asarray(each[key]) for each in candidates])
        for key in catalogue()
        if all(key in each for each in candidates)
    }
    length = float(np.linalg.norm(gradient))
    lengths = {key: float(np.linalg.norm(other)) for key, other in others.items()}
    result = {"zero": length / max(length, *lengths.values(), TINY)}
    for key, other in others.items():
        result[key] = float(np.linalg.norm(gradient - other)) / max(length, lengths[key], TINY)
    return dict(sorted(result.items(), key=lambda item: item[1]))
