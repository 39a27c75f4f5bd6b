"""The embedded trainer's own loss over every sequence of a toy policy: exact expectations."""

import numpy as np
import torch
from numpy.typing import NDArray

from backends.micro.objective import Experience, objective
from orchestrator.exact.laboratory import LabSetting, Sequences, ToyPolicy, tables
from orchestrator.exact.objectives import gradients
from orchestrator.kl.estimators import weight_of, weights
from orchestrator.settings import Kl, Loss

FloatArray = NDArray[np.float64]
POLICY, SAMPLER, REFERENCE = ToyPolicy(0.5, -0.1), ToyPolicy(0.1, 0.05), ToyPolicy(-0.2, 0.1)
SUMMED = Loss(aggregation="constant", constant_tokens=1, clip=None)
"""A sum over the tokens of each sequence."""


class Enumerated:
    """Every sequence of T tokens that a sampler may write, and the trainer's loss of each."""

    def __init__(
        self,
        num_tokens: int = 5,
        sampler: ToyPolicy = SAMPLER,
        policy: ToyPolicy = POLICY,
        reference: ToyPolicy = REFERENCE,
        proximal: ToyPolicy | None = None,
    ):
        self.setting = LabSetting(policy, reference, num_tokens, sampler)
        batch, table = Sequences(self.setting), tables(self.setting)
        self.theta = torch.tensor([*policy], dtype=torch.float64, requires_grad=True)
        logits = self.theta[0] + self.theta[1] * torch.arange(num_tokens, dtype=torch.float64)
        log_sigmoid = torch.nn.functional.logsigmoid
        self.logp = batch.taken(torch.stack([log_sigmoid(-logits), log_sigmoid(logits)]))
        old = table.logp_rollout if proximal is None else proximal.logp(num_tokens)
        self.old, self.reference, self.sampled = (
            torch.tensor(batch.taken(each)) for each in (old, table.logp_ref, table.logp_rollout)
        )
        self.chance = torch.tensor(batch.probability)
        own = np.exp(batch.taken(table.logp).sum(1))
        reward = (batch.tokens.sum(1) * 2 > num_tokens).astype(float)
        gain = reward - own @ reward
        self.gain = torch.tensor(gain)
        """The task reward of each sequence (more ones than zeros), less its mean."""
        self.true_gain = np.asarray(batch.taken(table.score).sum(2) @ (own * gain))
        self.true_kl = np.asarray(
            gradients(LabSetting(policy, reference, num_tokens))["sequence_reverse_kl"]
        )

    def gradient(self, kl: Kl, loss: Loss = SUMMED, *, of_reward: bool = False) -> FloatArray:
        """The expected gradient of the loss."""
        mask, total = torch.ones_like(self.old), torch.zeros((), dtype=torch.float64)
        gain = self.gain if of_reward else torch.zeros_like(self.gain)
        weight = None
        if loss.correction is not None:
            weight = weights(weight_of(loss.correction), self.old - self.sampled, mask)
        for n in range(len(self.chance)):
            row, none = slice(n, n + 1), torch.zeros(1, 1)
            one = Experience(
                none,
                mask[row][None],
                mask[row][None],
                self.old[row][None],
                self.reference[row][None],
                none,
                none,
                gain[row].reshape(1, 1, 1),
                None,
                self.sampled[row][None],
                None if weight is None else weight[row][None],
            )
            total = total + self.chance[n] * objective(loss, kl, self.logp[row][None], one).loss
        (slope,) = torch.autograd.grad(total, self.theta, retain_graph=True)
        return np.asarray(slope)
