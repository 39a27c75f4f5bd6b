"""What the probes of several libraries share."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WORDS: Mapping[str, Any] = {"null": None, "true": True, "false": False}


def overrides(options: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return `key=value` of each option, as Hydra reads them."""
    return [f"{prefix}{key}={value}" for key, value in options.items()]


def value_of(text: str) -> Any:
    """Return the value of an override; what is no value is a text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def at_last_token(rewards: Any, mask: Any) -> Any:
    """Return [N, T]: rewards [N] at each response's last token, 0 elsewhere."""
    import torch

    scores = torch.zeros_like(mask)
    scores[torch.arange(len(mask)), mask.sum(-1).long() - 1] = rewards
    return scores


def check_groups(groups: Sequence[int], size: int) -> None:
    """Raise ValueError if the rollouts of a batch are not in groups of this size."""
    if any(groups[i] != groups[i - i % size] for i in range(len(groups))):
        raise ValueError(f"the launch has groups of {size}, and the batch has not")


class _BackwardReached(BaseException):
    def __init__(self, loss: Any):
        self.loss = loss


def stop_at_backward(loss: Any, *_: Any) -> None:
    """Stand in for a backward pass: it is the first place that has the whole loss."""
    raise _BackwardReached(loss)


def loss_of(step: Callable[..., Any], *given: Any) -> Any:
    """Return the loss with which a train step calls `stop_at_backward`."""
    try:
        step(*given)
    except _BackwardReached as reached:
        return reached.loss
    raise RuntimeError("the train step never called backward")
