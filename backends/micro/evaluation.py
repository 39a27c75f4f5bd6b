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

from backends.micro.fused import Policy, prepared
from backends.micro.problem_sets import encode, held_out_problems
from backends.micro.skills import SKILLS, Skill

NUM_PROBLEMS = 256
"""Number of held-out problems of each skill for an accuracy."""
NUM_KL_PROBLEMS = 128
"""Number of held-out problems of the trained skill for a divergence."""


@torch.no_grad()
def log_accuracies(policy: Policy, skill: Skill) -> Tensor:
    """Return [NUM_PROBLEMS], the log-probability of each held-out problem's right answer."""
    prompts, answers = _exam(skill, NUM_PROBLEMS, policy.device)
    tokens = answers[:, None]
    mask = torch.ones(tokens.shape, device=policy.device)
    return policy.score(prompts, tokens, mask).logp[:, 0].sum(-1)


def accuracies(policy: Policy) -> dict[Skill, float]:
    """Return a policy's exact expected accuracy on each skill, at temperature 1."""
    return {skill: log_accuracies(policy, skill).exp().mean(-1).item() for skill in SKILLS}


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

    def __init__(self, reference: Tensor, skill: Skill, longest: int):
        device = reference.device
        self.reference, self.skill, self.longest = reference, skill, longest
        self.prompts = _exam(skill, NUM_KL_PROBLEMS, device)[0]
        self.uniforms = _uniforms(longest, device)
        theirs = prepared(reference).sample(self.prompts, self.uniforms, keep=False)
        self.tokens, self.mask = theirs.rollouts.tokens, theirs.rollouts.mask
        self.logps = theirs.scored.logps


def metrics(to: Divergence, policy: Policy) -> dict[str, float]:
    """Return a policy's metrics: exact accuracies, divergences to its reference, entropy."""
    return accuracy_metrics(accuracies(policy), to.skill) | divergence_metrics(to, policy)


@torch.no_grad()
def divergence_metrics(to: Divergence, policy: Policy) -> dict[str, float]:
    """Return reverse and forward KL (nats per sequence) and entropy (nats per token)."""
    ours = policy.sample(to.prompts, to.uniforms, keep=False)
    theirs = policy.score(to.prompts, to.tokens, to.mask).logps
    own, visited = ours.scored.logps, ours.rollouts.mask[:, 0]
    reference = prepared(to.reference).score(*ours.rollouts[:3]).logps
    entropy = -(own.exp() * own).sum(-1)
    values = {
        "eval/kl_reverse": (_kl(own, reference) * visited).sum() / NUM_KL_PROBLEMS,
        "eval/kl_forward": (_kl(to.logps, theirs) * to.mask[:, 0]).sum() / NUM_KL_PROBLEMS,
        "eval/entropy": (entropy * visited).sum() / visited.sum(),
    }
    return {name: value.item() for name, value in values.items()}


@cache
def _uniforms(longest: int, device: torch.device) -> Tensor:
    """Return the random numbers of every divergence, [NUM_KL_PROBLEMS, 1, longest]."""
    uniforms = np.random.default_rng(20260101).random((NUM_KL_PROBLEMS, 1, longest), np.float32)
    return torch.from_numpy(uniforms).to(device)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q), shape [...], from log-probabilities [..., V]."""
    return (p.exp() * (p - q)).sum(-1)


@cache
def _exam(skill: Skill, problems: int, device: torch.device) -> tuple[Tensor, Tensor]:
    prompts, answers = encode(skill, held_out_problems(problems))
    return torch.from_numpy(prompts).to(device), torch.from_numpy(answers).to(device)
