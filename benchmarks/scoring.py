"""Scoring 500 problems × 32 responses: the bar is 30 s on two cores.

python benchmarks/scoring.py [PROCESSES]    answers from tests/scoring/pairs.yaml: right, wrong, and
one in ten a new expression, so far more algebra than MATH asks for
"""

import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import yaml

from orchestrator.scoring import judge, math_answers

PROBLEMS, REPEATS = 500, 32
STEPS = "We compute $x$ as follows, and so on. " * 60


def samples() -> list[tuple[str, str]]:
    """(response, answer), the responses of a problem together."""
    pairs = yaml.safe_load(
        (Path(__file__).parents[1] / "tests" / "scoring" / "pairs.yaml").read_text("utf-8")
    )
    known = [(row[0], row[1]) for name, rows in pairs.items() if name != "misses" for row in rows]
    draw = random.Random(0)  # noqa: S311  (the same draws each time)
    made = []
    for _ in range(PROBLEMS):
        answer, other = draw.choice(known)
        for _ in range(REPEATS):
            u = draw.random()
            given = answer if u < 0.4 else other if u < 0.6 else draw.choice(known)[1]
            given += f"+{draw.randrange(50)}" if u > 0.9 else ""
            made.append((f"{STEPS}\\boxed{{{given}}}.", answer))
    return made


def scored(part: list[tuple[str, str]]) -> tuple[float, float]:
    """Sum of the scores; CPU seconds of this process and its judge."""
    start = time.process_time()
    total = sum(math_answers.score(response, answer) for response, answer in part)
    child = Path(f"/proc/{judge._child().pid}/stat").read_text().split()  # noqa: SLF001  (its process is what is measured)
    return total, time.process_time() - start + (int(child[13]) + int(child[14])) / 100


def main() -> None:
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    made = samples()
    size = -(-len(made) // processes)
    parts = [made[at : at + size] for at in range(0, len(made), size)]
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        done = list(pool.map(scored, parts))
    wall = time.perf_counter() - start
    total, cpu = (sum(column) for column in zip(*done, strict=True))
    print(f"{len(made)} responses, {processes} processes: {wall:.1f} s, {cpu:.1f} CPU s")
    print(f"mean score {total / len(made):.3f}")


if __name__ == "__main__":
    main()
