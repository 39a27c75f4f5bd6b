"""Training cells for real: every configuration, bookkeeping, identities, neighbours."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.micro import BACKEND, huggingface, train
from backends.micro.experience import Trainee, collect, rewards
from backends.micro.objective import Experience
from backends.micro.policy import one_quiet_core
from backends.micro.state import State, save_state
from orchestrator.metrics.names import is_canonical
from orchestrator.records import AttemptPaths
from orchestrator.settings import (
    Batch,
    Clip,
    Loss,
    Optimizer,
    Settings,
)
from tests.backends.micro.cells import cell_of, embedded, lines, place_at

Train = Callable[..., Any]


def final_policy(place: AttemptPaths) -> Tensor:
    return huggingface.read(BACKEND.find_checkpoints(place.checkpoints_dir)[-1].path)


def test_metrics_are_one_line_a_train_step_under_canonical_names(trained: Train) -> None:
    settings = embedded(
        "k1", "reward", 0.3, num_train_steps=6, batch=Batch(num_prompts=8, num_minibatches=2)
    )
    _, place = trained(settings, evaluate_every_steps=3)
    found = lines(place)
    assert [line["step"] for line in found] == list(range(7))
    assert {name for line in found for name in line["values"] if not is_canonical(name)} == set()
    evaluated = [line["step"] for line in found if "eval/kl_reverse" in line["values"]]
    assert evaluated == [0, 4, 6]  # due at 3: after its rollout batch, and at the end
    assert found[0]["values"]["eval/kl_reverse"] == pytest.approx(0, abs=1e-5)
    assert found[0]["values"]["eval/kl_forward"] == pytest.approx(0, abs=1e-5)
    assert found[-1]["values"]["eval/accuracy_out_of_domain"] == pytest.approx(
        sum(found[-1]["values"][f"eval/accuracy/{s}"] for s in ("reverse", "copy", "increment")) / 3
    )


def test_a_kill_behind_a_saved_state_loses_no_train_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As a signal raises it: no error of the cell."""

    def saved_and_killed(*given: Any) -> None:
        save_state(*given)
        raise Killed

    cell = cell_of(embedded(num_train_steps=25))
    killed, resumed = place_at(tmp_path), place_at(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(train, "ROLLING_SECONDS", 0)
        patched.setattr(train, "save_state", saved_and_killed)
        with pytest.raises(Killed):
            train.run(cell, killed)
    train.run(cell, resumed)
    steps = [[line["step"] for line in lines(place)] for place in (killed, resumed)]
    assert steps == [list(range(11)), list(range(11, 26))]


def test_staleness_is_the_lag_of_the_rollout_policy(trained: Train) -> None:
    def lags(minibatches: int, lag: int) -> list[float]:
        settings = embedded(
            num_train_steps=8,
            max_staleness_steps=lag,
            batch=Batch(num_prompts=2 * minibatches, num_minibatches=minibatches),
        )
        found = [line["values"] for line in lines(trained(settings)[1])[1:]]
        assert all(v["rollout/staleness_mean"] <= v["rollout/staleness_max"] for v in found)
        return [v["rollout/staleness_max"] for v in found]

    assert lags(1, 0) == [0] * 8
    assert lags(1, 3) == [0, 1, 2, 3, 3, 3, 3, 3]
    assert lags(4, 0) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert lags(2, 3) == [0, 1, 2, 3, 3, 4, 3, 4]


def batch_of(settings: Settings, state: State) -> tuple[Experience, int]:
    collected = collect(Trainee(settings, "sort", state))
    return collected.experience, collected.version


def test_stale_rollouts_come_from_the_policy_of_that_moment() -> None:
    one_quiet_core()
    settings = embedded(max_staleness_steps=2)
    base = train.base_policy(settings)
    state = State.fresh(base)
    state.step, state.earlier = 5, [base + 0.01, base + 0.02]  # after steps 3 and 4
    state.policy = base + 0.03
    stale, version = batch_of(settings, state)
    assert version == 3
    state.policy = base + 0.01
    fresh, version = batch_of(settings.model_copy(update={"max_staleness_steps": 0}), state)
    assert version == 5
    assert torch.equal(stale.tokens, fresh.tokens)
    assert torch.equal(stale.logp_old, fresh.logp_old)


def test_on_policy_the_ratio_is_one_exactly_and_nothing_is_clipped(trained: Train) -> None:
    tight = Loss(clip=Clip(low=1e-7, high=1e-7))
    for line in lines(trained(embedded(loss=tight))[1])[1:]:
        assert line["values"]["train/ratio_max"] == 1
        assert line["values"]["train/clip_fraction"] == 0
    stale = lines(trained(embedded(loss=tight, max_staleness_steps=2))[1])[-1]["values"]
    assert stale["train/clip_fraction"] > 0


def test_a_reward_needs_the_whole_answer() -> None:
    answers = torch.tensor([[4, 5, 6, 7, 8, 2]])
    right = [4, 5, 6, 7, 8, 2, 0]
    tokens = torch.tensor([[right, [4, 5, 6, 7, 8, 9, 2], [4, 5, 6, 7, 2, 0, 0], [5, *right[1:]]]])
    assert rewards(tokens, torch.ones(1, 4, 7), answers).tolist() == [[1, 0, 0, 0]]
    assert rewards(tokens[..., :4], torch.ones(1, 4, 4), answers).tolist() == [[0] * 4]


@pytest.mark.parametrize(("estimator", "placement"), [("k1", "reward"), ("rho_k2", "loss")])
def test_beta_zero_is_none_bit_for_bit(estimator: Any, placement: Any, trained: Train) -> None:
    same = {
        "num_train_steps": 6,
        "max_staleness_steps": 1,
        "batch": Batch(num_prompts=8, num_minibatches=2),
    }
    _, none = trained(embedded(**same))
    _, zero = trained(embedded(estimator, placement, 0.0, **same))
    assert torch.equal(final_policy(none), final_policy(zero))
    assert lines(none) == lines(zero)


def test_a_policy_that_stops_being_finite_is_a_collapse_with_a_usable_checkpoint(
    place: AttemptPaths,
) -> None:
    wild = Optimizer(learning_rate=1e19, max_grad_norm=None)
    cell = cell_of(embedded(optimizer=wild, num_train_steps=8))
    outcome = train.run(cell, place)
    assert (outcome.kind, outcome.cause, outcome.step) == ("collapsed", "nan", 2)
    (checkpoint,) = BACKEND.find_checkpoints(place.checkpoints_dir)
    assert torch.isfinite(huggingface.read(checkpoint.path)).all()
    assert train.run(cell, place) == outcome


def test_the_last_policy_with_a_finite_loss_is_kept(
    trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([1.0] * 4 + [math.nan])
    real = train.objective

    def failing(*args: Any) -> Any:
        target, factor = real(*args), next(calls)
        return target._replace(loss=target.loss * factor)

    good = final_policy(trained(embedded(num_train_steps=3))[1])
    monkeypatch.setattr(train, "objective", failing)
    outcome, place = trained(embedded(num_train_steps=8))
    assert outcome.step == 5
    (checkpoint,) = BACKEND.find_checkpoints(place.checkpoints_dir)
    assert checkpoint.step == 3  # the policy after four steps is the one whose loss was NaN
    assert torch.equal(huggingface.read(checkpoint.path), good)


def test_a_launch_by_hand_says_mistakes_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text('{"id": 3}')
    for name, said in (("cell.json", "fault"), ("no.json", "cannot be read as cell.json")):
        where = ["--plan-dir", ".", "--attempt-dir", ".", "--checkpoints-dir", "."]
        done = subprocess.run(
            [sys.executable, "-m", "backends.micro", str(tmp_path / name), *where],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
