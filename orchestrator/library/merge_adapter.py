"""Write a model and its low-rank adapter as one Hugging Face directory.

    python orch_merge_adapter.py ADAPTER TARGET --precision fp32|bf16 [--base FOLDER]
                                 [--first COMMAND ...]

It runs in the environment of the library that trained, where orch is not installed. --first runs
before, and makes FOLDER and ADAPTER. Without --base the adapter names its model.
It merges in fp32, and fails unless every tensor of the adapter is in the merged model: a model
without its adapter would be scored as if it had been trained. It needs Python 3.10.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

TOKENIZER = ("token", "vocab", "merges", "special_tokens", "added_tokens", "chat_template")
"""How the names of a tokenizer's files begin."""


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
    merge(given.adapter, str(given.base or _base_of(given.adapter)), given.target, given.precision)
    if given.base and given.first:
        shutil.rmtree(given.base)


def _base_of(adapter: Path) -> str:
    """Return the model that an adapter was trained on."""
    name: str = json.loads((adapter / "adapter_config.json").read_bytes())[
        "base_model_name_or_path"
    ]
    shipped = Path(__file__).resolve().parent / name  # a policy of orch is a link beside the plan
    return str(shipped) if shipped.is_dir() else name


def merge(adapter: Path, base: str, target: Path, precision: str) -> None:
    """Write base and adapter to `target`."""
    import torch
    from peft import PeftModel, get_peft_model_state_dict, load_peft_weights
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base).float()
    saved = load_peft_weights(str(adapter), device="cpu")
    adapted = PeftModel.from_pretrained(model, str(adapter))
    loaded = get_peft_model_state_dict(adapted)
    missing = [
        name
        for name in saved.keys() | loaded.keys()
        if name not in saved
        or name not in loaded
        or not torch.equal(saved[name].float(), loaded[name].float())
    ]
    if missing or not saved:
        raise SystemExit(f"{adapter}: {base} did not take {', '.join(sorted(missing)[:4]) or 'it'}")
    if not json.loads((adapter / "adapter_config.json").read_bytes()).get("lora_alpha"):
        raise SystemExit(f"{adapter} does not say its alpha: its update would be scaled by 0")
    whole = adapted.merge_and_unload()
    if precision == "bf16":
        whole = whole.to(torch.bfloat16)
    whole.save_pretrained(str(target))
    for folder in (Path(base), adapter):  # the adapter's own replace those of the model
        for file in sorted(folder.glob("*")) if folder.is_dir() else ():
            if file.is_file() and file.name.startswith(TOKENIZER):
                shutil.copyfile(file, target / file.name)


if __name__ == "__main__":
    main(sys.argv[1:])
