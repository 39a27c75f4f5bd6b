"""The prompts that a launch needs, written in its plan as prompts.json. Pure."""

import json
from collections.abc import Mapping

from orchestrator import scoring
from orchestrator.identity import digest
from orchestrator.settings import Data, Frozen

PLAN_FILE = "prompts.json"
VERSION = 1
"""Raise it if the same recipe gives other prompts. Keys then change, so no old folder is reused."""
FORMATS: Mapping[str, tuple[str, ...]] = {
    "chat": ("train.parquet", "validation.parquet"),
    "labelled": ("train.jsonl", "validation.jsonl"),
    "questions": ("train.jsonl", "validation.jsonl"),
}
"""Format -> its files.

chat: data_source, prompt (chat messages), ability, reward_model and reward_spec (ground_truth),
extra_info (split, index); labelled: prompt, label; questions: question, answer. Prompts end with
the data's instruction; answers are text, of Countdown JSON with numbers and target.
"""


class PromptRecipe(Frozen):
    """The content of prompts.json: the prepared prompts that a plan reads in its folder `data/`."""

    prepared: str
    """Name of the folder of prepared prompts: the data's name and a hash of the whole recipe."""
    format: str
    data: Data


def key(data: Data) -> str:
    """Return the name of a folder of prepared prompts.

    It is the same for every cell that trains on the same prompts, in any library.
    """
    shaping = {
        "path": data.path,
        "split": data.split,
        "num_prompts": data.num_prompts,
        "instruction": data.instruction,
        "reward": "own" if scoring.is_own(data.reward) else data.reward,
        "version": VERSION,
    }
    return f"{data.name}-{digest(shaping)[:10]}"


def plan_file(data: Data, prompts_format: str) -> dict[str, str]:
    """Return the file that a backend adds to its plans: name -> text."""
    recipe = {"prepared": key(data), "format": prompts_format, "data": data.model_dump()}
    return {PLAN_FILE: json.dumps(recipe, indent=1, ensure_ascii=False) + "\n"}


def of_plan(files: Mapping[str, str]) -> PromptRecipe | None:
    """Return the recipe in a plan's files, or None for a backend with prompts of its own."""
    return PromptRecipe.model_validate_json(files[PLAN_FILE]) if PLAN_FILE in files else None
