"""Many cells at once: the numbers of one policy under autograd, and of each cell by itself."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.micro import BACKEND, disk, huggingface, kernels, passes, train
from backends.micro.experience import Trainee, collect
from backends.micro.objective import objective, state_kl
from backends.micro.policy import one_quiet_core, weights
from backends.micro.state import State
from backends.micro.version import dialect_of
from docs.tools import plain_policy
from orchestrator.estimators import names
from orchestrator.kl.library_semantics import in_loss
from orchestrator.records import AttemptPaths, Cell, Outcome
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Data,
    Kl,
    Loss,
    Optimizer,
    Placement,
    ReferencePolicy,
    Rollout,
    Settings,
)
from tests.backends.micro.cells import cell_of, embedded, lines, place_at

CLOSE = 2e-5
"""Of log-probabilities: float32 of two orders of summation."""
SAME_SLOPE = {torch.float64: 1e-9, torch.float32: 2e-5}
"""Of gradients, relative to the largest value."""


@pytest.fixture(scope="module", autouse=True)
def _one_core() -> None:
    one_quiet_core()


class Kept:
    """A watch that keeps every message."""

    def __init__(self, leave: Callable[["Kept"], Collection[int]] = lambda _: ()):
        self.results: dict[int, Outcome | Exception] = {}
        self.said: list[tuple[int, str]] = []
        self._leave = leave

    def ended(self, number: int, result: Outcome | Exception) -> None:
        self.results[number] = result

    def leaving(self) -> Collection[int]:
        return self._leave(self)

    def say(self, number: int, line: str) -> None:
        self.said.append((number, line))


def plain_gradient(settings: Settings, state: State, part: int) -> tuple[Tensor, Tensor]:
    """The gradient and the log-probabilities of a minibatch, of one policy under autograd."""
    collected = collect([Trainee(settings, "sort", state, dialect_of(settings))])
    minibatch = collected.experiences[0].minibatches(settings.batch.num_minibatches)[part]
    flat = state.policy.clone().requires_grad_()
    scored = plain_policy.score(
        weights(flat),
        minibatch.prompts,
        minibatch.tokens,
        minibatch.mask,
        settings.rollout.temperature,
    )
    if collected.versions[0] == state.step:
        minibatch = minibatch._replace(logp_old=scored.logp.detach())
    states, kl = None, settings.kl
    if minibatch.logps_ref is not None and in_loss(kl):
        states = state_kl(kl.estimator, scored.logps, minibatch.logps_ref, scored.logp.shape)
    target = objective(settings.loss, kl, scored.logp, minibatch, dialect_of(settings), states)
    (gradient,) = torch.autograd.grad(target.loss, flat)
    return gradient, scored.logp.detach()


@contextmanager
def together_of(
    settings: list[Settings], states: list[State], folder: Path
) -> Iterator[train.LockstepGroup]:
    group = train.LockstepGroup(Kept())
    with ExitStack() as journals:
        for number, (each, state) in enumerate(zip(settings, states, strict=True)):
            cell = Cell(id=str(number), slug="c", studies=("s",), axes={}, settings=each)
            place = AttemptPaths(folder, folder / str(number), folder / f"{number} checkpoints")
            journal = journals.enter_context(disk.Journal(place.attempt_dir))
            one = train.Training(number, cell, place, state, journal, lambda _: None)
            group.members.append(one)
        yield group


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
    """Every placement x aggregation x minibatches x staleness; eighteen cells of two shapes.

    Each estimator has two of the four pairs of minibatches and staleness, its neighbour the others.
    """
    monkeypatch.setenv(kernels.ENGINE, engines[0])
    wanted: dict[int, Tensor] = {}

    def compared(self: train.Training, gradient: Tensor, _norm: float) -> dict[str, float]:
        expected = wanted[self.number]
        assert (gradient - expected).abs().max() <= SAME_SLOPE[real] * expected.abs().max()
        wanted[self.number] = torch.zeros(1)
        return {}

    monkeypatch.setattr(train.Training, "update", compared)
    is_odd = sorted(names()).index(estimator) % 2
    for minibatches, lag in (((1, 0), (2, 3)), ((1, 3), (2, 0)))[is_odd]:
        settings = [
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
            for number, (placement, loss) in enumerate(
                (p, x) for p in get_args(Placement) for x in LOSSES
            )
        ]
        states = [state_of(each, number, real) for number, each in enumerate(settings)]
        plain = [plain_gradient(*each, 0)[0] for each in zip(settings, states, strict=True)]
        for engine in engines:
            monkeypatch.setenv(kernels.ENGINE, engine)
            wanted.update(enumerate(plain))
            with together_of(settings, states, tmp_path / f"{engine} {minibatches} {lag}") as group:
                members = group.members
                experiences = collect([member.trainee for member in members])
                parts = [one.minibatches(minibatches)[0] for one in experiences.experiences]
                group.train_step(experiences, parts, [6] * len(members))
            assert all(len(gradient) == 1 for gradient in wanted.values()), "each was compared"


@pytest.mark.parametrize("engine", ["torch", "c"])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.5, 1.0), (0.7, 0.6)])
def test_sampling_and_scoring_are_those_of_one_policy(
    temperature: float, top_p: float, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.ENGINE, engine)
    states = [state_of(embedded(), seed) for seed in range(3)]
    flat = torch.stack([state.policy for state in states]).float()
    rng = np.random.default_rng(0)
    prompts = torch.randint(3, 18, (3, 6, 8), generator=torch.Generator().manual_seed(0))
    uniforms = torch.from_numpy(rng.random((3, 6, 5, 7), np.float32))
    heat = torch.full((3, 1, 1, 1), temperature)
    policy = passes.prepared(flat)
    sampled = policy.sample(prompts, uniforms, heat, (top_p,) * 3)
    tokens, mask = sampled.rollouts.tokens, sampled.rollouts.mask
    scored = policy.score(prompts, tokens, mask, heat)
    torch.testing.assert_close(scored.logp, sampled.rollouts.logp, atol=CLOSE, rtol=0)
    for cell in range(3):
        one = plain_policy.sample(
            weights(flat[cell]), prompts[cell], uniforms[cell], temperature, top_p
        )
        longest = one.tokens.shape[-1]
        assert torch.equal(one.tokens, tokens[cell, ..., :longest])
        assert not mask[cell, ..., longest:].any()
        torch.testing.assert_close(
            one.logp, sampled.rollouts.logp[cell, ..., :longest], atol=CLOSE, rtol=0
        )


AVERAGE = ReferencePolicy(kind="ema", share=0.5, every_steps=4)


def varied() -> list[Settings]:
    """Cells of one shape that differ in all else."""
    return [
        embedded(num_train_steps=14),
        embedded(
            "k1",
            "reward",
            0.3,
            seed=1,
            num_train_steps=10,
            backend=BackendRef(name="micro", version="1+kl_reward=to_go+micro_batch=3"),
        ),
        embedded("k3", "loss", 1.0, loss=LOSSES[1], num_train_steps=14).but(
            kl=Kl(estimator="k3", placement="loss", beta=1.0, reference=AVERAGE)
        ),
        embedded(
            "k2",
            "reward_and_loss",
            0.1,
            data=Data(name="copy", path="micro:copy", reward="exact", max_prompt_tokens=8),
            advantage=Advantage(estimator="grpo"),
            num_train_steps=14,
        ),
        embedded(
            "rho_k3",
            "loss",
            0.2,
            optimizer=Optimizer(learning_rate=3e-3, weight_decay=0.1),
            rollout=Rollout(group_size=5, max_response_tokens=7, temperature=1.3, top_p=0.9),
            num_train_steps=14,
        ),
    ]


def outcome_of(place: AttemptPaths) -> tuple[Any, Tensor]:
    last = BACKEND.find_checkpoints(place.checkpoints_dir)[-1]
    return lines(place), huggingface.read(last.path)


@pytest.mark.parametrize(
    ("engine", "minibatches", "lag", "nodes"),
    [("c", 1, 0, 1), ("c", 2, 3, passes.NODES), ("torch", 2, 3, passes.NODES)],
)
def test_a_curve_does_not_depend_on_the_cells_beside_it(
    engine: str,
    minibatches: int,
    lag: int,
    nodes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit: alone, among others, in another place among them, and in several trees."""
    monkeypatch.setenv(kernels.ENGINE, engine)
    monkeypatch.setattr(passes, "NODES", nodes)
    batch = Batch(num_prompts=4 * minibatches, num_minibatches=minibatches)
    cells = [
        cell_of(
            each.model_copy(update={"batch": batch, "max_staleness_steps": lag}),
            evaluate_every_steps=5,
        )
        for each in varied()
    ]
    alone = []
    for number, cell in enumerate(cells):
        place = place_at(tmp_path / f"alone {number}")
        assert train.run(cell, place).cause != "nan"
        alone.append(outcome_of(place))
    for name, order in (("all", (0, 1, 2, 3, 4)), ("turned", (4, 2, 0, 1, 3)), ("two", (3, 1))):
        places = {number: place_at(tmp_path / name / str(number)) for number in order}
        watch = Kept()
        train.run_lockstep([(cells[number], places[number]) for number in order], watch)
        assert all(isinstance(result, Outcome) for result in watch.results.values())
        for number, place in places.items():
            curve, policy = outcome_of(place)
            assert curve == alone[number][0]
            assert torch.equal(policy, alone[number][1])


