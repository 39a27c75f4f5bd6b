"""What the task files of MATH refer to: their items and how a response is scored."""

from collections.abc import Sequence
from typing import Any

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import items, task_data
from orchestrator.evaluate.task_data import keep as keep
from orchestrator.scoring import math_answers

INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
"""As in training: experiments/data/math.yaml."""


def dataset(
    task: str,
    hub: str,
    splits: Sequence[str],
    problem: str | Sequence[str],
    answer: Sequence[str],
    **_: object,
) -> dict[str, task_data.Items]:
    """Problem and answer of each row; the answer is a column, or the last box of a solution."""
    wanted = [problem] if isinstance(problem, str) else list(problem)
    rows = task_data.rows(task, hub, splits, ())
    question, gold = _column(task, rows[0], wanted), _column(task, rows[0], answer)
    items = task_data.Items()
    is_solution = gold.casefold() == "solution"  # a text whose last box is the answer
    for number, row in enumerate(rows):
        target = _gold(row[gold], boxed_only=is_solution)
        if target is None:
            raise EnvironmentFault(
                f"task {task}: row {number} has no final answer in its column {gold!r}, so no "
                "response to it could be right; restore the data set"
            )
        items.append({"prompt": f"{row[question]} {INSTRUCTION}", "target": target})
    return {"test": items}


def score(item: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Scores the k responses to one item; equal answers are compared once.

    `boxed@k`: as training counts, an answer without a box is wrong. `unboxed@k`: their share.
    """
    (responses,) = results
    metrics: dict[str, float] = {}
    correct, answers = [], []
    boxed = [math_answers.extract(each, boxed_only=True) is not None for each in responses]
    for response in responses:
        answer = math_answers.extract(response)
        if answer is not None and answer not in metrics:
            metrics[answer] = float(math_answers.equal(item["target"], answer))
        correct.append(0.0 if answer is None else metrics[answer])
        answers.append(math_answers.canonical(response) or None)
    return {
        **items.metrics(answers, correct),
        "boxed@k": sum(c for c, box in zip(correct, boxed, strict=True) if box) / len(boxed),
        "unboxed@k": 1 - sum(boxed) / len(boxed),
        "correct": [int(value) for value in correct],
        "answers": answers,
    }


def _gold(text: object, *, boxed_only: bool) -> str | None:
    if not isinstance(text, str) or not text.strip():
        return None
    if boxed_only or len(text) > math_answers.LONGEST or "\\boxed" in text:
        return math_answers.extract(text, boxed_only=boxed_only)
    return math_answers.extract(text, boxed_only=True) or text.strip()


def _column(task: str, row: dict[str, Any], names: Sequence[str]) -> str:
    """The first of these columns that the data have, whatever its capitals."""
    columns = {name.casefold().replace(" ", "_"): name for name in row}
    for name in names:
        if name in columns:
            return columns[name]
    raise EnvironmentFault(
        f"task {task} needs a column {' or '.join(names)}; the data have {', '.join(row)}"
    )
