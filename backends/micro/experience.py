"""Make rollout batches: prompts, responses, rewards, advantages.

Every random number is a function of the cell's seed and the batch's number. So a resumed run draws
the same numbers, and cells that differ in one setting share their random numbers.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.micro import fused, rollout_rounding
from backends.micro.batched import Sampled
from backends.micro.objective import (
    Experience,
    penalty,
    shaped_advantages,
    state_kl,
)
from backends.micro.problem_sets import encode, problems
from backends.micro.rollout import Rollouts, Scored
from backends.micro.skills import ANSWER_TOKENS, Skill
from backends.micro.state import State
from orchestrator.estimators import NONE, entry
from orchestrator.kl.estimators import weight_of, weights
from orchestrator.kl.library_semantics import PLAIN, Dialect, in_reward
from orchestrator.settings import Settings


class Trainee(NamedTuple):
    """The parts of a cell in training that decide its rollout batches."""

    settings: Settings
    skill: Skill
    state: State
    dialect: Dialect = PLAIN

    @property
    def batch_number(self) -> int:
        """Return the number of the rollout batch that the next train step uses, from 0."""
        return self.state.step // self.settings.batch.num_minibatches

    @property
    def rollout_version(self) -> int:
        """Return the number of train steps that made the policy which samples the next batch."""
        # The first batches have no older policy.
        return max(0, self.state.step - lag(self.settings, self.dialect, self.batch_number))


class Collected(NamedTuple):
    """A rollout batch of a cell."""

    experience: Experience
    version: int
    """The number of train steps behind the rollout policy."""
    sampled: Sampled
    sampler: fused.Policy
    """The policy that sampled."""


def collect(cell: Trainee) -> Collected:
    """Return the rollout batch for the next train steps of a cell."""
    state, settings = cell.state, cell.settings
    prompts, answers, uniforms = (
        torch.from_numpy(part).to(state.policy.device) for part in _draw(cell)
    )
    version, heat = cell.rollout_version, settings.rollout.temperature
    rounded = rollout_rounding.rounding(settings)
    sampler = fused.prepared(rollout_rounding.copied(state.version(version), rounded))
    sampled = sampler.sample(prompts, uniforms, heat, settings.rollout.top_p, rounded=rounded)
    rollouts, ours = sampled
    start = theirs = ours
    if _asks_of_the_start(cell, version):
        start = fused.prepared(state.policy).score(*rollouts[:3], heat)
    if not _is_to_the_sampler(cell):
        is_one = cell.dialect.reference_temperature == "one"
        theirs = fused.prepared(state.reference).score(*rollouts[:3], 1.0 if is_one else heat)
    reward = rewards(rollouts.tokens, rollouts.mask, answers)
    experience = _experience(cell, rollouts, ours, start, theirs, reward)
    return Collected(experience, version, sampled, sampler)


def _draw(cell: Trainee) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prompts [P, S], right answers [P, 6] and uniforms [P, G, T]."""
    batch, rollout = cell.settings.batch, cell.settings.rollout
    shape = (batch.num_prompts, rollout.group_size, rollout.max_response_tokens)
    rng = np.random.default_rng([cell.settings.seed, cell.batch_number])
    digits = problems(rng, batch.num_prompts, held_out=False)
    uniforms = rng.random(shape, np.float32)
    return (*encode(cell.skill, digits), uniforms)


def _experience(
    cell: Trainee,
    rollouts: Rollouts,
    sampled: Scored,
    start: Scored,
    reference: Scored,
    reward: Tensor,
) -> Experience:
    """Return the rollout batch of a cell.

    sampled, start, reference: the log-probabilities of the responses under the rollout policy, the
    policy before the batch's first train step, and the reference policy.
    """
    settings, dialect, kl = cell.settings, cell.dialect, cell.settings.kl
    of_reward = start if dialect.kl_reward_policy == "batch_start" else sampled
    old = (start if dialect.ratio_to == "batch_start" else sampled).logp
    over_vocabulary = kl.estimator != NONE and entry(kl.estimator).is_of_vocabulary
    if over_vocabulary and in_reward(kl) and not entry(kl.estimator).in_reward:
        states = state_kl(kl.estimator, of_reward.logps, reference.logps, rollouts.mask.shape)
        lost = states * rollouts.mask
    else:
        lost = penalty(kl, of_reward.logp, reference.logp, rollouts.mask, dialect, old)
    is_rewarded = kl.reference is None or kl.reference.task_reward
    advantage = shaped_advantages(
        settings.advantage.estimator,
        reward if is_rewarded else torch.zeros_like(reward),
        kl.beta,
        lost,
        dialect,
        entry(kl.estimator).credit if in_reward(kl) else "sequence",
    )
    return Experience(
        rollouts.prompts,
        rollouts.tokens,
        rollouts.mask,
        old,
        reference.logp,
        reward,
        lost.sum(-1),
        advantage,
        reference.logps if over_vocabulary else None,
        sampled.logp,
        None
        if settings.loss.correction is None
        else weights(weight_of(settings.loss.correction), start.logp - sampled.logp, rollouts.mask),
    )


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


def _asks_of_the_start(cell: Trainee, version: int) -> bool:
    """Return True if the dialect uses log-probabilities under the policy before the batch's first
    train step, and they are not those of the rollout policy."""
    of_reward = cell.dialect.kl_reward_policy == "batch_start" and in_reward(cell.settings.kl)
    of_ratio = cell.dialect.ratio_to == "batch_start"
    return differs(cell, version) and (of_reward or of_ratio)


def _is_to_the_sampler(cell: Trainee) -> bool:
    """Return True if a cell's reference policy is the engine that sampled."""
    reference = cell.settings.kl.reference
    return reference is not None and reference.kind == "sampler"


def differs(cell: Trainee, version: int) -> bool:
    """Return True if the engine sampled from another policy than the trainer's at that moment.

    version: the train steps after which the policy is that the engine copied.
    """
    return version != cell.state.step or rollout_rounding.rounding(cell.settings) is not None


def rewards(tokens: Tensor, mask: Tensor, answers: Tensor) -> Tensor:
    """Return [P, G]: 1 where the response [P, G, T] is exactly the answer [P, 6], else 0."""
    if tokens.shape[-1] < ANSWER_TOKENS:
        return torch.zeros_like(mask[..., 0])
    right = (tokens[..., :ANSWER_TOKENS] == answers[:, None]).all(-1)
    return right.to(mask.dtype)
