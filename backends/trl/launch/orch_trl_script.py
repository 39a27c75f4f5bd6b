"""Run somebody's launch of TRL, or a Python program that builds its trainer, at a small scale.

    python3 orch_trl_script.py --policy FOLDER --place FOLDER --checkpoints FOLDER --batches N
                               WORD ...

The words are a program with its arguments, or a command: `trl grpo`, `accelerate launch`,
`torchrun`, `python -m`. Each is taken apart by its library's own parser; only its processes are not
started. The program's file, its data, its reward functions, TRL's trainer, loss and optimizer are
as they are. What is changed is listed in PLACE/deviations.jsonl as it happens: arguments of
GRPOConfig and RLOOConfig that make a run large or belong to a GPU (before TRL checks them), the
options of a launcher, the policy, and what a trainer is given beside it. The configuration that TRL
made of it is PLACE/configuration.json. This file lies in a launch's folder, beside orch_trl.py,
whose log and rollouts it uses; orch is not installed there. It needs Python 3.10.
"""

import argparse
import asyncio
import dataclasses
import importlib
import inspect
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROLLOUTS, LONGEST, LARGEST_GROUP = 32, 6, 16
"""Rollouts of a train step, about; tokens of a response and rollouts of a prompt, at most."""
LEARNING_RATE = 3e-4
CLASSES = {"grpo": ("GRPOConfig", "GRPOTrainer"), "rloo": ("RLOOConfig", "RLOOTrainer")}
OFF = {
    "bf16": False,
    "fp16": False,
    "gradient_checkpointing": False,
    "use_vllm": False,
    "use_transformers_paged": False,
    "use_liger_kernel": False,
    "torch_compile": False,
    "deepspeed": None,
    "fsdp": None,
    "push_to_hub": False,
    "load_best_model_at_end": False,
    "resume_from_checkpoint": None,
    "model_init_kwargs": None,
    "log_completions": False,
}
"""Argument -> its value here, for those that a GPU, the Hub or an earlier run belongs to."""


class Changes:
    """What differs from the program, written as soon as it is known, each thing once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: set[str] = set()

    def note(self, name: str, launch: Any, value: Any, kind: str = "argument") -> None:
        """Write one difference, unless it is known."""
        if name in self.known:
            return
        self.known.add(name)
        line = {"kind": kind, "name": name, "launch": _shown(launch), "here": _shown(value)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _shown(value: Any) -> "str | None":
    return None if value is None else str(value)


def small(args: Any, checkpoints: Path, batches: int) -> "dict[str, Any]":
    """Return arguments of a configuration and their values at small scale."""
    group = min(args.num_generations or 8, LARGEST_GROUP)
    accumulated = args.gradient_accumulation_steps or 1
    if getattr(args, "generation_batch_size", None):
        count = args.generation_batch_size // (args.per_device_train_batch_size * accumulated)
    else:
        count = (args.steps_per_generation or accumulated) // accumulated
    updates = max(1, count)
    trained = batches * updates * (getattr(args, "num_iterations", 1) or 1)
    optimizer = str(getattr(args.optim, "value", args.optim))
    return {
        **OFF,
        "use_cpu": True,
        "num_generations": group,
        "per_device_train_batch_size": group * max(1, round(ROLLOUTS / group)),
        "gradient_accumulation_steps": 1,
        "steps_per_generation": updates,
        "generation_batch_size": None,
        "max_completion_length": min(args.max_completion_length or LONGEST, LONGEST),
        "max_steps": trained,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": 0,
        "warmup_ratio": 0.0,
        "optim": args.optim if "adamw_torch" in optimizer else "adamw_torch",
        "save_strategy": "steps",
        "save_steps": max(1, batches // 2) * (trained // batches),
        "save_only_model": False,
        "save_total_limit": None,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "eval_strategy": "no",
        "report_to": "none",
        "dataloader_num_workers": 0,
        "output_dir": str(checkpoints),
    }


def change_configurations(trl: Any, changes: Changes, checkpoints: Path, batches: int) -> None:
    """Make the configuration classes small before they check themselves."""
    for name, _ in CLASSES.values():
        configuration = getattr(trl, name)
        own = configuration.__post_init__

        def begin(self: Any, own: Any = own) -> None:
            if not getattr(self, "orch_small", False):
                self.orch_small = True
                for key, value in small(self, checkpoints, batches).items():
                    if not hasattr(self, key):
                        continue
                    if getattr(self, key) != value:
                        changes.note(key, getattr(self, key), value)
                    setattr(self, key, value)
            own(self)

        configuration.__post_init__ = begin


def change_loading(policy: str, changes: Changes) -> None:
    """Make transformers' Auto classes load the small policy and its tokenizer."""
    transformers: Any = importlib.import_module("transformers")
    for name in ("AutoModelForCausalLM", "AutoTokenizer", "AutoConfig", "AutoProcessor"):
        loader = getattr(transformers, name)
        own = loader.from_pretrained
        target = transformers.AutoTokenizer if name == "AutoProcessor" else loader
        own = target.from_pretrained if name == "AutoProcessor" else own

        def load(path: Any, *_: Any, name: str = name, own: Any = own, **given: Any) -> Any:
            if str(path) == policy:
                return own(path, **given)
            changes.note(f"{name}.from_pretrained", path, "the small policy's", "part")
            return own(policy)

        loader.from_pretrained = load


