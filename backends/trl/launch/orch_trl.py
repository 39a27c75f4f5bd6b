"""Run a script of TRL as it is, with a log of every train step, and from its newest checkpoint.

    python3 orch_trl.py grpo|rloo --config FILE --metrics FILE [--chat]
                        [--kl-estimator NAME --kl-placement reward|loss|reward_and_loss]

The script, its trainer, its loss and its parser are the library's. Added are a callback that writes
each train step's metrics with all digits; the checkpoint that a killed run goes on from, for which
TRL 1.9.2 has no option and which 1.16.0 wants by name; the reference policy of a resumed run that
renews it; and, where --kl-estimator asks, a KL that TRL does not have (orch_trl_kl.py). This file
lies in a launch's folder, where orch is not installed. It needs Python 3.10.
"""

import argparse
import importlib
import json
import os
import re
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

NEEDED = ("config.json", "tokenizer_config.json", "trainer_state.json")
STATES = ("optimizer.pt", "scheduler.pt")
SHARDED_STATES = ("optimizer.bin", "pytorch_model_fsdp.bin", "scheduler.pt")
"""Of a launch that shards: its optimizer, and the weights that its resumed run reads."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER, OF_ADAPTER = "adapter_model.safetensors", "adapter_config.json"
"""Of a policy that is an adapter: its weights, and what stands in place of the model's config."""
PROMPTS = ("train_dataset", "eval_dataset")
REFERENCE = "orch_reference.pt"
"""In a checkpoint: the weights of a reference policy that is an average."""
_NAME = re.compile(r"checkpoint-([0-9]+)")


def saved(folder: "str | os.PathLike[str]") -> "list[tuple[int, Path]]":
    """Return the checkpoints in a folder, whole or not: train step and path, oldest first."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = ((_NAME.fullmatch(entry.name), entry.path) for entry in entries)
    return sorted((int(match[1]), Path(path)) for match, path in matches if match)


def has_policy(checkpoint: Path) -> bool:
    """Return True if a checkpoint has its policy and its tokenizer, each to its last byte."""
    try:
        adapter = (checkpoint / OF_ADAPTER).exists()
        for name in (OF_ADAPTER, *NEEDED[1:]) if adapter else NEEDED:
            json.loads((checkpoint / name).read_bytes())
        shards = {ADAPTER if adapter else WEIGHTS}
        if (checkpoint / INDEX).exists():
            shards = set(json.loads((checkpoint / INDEX).read_bytes())["weight_map"].values())
        return bool(shards) and all(_is_whole_tensors(checkpoint / shard) for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def is_whole(checkpoint: Path) -> bool:
    """Return True if a checkpoint has its policy, its tokenizer and all that resuming needs."""
    try:
        randomness = list(checkpoint.glob("rng_state*.pth"))
        names = SHARDED_STATES if (checkpoint / SHARDED_STATES[0]).exists() else STATES
        states = [*(checkpoint / name for name in names), *randomness]
        return bool(randomness) and has_policy(checkpoint) and all(map(zipfile.is_zipfile, states))
    except OSError:
        return False


def _is_whole_tensors(path: Path) -> bool:
    """Return True if a safetensors file is as long as its header says."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return bool(ends) and size == 8 + length + max(ends)


def newest(folder: "str | os.PathLike[str]") -> "Path | None":
    """Return the newest whole checkpoint in a folder, or None."""
    return next((path for _, path in reversed(saved(folder)) if is_whole(path)), None)


def main(argv: "list[str]") -> None:
    """Run one of TRL's scripts with orch's reward and extensions."""
    own = argparse.ArgumentParser()
    own.add_argument("script", choices=("grpo", "rloo"))
    own.add_argument("--metrics", required=True)
    own.add_argument("--chat", action="store_true")
    own.add_argument("--kl-estimator")
    own.add_argument("--kl-placement", choices=("reward", "loss", "reward_and_loss"))
    options, rest = own.parse_known_args(argv)
    module = importlib.import_module(f"trl.scripts.{options.script}")
    parsed = module.make_parser().parse_args_and_config(rest, fail_with_unknown_args=True)
    training = next(each for each in parsed if hasattr(each, "output_dir"))
    training.resume_from_checkpoint = (
        None  # the script's own; `_install` hands the checkpoint to the trainer
    )
    asks = options.kl_estimator and training.beta  # without a beta there is no reference policy
    kl = (options.kl_estimator, options.kl_placement) if asks else None
    _install(options.script, options.metrics, newest(training.output_dir), options.chat, kl)
    module.main(*parsed)


