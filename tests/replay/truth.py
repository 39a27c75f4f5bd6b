"""The planted truth: what every cell of a spec comes to, in three worlds.

paper     what the paper says of each setting; in comedy_full 162 of 372 runs collapse
null      no setting matters and nothing collapses
opposite  what the paper calls stable collapses, what it calls better is worse

The validation accuracy is 0.3 below the training reward, and the scores of the tasks are on no
curve, so that none of them can pass for another.
"""

import random
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from orchestrator.records import Cell
from tests.replay.recorded import Steps

World = Literal["paper", "null", "opposite"]
WORLDS: tuple[World, ...] = get_args(World)
BELOW = 0.3
"""Validation accuracy, below the training reward."""
FALL_STEPS = 8
"""Train steps in which a reward falls from its best to nothing."""
DIP_STEPS = 30
"""Train steps in which the reward of an unstable run is halved, before it recovers."""
OFFSETS = {
    "math500": 0.08,
    "math2": -0.08,
    "countdown": 0.0,
    "mmlu_college_physics": -0.05,
    "mmlu_college_chemistry": 0.0,
    "mmlu_college_biology": 0.05,
}
"""Task -> its score, above the mean of its domain."""
_BEST = {
    "qwen2.5-7b": (0.62, 0.50),
    "llama-3.1-8b-instruct": (0.58, 0.52),
    "qwen3-4b-instruct-2507": (0.66, 0.48),
}
"""Model -> its best accuracy in and out of domain."""
_GAINS = {"qwen2.5-7b": (0.0621, 0.1906), "llama-3.1-8b-instruct": (0.1594, 0.0365)}
"""§4.1: how much higher k1 in the reward scores than k3 in the loss at beta 0.05."""
_ASYNC_GAINS = (0.08, 0.12)
BASELINE = {"in": 0.31, "out": 0.27}
"""Accuracy of every model before training."""
COST = 0.04
"""What each larger beta costs."""
BETAS = (0.05, 0.1, 0.3, 1.0)
SEED_NOISE, STEP_NOISE = 0.002, 0.01
"""Standard deviations: of a run's level over seeds, and of the reward of one step."""


class Truth(NamedTuple):
    """What one cell comes to."""

    falls_at: int | None
    """The rollout batch at which its reward begins to fall; None: it trains to its end."""
    dips_at: int | None
    """The rollout batch from which its reward is halved for DIP_STEPS; None: it is not."""
    batches: int
    """The rollout batches that it trains."""
    level: float
    """Training reward that it ends at, or fell from."""
    scores: Mapping[str, float]
    """Task -> accuracy of the last checkpoint."""
    kl: float
    """Forward KL to the reference policy at the end, nats a sequence; it grows with the steps."""
    entropy: float
    """At the end, nats a token; it shrinks with the steps."""
    seed: int
    """Of the noise of its curves."""

    def reward(self, batch: int) -> float:
        """Return the training reward of a rollout batch, without noise."""
        grown = 0.35 + (self.level - 0.35) * min(1.0, batch / (0.3 * self.batches))
        if self.dips_at is not None and 0 <= batch - self.dips_at < DIP_STEPS:
            return grown / 2
        if self.falls_at is None or batch < self.falls_at:
            return grown
        return max(0.01, grown * (1 - (batch - self.falls_at) / FALL_STEPS))

    def validation(self, batch: int) -> float:
        """Return the library's own validation accuracy after a rollout batch."""
        return max(0.0, self.reward(batch) - BELOW)

    def forward_kl(self, batch: int) -> float:
        """Return the forward KL to the reference policy at a checkpoint."""
        return self.kl * batch / self.batches

    def entropy_at(self, batch: int) -> float:
        """Return the entropy at a checkpoint."""
        return 1.0 + (self.entropy - 1.0) * batch / self.batches

    def steps(self, first: int, last: int, every: int) -> Steps:
        """Return what is logged from one rollout batch to another, validated every so many."""
        noise = random.Random(self.seed)  # noqa: S311  # no secret
        drawn = [noise.gauss(0, STEP_NOISE) for _ in range(self.batches + 1)]
        rows: dict[int, dict[str, float | None]] = {}
        if first == 1:
            rows[0] = {"validation": self.validation(0)}
        for batch in range(first, last + 1):
            reward = self.reward(batch)
            rows[batch] = {
                "reward": min(1.0, max(0.0, reward + drawn[batch] * (reward > 0.02))),
                "entropy": self.entropy_at(batch),
                "gradient": 0.2 + abs(drawn[batch]),
                "length": 400.0 + batch,
                "kl": 1e-3 * self.forward_kl(batch),
            }
            if batch % every == 0 or batch == self.batches:
                rows[batch]["validation"] = self.validation(batch)
        return rows