def change_saving(folder: Path, checkpoints: Path, changes: Changes) -> None:
    """Keep what the program saves away from its own folders, where real policies may lie."""
    transformers: Any = importlib.import_module("transformers")

    def inside(path: Any) -> str:
        whole = Path(path).resolve()
        if any(whole.is_relative_to(each.resolve()) for each in (folder, checkpoints)):
            return str(path)
        redirected = folder / whole.name
        changes.note(f"saves to {path}", path, redirected)
        return str(redirected)

    for owner, method in (
        (transformers.PreTrainedModel, "save_pretrained"),
        (transformers.PreTrainedTokenizerBase, "save_pretrained"),
        (transformers.Trainer, "save_model"),
    ):
        own = getattr(owner, method)

        def save(self: Any, path: Any = None, *more: Any, own: Any = own, **given: Any) -> Any:
            path = given.pop("output_dir", given.pop("save_directory", path))
            return own(self, None if path is None else inside(path), *more, **given)

        setattr(owner, method, save)


class Rewards:
    """The program's reward functions, called as they are, as one function with their sum.

    Where all rewards of a batch are equal, which teaches nothing, the share of a response's
    characters that are a 1 is added: a small policy answers no real question.
    """

    def __init__(self, functions: Any, weights: Any, place: Path, changes: Changes) -> None:
        given = functions if isinstance(functions, list) else [functions]
        self.functions = [each for each in given if callable(each) and not hasattr(each, "config")]
        if len(self.functions) < len(given):
            changes.note("reward models", len(given) - len(self.functions), "0 for each", "part")
        self.weights = weights or [1.0] * len(self.functions)
        self.path, self.changes = place / "rewards.jsonl", changes

    def task_reward(self, **given: Any) -> "list[float]":
        """Return the reward of each completion."""
        completions = given["completions"]
        total = [0.0] * len(completions)
        for function, weight in zip(self.functions, self.weights):  # noqa: B905  no strict= before 3.10
            try:
                values = function(**given)
                values = asyncio.run(values) if inspect.iscoroutine(values) else values
            except ImportError as error:  # TRL's own need packages that an environment may lack
                self.changes.note(f"reward {function.__name__}", str(error), "0 for each", "part")
                continue
            plain = [0.0 if each is None else float(each) for each in values]
            with self.path.open("a", encoding="utf-8") as file:
                name = getattr(function, "__name__", type(function).__name__)
                file.write(json.dumps({"name": name, "values": plain}) + "\n")
            total = [a + weight * b for a, b in zip(total, plain)]  # noqa: B905  the same
        if max(total) == min(total):
            added = "the share of 1 in the response is added"
            self.changes.note("rewards of a batch", "all equal", added, "part")
            texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
            total = [a + text.count("1") / max(len(text), 1) for a, text in zip(total, texts)]  # noqa: B905  the same
        return total


