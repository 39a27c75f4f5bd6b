"""Every sequence of the autoregressive model, written out as a trainer would see a batch."""

from itertools import product
from typing import Any

import numpy as np

from orchestrator.semantics.estimators import Array
from orchestrator.semantics.model import Policy, Setting, Table


class Sequences:
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
        padding = np.full((len(self.tokens), 1), table[0, 0])
        return np.concatenate([self.taken(table), padding], axis=1)

    def logp_for_autograd(self) -> tuple[Any, Any]:
        """The policy's parameters and its log-probabilities as torch tensors, connected."""
        import torch

        theta = torch.tensor(self.setting.policy, dtype=torch.float64, requires_grad=True)
        logits = theta[0] + theta[1] * torch.arange(self.setting.num_tokens, dtype=torch.float64)
        log_sigmoid = torch.nn.functional.logsigmoid
        table = torch.stack([log_sigmoid(-logits), log_sigmoid(logits)])
        padding = table[0, :1].expand(len(self.tokens), 1)
        return theta, torch.cat([self.taken(table), padding], dim=1)

    def taken(self, table: Array) -> Array:
        """[..., N, T] of a table by token and count, for the tokens each sequence wrote."""
        return table[..., self.tokens, self.counts]

    def per_sequence(self, values: Array) -> Array:
        """[N]: values per token ([N, T + 1]) summed over the response; [N] as it is."""
        if values.ndim == 1:
            return values
        return values[:, :-1].sum(1)


def like(array: Array, values: Table) -> Array:
    """`values` as the kind `array` is: a NumPy array or a torch tensor."""
    if not hasattr(array, "detach"):
        return values
    import torch

    return torch.as_tensor(values)
