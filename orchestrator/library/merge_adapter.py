"""Write a model and its low-rank adapter as one Hugging Face directory.

    python orch_merge_adapter.py ADAPTER TARGET --precision fp32|bf16 [--base FOLDER]
                                 [--first COMMAND ...]

It runs in the environment of the library that trained, where orch is not installed, nor PEFT in
each. --first runs before, and makes FOLDER and ADAPTER. Without --base the adapter names its model.
It adds alpha / rank * B A in fp32, and fails unless it used every tensor of the adapter: a model
without its adapter would be scored as if it had been trained. It needs Python 3.10.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TOKENIZER = ("token", "vocab", "merges", "special_tokens", "added_tokens", "chat_template")
"""How the names of a tokenizer's files begin."""
OTHERS = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")
"""Kinds of adapters that are not alpha / rank * B A alone. No launch of orch asks for one."""


def main(argv: "list[str]") -> None:
    """Merge. Raise SystemExit with a sentence if something is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("adapter", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--first", nargs=argparse.REMAINDER, default=[])
    given = parser.parse_args(argv)
    if given.first:
        # `python` of the command is this one
        subprocess.run([sys.executable, *given.first[1:]], check=True)
    merge(given.adapter, given.base, given.target, given.precision)
    if given.first:
        shutil.rmtree(given.base)


def merge(adapter: Path, folder: "Path | None", target: Path, precision: str) -> None:
    """Write the model in `folder`, or the one that the adapter names, with its adapter."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    config = json.loads((adapter / "adapter_config.json").read_bytes())
    if other := [name for name in OTHERS if config.get(name)]:
        raise SystemExit(f"{adapter} has {', '.join(other)}, which orch does not merge")
    if not config.get("lora_alpha"):
        raise SystemExit(f"{adapter} does not say its alpha: its update would be scaled by 0")
    base = str(folder or _shipped(config["base_model_name_or_path"]))
    model: Any = AutoModelForCausalLM.from_pretrained(base).float()
    weights, state = load_file(str(adapter / "adapter_model.safetensors")), model.state_dict()
    parts = {key: tensor.float() for key, tensor in weights.items()}
    for key in [key for key in parts if ".lora_A" in key]:
        name = key.partition(".lora_A")[0].removeprefix("base_model.model.") + ".weight"
        if name not in state:
            raise SystemExit(f"{adapter}: {base} has no {name}")
        update = parts.pop(key.replace(".lora_A", ".lora_B")) @ parts.pop(key)
        with torch.no_grad():
            state[name] += config["lora_alpha"] / config["r"] * update
    if parts or not weights:
        raise SystemExit(f"{adapter}: {base} takes no {', '.join(sorted(parts)[:4]) or 'tensor'}")
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    model.save_pretrained(str(target))
    for source in (Path(base), adapter):  # the adapter's own replace those of the model
        for file in sorted(source.glob("*")) if source.is_dir() else ():
            if file.is_file() and file.name.startswith(TOKENIZER):
                shutil.copyfile(file, target / file.name)


def _shipped(name: str) -> str:
    """Return the path of a policy that ships with orch: it is a link beside this file."""
    beside = Path(__file__).resolve().parent / name
    return str(beside) if beside.is_dir() else name


if __name__ == "__main__":
    main(sys.argv[1:])
