"""The scorer of mathematics: right and wrong, beside two others; degenerate answers; a whole test.

python benchmarks/scoring.py --pairs        scoring_pairs.yaml, judged by orch, math-verify and
                                            lm-evaluation-harness's hendrycks_math
python benchmarks/scoring.py --degenerate   1,280 answers of a policy that collapsed; the bar is
                                            30 s in all, and 50 ms of CPU an answer
python benchmarks/scoring.py [PROCESSES]    500 problems x 32 responses; the bar is 30 s, two cores

The pairs were written beside orch's scorer, so orch knows them: read its count as what is left to
mend, and the others' as what such pairs cost a scorer that has not seen them. The last mode takes
answers from tests/scoring/pairs.yaml: right, wrong, and one in ten a new expression, so far more
algebra than MATH asks for.
"""

import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import yaml

from orchestrator.scoring import batch_reward_function, judge, math_answers

PROBLEMS, REPEATS = 500, 32
STEPS = "We compute $x$ as follows, and so on. " * 60
DEGENERATE = 1280
Judge = Callable[[str, str], bool]


def samples() -> list[tuple[str, str]]:
    """Return (response, answer), the responses of a problem together."""
    pairs = yaml.safe_load(
        (Path(__file__).parents[1] / "tests" / "scoring" / "pairs.yaml").read_text("utf-8")
    )
    known = [(row[0], row[1]) for name, rows in pairs.items() if name != "misses" for row in rows]
    draw = random.Random(0)  # noqa: S311  (the same draws each time)
    responses = []
    for _ in range(PROBLEMS):
        answer, other = draw.choice(known)
        for _ in range(REPEATS):
            u = draw.random()
            given = answer if u < 0.4 else other if u < 0.6 else draw.choice(known)[1]
            given += f"+{draw.randrange(50)}" if u > 0.9 else ""
            responses.append((f"{STEPS}\\boxed{{{given}}}.", answer))
    return responses


def scored(part: list[tuple[str, str]]) -> tuple[float, float]:
    """Return the sum of the scores, and CPU seconds of this process and its judges."""
    start = time.process_time()
    total = sum(math_answers.score(response, answer) for response, answer in part)
    return total, time.process_time() - start + judge.cpu_seconds()


def adversarial() -> list[tuple[str, str, str, bool]]:
    """Return (reason, gold, given, whether they are equal) of every adversarial pair."""
    reasons = yaml.safe_load(Path(__file__).with_name("scoring_pairs.yaml").read_text("utf-8"))
    return [
        (reason, gold, given, equal == 1)
        for reason, rows in reasons.items()
        for gold, given, equal in rows
    ]


def judges() -> dict[str, Judge]:
    """Return name -> judge of (gold, given)."""
    import math_verify
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    def by_math_verify(gold: str, given: str) -> bool:
        left, right = math_verify.parse(f"${gold}$"), math_verify.parse(f"$\\boxed{{{given}}}$")
        return bool(math_verify.verify(left, right))

    return {
        "orch": lambda gold, given: math_answers.score(f"\\boxed{{{given}}}", gold) == 1,
        "math-verify": by_math_verify,
        "hendrycks_math": lambda gold, given: bool(is_equiv(gold, given)),
    }


def print_pairs() -> None:
    """Print how many pairs each judge has wrong, by reason, and which ones orch has."""
    logging.disable(logging.CRITICAL)
    pairs, wrong = adversarial(), dict[tuple[str, str], list[tuple[str, str, bool]]]()
    names = judges()
    for reason, gold, given, equal in pairs:
        for name, same in names.items():
            if same(gold, given) != equal:
                wrong.setdefault((name, reason), []).append((gold, given, equal))
    reasons = list(dict.fromkeys(reason for reason, *_ in pairs))
    width = max(map(len, reasons))
    print(f"{'wrong of':{width}}  pairs  " + "  ".join(names))
    for reason in [*reasons, ""]:
        of_reason = [pair for pair in pairs if reason in ("", pair[0])]
        counts = [
            sum(
                len(rows) for (by, why), rows in wrong.items() if by == name and reason in ("", why)
            )
            for name in names
        ]
        shown = "  ".join(f"{n:{len(name)}d}" for n, name in zip(counts, names, strict=True))
        print(f"{reason or 'all':{width}}  {len(of_reason):5d}  {shown}")
    for name in names:
        rows = [row for (by, _), rows in wrong.items() if by == name for row in rows]
        accepted = sum(not equal for *_, equal in rows)
        print(f"{name}: {accepted} accepted that are wrong, {len(rows) - accepted} right refused")
    for gold, given, equal in (
        row for (by, _), rows in wrong.items() if by == "orch" for row in rows
    ):
        print(f"orch says {'different' if equal else 'equal'}: {gold}  {given}")


