"""Going on after a kill: bit for bit, from whatever is whole."""

import logging
import os
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.micro import BACKEND, disk, huggingface, train
from backends.micro.state import State, load_state, save_state
from orchestrator.errors import CheckpointError, RunFolderError
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Batch, Kl
from tests.backends.micro.cells import cell_of, embedded, lines, place_at

CPU = torch.device("cpu")
STEPS = 36


class Killed(KeyboardInterrupt):
    """What a signal handler raises."""


@pytest.fixture
def cell() -> Cell:
    """Everything a state must carry: minibatches, staleness, reference resets, checkpoints."""
    kl = Kl(estimator="k3", placement="reward_and_loss", beta=0.2, reset_reference_every_steps=9)
    settings = embedded(
        num_train_steps=STEPS,
        max_staleness_steps=3,
        batch=Batch(num_prompts=4, num_minibatches=2),
    ).model_copy(update={"kl": kl})
    return cell_of(settings, checkpoint_every_steps=12, evaluate_every_steps=18)


@pytest.fixture
def uninterrupted(cell: Cell, tmp_path: Path) -> AttemptPaths:
    place = place_at(tmp_path / "whole")
    train.run(cell, place)
    return place


def policies(place: AttemptPaths) -> dict[int, Tensor]:
    found = BACKEND.find_checkpoints(place.checkpoints_dir)
    return {checkpoint.step: huggingface.read(checkpoint.path) for checkpoint in found}


@pytest.fixture(autouse=True)
def _each_rolling_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """All train steps of these cells take less time than lies between two rolling states."""
    monkeypatch.setattr(train, "ROLLING_SECONDS", 0)


