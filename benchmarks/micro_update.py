"""CPU milliseconds of one update of the embedded trainer, packed and unpacked.

`python benchmarks/micro_update.py`. An update is 16 prompts x 5 rollouts: sampling, the reference
forward, the loss and its gradient, AdamW. Unpacked, every rollout is a sequence of its own, as in
a trainer without tree packing. The best of several rounds is printed beside the mean, since
neighbours on the machine only ever add.
"""

import statistics
import time
from collections.abc import Callable

import torch

from backends.micro import optimizer, rollout
from backends.micro.experience import collect
from backends.micro.objective import Experience, objective
from backends.micro.policy import one_quiet_core, weights
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

SETTINGS = Settings(
    model=Model(name="amber", path="micro:amber"),
    data=Data(name="sort", path="micro:sort", reward="exact"),
    advantage=Advantage(estimator="rloo"),
    loss=Loss(),
    kl=Kl(estimator="k1", placement="reward", beta=0.1),
    rollout=Rollout(group_size=5, max_response_tokens=7),
    batch=Batch(num_prompts=16),
    optimizer=Optimizer(learning_rate=1e-3),
    num_train_steps=ROUNDS * UPDATES,
    backend=BackendRef(name="micro"),
)


def apart(batch: Experience) -> Experience:
    """The same rollouts, each with its own copy of the prompt: [P G, 1, T]."""
    prompts = batch.prompts.repeat_interleave(batch.tokens.shape[1], 0)
    rest = (part.flatten(0, 1).unsqueeze(1) for part in batch[1:])
    return Experience(prompts, *rest)


def update(state: State, unpack: bool) -> None:
    """One update, as backends/micro/train.py does it, without its metrics."""
    batch, _ = collect(SETTINGS, "sort", state)
    if unpack:
        batch = apart(batch)
        with torch.no_grad():  # in place of the packed one, which is part of both
            rollout.score(weights(state.reference), batch.prompts, batch.tokens, batch.mask)
    flat = state.policy.requires_grad_()
    scored = rollout.score(weights(flat), batch.prompts, batch.tokens, batch.mask)
    loss = objective(SETTINGS.loss, SETTINGS.kl, scored.logp, batch).loss
    (gradient,) = torch.autograd.grad(loss, flat)
    state.policy = flat.detach()
    state.step += 1
    clipped, _ = optimizer.clip(gradient, 1.0)
    optimizer.update(
        state.policy, clipped, state.moments, SETTINGS.optimizer, state.step, 1e-3
    )
