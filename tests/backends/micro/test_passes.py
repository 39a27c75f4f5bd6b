"""The passes by torch and by the kernels: the numbers of a policy under autograd."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.micro import disk, fused, kernels, train
from backends.micro.experience import Trainee, collect
from backends.micro.objective import objective, state_kl
from backends.micro.policy import one_quiet_core, weights
from backends.micro.state import State
from backends.micro.version import dialect_of
from docs.tools import plain_policy
from orchestrator.estimators import names
from orchestrator.kl.library_semantics import in_loss
from orchestrator.settings import (
    Batch,
    Loss,
    Optimizer,
    Placement,
    Rollout,
    Settings,
)
from tests.backends.micro.cells import cell_of, embedded, place_at

CLOSE = 2e-5
"""Of log-probabilities: float32 of two orders of summation."""
SAME_SLOPE = {torch.float64: 1e-9, torch.float32: 2e-5}
"""Of gradients, relative to the largest value."""


@pytest.fixture(scope="module", autouse=True)
def _one_core() -> None:
    one_quiet_core()


def plain_gradient(settings: Settings, state: State) -> Tensor:
    """The gradient of a minibatch, of one policy under autograd."""
    collected = collect(Trainee(settings, "sort", state, dialect_of(settings)))
    minibatch = collected.experience.minibatches(settings.batch.num_minibatches)[0]
    flat = state.policy.clone().requires_grad_()
    scored = plain_policy.score(
        weights(flat),
        minibatch.prompts,
        minibatch.tokens,
        minibatch.mask,
        settings.rollout.temperature,
    )
    if collected.version == state.step:
        minibatch = minibatch._replace(logp_old=scored.logp.detach())
    states, kl = None, settings.kl
    if minibatch.logps_ref is not None and in_loss(kl):
        states = state_kl(kl.estimator, scored.logps, minibatch.logps_ref, scored.logp.shape)
    target = objective(settings.loss, kl, scored.logp, minibatch, dialect_of(settings), states)
    (gradient,) = torch.autograd.grad(target.loss, flat)
    return gradient


def state_of(settings: Settings, seed: int, real: torch.dtype = torch.float64) -> State:
    """A state after five train steps, of policies that have moved apart."""
    noise = torch.Generator().manual_seed(seed)
    base = train.base_policy(settings).to(real)

    def near() -> Tensor:
        return base + 0.01 * torch.randn(base.shape, generator=noise)

    state = State.fresh(base)
    state.step, state.policy, state.earlier = 6, near(), [near() for _ in range(3)]
    return state


LOSSES = (
    Loss(),
    Loss(aggregation="sequence_mean", clip=None),
    Loss(aggregation="constant", constant_tokens=7),
)


@pytest.mark.parametrize(
    ("real", "engines"), [(torch.float64, ("torch", "c")), (torch.float32, ("c",))]
)
@pytest.mark.parametrize("estimator", sorted(names()))
def test_gradients_are_those_of_one_policy_under_autograd(
    estimator: str,
    real: torch.dtype,
    engines: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every placement x aggregation x minibatches x staleness.

    Each estimator has two of the four pairs of minibatches and staleness, its neighbour the others.
    """
    found: list[Tensor] = []

    def kept(_self: train.Training, gradient: Tensor, _values: Any) -> dict[str, float]:
        found.append(gradient)
        return {}

    monkeypatch.setattr(train.Training, "update", kept)
    is_odd = sorted(names()).index(estimator) % 2
    cases = [
        embedded(
            estimator,
            placement,
            0.1 * (1 + number),
            loss=loss,
            seed=number,
            batch=Batch(num_prompts=2 * minibatches, num_minibatches=minibatches),
            max_staleness_steps=lag,
            num_train_steps=100,
            optimizer=Optimizer(learning_rate=1e-3, max_grad_norm=None),
        )
        for minibatches, lag in (((1, 0), (2, 3)), ((1, 3), (2, 0)))[is_odd]
        for number, (placement, loss) in enumerate(
            (p, x) for p in get_args(Placement) for x in LOSSES
        )
    ]
    for number, settings in enumerate(cases):
        state = state_of(settings, settings.seed, real)
        monkeypatch.setenv(kernels.ENGINE, engines[0])
        expected = plain_gradient(settings, state)
        for engine in engines:
            monkeypatch.setenv(kernels.ENGINE, engine)
            place = place_at(tmp_path / f"{engine} {number}")
            with closing(disk.Journal(place.attempt_dir)) as journal:
                one = train.Training(cell_of(settings), place, state, journal)
                batch = collect(one.trainee)
                part = batch.experience.minibatches(settings.batch.num_minibatches)[0]
                one.train_step(batch, part, state.step)
            off = (found.pop() - expected).abs().max()
            assert off <= SAME_SLOPE[real] * expected.abs().max()
    assert not found


@pytest.mark.parametrize("engine", ["torch", "c"])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.5, 1.0), (0.7, 0.6)])
def test_sampling_and_scoring_are_those_of_one_policy(
    temperature: float, top_p: float, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.ENGINE, engine)
    flat = state_of(embedded(), 0).policy.float()
    rng = np.random.default_rng(0)
    prompts = torch.randint(3, 18, (6, 8), generator=torch.Generator().manual_seed(0))
    uniforms = torch.from_numpy(rng.random((6, 5, 7), np.float32))
    policy = fused.prepared(flat)
    rollouts, _ = policy.sample(prompts, uniforms, temperature, top_p)
    scored = policy.score(*rollouts[:3], temperature)
    torch.testing.assert_close(scored.logp, rollouts.logp, atol=CLOSE, rtol=0)
    one = plain_policy.sample(weights(flat), prompts, uniforms, temperature, top_p)
    longest = one.tokens.shape[-1]
    assert torch.equal(one.tokens, rollouts.tokens[..., :longest])
    assert not rollouts.mask[..., longest:].any()
    torch.testing.assert_close(one.logp, rollouts.logp[..., :longest], atol=CLOSE, rtol=0)


@pytest.fixture
def fresh_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what `empty` returns
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("engine", ["torch", "c"])
def test_a_long_limit_on_responses_costs_only_the_positions_in_use(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling ends with the last response; what was never computed counts for nothing."""
    monkeypatch.setenv(kernels.ENGINE, engine)
    settings = embedded(rollout=Rollout(group_size=2, max_response_tokens=30))
    state = state_of(settings, 0)
    found = collect(Trainee(settings, "sort", state))
    assert (found.sampled.scored.logps[:, -1] == 0).all(), "never computed"
    tokens, mask = found.experience.tokens, found.experience.mask
    slopes = torch.randn(tokens.shape, dtype=torch.float64) * mask
    policy = fused.prepared(state.policy)
    gradient = policy.gradient(found.sampled.scored, tokens, slopes)
    assert gradient.isfinite().all()
    used = int(mask.sum(-1).max())
    part = tokens[..., :used]
    short = policy.score(found.experience.prompts, part, mask[..., :used], keep=True)
    same = policy.gradient(short, part, slopes[..., :used])
    torch.testing.assert_close(gradient, same)
