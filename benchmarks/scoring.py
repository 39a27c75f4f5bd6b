"""Scoring 16,000 samples of MATH: 500 problems, 32 responses each, about 1.5 kB of reasoning.

The answers are of the kinds MATH500 has; of the 32 responses to a problem half have the right
answer (as written, or in another notation) and half one of six others: about 3,500 different pairs
of answers are compared, by a second process where algebra is needed.
    python benchmarks/scoring.py
"""

import importlib.util
import os
import random
import resource
import time
from pathlib import Path
from typing import Any

from orchestrator.evaluate import task_files

BAR_SECONDS = 30.0
"""Wall-clock time on two cores."""
PROBLEMS, REPEATS = 500, 32

KINDS = (
    ("{a}", "{a}.0"),
    ("\\frac{{{a}}}{{{b}}}", "{a}/{b}"),
    ("{a}\\sqrt{{{b}}}", "\\sqrt{{{b}}}\\cdot {a}"),
    ("({a}, {b})", "\\left({a},\\,{b}\\right)"),
    ("x^2+{a}x-{b}", "x^2 - {b} + {a}x"),
    ("[{a}, \\infty)", "x \\ge {a}"),
    ("{a}\\pi", "\\pi \\cdot {a}"),
    ("{a}^\\circ", "{a}"),
)


def main() -> None:
    score = scorer()
    generator = random.Random(0)  # noqa: S311
    work = [problem(generator, number) for number in range(PROBLEMS)]
    score({"target": "1"}, [["\\boxed{x+1}"]])  # starts what compares
    started = time.perf_counter()
    before = cpu_seconds()
    told = [score({"target": target}, [responses]) for target, responses in work]
    wall, cpu = time.perf_counter() - started, cpu_seconds() - before
    child = judge_seconds()
    mean = sum(one["mean@k"] for one in told) / PROBLEMS
    distinct = sum(one["distinct@k"] for one in told) / PROBLEMS
    print(
        f"{PROBLEMS * REPEATS} samples: {wall:.1f} s of wall, {cpu:.1f} CPU s, {child:.1f} in its "
        f"judge   bar {BAR_SECONDS} s   (mean@32 {mean:.3f}, {distinct:.1f} distinct answers)"
    )


def scorer() -> Any:
    """`score` of the task files of MATH."""
    path = task_files.find_task("math500", (task_files.OWN_TASKS,)).parent / "math_task.py"
    spec = importlib.util.spec_from_file_location("math_task", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.score


def problem(generator: random.Random, number: int) -> tuple[str, list[str]]:
    plain, other = KINDS[number % len(KINDS)]

    def answer(form: str) -> str:
        return form.format(a=generator.randint(2, 99), b=generator.choice((3, 5, 7, 11, 13)))

    state = generator.getstate()
    target = answer(plain)
    generator.setstate(state)
    same = answer(other)
    wrong = [answer(form) for form in (plain, other) for _ in range(3)]
    prose = "We expand, collect the terms and see that $x = 3$ holds as well. " * 22
    responses = [
        f"{prose}Therefore the final answer is $\\boxed{{{text}}}$."
        for text in (*[target] * 8, *[same] * 8, *(wrong[i % 6] for i in range(16)))
    ]
    generator.shuffle(responses)
    return target, responses


def judge_seconds() -> float:
    """CPU seconds of the processes that this one started, so far."""
    here = os.getpid()
    children = Path(f"/proc/{here}/task/{here}/children").read_text().split()
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


if __name__ == "__main__":
    main()
