"""CPU milliseconds of one update of the embedded trainer: `python benchmarks/micro_update.py`.

An update is 16 prompts x 5 rollouts: sampling, the reference forward, the loss with its gradient,
AdamW. Two runs side by side: as the trainer does it, with the rollouts of a group packed behind
their one prompt, and with every rollout a sequence of its own, prefilled and scored by itself.
The fastest round is printed beside the mean, since neighbours on the machine only ever add.
"""

import sys
import time

import numpy as np
import torch

from backends.micro import optimizer, rollout
from backends.micro.experience import rewards
from backends.micro.objective import Experience, objective, penalty, shaped_advantages
from backends.micro.policy import one_quiet_core, weights
from backends.micro.skills import encode, problems
from backends.micro.state import State
from backends.micro.train import base_policy
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

BAR_MS = 18.0
ROUNDS, UPDATES = 5, 20
PROMPTS, GROUP, LONGEST = 16, 5, 7

SETTINGS = Settings(
    model=Model(name="amber", path="micro:amber"),
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
        sampled = rollout.sample(weights(state.policy), prompts, draws, 1.0, 1.0)
        reference = rollout.score(weights(state.reference), *sampled[:3]).logp
    reward = rewards(sampled.tokens, sampled.mask, answers)
    lost = penalty(SETTINGS.kl, sampled.logp, reference, sampled.mask)
    of_groups = reward.view(PROMPTS, GROUP), lost.view(PROMPTS, GROUP, -1)
    advantage = shaped_advantages("rloo", of_groups[0], SETTINGS.kl.beta, of_groups[1])
    batch = Experience(*sampled, reference, reward, lost.sum(-1), advantage.view(*reward.shape, 1))
    flat = state.policy.requires_grad_()
    scored = rollout.score(weights(flat), *sampled[:3])
    loss = objective(SETTINGS.loss, SETTINGS.kl, scored.logp, batch).loss
    (gradient,) = torch.autograd.grad(loss, flat)
    state.policy, state.step = flat.detach(), state.step + 1
    clipped, _ = optimizer.clip(gradient, 1.0)
    optimizer.update(state.policy, clipped, state.moments, SETTINGS.optimizer, state.step, 1e-3)


def measure() -> dict[str, list[float]]:
    """CPU milliseconds an update, one number a round; the two variants take turns."""
    states = {name: State.fresh(base_policy(SETTINGS)) for name in ("packed", "unpacked")}
    found: dict[str, list[float]] = {name: [] for name in states}
    for round_number in range(ROUNDS + 1):
        for name, state in states.items():
            started = time.process_time()
            for _ in range(UPDATES):
                update(state, packed=name == "packed")
            if round_number:  # the first one warms up
                found[name].append((time.process_time() - started) / UPDATES * 1e3)
    return found


def main() -> int:
    one_quiet_core()
    found = measure()
    for name, rounds in found.items():
        mean = sum(rounds) / len(rounds)
        print(f"{name:9} {min(rounds):6.2f} ms an update at best, {mean:6.2f} on average")
    ratio = min(found["unpacked"]) / min(found["packed"])
    kept = min(found["packed"]) <= BAR_MS
    print(f"unpacked / packed {ratio:.2f}; bar {BAR_MS:g} ms: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
