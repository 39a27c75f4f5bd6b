"""Making a rollout batch: prompts, responses, rewards, advantages.

All it draws is a function of the cell's seed and the batch's number, so a resumed run draws the
same, and cells that differ in one setting are compared on common random numbers.
"""

import numpy as np
import torch
from torch import Tensor

from backends.micro import rollout
from backends.micro.objective import Experience, advantages, penalty
from backends.micro.policy import weights
from backends.micro.skills import ANSWER_TOKENS, Skill, encode, problems
from backends.micro.state import State
from orchestrator.settings import Settings


def collect(settings: Settings, skill: Skill, state: State) -> tuple[Experience, int]:
    """A rollout batch for the next train steps, and the version of the policy that sampled it."""
    number = state.step // settings.batch.num_minibatches
    rng = np.random.default_rng([settings.seed, number])
    size, longest = settings.rollout.group_size, settings.rollout.max_response_tokens
    digits = problems(rng, settings.batch.num_prompts, held_out=False)
    uniforms = rng.random((len(digits), size, longest), np.float32)
    prompts, answers, draws = (
        torch.from_numpy(x).to(state.policy.device) for x in (*encode(skill, digits), uniforms)
    )
    version = max(0, state.step - settings.max_staleness_steps)
    temperature = settings.rollout.temperature
    sampled = rollout.sample(
        weights(state.version(version)), prompts, draws, temperature, settings.rollout.top_p
    )
    with torch.no_grad():
        reference = rollout.score(
            weights(state.reference), prompts, sampled.tokens, sampled.mask, temperature
        )
    reward = rewards(sampled.tokens, sampled.mask, answers)
    lost = penalty(settings.kl, sampled.logp, reference.logp, sampled.mask)
    shaped = reward - settings.kl.beta * lost
    advantage = advantages(settings.advantage.estimator, shaped)
    return Experience(
        prompts, sampled.tokens, sampled.mask, sampled.logp, reference.logp, reward, lost, advantage
    ), version


def rewards(tokens: Tensor, mask: Tensor, answers: Tensor) -> Tensor:
    """[P, G]: 1 where the response [P, G, T] is exactly the answer [P, 6], else 0."""
    if tokens.shape[-1] < ANSWER_TOKENS:
        return torch.zeros_like(mask[..., 0])
    right = (tokens[..., :ANSWER_TOKENS] == answers[:, None]).all(-1)
    return right.to(mask.dtype)
