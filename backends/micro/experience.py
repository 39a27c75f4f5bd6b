"""Make a rollout batch: prompts, responses, rewards, advantages.

Every random number is a function of the cell's seed and the batch's number. So a resumed run draws
the same numbers, and cells that differ in one setting share their random numbers.
"""

import numpy as np
import torch
from torch import Tensor

from backends.micro import rollout
from backends.micro.objective import Experience, in_reward, penalty, shaped_advantages
from backends.micro.policy import weights
from backends.micro.skills import ANSWER_TOKENS, Skill, encode, problems
from backends.micro.state import State
from orchestrator.kl.library_semantics import PLAIN, Dialect
from orchestrator.settings import Settings


def collect(
    settings: Settings, skill: Skill, state: State, dialect: Dialect = PLAIN
) -> tuple[Experience, int]:
    """Return a rollout batch for the next train steps, and the version of the rollout policy."""
    number = state.step // settings.batch.num_minibatches
    rng = np.random.default_rng([settings.seed, number])
    size, longest = settings.rollout.group_size, settings.rollout.max_response_tokens
    digits = problems(rng, settings.batch.num_prompts, held_out=False)
    uniforms = rng.random((len(digits), size, longest), np.float32)
    prompts, answers, draws = (
        torch.from_numpy(x).to(state.policy.device) for x in (*encode(skill, digits), uniforms)
    )
    version = max(0, state.step - lag(settings, dialect, number))
    temperature = settings.rollout.temperature
    sampled = rollout.sample(
        weights(state.version(version)), prompts, draws, temperature, settings.rollout.top_p
    )
    with torch.no_grad():
        reference = rollout.score(
            weights(state.reference), prompts, sampled.tokens, sampled.mask, temperature
        )
    start = _at_the_start(settings, dialect, state, version, sampled)
    reward = rewards(sampled.tokens, sampled.mask, answers)
    of_reward = start if dialect.kl_reward_policy == "batch_start" else sampled.logp
    old = start if dialect.ratio_to == "batch_start" else sampled.logp
    lost = penalty(settings.kl, of_reward, reference.logp, sampled.mask, dialect, old)
    advantage = shaped_advantages(
        settings.advantage.estimator, reward, settings.kl.beta, lost, dialect
    )
    return Experience(
        prompts, sampled.tokens, sampled.mask, old, reference.logp, reward, lost.sum(-1), advantage
    ), version


def lag(settings: Settings, dialect: Dialect, number: int) -> int:
    """Return the age, in train steps, of the policy that samples batch `number`.

    If the dialect only bounds the staleness, draw the age uniformly from 0 to the bound. In a real
    run the age depends on the speed of the machines. The draw has its own random generator, so all
    other draws stay the same.
    """
    longest = settings.max_staleness_steps
    if dialect.staleness == "exact" or longest == 0:
        return longest
    return int(np.random.default_rng([settings.seed, number, longest]).integers(longest + 1))


@torch.no_grad()
def _at_the_start(
    settings: Settings, dialect: Dialect, state: State, version: int, sampled: rollout.Rollouts
) -> Tensor:
    """Return [P, G, T], the log-probabilities under the policy before the batch's first train step.

    If the dialect does not use them, return those of the rollout policy. On-policy, the two are
    equal.
    """
    of_reward = dialect.kl_reward_policy == "batch_start" and in_reward(settings.kl)
    of_ratio = dialect.ratio_to == "batch_start"
    if version == state.step or not (of_reward or of_ratio):
        return sampled.logp
    return rollout.score(
        weights(state.policy),
        sampled.prompts,
        sampled.tokens,
        sampled.mask,
        settings.rollout.temperature,
    ).logp


def rewards(tokens: Tensor, mask: Tensor, answers: Tensor) -> Tensor:
    """Return [P, G]: 1 where the response [P, G, T] is exactly the answer [P, 6], else 0."""
    if tokens.shape[-1] < ANSWER_TOKENS:
        return torch.zeros_like(mask[..., 0])
    right = (tokens[..., :ANSWER_TOKENS] == answers[:, None]).all(-1)
    return right.to(mask.dtype)