GIVEN = ("peft_config", "quantization_config", "eval_dataset", "processing_class")


def change_trainers(trl: Any, policy: str, place: Path, changes: Changes) -> None:
    """Put orch's log and rollouts around TRL's trainers, and the small policy into them."""
    orch_trl: Any = importlib.import_module("orch_trl")
    for script, (_, name) in CLASSES.items():
        module = importlib.import_module(f"trl.trainer.{script}_trainer")
        orch_trl._install(script, str(place / "trl.jsonl"), None, False, None)  # noqa: SLF001  ours, beside it
        recorded = getattr(trl, name)
        order = list(inspect.signature(getattr(module, name).__init__).parameters)[1:]

        def begin(
            self: Any,
            *args: Any,
            recorded: Any = recorded,
            order: Any = order,
            script: str = script,
            **given: Any,
        ) -> None:
            # A program may give the arguments by their positions.
            given = {**dict(zip(order, args)), **given}  # noqa: B905  the same
            changes.note(
                "model",
                given.get("model")
                if isinstance(given.get("model"), str)
                else type(given.get("model")).__name__,
                policy,
            )
            given["model"] = policy
            for key in GIVEN:
                if given.get(key) is not None:
                    changes.note(key, type(given.pop(key)).__name__, None)
            if given.get("optimizers", (None, None)) != (None, None):
                changes.note("optimizers", "the program's", "the configuration's")
                del given["optimizers"]
            args_ = given["args"]
            rewards = Rewards(given["reward_funcs"], args_.reward_weights, place, changes)
            given["reward_funcs"], args_.reward_weights = [rewards.task_reward], None
            given.pop("reward_processing_classes", None)
            recorded.__init__(self, **given)
            plain = {
                each.name: getattr(self.args, each.name, None)
                for each in dataclasses.fields(self.args)
            }
            (place / "configuration.json").write_text(
                json.dumps({"script": script, "options": plain}, default=_value), encoding="utf-8"
            )

        def push(*_: Any, **__: Any) -> None:
            changes.note("push_to_hub", "called", None)

        members = {"__init__": begin, "push_to_hub": push, "__module__": recorded.__module__}
        trainer = type(name, (recorded,), members)
        # A program may import the trainer from any of these.
        for each in (trl, module, importlib.import_module("trl.trainer")):
            setattr(each, name, trainer)


def _value(value: Any) -> Any:
    return getattr(value, "value", None) or str(value)


class Target(NamedTuple):
    """What a command runs in the end: a file or a module, with its arguments."""

    name: str
    is_module: bool
    arguments: "list[str]"


MODULES = {
    "accelerate.commands.launch": ["accelerate", "launch"],
    "torch.distributed.run": ["torchrun"],
    "torch.distributed.launch": ["torchrun"],
    "trl.cli": ["trl"],
    "trl.cli.main": ["trl"],
}


def target_of(words: "list[str]", changes: Changes) -> Target:
    """Return what a command runs. Note every option of a launcher, which starts nothing here."""
    first, rest = Path(words[0]).name, words[1:]
    if first.startswith("python"):
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            rest = rest[1:]  # the interpreter's own
        if rest[:1] != ["-m"]:
            return target_of(rest, changes)
        if rest[1] in MODULES:
            return target_of([*MODULES[rest[1]], *rest[2:]], changes)
        return Target(rest[1], True, rest[2:])
    if first == "trl":
        return _of_trl(rest, changes)
    if first == "accelerate-launch" or (first == "accelerate" and rest[:1] == ["launch"]):
        launch: Any = importlib.import_module("accelerate.commands.launch")
        given = rest if first == "accelerate-launch" else rest[1:]
        return _parsed("accelerate", launch.launch_command_parser(), given, changes)
    if first == "torchrun":
        run: Any = importlib.import_module("torch.distributed.run")
        return _parsed("torchrun", run.get_args_parser(), rest, changes)
    if not words[0].endswith(".py"):
        raise SystemExit(f"orch cannot start {words[0]} without its processes")
    return Target(words[0], False, rest)


