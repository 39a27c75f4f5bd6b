"""A checkpoint with padded heads is the same policy, as transformers computes it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # its classes are imported when they are named: not by every process

from orchestrator.errors import CheckpointError
from orchestrator.evaluate import heads

POLICIES = Path(__file__).parents[2] / "backends" / "micro" / "policies"
PROMPTS = ("C41973=", "R5521=", "S90817=", "I7=", "C0000000000=")


def loaded(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path).eval()


def test_a_policy_answers_the_same_with_wider_heads(narrow_policy: Path, tmp_path: Path) -> None:
    width = heads.missing_width(narrow_policy, cpu=True)
    assert width == heads.missing_width(narrow_policy, cpu=False) == 32
    heads.pad(narrow_policy, tmp_path / "wide", width)
    assert heads.missing_width(tmp_path / "wide", cpu=True) is None
    one, other = loaded(narrow_policy), loaded(tmp_path / "wide")
    assert other.config.head_dim == 32
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "wide")
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            gap = (one(ids).logits - other(ids).logits).abs().max()
            texts = [
                model.generate(ids, do_sample=False, max_new_tokens=12) for model in (one, other)
            ]
        assert gap < 1e-4
        assert texts[0].tolist() == texts[1].tolist()


def test_grouped_heads_and_biases_are_padded_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=40,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=20,
            attention_bias=True,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        )
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    made.save_pretrained(tmp_path / "narrow")
    heads.pad(tmp_path / "narrow", tmp_path / "wide", 64)
    ids = torch.randint(0, 40, (3, 30))
    with torch.no_grad():
        gap = made.eval()(ids).logits - loaded(tmp_path / "wide")(ids).logits
    assert gap.abs().max() < 1e-4


def written(folder: Path, **changes: Any) -> Path:
    config = json.loads((POLICIES / "elder" / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_only_a_llama_with_heads_that_vllm_lacks_is_padded(tmp_path: Path) -> None:
    for width, on_cpu, on_gpu in (
        (12, 32, 32),
        (64, None, None),
        (72, 80, None),
        (513, None, None),
        (28, 32, 32),
        (100, 112, 112),
    ):
        folder = written(tmp_path, head_dim=width)
        assert heads.missing_width(folder, cpu=True) == on_cpu
        assert heads.missing_width(folder, cpu=False) == on_gpu
    assert heads.missing_width(written(tmp_path, model_type="qwen3"), cpu=True) is None
    assert heads.missing_width(tmp_path / "none", cpu=True) is None
    scaled = {"rope_type": "yarn", "rope_theta": 1e4}
    with pytest.raises(CheckpointError, match=r"rotations of type 'yarn'.*engine\.name=hf"):
        heads.pad(written(tmp_path, rope_parameters=scaled), tmp_path / "wide", 32)


def test_a_copy_can_be_written_to_be_served(narrow_policy: Path, tmp_path: Path) -> None:
    heads.main([str(narrow_policy), str(tmp_path / "wide")])
    assert heads.missing_width(tmp_path / "wide", cpu=True) is None
    with pytest.raises(SystemExit, match="needs no copy"):
        heads.main([str(tmp_path / "wide"), str(tmp_path / "other")])
    with pytest.raises(SystemExit, match="CHECKPOINT NEW_FOLDER"):
        heads.main([])
