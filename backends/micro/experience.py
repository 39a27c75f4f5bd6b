"""Make rollout batches: prompts, responses, rewards, advantages; of many cells at once.

Every random number is a function of the cell's seed and the batch's number. So a resumed run draws
the same numbers, and cells that differ in one setting share their random numbers.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.micro import passes, rollout_rounding
from backends.micro.batched import PackedScores, Sampled
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
    """A rollout batch of each of C cells."""

    experiences: list[Experience]
    versions: list[int]
    """The number of train steps behind each rollout policy, [C]."""
    sampled: Sampled
    """The samples of all cells together."""
    samplers: passes.Policies
    """The policies that sampled."""


def collect(cells: Sequence[Trainee]) -> Collected:
    """Return rollout batches for the next train steps of cells of one shape."""
    draws = [_draw(cell) for cell in cells]
    device = cells[0].state.policy.device
    prompts, answers, uniforms = (
        torch.from_numpy(np.stack(parts)).to(device) for parts in zip(*draws, strict=True)
    )
    versions = [cell.rollout_version for cell in cells]
    temperature = temperatures(cells)
    samplers = [cell.state.version(v) for cell, v in zip(cells, versions, strict=True)]
    rounded = rollout_rounding.rounding(cells[0].settings)
    folded = passes.prepared(rollout_rounding.copied(torch.stack(samplers), rounded))
    sampled = folded.sample(
        prompts,
        uniforms,
        temperature,
        [cell.settings.rollout.top_p for cell in cells],
        rounded=rounded,
    )
    rollouts = sampled.rollouts
    references = _scored_by_references(cells, sampled)
    starts = sampled.scored
    if any(map(_asks_of_the_start, cells, versions)):
        starts = _scored([cell.state.policy for cell in cells], rollouts, temperature)
    reward = rewards(rollouts.tokens, rollouts.mask, answers)
    experiences = []
    for number, (cell, version) in enumerate(zip(cells, versions, strict=True)):
        start = starts if _asks_of_the_start(cell, version) else sampled.scored
        of_cell = Rollouts(*(part[number] for part in rollouts))
        ours, before = (
            Scored(each.logp[number], each.logps[number]) for each in (sampled.scored, start)
        )
        theirs = references.get(number, ours)
        experiences.append(_experience(cell, of_cell, ours, before, theirs, reward[number]))
    return Collected(experiences, versions, sampled, folded)


def temperatures(cells: Sequence[Trainee]) -> Tensor:
    """Return the rollout temperatures, [C, 1, 1, 1]."""
    values = [cell.settings.rollout.temperature for cell in cells]
    return torch.tensor(values, device=cells[0].state.policy.device)[:, None, None, None]


def _draw(cell: Trainee) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prompts [P, S], right answers [P, 6] and uniforms [P, G, T]."""
    settings = cell.settings
    shape = (
        settings.batch.num_prompts,
        settings.rollout.group_size,
        settings.rollout.max_response_tokens,
    )
    return _drawn(cell.skill, settings.seed, cell.batch_number, shape)


@lru_cache(maxsize=16)
def _drawn(
    skill: Skill, seed: int, number: int, shape: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `_draw` of a batch's number. Cells of one seed and skill share it."""
    rng = np.random.default_rng([seed, number])
    digits = problems(rng, shape[0], held_out=False)
    uniforms = rng.random(shape, np.float32)
    return (*encode(skill, digits), uniforms)


def _scored_by_references(cells: Sequence[Trainee], sampled: Sampled) -> dict[int, Scored]:
    """Return the log-probabilities that the reference policies give to the responses, by cell.

    A cell whose reference policy is the sampler is left out.
    """
    asking: dict[tuple[object, ...], list[int]] = {}
    for number, cell in enumerate(cells):
        if not _is_to_the_sampler(cell):
            # Cells of one reference policy and with the same prompts are scored together.
            heat = _reference_temperature(cell)
            draw = cell.skill, cell.settings.seed, cell.batch_number
            asking.setdefault((id(cell.state.reference), heat, *draw), []).append(number)
    scored: dict[int, Scored] = {}
    for numbers in asking.values():
        first = cells[numbers[0]]
        of_these = Rollouts(*(part[numbers] for part in sampled.rollouts))
        alike = passes.score_alike(first.state.reference, of_these, _reference_temperature(first))
        scored.update(zip(numbers, alike, strict=True))
    return scored


def _reference_temperature(cell: Trainee) -> float:
    """Return the temperature of the reference policy's log-probabilities."""
    is_one = cell.dialect.reference_temperature == "one"
    return 1.0 if is_one else cell.settings.rollout.temperature


def _scored(policies: Sequence[Tensor], rollouts: Rollouts, temperature: Tensor) -> PackedScores:
    """Return the log-probabilities that C other policies give to the responses."""
    policy = passes.prepared(torch.stack(list(policies)))
    return policy.score(rollouts.prompts, rollouts.tokens, rollouts.mask, temperature)


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
    """Return [..., P, G]: 1 where the response [..., P, G, T] is exactly the answer [..., P, 6],
    else 0."""
    if tokens.shape[-1] < ANSWER_TOKENS:
        return torch.zeros_like(mask[..., 0])
    right = (tokens[..., :ANSWER_TOKENS] == answers[..., None, :]).all(-1)
    return right.to(mask.dtype)
