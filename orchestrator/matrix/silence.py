"""What a library does about KL when a launch says nothing about it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.matrix.asking import Batch
from orchestrator.matrix.batches import as_array, two_groups
from orchestrator.matrix.inquiry import Inquiry
from orchestrator.semantics.catalogue import PLAIN
from orchestrator.semantics.estimators import clamped_value, slope
from orchestrator.semantics.model import Table

CLOSE = 1e-6


def _batches() -> dict[str, Batch]:
    """Rollouts with a KL to the reference policy, with none, and with one to the rollout policy
    instead; task rewards and advantages are 0."""
    some = Batch(**{**two_groups(), "rewards": [0.0] * 8})
    some["mask"] = [[1.0] * 3] * 8
    some["advantages"] = [[0.0] * 3] * 8
    none = Batch(**{**some, "ref": some["logp"]})
    old = (np.asarray(some["ref"]) * 0.6 + np.asarray(some["logp"]) * 0.4).tolist()
    return {"silent": some, "silent, none": none, "silent, stale": Batch(**{**none, "old": old})}


def enquire(inquiry: Inquiry, launch: int) -> None:
    """Ask about a launch that says nothing about KL."""
    for name, batch in _batches().items():
        inquiry.batch(name, batch)
        inquiry.question(("silent", "reward", name), "advantages", launch, name)
        inquiry.question(("silent", "loss", name), "loss", launch, name)


def told(answers: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """The KL terms that are on: in the `reward`, in the `loss`, and in the loss to the rollout
    policy (`proximal`); each an estimator and its beta, or None."""
    batches = _batches()
    some, stale = batches["silent"], batches["silent, stale"]
    x = np.asarray(some["logp"]) - np.asarray(some["ref"])
    lag = np.asarray(stale["logp"]) - np.asarray(stale["old"])
    rewards = {name: answers[("silent", "reward", name)] for name in ("silent", "silent, none")}
    penalty = as_array(rewards["silent, none"], "rewards") - as_array(rewards["silent"], "rewards")
    size = x.size
    return {
        "reward": _fitted(penalty, x, clamped_value),
        "loss": _fitted(_gradient(answers, "silent") * size, x, slope),
        "proximal": _fitted(_gradient(answers, "silent, stale") * size, lag, slope),
    }


def _gradient(answers: Mapping[Any, Mapping[str, Any]], name: str) -> Table:
    return as_array(answers[("silent", "loss", name)], "gradient")


def _fitted(found: Table, x: Table, closed: Any) -> dict[str, Any] | None:
    """The estimator and beta whose value or gradient at x was found."""
    if np.abs(found).max() <= CLOSE * 1e-2:
        return None
    for form in PLAIN:
        shape = closed(form, x)
        beta = float((found * shape).sum() / (shape * shape).sum())
        if np.abs(found - beta * shape).max() <= CLOSE * max(1.0, abs(beta)):
            return {"estimator": form, "beta": float(f"{beta:.6g}")}
    return {"estimator": "?", "beta": None}
