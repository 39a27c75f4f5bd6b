"""Evaluate a policy on held-out problems, exactly where that is possible.

The accuracy of a policy on a prompt is the probability that it gives to the one right answer. One
teacher-forced forward pass therefore gives the expected accuracy exactly. A sequence-level KL
divergence is an expectation over responses. Each response contributes the sum, over its positions,
of the divergence between the two next-token distributions. That divergence is exact over the
vocabulary (Amini et al. 2025). Only the states are sampled, with common random numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from backends.micro import passes
from backends.micro.passes import Policies
from backends.micro.problem_sets import encode, held_out_problems
from backends.micro.rollout import Rollouts
from backends.micro.skills import SKILLS, Skill

NUM_PROBLEMS = 256
"""Number of held-out problems of each skill for an accuracy."""
NUM_KL_PROBLEMS = 128
"""Number of held-out problems of the trained skill for a divergence."""


@torch.no_grad()
def log_accuracies(policy: Policies, skill: Skill) -> Tensor:
    """Return [C, NUM_PROBLEMS], the log-probability of each held-out problem's right answer."""
    cells, device = policy.place
    prompts, answers = _exam(skill, NUM_PROBLEMS, device)
    tokens = answers.expand(cells, -1, -1)[:, :, None]
    plain = torch.ones(cells, 1, 1, 1, device=device)
    mask = torch.ones(tokens.shape, device=device)
    given = prompts.expand(cells, -1, -1), tokens, mask
    return policy.score(*given, plain).logp[:, :, 0].sum(-1)


def accuracies(policy: Policies) -> list[dict[Skill, float]]:
    """Return each cell's exact expected accuracy on each skill, at temperature 1."""
    by_skill = {s: log_accuracies(policy, s).exp().mean(-1).tolist() for s in SKILLS}
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
        theirs = passes.prepared(reference[None]).sample(
            self.prompts[None],
            self.uniforms[None],
            torch.ones(1, 1, 1, 1, device=device),
            (1.0,),
            keep=False,
        )
        self.tokens, self.mask = theirs.rollouts.tokens[0], theirs.rollouts.mask[0]
        self.logps = theirs.scored.logps[0]


def metrics(of_cells: Sequence[Divergence], policy: Policies) -> list[dict[str, float]]:
    """Return each cell's exact metrics: accuracies, divergences to its reference, entropy."""
    exact, divergences = accuracies(policy), divergence_metrics(of_cells, policy)
    return [
        accuracy_metrics(by_skill, one.skill) | values
        for by_skill, one, values in zip(exact, of_cells, divergences, strict=True)
    ]


@torch.no_grad()
def divergence_metrics(of_cells: Sequence[Divergence], policy: Policies) -> list[dict[str, float]]:
    """Return each cell's reverse and forward KL (nats per sequence) and entropy (nats per token).

    The responses of all cells have the same longest length.
    """
    prompts, uniforms, tokens, mask = _stacked(of_cells)
    plain = torch.ones(len(of_cells), 1, 1, 1, device=prompts.device)
    ours = policy.sample(prompts, uniforms, plain, (1.0,) * len(of_cells), keep=False)
    theirs = policy.score(prompts, tokens, mask, plain).logps
    return _divergences(of_cells, ours.rollouts, ours.scored.logps, theirs)


def _stacked(of_cells: Sequence[Divergence]) -> Iterator[Tensor]:
    """Yield prompts [C, P, S], uniforms, the reference's tokens and their mask [C, P, 1, T]."""
    return (
        torch.stack(parts)
        for parts in zip(
            *((one.prompts, one.uniforms, one.tokens, one.mask) for one in of_cells), strict=True
        )
    )


def _divergences(
    of_cells: Sequence[Divergence], ours: Rollouts, own: Tensor, theirs: Tensor
) -> list[dict[str, float]]:
    """Return `divergence_metrics` of the policies' samples.

    own, theirs: the log-probabilities [C, P, T, V] that the policies give, at the positions of
    their own samples and of the reference's.
    """
    reference = torch.empty_like(own)
    for one in {id(each): each for each in of_cells}.values():
        numbers = [number for number, each in enumerate(of_cells) if each is one]
        of_these = Rollouts(*(part[numbers] for part in ours))
        scored = passes.score_alike(one.reference, of_these, 1.0)
        reference[numbers] = torch.stack([each.logps for each in scored])
    mask, logps = (
        torch.stack(parts)
        for parts in zip(*((one.mask, one.logps) for one in of_cells), strict=True)
    )
    forward_kl, visited = _kl(logps, theirs), ours.mask[:, :, 0]
    entropy = -(own.exp() * own).sum(-1)
    values = {
        "eval/kl_reverse": (_kl(own, reference) * visited).flatten(1).sum(-1) / NUM_KL_PROBLEMS,
        "eval/kl_forward": (forward_kl * mask[:, :, 0]).flatten(1).sum(-1) / NUM_KL_PROBLEMS,
        "eval/entropy": (entropy * visited).flatten(1).sum(-1) / visited.flatten(1).sum(-1),
    }
    rows = zip(*(each.tolist() for each in values.values()), strict=True)
    return [dict(zip(values, row, strict=True)) for row in rows]


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