def killed_at(cell: Cell, place: AttemptPaths, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains until the optimizer is called for the `call`-th time."""
    left = iter(range(call))
    update = train.optimizer.update

    def interrupted(*args: Any) -> Tensor:
        updated = update(*args)
        if next(left, None) is None:
            raise Killed
        return updated

    with monkeypatch.context() as patch:
        patch.setattr(train.optimizer, "update", interrupted)
        with pytest.raises(Killed):
            train.run(cell, place)


def test_killed_anywhere_training_goes_on_bit_for_bit(
    cell: Cell, uninterrupted: AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(0)  # noqa: S311  (which kills are tried, not a secret)
    for trial in range(3):
        root, seen = tmp_path / f"trial {trial}", {}
        for attempt in range(1, 4):
            place = place_at(root, attempt)
            killed_at(cell, place, choose.randrange(1, 14), monkeypatch)
            seen |= {line["step"]: line["values"] for line in lines(place)}
        last = place_at(root, 4)
        assert train.run(cell, last).cause != "nan"
        seen |= {line["step"]: line["values"] for line in lines(last)}
        assert seen == {line["step"]: line["values"] for line in lines(uninterrupted)}
        for step, policy in policies(uninterrupted).items():
            assert torch.equal(policies(last)[step], policy)


def test_quick_steps_are_saved_once_in_some_seconds(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first state is a checkpoint's, at step 12; a rolling one would be due at step 20."""
    monkeypatch.setattr(train, "ROLLING_SECONDS", 3600)
    place = place_at(tmp_path)
    killed_at(cell, place, 23, monkeypatch)
    assert [path.name for path in place.checkpoints_dir.iterdir()] == ["step-12"]
    resumed = place_at(tmp_path, 2)
    train.run(cell, resumed)
    assert next(disk.read_metrics(resumed.attempt_dir)).step == 13


def test_training_that_has_ended_is_not_trained_again(
    cell: Cell, uninterrupted: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.optimizer, "update", None)
    again = place_at(uninterrupted.checkpoints_dir.parent, 2)
    assert train.run(cell, again).cause != "nan"
    assert not (uninterrupted.checkpoints_dir / disk.RESUME).exists()


def test_a_checkpoint_cut_in_half_is_told_skipped_and_made_again(
    cell: Cell, uninterrupted: AttemptPaths, caplog: pytest.LogCaptureFixture
) -> None:
    whole = policies(uninterrupted)
    assert sorted(whole) == [12, 24, 36]
    model = disk.step_dir(uninterrupted.checkpoints_dir, 36) / disk.MODEL
    model.write_bytes(model.read_bytes()[:90_000])
    state = disk.step_dir(uninterrupted.checkpoints_dir, 24) / disk.STATE
    state.write_bytes(state.read_bytes()[:400_000])
    assert sorted(policies(uninterrupted)) == [12, 24]
    with caplog.at_level(logging.WARNING, "orch.micro"):
        train.run(cell, uninterrupted)
    told = [record.getMessage() for record in caplog.records]
    assert any("step-36 was cut in half" in sentence for sentence in told)
    assert any("step-24" in sentence and "cut in half" in sentence for sentence in told)
    assert torch.equal(policies(uninterrupted)[36], whole[36])


def test_what_a_killed_writer_left_is_swept(cell: Cell, tmp_path: Path) -> None:
    place = place_at(tmp_path)
    (place.checkpoints_dir / ".step-12.4711").mkdir(parents=True)
    (place.checkpoints_dir / ".resume.safetensors.4711").write_bytes(b"half")
    train.run(cell, place)
    assert sorted(p.name for p in place.checkpoints_dir.iterdir()) == [
        "step-12",
        "step-24",
        "step-36",
    ]


def test_states_of_other_cells_and_cut_ones_are_refused(tmp_path: Path) -> None:
    state = State.fresh(torch.arange(49_728.0))
    path, state.step = tmp_path / disk.RESUME, 9
    save_state(state, path, "one")
    assert disk.resumable_step(tmp_path) == 9, "no checkpoint, and training goes on"
    assert torch.equal(load_state(path, "one", CPU).policy, state.policy)
    with pytest.raises(CheckpointError, match="belongs to cell one, not to two"):
        load_state(path, "two", CPU)
    size = path.stat().st_size
    os.truncate(path, size - 4)
    with pytest.raises(CheckpointError, match="cut in half"):
        load_state(path, "one", CPU)
    os.truncate(path, size // 2)
    os.truncate(path, size)  # as some file systems leave a file after a crash: zeros at its end
    with pytest.raises(CheckpointError, match="not those that were written"):
        load_state(path, "one", CPU)
    path.write_bytes(b"")
    assert disk.resumable_step(tmp_path) == 0
    with pytest.raises(CheckpointError, match="cut in half"):
        load_state(path, "one", CPU)


def test_a_full_disk_is_told_and_leaves_the_old_state(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: AttemptPaths
) -> None:
    place = place_at(tmp_path / "full")
    killed_at(cell, place, 15, monkeypatch)
    before = (place.checkpoints_dir / disk.RESUME).read_bytes()

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(RunFolderError, match=r"No space left on device\. Mend that"):
            train.run(cell, place_at(tmp_path / "full", 2))
    assert (place.checkpoints_dir / disk.RESUME).read_bytes() == before
    assert sorted(p.name for p in place.checkpoints_dir.iterdir()) == [disk.RESUME, "step-12"]
    train.run(cell, place_at(tmp_path / "full", 3))
    assert torch.equal(policies(place)[36], policies(uninterrupted)[36])


def test_a_torn_metrics_file_is_read_to_its_tear_and_mended(tmp_path: Path) -> None:
    with closing(disk.Journal(tmp_path)) as journal:
        journal.write(1, {"train/reward_mean": 0.5, "train/grad_norm": float("inf")})
        journal.write(2, {"train/reward_mean": float("nan")})
    path = tmp_path / disk.METRICS
    with path.open("ab") as file:
        file.write(b'{"step": 3, "ti')
    assert [(p.step, p.values) for p in disk.read_metrics(tmp_path)] == [
        (1, {"train/reward_mean": 0.5}),
        (2, {}),
    ]
    with closing(disk.Journal(tmp_path)) as journal:
        journal.write(3, {"train/reward_mean": 1.0})
    assert [p.step for p in disk.read_metrics(tmp_path)] == [1, 2, 3]
    assert list(disk.read_metrics(tmp_path / "nowhere")) == []
