"""Hostile answers: a documented 0 within a limit, and the next answer is judged as ever."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from orchestrator.scoring import judge, math_answers, reward_function
from tests.cluster.waiting import wait_for

EQUAL = (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}")
"""A pair that only algebra finds equal."""
HARMLESS = r"\boxed{\frac{1}{\sqrt{2}}}"
FOR_EVER = ["9^{9^{9^{9}}}", r"10^{10^{10}} \bmod 7", r"\prod_{n=1}^{10^9} (x+n)", "100000000!"]


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same limits, sooner."""
    monkeypatch.setattr(judge, "MAX_CPU_SECONDS", 1.0)


@pytest.mark.parametrize("answer", FOR_EVER)
def test_what_computes_for_ever_is_wrong_and_is_not_begun(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cost 5 CPU seconds: a batch of 1,280 such answers held training up for 1.8 hours."""
    monkeypatch.setattr(judge, "same", lambda *_: pytest.fail("algebra was asked"))
    cpu = time.process_time()
    assert math_answers.score(f"\\boxed{{{answer}}}", r"\sqrt{2}") == 0.0
    assert time.process_time() - cpu < 0.05
    assert math_answers.score(f"\\boxed{{{answer}}}", answer) == 1.0, (
        "the same text needs no algebra"
    )


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", r"10^{10^{10}}"])
def test_a_child_that_computes_for_ever_is_killed_and_replaced(answer: str) -> None:
    judge.same.cache_clear()
    assert not judge.same(answer, r"\sqrt{2}")
    assert judge.same(*EQUAL)


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


def test_a_batch_of_degenerate_answers_is_cheap() -> None:
    """Their text alone shows that most of them are too large to be asked about."""
    reward = reward_function("math_boxed")
    before = judge.same.cache_info().misses
    answers = [f"\\boxed{{{answer}}}" for answer in degenerate(320)]
    assert {reward(answer, r"\sqrt{2}x+1") for answer in answers} == {0.0}
    assert judge.same.cache_info().misses - before < 320 / 4


@pytest.mark.parametrize(
    "answer",
    [
        "1" * 100_000,
        "{" * 50_000 + "5" + "}" * 50_000,
        "(" * 45 + "1" + ")" * 45,
        "\\frac{1}{" * 300 + "1" + "}" * 300,
        "\\boxed{" * 14_000,
        "+".join(["x"] * 50_000),
        "\\text{" * 300 + "}" * 300,
        "5" + " " * 99_000,
        ",".join("12345678" * 100),
        "\x00\x01\x1e",
        "\ud800",
        "\\" * 999,
        "$" * 999,
        "1/0",
        "0.\\overline{0}",
        "9e999",
        "1,000," * 150,
        "\\pm" * 300,
        "[" * 40 + "1,2" + "]" * 40,
    ],
)
def test_a_monstrous_answer_is_wrong_and_soon(answer: str) -> None:
    start = time.process_time()
    response = f"\\boxed{{{answer}}}"
    assert math_answers.score(response, r"\sqrt{7}") == 0.0
    assert len(math_answers.canonical(response)) <= 20 * math_answers.LONGEST
    assert time.process_time() - start < 5


def test_a_long_response_is_read() -> None:
    filler = r"We see that \boxed{x and {y} so on. " * 3000
    start = time.process_time()
    assert math_answers.score(filler + r"\boxed{5}", "5") == 1.0
    assert math_answers.score("5 " * 60_000, "5") == 0.0
    assert time.process_time() - start < 5


def test_threads() -> None:
    """Where signals cannot be had; math-verify itself would raise there."""
    pairs = [(rf"\sqrt{{{n * n * 2}}}", rf"{n}\sqrt{{2}}") for n in range(2, 22)]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda pair: judge.same(*pair), pairs))
        assert not any(pool.map(lambda pair: judge.same(pair[0], pair[1] + "+1"), pairs))


def _in_a_fork() -> int:
    return int(math_answers.score(HARMLESS, EQUAL[0]))


def test_forked_workers() -> None:
    judge.ready()
    with get_context("fork").Pool(2) as pool:
        answers = [pool.apply_async(_in_a_fork) for _ in range(4)]
        assert [answer.get(timeout=120) for answer in answers] == [1] * 4
    assert judge.same(r"\sqrt{50}", r"5\sqrt{2}"), "the parent's child still answers"


def processes() -> tuple[int, int]:
    """The server of this process, and its child."""
    judge.same("2x", "x+x")
    server = judge._JUDGE.server
    assert server is not None
    (child,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return server.pid, int(child)


@pytest.mark.parametrize("which", ["child", "server"])
def test_a_process_that_was_killed_costs_no_answer(which: str) -> None:
    server, child = processes()
    os.kill(child if which == "child" else server, 9)
    assert judge.same(rf"\sqrt{{{2 * 49 * len(which)}}}", rf"7\sqrt{{{2 * len(which)}}}")


def test_children_end_with_their_parent() -> None:
    program = "from tests.scoring.test_judge import processes; print(*processes())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30, f"{pids} live")


def test_missing_math_verify_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'math-verify.*") as told:
        judge.ready()
    assert sys.executable in str(told.value)
