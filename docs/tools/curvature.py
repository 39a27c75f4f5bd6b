"""Measure the table of backends/micro/curvature.py anew: `python -m docs.tools.curvature`."""

import sys

import numpy as np
import torch
from torch import Tensor

from backends.micro import batched, huggingface
from backends.micro.policy import one_quiet_core
from backends.micro.problem_sets import encode, problems
from backends.micro.rehearsal import MAX_RESPONSE_TOKENS
from backends.micro.shipped import POLICIES, names
from backends.micro.skills import SKILLS, Skill

RESPONSES = 2000
"""Number of responses. Half of them choose a direction, the other half measure along it."""
AT_ONCE = 100


def largest(policy: str, skill: Skill, seed: int = 0, responses: int = RESPONSES) -> float:
    """Return the largest eigenvalue at a shipped policy, from sampled responses.

    One half of the responses gives the direction. The result is the mean square of the other half
    along it. So chance does not raise it, and it is a lower bound.
    """
    scores = _scores(policy, skill, seed, responses)
    roots = scores.square().mean(0).sqrt()
    # A weight that no response depends on would be 0/0; AdamW does not move it.
    scaled = torch.where(roots > 0, scores / roots.sqrt(), 0.0)
    first, second = scaled[: responses // 2], scaled[responses // 2 :]
    # [responses, responses] has the eigenvalues of the far larger [parameters, parameters].
    _, vectors = torch.linalg.eigh(first @ first.T)
    direction = first.T @ vectors[:, -1]
    direction /= direction.norm()
    return float((second @ direction).square().mean())


def _scores(policy: str, skill: Skill, seed: int, responses: int) -> Tensor:
    """Return the gradient of the log-probability of each response, [responses, parameters]."""
    rng = np.random.default_rng([seed, responses])
    prompts, _ = encode(skill, problems(rng, responses, held_out=False))
    uniforms = rng.random((responses, 1, 1, MAX_RESPONSE_TOKENS), np.float32)
    flat = huggingface.read(POLICIES / policy)
    scores = []
    for at in range(0, responses, AT_ONCE):
        rows = slice(at, min(at + AT_ONCE, responses))
        count = rows.stop - rows.start
        folded = batched.folded(flat.expand(count, -1).contiguous())
        one = torch.ones(count, 1, 1, 1)
        tokens = torch.from_numpy(np.ascontiguousarray(prompts[rows]))[:, None]
        draws = torch.from_numpy(uniforms[rows])
        sampled = batched.sample(folded, tokens, draws, one, [1.0] * count)
        mask = sampled.rollouts.mask
        scores.append(
            batched.gradient(
                folded, sampled.scored, sampled.rollouts.tokens, mask, one, [None] * count
            )
        )
    return torch.cat(scores)


def main() -> None:
    """Print LARGEST, measured now."""
    one_quiet_core()
    for name in names():
        for skill in SKILLS:
            sys.stdout.write(f'    ("{name}", "{skill}"): {largest(name, skill):.3g},\n')


if __name__ == "__main__":
    main()
