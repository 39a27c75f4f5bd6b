"""The factors by which GRPO's division by a group's standard deviation rescales beta.

They depend on the difficulty of the prompt. Every factor is an exact sum over the number of solved
rollouts; no NumPy.
"""

from dataclasses import dataclass
from math import comb, exp, lgamma, sqrt

from orchestrator.errors import LaboratoryError


@dataclass(frozen=True, slots=True)
class GroupFactors:
    """The effect of a group's statistics on its task reward of 0 or 1 and on a KL term.

    A KL in the reward must not depend on success, and be normal where `over_all` counts it.
    """

    group_size: int
    reward: float
    """The factor on the gradient of the prompt's success rate."""
    beta_in_loss: float
    """Effective beta over beta for a KL in the loss, which is not divided."""
    beta_in_reward: float
    """Effective beta over beta for a KL in the reward in groups of unequal rewards, as beta goes
    to 0. With a filter of equal groups there are no others."""
    equal: float
    """The share of groups with equal rewards. In them a KL in the reward has unit deviation for
    every beta, and a KL in the loss is the only force."""

    def over_all(self, beta: float, deviation: float = 1.0) -> float:
        """Return effective beta over beta for a KL in the reward, over all groups, for small beta.

        `deviation`: the standard deviation of a response's KL. In a group of equal rewards the
        advantage is the KL over its own deviation, so that its force does not shrink with beta.
        """
        n = self.group_size
        # The mean of the standard deviation of n normal values, over that of one (c4 of n).
        mean_deviation = sqrt(2 / (n - 1)) * exp(lgamma(n / 2) - lgamma((n - 1) / 2))
        alone = self.equal * (1 - 1 / n) * mean_deviation / (beta * deviation)
        return self.beta_in_reward + alone / self.reward


def group_std(success: float, group_size: int) -> GroupFactors:
    """Return the factors of GRPO for a prompt that is solved with probability `success`.

    The standard deviation has the divisor n - 1 and no epsilon (verl 0.9.1
    compute_grpo_outcome_advantage; TRL 1.16.0). The baseline is the mean of the group. Raise
    LaboratoryError for a probability outside (0, 1) or a group below 2.
    """
    p, n = success, group_size
    if not 0 < p < 1 or n < 2:
        raise LaboratoryError(f"success must be in (0, 1) and the group 2 or more, got {p:g}, {n}")
    reward = divided = 0.0
    # Groups with k = 0 and k = n have equal rewards: no deviation, and no gradient of the reward.
    for k in range(1, n):
        chance = comb(n, k) * p**k * (1 - p) ** (n - k)
        # The standard deviation of k ones among n values, with the divisor n - 1.
        deviation = sqrt(k * (n - k) / (n * (n - 1)))
        reward += chance * k * (n - k) / (n * n * deviation)
        # The mean of the group takes 1 / n of a KL of its own score. The deviation takes as much
        # again: it grows with the KL of the rollouts whose reward is above the mean.
        divided += chance * (1 - 2 / n) / deviation
    reward /= p * (1 - p)
    return GroupFactors(n, reward, 1 / reward, divided / reward, p**n + (1 - p) ** n)
