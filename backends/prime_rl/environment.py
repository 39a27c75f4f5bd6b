"""A verifiers environment for the data sets of orch: one question, one answer, one reward.

This file is copied beside each plan and imported in Prime-RL's own environment (verifiers 0.1.12),
which finds it by the environment's id and calls `load_environment` with its `args`.
"""

import ast
import json
import operator
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def load_environment(
    path: str, split: str, reward: str, instruction: str = "", num_prompts: int | None = None
) -> Any:
    """The environment of a data set: a Hub id, or a .jsonl or .parquet file.

    A relative file is looked for in $ORCH_DATA_DIR, or the working directory. Questions are in the
    column `question`, `problem` or `prompt`; answers in `answer`, `solution` or `metadata`. Raises
    ValueError if the columns are missing or the size is not the one declared.
    """
    vf, datasets = import_module("verifiers"), import_module("datasets")
    suffix = path.rpartition(".")[2]
    kind = {"jsonl": "json", "parquet": "parquet"}.get(suffix)
    file = str(Path(os.environ.get("ORCH_DATA_DIR", "")) / path)
    loaded = (
        datasets.load_dataset(kind, data_files=file, split="train")
        if kind
        else datasets.load_dataset(path, split=split)
    )
    if num_prompts is not None and len(loaded) != num_prompts:
        raise ValueError(f"{path} has {len(loaded)} prompts in split {split}, not {num_prompts}")
    question = _column(loaded.column_names, ("question", "problem", "prompt"), path)
    answer = _column(loaded.column_names, ("answer", "solution", "metadata"), path)
    rows = loaded.map(
        lambda row: {
            "question": f"{row[question]} {instruction}".rstrip(),
            "answer": row[answer] if isinstance(row[answer], str) else json.dumps(row[answer]),
        },
        remove_columns=loaded.column_names,
    )
    score = REWARDS[reward]

    def reward_of(completion: Any, answer: str) -> float:
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        return score(text, answer)

    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[reward_of]))


def _column(names: list[str], wanted: tuple[str, ...], path: str) -> str:
    for name in wanted:
        if name in names:
            return name
    raise ValueError(f"{path} has no column {' or '.join(wanted)}; it has {', '.join(names)}")


def boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...} of a text, braces balanced; None if there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1 : at]
    return None


def math_boxed(text: str, answer: str) -> float:
    """1 if the box of the response equals the answer (or the answer's own box), else 0."""
    given, expected = boxed(text), boxed(answer) or answer
    if given is None:
        return 0.0
    if given.strip() == expected.strip():
        return 1.0
    verify = import_module("math_verify")
    gold, guess = (verify.parse(f"\\boxed{{{x}}}") for x in (expected, given))
    return float(verify.verify(gold, guess))


def countdown(text: str, answer: str) -> float:
    """reasoning-gym's score: 1 if every number is used once and the target is met, 0.05 for
    another number, else 0.01. `answer`: JSON with `numbers` and `target`."""
    problem = json.loads(answer)
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    expression = (tagged[-1] if tagged else text).strip()
    try:
        tree = ast.parse(expression, mode="eval").body
        value, used = _evaluate(tree)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
        return 0.01
    met = abs(value - problem["target"]) < 1e-6 and sorted(used) == sorted(problem["numbers"])
    return 1.0 if met else 0.05


def _evaluate(node: ast.expr) -> tuple[float, list[float]]:
    """The value of an expression of numbers and + - * /, and the numbers it uses."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value, [node.value]  # type: ignore[return-value, list-item]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, used = _evaluate(node.left)
        right, more = _evaluate(node.right)
        return OPERATORS[type(node.op)](left, right), used + more
    raise ValueError(f"{ast.dump(node)} is no arithmetic")


def exact(text: str, answer: str) -> float:
    """1 if the response is the answer, white space around them aside."""
    return float(text.strip() == answer.strip())


REWARDS: dict[str, Callable[[str, str], float]] = {
    "math_boxed": math_boxed, "countdown": countdown, "exact": exact,
}  # fmt: skip
