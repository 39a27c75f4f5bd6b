"""Measure how far one update moves a base policy: the largest eigenvalue of its Fisher matrix.

The score of a response is the gradient of its log-probability. AdamW divides the gradient of each
weight by the root of its mean square, which is the root of the diagonal of the Fisher matrix F of
responses, up to a factor. So the matrix of the speed of a direction is
D^(-1/2) F D^(-1/2) with D the root of F's diagonal (docs/decisions/083).

`python -m backends.micro.curvature` measures the numbers of LARGEST anew.
"""

import sys
from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from backends.micro.rehearsal import MAX_RESPONSE_TOKENS
from backends.micro.shipped import POLICIES, manifest, names, policy_of, skill_of
from backends.micro.skills import SKILLS, Skill
from orchestrator.library.protocol import Curvature
from orchestrator.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

RESPONSES = 2000
"""Number of responses. Half of them choose a direction, the other half measure along it."""
AT_ONCE = 100
LARGEST: Mapping[tuple[str, Skill], float] = {
    ("elder", "sort"): 273,
    ("elder", "reverse"): 166,
    ("elder", "copy"): 166,
    ("elder", "increment"): 476,
    ("fir", "sort"): 288,
    ("fir", "reverse"): 353,
    ("fir", "copy"): 205,
    ("fir", "increment"): 262,
    ("hazel", "sort"): 229,
    ("hazel", "reverse"): 199,
    ("hazel", "copy"): 210,
    ("hazel", "increment"): 213,
}
"""Of each policy and skill, by `largest`. More responses find a better direction: `elder` on sort
has 190 with 400 responses and 199 with 1000."""


def curvature(settings: Settings) -> Curvature | None:
    """Return the curvature at the policy that a cell starts from, or None for another's policy."""
    policy, skill = policy_of(settings.model.path), skill_of(settings.data.path)
    if policy is None or skill is None or (policy, skill) not in LARGEST:
        return None
    chances, group = manifest(policy).chances[skill], settings.rollout.group_size
    spread = sum(p * (1 - p) for p in chances) / len(chances)
    if settings.advantage.estimator != "reinforce":
        spread *= group / (group - 1)  # of a reward less the mean of the others
    return Curvature(LARGEST[policy, skill], sqrt(spread))


def largest(policy: str, skill: Skill, seed: int = 0, responses: int = RESPONSES) -> float:
    """Return the largest eigenvalue at a shipped policy, from sampled responses; loads torch.

    One half of the responses gives the direction. The result is the mean square of the other half
    along it. So chance does not raise it, and it is a lower bound.
    """
    import torch

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


def _scores(policy: str, skill: Skill, seed: int, responses: int) -> "Tensor":
    """Return the gradient of the log-probability of each response, [responses, parameters]."""
    import numpy as np
    import torch

    from backends.micro import batched, huggingface
    from backends.micro.problem_sets import encode, problems

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
    from backends.micro.policy import one_quiet_core

    one_quiet_core()
    for name in names():
        for skill in SKILLS:
            sys.stdout.write(f'    ("{name}", "{skill}"): {largest(name, skill):.3g},\n')


if __name__ == "__main__":
    main()