def test_cells_that_fail_diverge_or_leave_do_not_hurt_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = Optimizer(learning_rate=1e19, max_grad_norm=None)
    settings = [
        embedded(num_train_steps=8),
        embedded(num_train_steps=8, optimizer=wild),
        embedded("k1", "reward", 0.5, num_train_steps=8),
        embedded("k3", "loss", 0.5, num_train_steps=8),
        embedded(num_train_steps=8, seed=5),
        embedded(num_train_steps=8, data=Data(name="other", path="micro:other")),
    ]
    cells = [cell_of(each) for each in settings]
    places = [place_at(tmp_path / f"{number} 'x' é") for number in range(len(cells))]
    alone = place_at(tmp_path / "alone")
    train.run(cells[0], alone)
    loss_input = train.Training.loss_input

    def failing(self: train.Training, *args: Any) -> train.LossInput:
        if self.number == 3 and self.state.step == 4:
            raise MemoryError("of this cell alone")
        return loss_input(self, *args)

    monkeypatch.setattr(train.Training, "loss_input", failing)

    def leave(watch: Kept) -> Collection[int]:
        return (4,) if len(watch.results) >= 2 else ()

    places[2].checkpoints_dir.parent.mkdir(parents=True)
    places[2].checkpoints_dir.write_text("a file where a folder should be")
    watch = Kept(leave)
    train.run_lockstep(list(zip(cells, places, strict=True)), watch)
    assert sorted(watch.results) == [0, 1, 2, 3, 5]
    diverged, broken = watch.results[1], watch.results[3]
    assert isinstance(diverged, Outcome)
    assert (diverged.kind, diverged.cause) == ("collapsed", "nan")
    assert isinstance(broken, MemoryError)
    assert "cannot be written or read" in str(watch.results[2])
    assert "no embedded task is called micro:other" in str(watch.results[5])
    assert outcome_of(places[0])[0] == lines(alone)
    assert torch.equal(outcome_of(places[0])[1], outcome_of(alone)[1])
    assert len(lines(places[4])) < 8, "it left on its way"


