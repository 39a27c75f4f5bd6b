"""Evaluate a policy on held-out problems, exactly where that is possible.

The accuracy of a policy on a prompt is the probability that it gives to the one right answer. One
teacher-forced forward pass therefore gives the expected accuracy exactly. A sequence-level KL
divergence is an expectation over responses. Each response contributes the sum, over its positions,
of the divergence between the two next-token distributions. That divergence is exact over the
vocabulary (Amini et al. 2025). Only the states are sampled, with common random numbers.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

from backends.micro import rollout
from backends.micro.policy import Weights, chain, forward
from backends.micro.rollout import Rollouts
from backends.micro.skills import (
    ANSWER_TOKENS,
    PROMPT_TOKENS,
    SKILLS,
    Skill,
    encode,
    held_out_problems,
)

NUM_PROBLEMS = 256
"""Held-out problems of each skill behind an accuracy."""
NUM_KL_PROBLEMS = 128
"""Those of the trained skill behind a divergence."""


@torch.no_grad()
def log_accuracy(policy: Weights, skill: Skill) -> Tensor:
    """Return [NUM_PROBLEMS], the log-probability of each held-out problem's right answer."""
    device = policy.norm.device
    prompts, answers = _exam(skill, NUM_PROBLEMS, device)
    at = chain(PROMPT_TOKENS + ANSWER_TOKENS - 1, PROMPT_TOKENS - 1, device)
    logps = forward(policy, torch.cat([prompts, answers[:, :-1]], 1), at).log_softmax(-1)
    return logps.gather(-1, answers[..., None])[..., 0].sum(-1)


def accuracies(policy: Weights) -> dict[Skill, float]:
    """Return the exact expected accuracy on each skill, at temperature 1."""
    return {skill: log_accuracy(policy, skill).exp().mean().item() for skill in SKILLS}


def accuracy_metrics(exact: Mapping[Skill, float], trained: Skill) -> dict[str, float]:
    """Return the accuracies under canonical names, with their in-domain and out-of-domain means."""
    others = [value for skill, value in exact.items() if skill != trained]
    return {
        **{f"eval/accuracy/{skill}": value for skill, value in exact.items()},
        "eval/accuracy_in_domain": exact[trained],
        "eval/accuracy_out_of_domain": sum(others) / len(others),
    }


class Divergence:
    """Both KL divergences to a reference policy, on held-out prompts of the trained skill."""

    def __init__(self, reference: Weights, skill: Skill, longest: int):
        device = reference.norm.device
        self._prompts = _exam(skill, NUM_KL_PROBLEMS, device)[0]
        uniforms = np.random.default_rng(20260101).random((NUM_KL_PROBLEMS, 1, longest), np.float32)
        self._uniforms = torch.from_numpy(uniforms).to(device)
        self._reference = reference
        self._theirs = self._sample(reference)
        self._theirs_logps = self._logps(reference, self._theirs)

    @torch.no_grad()
    def metrics(self, policy: Weights) -> dict[str, float]:
        """Return reverse and forward KL (nats per sequence) and the entropy (nats per token)."""
        ours = self._sample(policy)
        logps, reference = self._logps(policy, ours), self._logps(self._reference, ours)
        mask = ours.mask[:, 0]
        forward_kl = _kl(self._theirs_logps, self._logps(policy, self._theirs))
        entropy = -(logps.exp() * logps).sum(-1)
        return {
            "eval/kl_reverse": ((_kl(logps, reference) * mask).sum() / NUM_KL_PROBLEMS).item(),
            "eval/kl_forward": (
                (forward_kl * self._theirs.mask[:, 0]).sum() / NUM_KL_PROBLEMS
            ).item(),
            "eval/entropy": ((entropy * mask).sum() / mask.sum()).item(),
        }

    def _sample(self, policy: Weights) -> Rollouts:
        return rollout.sample(policy, self._prompts, self._uniforms, 1.0, 1.0)

    @staticmethod
    @torch.no_grad()
    def _logps(policy: Weights, responses: Rollouts) -> Tensor:
        return rollout.score(policy, responses.prompts, responses.tokens, responses.mask).logps


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q), shape [...], from log-probabilities [..., V]."""
    return (p.exp() * (p - q)).sum(-1)


@cache
def _exam(skill: Skill, problems: int, device: torch.device) -> tuple[Tensor, Tensor]:
    prompts, answers = encode(skill, held_out_problems(problems))
    return torch.from_numpy(prompts).to(device), torch.from_numpy(answers).to(device)
