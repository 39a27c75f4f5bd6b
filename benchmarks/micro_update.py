"""CPU milliseconds of one update of the embedded trainer: `python benchmarks/micro_update.py`.

An update is 16 prompts x 5 rollouts: sampling, the reference forward, the loss with its gradient,
AdamW. Variants side by side: one policy under autograd, every rollout a sequence of its own,
prefilled and scored by itself (U, the unit of all bars); the same, with the rollouts of a group
packed behind their one prompt; and as the trainer does it, 1 or 16 cells at once, with their
metrics, journals and states, by its C kernels and by torch. The fastest round is printed beside the
mean, since neighbours on the machine only ever add. The limit is the products of weights alone, of
every row, at the speed of one large product; the kernels compute equal beginnings of responses
once, and can be below it.
"""

import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch

from backends.micro import disk, kernels, optimizer
from backends.micro.experience import rewards
from backends.micro.objective import Experience, objective, penalty, shaped_advantages
from backends.micro.policy import one_quiet_core, weights
from backends.micro.problem_sets import encode, problems
from backends.micro.shape import NUM_PARAMETERS
from backends.micro.state import State
from backends.micro.train import LockstepGroup, Training, base_policy
from docs.tools import plain_policy
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell, Outcome
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Rollout,
    Settings,
)

BAR = 0.15
"""Of U, for an update of one of 16 cells."""
CELLS = 16
ROUNDS, UPDATES = 5, 20
PROMPTS, GROUP, LONGEST = 16, 5, 7

SETTINGS = Settings(
    model=Model(name="elder", path="micro:elder"),
    data=Data(name="sort", path="micro:sort", reward="exact"),
    advantage=Advantage(estimator="rloo"),
    loss=Loss(),
    kl=Kl(estimator="k1", placement="reward", beta=0.1),
    rollout=Rollout(group_size=GROUP, max_response_tokens=LONGEST),
    batch=Batch(num_prompts=PROMPTS),
    optimizer=Optimizer(learning_rate=1e-3),
    num_train_steps=ROUNDS * UPDATES,
    backend=BackendRef(name="micro"),
)


def update(state: State, *, packed: bool) -> None:
    """One update; unpacked, P groups of G become P G groups of one."""
    rng = np.random.default_rng([0, state.step])
    prompts, answers = map(torch.from_numpy, encode("sort", problems(rng, PROMPTS, held_out=False)))
    draws = torch.from_numpy(rng.random((PROMPTS, GROUP, LONGEST), np.float32))
    if not packed:
        prompts, answers = (x.repeat_interleave(GROUP, 0) for x in (prompts, answers))
        draws = draws.view(PROMPTS * GROUP, 1, LONGEST)
    with torch.no_grad():
        sampled = plain_policy.sample(weights(state.policy), prompts, draws, 1.0, 1.0)
        reference = plain_policy.score(weights(state.reference), *sampled[:3]).logp
    reward = rewards(sampled.tokens, sampled.mask, answers)
    lost = penalty(SETTINGS.kl, sampled.logp, reference, sampled.mask)
    of_groups = reward.view(PROMPTS, GROUP), lost.view(PROMPTS, GROUP, -1)
    advantage = shaped_advantages("rloo", of_groups[0], SETTINGS.kl.beta, of_groups[1])
    batch = Experience(*sampled, reference, reward, lost.sum(-1), advantage.view(*reward.shape, 1))
    flat = state.policy.requires_grad_()
    scored = plain_policy.score(weights(flat), *sampled[:3])
    loss = objective(SETTINGS.loss, SETTINGS.kl, scored.logp, batch).loss
    (gradient,) = torch.autograd.grad(loss, flat)
    state.policy, state.step = flat.detach(), state.step + 1
    clipped, _ = optimizer.clip(gradient[None], [1.0])
    how = state.moments, SETTINGS.optimizer, state.step, 1e-3
    state.policy = optimizer.update(state.policy, clipped[0], *how)


