from pathlib import Path

import pytest

from backends.verl import BACKEND
from orchestrator.records import Checkpoint
from tests.backends.verl import library
from tests.backends.verl.cells import PLACE, cell


def save(home: Path, step: int, ranks: int = 2) -> Path:
    """A checkpoint as verl leaves it."""
    actor = home / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    for rank in range(ranks):
        for kind in ("model", "optim", "extra_state"):
            (actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"x")
    (home / "latest_checkpointed_iteration.txt").write_text(str(step))
    return actor


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "c h 'e' ck" / "x4"


def test_whole_checkpoints_oldest_first_by_train_step(home: Path) -> None:
    for step in (2, 10):
        save(home, step)
    assert BACKEND.find_checkpoints(home.parent) == [
        Checkpoint(8, home / "global_step_2", needs_export=True),
        Checkpoint(40, home / "global_step_10", needs_export=True),
    ]


def test_one_that_is_being_written_is_not_among_them(home: Path) -> None:
    save(home, 2)
    save(home, 4)
    (home / "latest_checkpointed_iteration.txt").write_text("2")
    assert [each.step for each in BACKEND.find_checkpoints(home.parent)] == [8]


def test_weights_saved_as_hugging_face_need_no_export(home: Path) -> None:
    actor = save(home, 3)
    (actor / "huggingface" / "model-00001-of-00002.safetensors").write_bytes(b"x")
    (found,) = BACKEND.find_checkpoints(home.parent)
    assert found == Checkpoint(12, actor / "huggingface", needs_export=False)
    assert BACKEND.export_command(found, home) is None


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("version", library.VERSIONS)
def test_the_merger_is_called_as_the_release_declares_it(home: Path, version: str) -> None:
    save(home, 3)
    (found,) = BACKEND.find_checkpoints(home.parent)
    command = BACKEND.export_command(found, home / "out")
    assert command is not None
    assert command[:4] == ("python", "-m", "verl.model_merger", "merge")
    assert command[command.index("--local_dir") + 1] == str(home / "global_step_3" / "actor")
    source = (library.root(version) / "model_merger" / "base_model_merger.py").read_text()
    for flag in (arg for arg in command if arg.startswith("--")):
        assert f'"{flag}"' in source
    manager = (library.root(version) / "utils/checkpoint/fsdp_checkpoint_manager.py").read_text()
    assert "model_world_size_{self.world_size}_rank_{self.rank}.pt" in manager


@pytest.mark.thorough
@pytest.mark.parametrize("version", library.VERSIONS)
def test_nothing_is_deleted_before_it_is_evaluated(version: str) -> None:
    """verl would rotate checkpoints by two keys; both stay unset, so every one is kept."""
    keys = ["trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"]
    plan = BACKEND.translate(cell({"backend.version": version}), PLACE)
    (answer,) = library.compose(version, [plan.argv[3:]], keys)
    assert answer["values"] == dict.fromkeys(keys)
