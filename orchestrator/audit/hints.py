"""Find texts that may hold a launch of a library.

The audit skips texts without a hint: most commands of a script only copy files and load modules.
"""

import re
from functools import cache

from orchestrator import plugins
from orchestrator.library.releases import CommandCall, ReleaseMarks

SHARED = r"algorithm\.|use_kl|kl_coef|main_\w+"
"""Words that occur in launches of several libraries."""
STARTS = re.compile(r"\bpython|torchrun|\buv |\bray |\brl |bash|deepspeed|accelerate|-m |\.sh")
"""Text that starts a program."""
UNREAD = {
    "LLaMA-Factory": r"\bllamafactory-cli\b|\bllamafactory\b|\bsrc/train\.py\b[^\n]*--stage\b",
    "trlx": r"\bimport trlx\b|\bfrom trlx\b|\btrlx\.train\(",
    "DeepSpeed-Chat": r"step3_rlhf_finetuning|--actor_zero_stage\b|DeepSpeedPPOTrainer",
    "NeMo-Aligner": r"nemo_aligner|NeMo-Aligner|train_gpt_(?:ppo|reinforce|dpo)\w*\.py",
    "torchtune": r"\btune run\b[^\n]*(?:grpo|ppo)",
    "RL2": r"\bRL2\.trainer\.",
    "XTuner": r"\bxtuner (?:train|rl)\b|\bxtuner/v1/train",
    "RAGEN": r"\bragen[./]\w|--config-name[= ]_\d_\w+",
    "Axolotl": r"\baxolotl (?:train|preprocess)\b|\baxolotl\.cli\.",
    "rLLM": r"\brllm\.train(?:er)?\.",
    "ReaLHF": r"\brealhf\.apps\.",
}
"""Name of a trainer whose launches orch cannot read -> the pattern that recognises a launch."""


@cache
def marks() -> dict[str, ReleaseMarks]:
    """Return the release marks of every library whose launches can be read, by library name."""
    readers = (plugins.load_reader(name) for name in plugins.readers())
    return {each.name: each.release_marks for each in readers if each.release_marks is not None}


def titles() -> str:
    """Return the libraries whose launches can be read, as a list in words."""
    *others, last = (plugins.load_reader(name).title for name in marks())
    return f"{', '.join(others)} or {last}" if others else last


def unread(text: str) -> str:
    """Return the name of an unreadable trainer (UNREAD) that a text launches, or an empty text."""
    return next((name for name, mark in UNREAD.items() if re.search(mark, text)), "")


@cache
def _hint() -> re.Pattern[str]:
    return re.compile("|".join([SHARED, *(each.hint for each in marks().values())]))


def may_launch(text: str) -> bool:
    """Return True if a text may hold a launch."""
    return _hint().search(text) is not None


@cache
def configuration_classes() -> frozenset[str]:
    """Return the classes whose keyword arguments are some library's configuration."""
    return frozenset(name for each in marks().values() for name in each.configuration_classes)


@cache
def _configures() -> re.Pattern[str]:
    return re.compile("|".join(sorted(configuration_classes())) or r"(?!)")


def may_configure(text: str) -> bool:
    """Return True if a Python file may create a trainer's configuration itself."""
    return _configures().search(text) is not None


@cache
def command_calls() -> dict[str, CommandCall]:
    """Return the functions that start some library's trainer from a Python file, by name."""
    return {call.name: call for each in marks().values() for call in each.command_calls}
