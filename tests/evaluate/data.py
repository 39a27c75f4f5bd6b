"""Small made-up data in the true columns of each data set, and responses as models write them."""

import json
from pathlib import Path
from typing import Any

MMLU = ("physics", "chemistry", "biology")


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
    counts = dict.fromkeys(("math500", "math_test", "math2"), len(problems))
    counts |= dict.fromkeys((f"mmlu_college_{subject}" for subject in MMLU), 6)
    (root / "stand_in.json").write_text(json.dumps(counts))
    return root


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