def _install(
    script: str,
    metrics: str,
    checkpoint: "Path | None",
    chat: bool,
    kl: "tuple[str, str] | None",
) -> None:
    """Make the script's trainer log its steps, go on from a checkpoint, and know another KL."""
    trl: Any = importlib.import_module("trl")
    callback: Any = importlib.import_module("transformers").TrainerCallback
    name = {"grpo": "GRPOTrainer", "rloo": "RLOOTrainer"}[script]
    library = _with_kl(getattr(trl, name), kl)

    class StepLog(callback):  # type: ignore[misc]  # a class of the launch's environment
        """A line of JSON for each train step and each evaluation."""

        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step and args.sync_ref_model and checkpoint is not None:
                _restore_reference(self.trainer, checkpoint / REFERENCE)

        def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            known = {"learning_rate", "eval_loss"} & (logs or {}).keys()
            if not state.is_world_process_zero or not known:
                return
            values = {key: value for key, value in logs.items() if isinstance(value, (int, float))}
            line = {
                "step": state.global_step,
                "time": time.time(),
                "script": script,
                "values": values,
            }
            with open(metrics, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(json.dumps(line) + "\n")

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if chat:
            kwargs |= {rows: _as_messages(kwargs.get(rows)) for rows in PROMPTS}
        library.__init__(self, *args, **kwargs)
        self.add_callback(StepLog(self))

    def train(self: Any, *_: Any, **__: Any) -> Any:
        return library.train(self, resume_from_checkpoint=checkpoint and str(checkpoint))

    methods = {
        "__init__": begin,
        "train": train,
        "evaluate": _evaluating(library),
        "_save_checkpoint": _saving(library),
    }
    trainer_class = type(name, (library,), methods)
    trainer_class.__module__ = library.__module__
    setattr(trl, name, trainer_class)


def _as_messages(rows: Any) -> Any:
    """Return the rows with each prompt as a user's message; None for None."""
    return rows and rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})


def _evaluating(library: Any) -> Any:
    """Return the method that evaluates, after which training samples as it would have without."""
    torch: Any = importlib.import_module("torch")

    def evaluate(self: Any, *args: Any, **named: Any) -> Any:
        device = self.accelerator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return library.evaluate(self, *args, **named)

    return evaluate


def _saving(library: Any) -> Any:
    """Return the method that saves a checkpoint, with the weights of an averaged reference policy.

    They come first: a checkpoint is whole by what the library writes after them.
    """

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.args.sync_ref_model and self.args.ref_model_mixup_alpha != 1:
            _save_reference(self)
        library._save_checkpoint(self, *args, **kwargs)  # noqa: SLF001  (the method it stands for)

    return save


def _save_reference(trainer: Any) -> None:
    """Write the weights of the reference policy into the checkpoint that is about to be saved."""
    if not trainer.is_world_process_zero():
        return
    torch: Any = importlib.import_module("torch")
    folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    folder.mkdir(parents=True, exist_ok=True)
    reference = trainer.accelerator.unwrap_model(trainer.ref_model)
    torch.save(reference.state_dict(), folder / REFERENCE)


def _restore_reference(trainer: Any, path: Path) -> None:
    """Give the reference policy the weights that it had at a checkpoint.

    Without a file of its own it was the policy, which is the checkpoint's by now: a reset saves at
    such steps only.
    """
    if path.exists():
        torch: Any = importlib.import_module("torch")
        reference = trainer.accelerator.unwrap_model(trainer.ref_model)
        reference.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        return
    # 1.0: the whole policy, and nothing of the old reference.
    sync = importlib.import_module("trl.trainer.callbacks").SyncRefModelCallback
    model = trainer.accelerator.unwrap_model(trainer.model)
    sync.sync_target_model(model, trainer.ref_model, 1.0)


def _with_kl(library: Any, kl: "tuple[str, str] | None") -> Any:
    """Return a trainer that has the KL that was asked for: the library's own, or a subclass."""
    if kl is None:
        return library
    methods = importlib.import_module("orch_trl_kl").taught(library, *kl)
    return type(library.__name__, (library,), {**methods, "__module__": library.__module__})


if __name__ == "__main__":
    main(sys.argv[1:])
