"""What a checkpoint is for the cache of scores."""

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import CheckpointError
from orchestrator.evaluate.scores import content_hash, stamp

POLICY = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "amber"


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


def test_what_the_optimizer_leaves_beside_it_is_no_part_of_the_policy(policy: Path) -> None:
    before = hash_of(policy)
    (policy / "optimizer.pt").write_bytes(b"moments")
    assert hash_of(policy) == before


def test_a_directory_without_config_is_told(policy: Path) -> None:
    (policy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        stamp(policy)


def test_a_missing_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        stamp(tmp_path / "gone")