def _parsed(launcher: str, parser: Any, words: "list[str]", changes: Changes) -> Target:
    """Return what a launcher would run, as its own parser reads the words."""
    parsed = parser.parse_args(words)
    given = getattr(parsed, "nondefault", None)  # accelerate's, which changes its defaults
    for key, value in vars(parsed).items():
        own = key in ("training_script", "training_script_args", "module", "nondefault")
        if not own and (value != parser.get_default(key) if given is None else key in given):
            changes.note(f"{launcher} --{key}", value, None)
    if parsed.training_script.endswith(".py") or not parsed.module:
        return Target(parsed.training_script, False, parsed.training_script_args)
    return Target(parsed.training_script, True, parsed.training_script_args)


def _of_trl(words: "list[str]", changes: Changes) -> Target:
    """Return what `trl` would start. TRL's own command line divides the words."""
    targets: list[Target] = []

    def start(script_name: str, launch_args: Any, training_script_args: Any, **_: Any) -> None:
        launch: Any = importlib.import_module("accelerate.commands.launch")
        scripts: Any = importlib.import_module("trl.scripts")
        file = str(Path(scripts.__file__).with_name(script_name))
        given = [*launch_args, file, *training_script_args]
        targets.append(_parsed("accelerate", launch.launch_command_parser(), given, changes))

    launcher: Any = importlib.import_module("trl.cli.accelerate_launcher")
    launcher.launch_training_script = start
    importlib.import_module("trl.cli.main").main(words)
    return targets[0]


def change_data(changes: Changes) -> None:
    """Give TRL's own scripts sums in the place of a dataset that cannot be loaded here."""
    datasets: Any = importlib.import_module("datasets")
    own = datasets.load_dataset

    def load(path: Any, *args: Any, **given: Any) -> Any:
        try:
            return own(path, *args, **given)
        except (OSError, datasets.exceptions.DatasetsError) as error:
            # What lies here and cannot be read is the program's own fault.
            if Path(path).exists():
                raise
            changes.note(f"dataset {path}", path, f"64 sums ({type(error).__name__})", "part")
            rows = [
                {
                    "prompt": [{"role": "user", "content": f"What is {n} + {n}?"}],
                    "solution": f"${2 * n}$",
                    "answer": str(2 * n),
                }
                for n in range(64)
            ]
            whole = datasets.Dataset.from_list(rows)
            return dict.fromkeys(("train", "test", "validation"), whole)

    datasets.load_dataset = load


def main(argv: "list[str]") -> None:
    """Run the program."""
    own = argparse.ArgumentParser()
    own.add_argument("--policy", required=True)
    own.add_argument("--place", type=Path, required=True)
    own.add_argument("--checkpoints", type=Path, required=True)
    own.add_argument("--batches", type=int, required=True)
    own.add_argument("words", nargs=argparse.REMAINDER)
    options = own.parse_args(argv)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    changes = Changes(options.place / "deviations.jsonl")
    trl: Any = importlib.import_module("trl")
    change_configurations(trl, changes, options.checkpoints, options.batches)
    change_loading(options.policy, changes)
    change_saving(options.place / "saved", options.checkpoints, changes)
    change_trainers(trl, options.policy, options.place, changes)
    os.environ.setdefault("WANDB_MODE", "disabled")
    target = target_of(options.words, changes)
    sys.argv = [target.name, *target.arguments]
    if target.name.startswith("trl.scripts.") or "/trl/scripts/" in target.name:
        change_data(changes)
    if target.is_module:
        # As `python -m` has it; below, as `python FILE` has it.
        sys.path[0:0] = [str(Path.cwd())]
        runpy.run_module(target.name, run_name="__main__", alter_sys=True)
        return
    sys.path[0:0] = [str(Path(target.name).resolve().parent)]
    runpy.run_path(target.name, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
