"""Small made-up data in the true columns of each data set, and what names and holds a score."""

import json
import os
from pathlib import Path
from typing import Any

from orchestrator.evaluate.scores import ItemRequest, Result, ScoreKey
from orchestrator.records import EvalTask, Sampling, Score
from orchestrator.rundir import CellDir

MICRO = Path(__file__).parents[2] / "backends" / "micro"
MMLU = ("physics", "chemistry", "biology")


def score_key(**changes: Any) -> ScoreKey:
    """What names a result, with some fields changed."""
    plain = {
        "checkpoint": "elder",
        "step": 100,
        "task": EvalTask(name="micro_sort", domain="in", repeats=4),
        "task_version": "v1",
        "sampling": Sampling(),
        "seed": 0,
        "chat_template": False,
        "harness": "lm-eval 0.4.13",
    }
    return ScoreKey.model_validate(plain | changes)


def save(
    cell_dir: CellDir, asked: ScoreKey, value: float = 0.5, *, time_ns: int = 1, items: str = "same"
) -> Path:
    """Write a result of a cell, of this time."""
    score = Score(
        cell_id=cell_dir.id,
        step=asked.step,
        task=asked.task.name,
        domain=asked.task.domain,
        metric="mean@4",
        value=value,
        num_items=16,
        repeats=4,
        eval_seed=asked.seed,
        sampling=asked.sampling,
        task_version=asked.task_version,
    )
    result = Result(
        asked=asked, files={}, scores=(score,), cpu_seconds=0.1, versions={}, items=items
    )
    path = cell_dir.evaluations / f"{asked.stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.model_dump_json())
    os.utime(path, ns=(time_ns, time_ns))
    return path


def request(folder: Path, task_file: Path | None = None, **changes: Any) -> ItemRequest:
    """What is asked of a policy: a micro task, or that of a file, with its results in a folder."""
    asked = score_key(**changes)
    file = task_file or MICRO / "tasks" / f"{asked.task.name}.yaml"
    results = str(folder / f"{asked.stem}.json")
    return ItemRequest(asked=asked, task_file=str(file), results=results)


def answers_of(ask: ItemRequest) -> tuple[Result, list[dict[str, Any]]]:
    """What was answered: the result, and its items."""
    path = Path(ask.results)
    lines = path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    return Result.model_validate_json(path.read_text()), [json.loads(line) for line in lines]


def stand_ins(root: Path) -> Path:
    """A folder for ORCH_EVAL_DATA: three tasks of MATH, three of MMLU in three splits each."""
    problems = [
        (f"What is {a} over {b}?", f"\\frac{{{a}}}{{{b}}}") for a in (1, 3, 5) for b in (4, 8)
    ]
    write_parquet(
        root / "math500.parquet",
        [
            {
                "problem": p,
                "solution": f"It is $\\boxed{{{a}}}$.",
                "answer": a,
                "subject": "Algebra",
                "level": 1 + i,
                "unique_id": f"test/algebra/{i}.json",
            }
            for i, (p, a) in enumerate(problems)
        ],
    )
    write_lines(
        root / "math_test.jsonl",
        [
            {
                "problem": p,
                "level": "Level 1",
                "type": "Algebra",
                "solution": f"First \\boxed{{0}} is wrong. So it is $\\boxed{{{a}}}$.",
            }
            for p, a in problems
        ],
    )
    lines = ["Question,Solution,Skills"]
    lines += [
        f'"{p}","Thus the answer is $\\boxed{{{a}}}$.","fractions, ratios"' for p, a in problems
    ]
    (root / "math2.csv").write_text("\n".join(lines) + "\n")
    for subject in MMLU:
        for split, count in (("dev", 1), ("test", 3), ("validation", 2)):
            write_parquet(
                root / f"mmlu_college_{subject}" / f"{split}-00000-of-00001.parquet",
                [
                    {
                        "question": f"{subject} {split} {i}?",
                        "subject": f"college_{subject}",
                        "choices": ["one", "two", "three", "four"],
                        "answer": i % 4,
                    }
                    for i in range(count)
                ],
            )
    return root


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
