"""The size of a model: from its config.json where it is on this machine, else from its name."""

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from orchestrator.settings import ALL_LINEAR, Lora, Model

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")


class ModelShape(NamedTuple):
    """The sizes of a decoder with gated feed-forward layers, by the names of its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool

    @property
    def num_parameters(self) -> float:
        """Return the weights of its matrices: attention, feed-forward, embeddings and head."""
        heads = self.num_attention_heads + self.num_key_value_heads
        attention = 2 * self.hidden_size * self.head_dim * heads
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return float(self.num_hidden_layers * layer + embeddings)

    def adapter_parameters(self, lora: Lora) -> float:
        """Return the weights of low-rank adapters. A module of another name than these has none."""
        hidden, wide = self.hidden_size, self.intermediate_size
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        sides = {
            "q_proj": hidden + queries,
            "k_proj": hidden + keys,
            "v_proj": hidden + keys,
            "o_proj": queries + hidden,
            "gate_proj": hidden + wide,
            "up_proj": hidden + wide,
            "down_proj": wide + hidden,
        }
        names = sides if lora.targets == ALL_LINEAR else lora.modules
        return float(self.num_hidden_layers * lora.rank * sum(sides.get(name, 0) for name in names))


class ModelSize(NamedTuple):
    """The number of parameters, and the shape if a config.json gives it."""

    num_parameters: float
    shape: ModelShape | None
    source: str
    """Where the number is from, for people."""


def declared_parameters(model: Model) -> float | None:
    """Return the number of parameters that a path or name says (`Qwen2.5-7B`), or None."""
    for text in (model.path, model.name):
        if match := _SIZE.search(text):
            return float(match[1]) * 1e9
    return None


def size_of(model: Model, variables: Mapping[str, str] | None = None) -> ModelSize | None:
    """Return the size of a model, or None if neither its config.json nor its name tells it.

    variables: the environment whose cache of the hub is looked into; None: this process's.
    """
    shape = _shape_of(model.path, hub_cache(os.environ if variables is None else variables))
    if shape is not None:
        return ModelSize(shape.num_parameters, shape, f"{model.path}'s config.json")
    declared = declared_parameters(model)
    return None if declared is None else ModelSize(declared, None, f"the name {model.path}")


def hub_cache(variables: Mapping[str, str]) -> Path:
    """Return the folder of the hub's client for what it has loaded (HF_HUB_CACHE, HF_HOME)."""
    if own := variables.get("HF_HUB_CACHE"):
        return Path(own)
    home = variables.get("HF_HOME")
    base = Path(home) if home else Path(variables.get("HOME") or "~").expanduser() / ".cache"
    return (base if home else base / "huggingface") / "hub"


def hub_folder(path: str, cache_folder: Path, kind: str = "models") -> Path | None:
    """Return the folder of a model or data set on this machine: a folder, or one of the hub's
    cache. None if it is not here."""
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file() or (kind == "datasets" and folder.is_dir()):
        return folder
    kept = cache_folder / f"{kind}--{path.replace('/', '--')}"
    try:
        main = (kept / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    snapshot = kept / "snapshots" / main
    return snapshot if snapshot.is_dir() else None


@cache
def _shape_of(path: str, cache_folder: Path) -> ModelShape | None:
    folder = hub_folder(path, cache_folder)
    return None if folder is None else _shape(folder / "config.json")


def _shape(config: Path) -> ModelShape | None:
    """Return the shape that a config.json gives; None if it lacks a size, as other kinds do."""
    try:
        sizes = json.loads(config.read_text(encoding="utf-8"))
        heads = sizes["num_attention_heads"]
        if sizes.get("num_experts") or sizes.get("num_local_experts"):
            return None  # a mixture of experts has other matrices
        return ModelShape(
            hidden_size=sizes["hidden_size"],
            intermediate_size=sizes["intermediate_size"],
            num_hidden_layers=sizes["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=sizes.get("num_key_value_heads") or heads,
            head_dim=sizes.get("head_dim") or sizes["hidden_size"] // heads,
            vocab_size=sizes["vocab_size"],
            tie_word_embeddings=bool(sizes.get("tie_word_embeddings")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
