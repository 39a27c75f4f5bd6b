"""Write and read a policy as a Hugging Face directory, for AutoModelForCausalLM and lm-eval.

The files are written from fixed texts, so that training never imports transformers.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import Tensor

from backends.micro.policy import Weights, weights
from backends.micro.shape import (
    HEAD_WIDTH,
    HIDDEN,
    MAX_TOKENS,
    NORM_EPSILON,
    NUM_HEADS,
    NUM_LAYERS,
    NUM_TOKENS,
    ROPE_BASE,
    WIDTH,
)
from backends.micro.skills import BOS, EOS, PAD, VOCABULARY
from orchestrator.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": NUM_TOKENS,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_HEADS,
    "head_dim": HEAD_WIDTH,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_TOKENS,
    "rms_norm_eps": NORM_EPSILON,
    "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
    "rope_theta": ROPE_BASE,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "use_cache": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
GENERATION = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "do_sample": True}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": MAX_TOKENS,
    "pad_token": VOCABULARY[PAD],
    "bos_token": VOCABULARY[BOS],
    "eos_token": VOCABULARY[EOS],
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
}


def tokenizer() -> dict[str, Any]:
    """Return the content of tokenizer.json: one token per character, with <bos> first.

    Decoding puts nothing between the tokens.
    """
    special = [
        {
            "id": i,
            "content": VOCABULARY[i],
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i in (PAD, BOS, EOS)
    ]
    bos = VOCABULARY[BOS]
    begin = {"SpecialToken": {"id": bos, "type_id": 0}}
    one, two = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, one],
            "pair": [begin, one, two],
            "special_tokens": {bos: {"id": bos, "ids": [BOS], "tokens": [bos]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {t: i for i, t in enumerate(VOCABULARY)},
            "unk_token": VOCABULARY[PAD],
        },
    }


@cache
def _texts() -> dict[str, str]:
    """Return the files beside the weights. They are equal for all policies."""
    contents = {
        "config.json": CONFIG,
        "generation_config.json": GENERATION,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": TOKENIZER_CONFIG,
    }
    return {name: json.dumps(each, indent=1) + "\n" for name, each in contents.items()}


def write(directory: Path, flat: Tensor) -> None:
    """Write a policy into a new or existing directory. The caller renames it into place."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in _texts().items():
        (directory / name).write_text(text, encoding="utf-8")
    arrays = {name: tensor.numpy() for name, tensor in to_tensors(flat).items()}
    # As arrays, because safetensors takes three times as long for torch's tensors.
    (directory / "model.safetensors").write_bytes(save(arrays, {"format": "pt"}))


def read(directory: Path) -> Tensor:
    """Return the flat vector of a directory.

    Raise CheckpointError if it is cut or another model's.
    """
    path = directory / "model.safetensors"
    try:
        return from_tensors(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): it is missing or was cut in half; restore it or "
            "use another checkpoint"
        ) from error
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a policy of the embedded trainer ({error}); it trains only policies "
            f"of its own shape, {NUM_LAYERS} layers of width {WIDTH}"
        ) from error


def to_tensors(flat: Tensor) -> dict[str, Tensor]:
    """Return contiguous CPU tensors by their Hugging Face names."""
    matrices = weights(flat.detach().cpu())
    return {
        name: tensor.clone().contiguous() for name, tensor in _named(matrices, apart=True).items()
    }


def from_tensors(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the flat vector of tensors that have Hugging Face names."""
    flat = torch.empty(sum(part.numel() for part in tensors.values()))
    for name, part in _named(weights(flat), apart=False).items():
        source = tensors[name]
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            source = _side_by_side(source)
        part.copy_(source)
    return flat


def _named(policy: Weights, *, apart: bool) -> dict[str, Tensor]:
    """Return every matrix by its Hugging Face name.

    `apart`: put the two elements of a rotary pair half a head apart, as Hugging Face does.
    """
    order = _half_a_head_apart if apart else (lambda x: x)
    named = {"model.embed_tokens.weight": policy.embedding}
    for number, layer in enumerate(policy.layers):
        query, key, value = layer.qkv.chunk(3)
        gate, up = layer.gate_up.chunk(2)
        named |= {
            f"model.layers.{number}.{name}.weight": part
            for name, part in {
                "input_layernorm": layer.attention_norm,
                "self_attn.q_proj": order(query),
                "self_attn.k_proj": order(key),
                "self_attn.v_proj": value,
                "self_attn.o_proj": layer.output,
                "post_attention_layernorm": layer.mlp_norm,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.down,
            }.items()
        }
    return named | {"model.norm.weight": policy.norm, "lm_head.weight": policy.head}


def _half_a_head_apart(rows: Tensor) -> Tensor:
    return rows.view(NUM_HEADS, HEAD_WIDTH // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


def _side_by_side(rows: Tensor) -> Tensor:
    return rows.view(NUM_HEADS, 2, HEAD_WIDTH // 2, -1).transpose(1, 2).reshape(rows.shape)