def test_a_loss_that_cannot_be_differentiated_ends_its_cell_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell_of(embedded(num_train_steps=3, seed=seed)) for seed in range(3)]
    alone = place_at(tmp_path / "alone")
    train.run(cells[2], alone)
    slopes_of_group, calls = train.group_slopes, iter(range(100))

    def failing(settings: Any, *args: Any) -> train.GroupSlopes:
        # The first call is of the first train step, in which all cells have one loss.
        if next(calls) and any(one.seed == 1 for one in settings):
            raise RuntimeError("no gradient")
        return slopes_of_group(settings, *args)

    monkeypatch.setattr(train, "group_slopes", failing)
    places = [place_at(tmp_path / str(number)) for number in range(3)]
    watch = Kept()
    train.run_lockstep(list(zip(cells, places, strict=True)), watch)
    assert isinstance(watch.results[1], RuntimeError)
    assert len(lines(places[1])) == 2
    assert isinstance(watch.results[0], Outcome)
    assert lines(places[2]) == lines(alone)


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
    one, other = (state_of(settings, seed) for seed in (0, 1))
    seeds = [settings.model_copy(update={"seed": seed}) for seed in (0, 3)]
    alone = collect([Trainee(seeds[0], "sort", one)])
    both = collect([Trainee(seeds[0], "sort", one), Trainee(seeds[1], "sort", other)])
    noise = torch.randn(2, *alone.experiences[0].tokens.shape, dtype=torch.float64)
    slopes = noise * torch.stack([x.mask for x in both.experiences])
    flat = torch.stack([one.policy, other.policy])
    assert (alone.sampled.scored.logps[:, :, -1] == 0).all(), "never computed"

    def gradient(of: Any, cells: int) -> Tensor:
        tokens = torch.stack([x.tokens for x in of.experiences])
        policy, heat = passes.prepared(flat[:cells]), torch.ones(1, 1, 1, 1)
        return policy.gradient(of.sampled.scored, tokens, slopes[:cells], heat)[0]

    assert gradient(both, 2).isfinite().all()
    assert torch.equal(gradient(alone, 1), gradient(both, 2))
