"""Evaluate a policy on held-out problems, exactly where that is possible.

The accuracy of a policy on a prompt is the probability that it gives to the one right answer. One
teacher-forced forward pass therefore gives the expected accuracy exactly. A sequence-level KL
divergence is an expectation over responses. Each response contributes the sum, over its positions,
of the divergence between the two next-token distributions. That divergence is exact over the
vocabulary (Amini et al. 2025). Only the states are sampled, with common random numbers.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from backends.micro import fused, passes
from backends.micro.batched import Activations
from backends.micro.passes import Policies
from backends.micro.policy import chain
from backends.micro.problem_sets import encode, held_out_problems
from backends.micro.skills import ANSWER_TOKENS, PROMPT_TOKENS, SKILLS, Skill

NUM_PROBLEMS = 256
"""Number of held-out problems of each skill for an accuracy."""
NUM_KL_PROBLEMS = 128
"""Number of held-out problems of the trained skill for a divergence."""


@torch.no_grad()
def log_accuracies(policy: Policies, skill: Skill) -> Tensor:
    """Return [C, NUM_PROBLEMS], the log-probability of each held-out problem's right answer."""
    if isinstance(policy, fused.Packed):
        return fused.log_chances(policy, *_exam(skill, NUM_PROBLEMS, policy.flat.device))
    device, cells = policy.head.device, len(policy.head)
    prompts, answers = _exam(skill, NUM_PROBLEMS, device)
    at = chain(PROMPT_TOKENS + ANSWER_TOKENS - 1, PROMPT_TOKENS - 1, device)
    tokens = torch.cat([prompts, answers[:, :-1]], 1).expand(cells, -1, -1)
    forward = Activations(cells, NUM_PROBLEMS, at, policy.head, keep=False)
    logps = forward.advance(policy, tokens, slice(0, tokens.shape[2], 1)).log_softmax(-1)
    return logps.gather(-1, answers.expand(cells, -1, -1)[..., None])[..., 0].sum(-1)


def accuracies(policy: Policies) -> list[dict[Skill, float]]:
    """Return each cell's exact expected accuracy on each skill, at temperature 1."""
    by_skill = {skill: log_accuracies(policy, skill).exp().mean(-1).tolist() for skill in SKILLS}
    return [dict(zip(by_skill, row, strict=True)) for row in zip(*by_skill.values(), strict=True)]


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
        theirs = passes.sample(
            passes.prepared(reference[None]),
            self.prompts[None],
            self.uniforms[None],
            torch.ones(1, 1, 1, 1, device=device),
            (1.0,),
            keep=False,
        )
        self.tokens, self.mask = theirs.rollouts.tokens[0], theirs.rollouts.mask[0]
        self.logps = theirs.scored.logps[0]


@torch.no_grad()
def divergence_metrics(of_cells: Sequence[Divergence], policy: Policies) -> list[dict[str, float]]:
    """Return each cell's reverse and forward KL (nats per sequence) and entropy (nats per token).

    The responses of all cells have the same longest length.
    """
    prompts, uniforms, tokens, mask, logps, references = (
        torch.stack(parts)
        for parts in zip(
            *(
                (one.prompts, one.uniforms, one.tokens, one.mask, one.logps, one.reference)
                for one in of_cells
            ),
            strict=True,
        )
    )
    plain = torch.ones(len(of_cells), 1, 1, 1, device=prompts.device)
    ours = passes.sample(policy, prompts, uniforms, plain, (1.0,) * len(of_cells), keep=False)
    base = passes.prepared(references)
    reference = passes.score(base, prompts, ours.rollouts.tokens, ours.rollouts.mask, plain).logps
    forward_kl = _kl(logps, passes.score(policy, prompts, tokens, mask, plain).logps)
    own, visited = ours.scored.logps, ours.rollouts.mask[:, :, 0]
    entropy = -(own.exp() * own).sum(-1)
    metrics = {
        "eval/kl_reverse": (_kl(own, reference) * visited).flatten(1).sum(-1) / NUM_KL_PROBLEMS,
        "eval/kl_forward": (forward_kl * mask[:, :, 0]).flatten(1).sum(-1) / NUM_KL_PROBLEMS,
        "eval/entropy": (entropy * visited).flatten(1).sum(-1) / visited.flatten(1).sum(-1),
    }
    rows = zip(*(values.tolist() for values in metrics.values()), strict=True)
    return [dict(zip(metrics, row, strict=True)) for row in rows]


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