def truth(cell: Cell, world: World, seed: int) -> Truth:
    """Return what a cell comes to in a world. seed: another draw of the noise."""
    settings = cell.settings
    noise = random.Random(f"{cell.id} {world} {seed}")  # noqa: S311  # no secret
    batches = settings.num_train_steps // settings.batch.num_minibatches
    inside, outside = (x + noise.gauss(0, SEED_NOISE) for x in levels(cell, world))
    if falls(cell, world):
        inside = outside = 0.01
    level = 0.85 if falls(cell, world) else min(0.95, inside + 0.2)
    term = settings.kl.label if world != "null" else ""
    far, flat = ("k1.reward", "k3.loss") if world == "paper" else ("k3.loss", "k1.reward")
    at = round(batches * noise.uniform(0.4, 0.7))
    return Truth(
        at if falls(cell, world) else None,
        at if dips(cell, world) else None,
        batches,
        level,
        {t: max(0.0, (inside if _domain(t) == "in" else outside) + x) for t, x in OFFSETS.items()},
        {far: 30.0, flat: 18.0}.get(term, 24.0) + noise.gauss(0, 0.2),
        {far: 0.30, flat: 0.50}.get(term, 0.40) + noise.gauss(0, 0.004),
        noise.randrange(2**32),
    )


def _domain(task: str) -> str:
    return "out" if task.startswith("mmlu") else "in"


def falls(cell: Cell, world: World) -> bool:
    """Return whether a run collapses."""
    settings = cell.settings
    term, beta, model = settings.kl.label, settings.kl.beta, settings.model.name
    several, is_async = settings.batch.num_minibatches > 1, settings.max_staleness_steps > 0
    if world == "null":
        return False
    if world == "opposite":
        return several and term == "k1.reward"
    if is_async:  # §4.2, Fig. 7
        return term in ("none", "k1.loss", "k3.reward")
    if several:  # Fig. 2 centre, App. D.2
        return term in ("k1.loss", "k3.reward")
    if term == "k1.loss":  # §4.1, observation 1
        return beta in ((0.3, 1.0) if model.startswith("qwen") else (0.05, 0.3, 1.0))
    return term == "k3.reward"  # §4.1, observation 2


def dips(cell: Cell, world: World) -> bool:
    """Return whether a run is unstable and trains all the same.

    In the opposite world it is what the paper calls stable, and k1 in the loss where it is said to
    be stable.
    """
    settings = cell.settings
    term, is_qwen = settings.kl.label, settings.model.name.startswith("qwen2.5")
    if world != "opposite" or falls(cell, world) or settings.batch.num_minibatches > 1:
        return False
    if settings.max_staleness_steps:
        return term in ("k1.reward", "k3.loss")
    return term in ("none", "k1.reward", "k3.loss") or (
        term == "k1.loss" and is_qwen and settings.kl.beta in (0.05, 0.1)
    )


def levels(cell: Cell, world: World) -> tuple[float, float]:
    """Return the accuracy of a run that trains, in and out of domain, without noise."""
    settings = cell.settings
    term, model = settings.kl.label, settings.model.name
    best = _BEST[model]
    if world == "null":
        return best
    gains = _ASYNC_GAINS if settings.max_staleness_steps else _GAINS.get(model, _ASYNC_GAINS)
    rank = BETAS.index(settings.kl.beta) if settings.kl.beta in BETAS else 0
    lost = COST * rank
    if world == "opposite":
        gains, lost = (-gains[0], -gains[1]), -0.5 * lost
        best = best[0] - 0.06, best[1] - 0.06
        if settings.backend.name != "verl" and not settings.max_staleness_steps:
            best = best[0] - 0.1, best[1] - 0.1  # equal settings, and another result
    if term in ("none", "k1.loss"):
        off = 0.08 if world == "opposite" and term == "k1.loss" else 0.0
        return best[0] - 0.01 - off, best[1] - 0.06
    if term == "k3.loss":
        return (best[0] - lost) / (1 + gains[0]), (best[1] - lost) / (1 + gains[1])
    if world == "opposite" and term.endswith(".both"):
        return best[0] - lost - 0.1, best[1] - lost - 0.1
    return best[0] - lost, best[1] - lost