class Quiet:
    """A watch that nobody asks."""

    def ended(self, number: int, result: Outcome | Exception) -> None:
        raise AssertionError(f"cell {number} ended: {result}")

    def leaving(self) -> Collection[int]:
        return ()

    def say(self, number: int, line: str) -> None:
        pass


def together(cells: int, folder: Path, open_files: ExitStack) -> LockstepGroup:
    """So many cells of the trainer, before their first update; they differ in their seeds."""
    group = LockstepGroup(Quiet())
    for number in range(cells):
        settings = SETTINGS.model_copy(update={"seed": number, "num_train_steps": 10_000})
        name = fingerprint(settings)
        cell = Cell(id=name, slug="cell", studies=("bench",), axes={}, settings=settings)
        root = folder / f"{cells}-{number}"
        place = AttemptPaths(root / "plan", root / "attempt", root / "checkpoints")
        place.checkpoints_dir.mkdir(parents=True)
        state = State.fresh(base_policy(settings))
        journal = open_files.enter_context(disk.Journal(place.attempt_dir))
        group.members.append(Training(number, cell, place, state, journal, lambda _: None))
    return group


ALONE = ("packed", "unpacked")
BARRED = f"{CELLS} cells"
TOGETHER = {"1 cell": 1, BARRED: CELLS, "1 by torch": 1, f"{CELLS} by torch": CELLS}


KERNELS = ("1 cell", BARRED)
"""The variants by the kernels; U is torch's throughout."""


@contextmanager
def computed_by(engine: str) -> Iterator[None]:
    before = os.environ.get(kernels.ENGINE, "")
    os.environ[kernels.ENGINE] = engine
    try:
        yield
    finally:
        os.environ[kernels.ENGINE] = before


def measure(names: Sequence[str] = (*ALONE, *TOGETHER)) -> dict[str, list[float]]:
    """CPU milliseconds an update of a cell, one number a round; the variants take turns."""
    one_quiet_core()
    states = {name: State.fresh(base_policy(SETTINGS)) for name in ALONE if name in names}
    seconds_by_name: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        groups = {
            name: together(count, Path(folder) / name, files)
            for name, count in TOGETHER.items()
            if name in names
        }
        for round_number in range(ROUNDS + 1):
            for name in names:
                cells = TOGETHER.get(name, 1)
                updates = max(2, UPDATES // 8) if cells > 1 else UPDATES
                with computed_by("c" if name in KERNELS else "torch"):
                    started = time.process_time()
                    for _ in range(updates):
                        if name in states:
                            update(states[name], packed=name == "packed")
                        else:
                            groups[name].rollout_batch()
                    spent = (time.process_time() - started) / updates * 1e3
                if round_number:  # the first one warms up
                    seconds_by_name[name].append(spent / cells)
    return seconds_by_name


def floor_ms() -> float:
    """CPU milliseconds that the products of weights of an update take: sampling or scoring twice
    and one backward pass, each product at the speed of one large one."""
    rows = PROMPTS * (8 + GROUP * (LONGEST - 1))
    operations = 2 * rows * NUM_PARAMETERS * 4
    one, best = torch.randn(768, 768), 9e9
    for _ in range(10):
        started = time.process_time()
        one @ one
        best = min(best, time.process_time() - started)
    return operations / (2 * 768**3 / best) * 1e3


def main() -> int:
    seconds_by_name = measure()
    unit = min(seconds_by_name["unpacked"])
    for name, rounds in seconds_by_name.items():
        mean = sum(rounds) / len(rounds)
        print(
            f"{name:11} {min(rounds):6.2f} ms an update at best, {mean:6.2f} on average   "
            f"{min(rounds) / unit:.2f} U"
        )
    floor = floor_ms()
    print(f"{'limit':11} {floor:6.2f} ms: the products of weights alone   {floor / unit:.2f} U")
    kept = min(seconds_by_name[BARRED]) <= BAR * unit
    print(f"the kernels: {kernels.described()}")
    print(f"bar {BAR:g} U a cell of {CELLS}: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
