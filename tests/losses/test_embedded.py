"""The embedded trainer trains with a loss of the table: its value, with its slope as gradient."""

import torch
from torch import Tensor

from backends.micro.objective import policy_loss
from orchestrator.settings import Loss

GENERATOR = torch.Generator().manual_seed(3)
OLD = -torch.rand(2, 3, 5, generator=GENERATOR, dtype=torch.float64) - 0.1
LOGP = OLD + 0.3 * torch.randn(2, 3, 5, generator=GENERATOR, dtype=torch.float64)
ADVANTAGE = torch.randn(2, 3, 1, generator=GENERATOR, dtype=torch.float64)
MASK = (torch.arange(5) < torch.tensor([[5], [3], [4]])).double().expand(2, 3, 5)


def gradient(loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the surrogate of each token, and the gradient of the mean of responses' means."""
    logp = LOGP.clone().requires_grad_()
    surrogate = policy_loss(loss, logp, OLD, ADVANTAGE, mask=MASK)[0]
    ((surrogate * MASK).sum(-1) / MASK.sum(-1)).mean().backward()
    assert logp.grad is not None
    return surrogate.detach() * MASK, logp.grad


def test_gspo_is_ppo_with_the_mean_ratio() -> None:
    """The older spelling has code of its own: autograd through the mean of the log-ratios."""
    clip = {"low": 0.05, "high": 0.05}
    table, autograd = (
        gradient(Loss.model_validate({"clip": clip, **words}))
        for words in ({"policy": "gspo"}, {"ratio_level": "sequence_mean"})
    )
    for ours, theirs in zip(table, autograd, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert (table[1] == 0).any()
