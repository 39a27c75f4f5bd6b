"""What a checkpoint and a task are for the cache of scores."""

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import task_files
from orchestrator.evaluate.checkpoint import content_hash, stamp

POLICY = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "elder"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(POLICY, tmp_path / "step 100\n'ü'"))


def hash_of(path: Path) -> str:
    return content_hash(path, stamp(path))


def test_the_hash_is_of_content_and_not_of_time(policy: Path) -> None:
    files, before = stamp(policy), hash_of(policy)
    os.utime(policy / "config.json", ns=(1, 1))
    assert stamp(policy) != files
    assert hash_of(policy) == before


def test_one_changed_byte_is_another_checkpoint(policy: Path) -> None:
    before = hash_of(policy)
    weights = policy / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    assert hash_of(policy) != before


def test_a_state_to_go_on_from_is_no_part_of_the_policy(policy: Path) -> None:
    before, files = hash_of(policy), stamp(policy)
    for name in ("state.safetensors", "training_args.bin", "trainer_state.json", "README.md"):
        (policy / name).write_bytes(b"moments")
    assert stamp(policy) == files
    assert hash_of(policy) == before


def test_shards_make_the_same_policy(policy: Path) -> None:
    from safetensors.torch import load_file, save_file

    before = hash_of(policy)
    tensors = list(load_file(policy / "model.safetensors").items())
    (policy / "model.safetensors").unlink()
    save_file(dict(tensors[::2]), policy / "model-00001-of-00002.safetensors")
    save_file(dict(tensors[1::2]), policy / "model-00002-of-00002.safetensors")
    assert hash_of(policy) == before


@pytest.mark.parametrize(
    "name", ["generation_config.json", "chat_template.jinja", "tokenizer_config.json"]
)
def test_what_changes_an_answer_is_part_of_it(policy: Path, name: str) -> None:
    before = hash_of(policy)
    (policy / name).write_text('{"eos_token_id": 7}')
    assert hash_of(policy) != before


@pytest.mark.parametrize(
    "raw",
    [b"", b"weights", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{}"],
)
def test_a_cut_file_of_weights_has_a_hash_of_its_bytes(policy: Path, raw: bytes) -> None:
    before = hash_of(policy)
    (policy / "model.safetensors").write_bytes(raw)
    assert hash_of(policy) != before
    cut = (POLICY / "model.safetensors").read_bytes()[:5000]
    (policy / "model.safetensors").write_bytes(cut)
    assert hash_of(policy) != before


TASKS = Path(__file__).parents[2] / "backends" / "micro" / "tasks"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the micro tasks that may be changed, with the sources they name."""
    shutil.copytree(TASKS, tmp_path / "micro" / "tasks")
    for source in ("skills.py", "problem_sets.py"):
        shutil.copy(TASKS.parent / source, tmp_path / "micro" / source)
    return tmp_path / "micro" / "tasks"


def version(path: Path) -> str:
    task_files.version.cache_clear()
    return task_files.version(path)


def test_a_task_without_a_file_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        task_files.find_task("micro_sorts", (TASKS, tmp_path / "none"))
    assert "'micro_sorts' has no task file, did you mean 'micro_sort'?" in str(caught.value)
    assert str(tmp_path / "none") in str(caught.value)


@pytest.mark.parametrize(
    "part",
    ["micro_sort.yaml", "_skill", "skill_task.py", "../skills.py", "../problem_sets.py"],
)
def test_the_version_follows_every_part_of_a_task(copy: Path, part: str) -> None:
    task = copy / "micro_sort.yaml"
    before = version(task)
    assert version(task) == before
    (copy / part).write_text((copy / part).read_text() + "\n# changed\n")
    assert version(task) != before


def test_the_version_ignores_what_running_leaves_behind(copy: Path) -> None:
    before = version(copy / "micro_sort.yaml")
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__" / "skill_task.cpython-311.pyc").write_bytes(b"\0")
    (copy.parent / "trainer.py").write_text("# not a part of the task\n")
    assert version(copy / "micro_sort.yaml") == before
