"""A verifiers environment for the prepared prompts of orch: one question, one answer, one reward.

This file is copied beside each plan and imported in Prime-RL's own environment (verifiers 0.1.12),
which finds it by the environment's id and calls `load_environment` with its `args`. Beside it lie
the scorer, `orch_scoring/`, and a link to the prompts, `data/`.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PLAN = Path(__file__).resolve().parent
PROMPTS = "data/{}.jsonl"


def load_environment(
    path: str,
    split: str,
    reward: str,
    instruction: str = "",  # noqa: ARG001 - prepared questions end with it
    num_prompts: int | None = None,
    part: str = "train",
) -> Any:
    """Return the environment of prepared prompts, with rows of `question` and `answer`.

    `path`, `split` and `instruction` say what they were prepared from; `part` is `train` or
    `validation`, of which `num_prompts` counts the first. Raise FileNotFoundError if
    they were not prepared, ValueError if their number is not the one declared.
    """
    vf, datasets = import_module("verifiers"), import_module("datasets")
    file = PLAN / PROMPTS.format(part)
    if not file.exists():
        raise FileNotFoundError(
            f"{file}: the prompts of {path} (split {split}) are not prepared: orch data prepare"
        )
    rows = datasets.load_dataset("json", data_files=str(file), split="train")
    if part == "train" and num_prompts is not None and len(rows) != num_prompts:
        raise ValueError(f"{file} has {len(rows)} prompts of {path}, not {num_prompts}")
    if str(PLAN) not in sys.path:
        sys.path.append(str(PLAN))
    score = import_module("orch_scoring").reward_function(reward)

    def reward_of(completion: Any, answer: str) -> float:
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        return float(score(text, answer))

    # Prime-RL takes an evaluation's rows from `eval_dataset` (0.5.0) or from `dataset` (0.8.0).
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[reward_of]))