def degenerate(count: int) -> Iterator[str]:
    """Yield answers of a policy that has collapsed: towers, factorials, digits and carets."""
    draw = random.Random(1)  # noqa: S311  (the same draws each time)
    shapes: list[Callable[[int], str]] = [
        lambda n: f"(x+{n})^{{{1000 + n}}}",
        lambda n: f"\\binom{{10^9+{n}}}{{5\\cdot10^8}}",
        lambda n: f"{n}^{{9^{{9^{{9}}}}}}",
        lambda n: f"{10**6 + n}!",
        lambda n: f"10^{{10^{{10}}}} + {n} \\bmod 7",
        lambda n: f"\\prod_{{n=1}}^{{10^9}} (x+{n})",
        lambda n: "+".join(f"\\sqrt{{{n + k}}}" for k in range(40)),
        lambda n: f"{n}" + "^9" * 40,
        lambda n: f"{n}" + "9" * 900,
        lambda n: f"\\sqrt{{{n}+" * 30 + "x" + "}" * 30,
        lambda n: "".join(draw.choice("0123456789^^{}()+-!") for _ in range(60 + n % 200)),
        lambda n: "".join(draw.choice("xy0123456789^{}()") for _ in range(20 + n % 30)),
        lambda n: f"(a+b+c+d)^{{{20 + n}}}(a-b)^{{{n}}}",
        lambda n: "\\sin(" * (n % 12) + f"{n}x" + ")" * (n % 12),
        lambda n: "\\frac{1}{" * 14 + f"x+{n}" + "}" * 14,
        lambda n: f"\\int_0^{{{n}}} e^{{x^x}} dx",
    ]
    for number in range(count):
        yield shapes[number % len(shapes)](number + 2)


def print_degenerate() -> None:
    """Print what degenerate answers cost: in a batch, and the dearest of them."""
    rewards = batch_reward_function("math_boxed")
    responses = [f"So it is \\boxed{{{answer}}}" for answer in degenerate(DEGENERATE)]
    start = time.perf_counter()
    given = rewards(responses, ["\\sqrt{2}x+1"] * len(responses))
    wall, cpu = time.perf_counter() - start, time.process_time() + judge.cpu_seconds()
    print(
        f"{len(responses)} degenerate answers: {wall:.1f} s, {cpu:.1f} CPU s, reward {sum(given)}"
    )
    costs = []
    for response in responses[::7]:
        response = response.replace("it is", "it was")
        before = time.process_time() + judge.cpu_seconds()
        math_answers.score(response, "\\sqrt{3}x+1")
        costs.append((time.process_time() + judge.cpu_seconds() - before, response))
    costs.sort()
    print(f"one of them: median {costs[len(costs) // 2][0] * 1e3:.1f} ms, dearest of {len(costs)}")
    for seconds, response in costs[-5:]:
        print(f"  {seconds * 1e3:8.1f} ms  {response[10:90]}")


def print_throughput(processes: int) -> None:
    """Print what a whole test costs."""
    responses = samples()
    size = -(-len(responses) // processes)
    parts = [responses[at : at + size] for at in range(0, len(responses), size)]
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        done = list(pool.map(scored, parts))
    wall = time.perf_counter() - start
    total, cpu = (sum(column) for column in zip(*done, strict=True))
    print(f"{len(responses)} responses, {processes} processes: {wall:.1f} s, {cpu:.1f} CPU s")
    print(f"mean score {total / len(responses):.3f}")


def main() -> None:
    """Print what the mode named on the command line measures."""
    asked = sys.argv[1:] or ["2"]
    if "--pairs" in asked:
        print_pairs()
    elif "--degenerate" in asked:
        print_degenerate()
    else:
        print_throughput(int(asked[0]))


if __name__ == "__main__":
    main()
