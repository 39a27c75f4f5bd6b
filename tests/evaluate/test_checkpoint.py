"""What a checkpoint is for the cache of scores."""

import os
import shutil
from pathlib import Path

import pytest

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
