"""What the task files of MMLU refer to: their items and how a response is scored."""

from typing import Any

from orchestrator.evaluate import items, task_data
from orchestrator.evaluate.task_data import keep as keep
from orchestrator.scoring import choice

HUB = "cais/mmlu"
SPLITS = ("test", "validation", "dev")
LETTERS = "ABCD"
INSTRUCTION = (
    "Think step by step, then give the letter of the right choice within \\boxed{}, "
    "for example \\boxed{A}."
)


def dataset(task: str, subject: str, **_: object) -> dict[str, task_data.Items]:
    """Every question of the subject; `answer` is the place of the right choice, 0 to 3."""
    rows = task_data.rows(task, HUB, SPLITS, ("question", "choices", "answer"), subject)
    return {
        "test": task_data.Items(
            {"prompt": _prompt(row["question"], row["choices"]), "target": LETTERS[row["answer"]]}
            for row in rows
        )
    }


def _prompt(question: str, choices: list[str]) -> str:
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=True)]
    return "\n".join([question.strip(), *lines, "", INSTRUCTION])


def score(item: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Scores the k responses to one item."""
    (responses,) = results
    answers = [choice.extract(response, LETTERS) for response in responses]
    correct = [int(answer == item["target"]) for answer in answers]
    return {**items.metrics(answers, correct), "correct": correct, "answers": answers}
