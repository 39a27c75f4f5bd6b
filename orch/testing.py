"""Assertions about loss functions, for a person's own tests. They need torch."""

from collections.abc import Callable
from typing import Any

_KINDS = {
    "reverse_kl": ("sequence_reverse_kl",),
    "token_reverse_kl": ("token_reverse_kl", "token_reverse_kl@rollout", "sampled_k2"),
    "forward_kl": ("token_forward_kl", "token_forward_kl@rollout", "sampled_k3"),
    "nothing": ("zero",),
}
"""An objective's name -> its keys in the catalogue of objectives."""


def assert_optimises(
    function: Callable[..., Any], objective: str, *, unbiased: bool = False, **call: Any
) -> None:
    """Assert that the KL of a loss function has the gradient of an objective, on-policy.

    objective: `reverse_kl`, `token_reverse_kl`, `forward_kl`, `nothing`, or a term and place as
    `k3.loss`. unbiased: only the gradient of the response's own reverse KL counts as `reverse_kl`;
    otherwise that of each token does, too. call: parameter -> what it is, or its value. It runs in
    this process. Raise AssertionError with what it optimises instead.
    """
    from orchestrator.exact.own import examine_here
    from orchestrator.exact.own_answer import answer, rows

    answered = answer(examine_here(function, call))
    keys = _KINDS.get(objective, ())
    if objective == "reverse_kl" and not unbiased:
        keys += _KINDS["token_reverse_kl"]
    on_policy = [each.key for sampling, each in answered.objectives if sampling == "on"]
    if not answered.objectives and answered.known:
        on_policy = ["zero"]
    if keys:
        holds = any(key in keys for key in on_policy)
    else:
        holds = any(f" {objective}," in f"{term}," for term in answered.parts)
    if holds and answered.known:
        return
    lines = "\n".join(f"  {label}: {text}" for label, text in rows(answered))
    word = "unbiased " if unbiased else ""
    raise AssertionError(f"it does not optimise the {word}{objective}:\n{lines}")
