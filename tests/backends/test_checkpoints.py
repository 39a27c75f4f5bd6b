"""What a library saved, found again: the recorded files, and the cases of single libraries."""

import json
import shutil
from pathlib import Path

import pytest

from backends.skyrl.overrides import read
from orchestrator import plugins
from orchestrator.records import AttemptPaths, Checkpoint
from tests import golden
from tests.backends.asked import ask, python_of
from tests.replay import recorded


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "c h 'e'\nck"


@pytest.mark.parametrize("library", recorded.LIBRARIES)
def test_checkpoints_are_counted_in_train_steps(library: str, home: Path) -> None:
    for batch in (2, 10):
        recorded.checkpoint(library, home, batch, 4)
    for path in home.glob("step-*"):  # OpenRLHF's of its end
        shutil.rmtree(path)
    (home / "step_last").mkdir()
    found = plugins.load(library).find_checkpoints(home)
    assert [each.step for each in found] == ([2, 10] if library in ("trl", "prime_rl") else [8, 40])
    assert {each.needs_export for each in found} == {library == "verl"}


def test_the_last_policy_of_openrlhf_is_found_once_and_may_be_of_shards(home: Path) -> None:
    recorded.checkpoint("openrlhf", home, 10, 1)
    found = plugins.load("openrlhf").find_checkpoints
    assert [each.path.name for each in found(home)] == ["step-10"]
    first = home / "step-10" / "model-1-of-2.safetensors"
    (home / "step-10" / "model.safetensors").rename(first)
    index = {"weight_map": {"a": first.name, "b": "model-2-of-2.safetensors"}}
    first.with_name("model.safetensors.index.json").write_text(json.dumps(index))
    assert [each.path.name for each in found(home)] == ["global_step10_hf"]
    shutil.copy(first, first.with_name("model-2-of-2.safetensors"))
    assert [each.path.name for each in found(home)] == ["step-10"]


def test_a_launch_of_skyrl_exports_where_exports_are_looked_for(home: Path) -> None:
    changes = {
        "batch": {"num_prompts": 1024, "num_minibatches": 4},
        "num_train_steps": 1000,
        "cadence": {"checkpoint_every_steps": 50},
    }
    cell = golden.cell_of("skyrl", "0.4.0", changes)
    place = AttemptPaths(home / "p", home / "a", home / "c")
    plan = plugins.load("skyrl").translate(cell, place)
    told = read(plan.argv)
    assert told["trainer.hf_save_interval"] == 13, "50 train steps, in whole rollout batches"
    assert told["trainer.max_training_steps"] == 250
    recorded.checkpoint("skyrl", place.checkpoints_dir, 250, 4)
    (found,) = plugins.load("skyrl").find_checkpoints(place.checkpoints_dir)
    assert found.path == Path(str(told["trainer.export_path"])) / "global_step_250" / "policy"
    assert found.step == 1000, "SkyRL counts rollout batches"
    assert plan.env["TENSORBOARD_DIR"] == str(place.attempt_dir / "tensorboard-x4")


def test_a_policy_of_trl_newer_than_the_last_state_is_no_checkpoint(home: Path) -> None:
    """A resumed run writes it again."""
    for step in (5, 10):
        recorded.checkpoint("trl", home, step, 1)
    (home / "checkpoint-10" / "optimizer.pt").unlink()
    assert [each.step for each in plugins.load("trl").find_checkpoints(home)] == [5]


@pytest.mark.parametrize("gone", ["STABLE", "config.json"])
def test_a_policy_of_prime_rl_is_whole_with_its_mark(gone: str, home: Path) -> None:
    for step in (50, 100):
        recorded.checkpoint("prime_rl", home, step, 1)
    (home / "weights" / "step_100" / gone).unlink()
    (home / "run_default" / "broadcasts" / "step_7").mkdir(parents=True)
    backend = plugins.load("prime_rl")
    assert [each.step for each in backend.find_checkpoints(home)] == [50]
    assert [path.name for path in backend.begun_checkpoints(home)] == ["step_50", "step_100"]


def test_one_that_verl_is_writing_is_not_among_them(home: Path) -> None:
    for batch in (2, 4):
        recorded.checkpoint("verl", home, batch, 4)
    (home / "x4" / "latest_checkpointed_iteration.txt").write_text("2")
    assert [each.step for each in plugins.load("verl").find_checkpoints(home)] == [8]


def test_weights_that_verl_saves_as_hugging_face_need_no_export(home: Path) -> None:
    recorded.checkpoint("verl", home, 3, 4)
    weights = home / "x4" / "global_step_3" / "actor" / "huggingface"
    (weights / "model-00001-of-00002.safetensors").write_bytes(b"x")
    (found,) = plugins.load("verl").find_checkpoints(home)
    assert found == Checkpoint(12, weights, needs_export=False)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("version", plugins.load("verl").versions)
def test_verls_merger_is_called_as_the_release_declares_it(home: Path, version: str) -> None:
    recorded.checkpoint("verl", home, 3, 4)
    (found,) = plugins.load("verl").find_checkpoints(home)
    command = plugins.load("verl").export_command(found, home / "out")
    assert command is not None
    assert command[:4] == ("python", "-m", "verl.model_merger", "merge")
    assert command[command.index("--local_dir") + 1] == str(home / "x4/global_step_3/actor")
    (root,) = python_of("verl", version).parents[1].glob("lib/python*/site-packages/verl")
    source = (root / "model_merger" / "base_model_merger.py").read_text()
    for flag in (arg for arg in command if arg.startswith("--")):
        assert f'"{flag}"' in source
    manager = root / "utils/checkpoint/fsdp_checkpoint_manager.py"
    assert "model_world_size_{self.world_size}_rank_{self.rank}.pt" in manager.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("version", plugins.load("verl").versions)
def test_verl_deletes_nothing_before_it_is_evaluated(version: str) -> None:
    """It would rotate checkpoints by two keys; both stay unset, so every one is kept."""
    keys = ["trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"]
    plan = plugins.load("verl").translate(golden.cell_of("verl", version, {}), golden.PLACE)
    (answer,) = ask("verl", version, [plan.argv[3:]], keys)
    assert answer["values"] == dict.fromkeys(keys)
