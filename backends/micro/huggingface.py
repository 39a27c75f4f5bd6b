"""Write and read a policy as a Hugging Face directory, for AutoModelForCausalLM and lm-eval.

The files are those of the shipped policies, so that training never imports transformers.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import Tensor

from backends.micro.policy import Weights, weights
from backends.micro.shape import HEAD_WIDTH, NUM_HEADS, NUM_LAYERS, WIDTH
from backends.micro.shipped import POLICIES, names
from orchestrator.errors import CheckpointError

TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
"""The files beside the weights. They are equal for all policies."""


@cache
def _texts() -> dict[str, str]:
    """Return the files beside the weights: those of a shipped policy."""
    return {name: (POLICIES / names()[0] / name).read_text(encoding="utf-8") for name in TEXTS}


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
