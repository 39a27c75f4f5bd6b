"""math-verify in a process of its own, which can be killed.

sympy can be made to compute for ever (`9^{9^{9}}`) inside one machine instruction of Python, where
no signal handler runs, and math-verify's own limits are signals, which threads cannot have. So one
child process for each process that asks compares answers, under a limit of CPU time that the
kernel enforces for each pair (so a busy machine changes no score), and of memory. A pair that
kills it is not equal; the next pair gets a new child.

    python judge.py     one JSON line [gold, given, CPU seconds] in, `1` or `0` a line out
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from functools import lru_cache
from importlib.util import find_spec

MAX_CPU_SECONDS = 4.0
"""For one pair."""
MAX_WALL_SECONDS = 120.0
"""For one pair, whatever it is doing: a machine this slow is a machine that hangs."""
MAX_BYTES = 4 << 30
"""Address space of the child."""
_READY = "ready"
_LOCK = threading.RLock()
_CHILD: "subprocess.Popen[str] | None" = None


def ready() -> None:
    """Raises ModuleNotFoundError where math-verify is missing; else starts the child."""
    if find_spec("math_verify") is None:
        raise ModuleNotFoundError(
            f"the rewards of mathematics need math-verify, and {sys.executable} has none: "
            "pip install 'math-verify[antlr4_9_3]==0.9.0' there"
        )
    with _LOCK:
        _child()


@lru_cache(maxsize=100_000)
def same(gold: str, given: str) -> bool:
    """Whether math-verify finds two LaTeX answers equal. Safe in threads and after a fork."""
    with _LOCK:
        for _ in range(2):
            child = _child()
            answer = _ask(child, json.dumps([gold, given, MAX_CPU_SECONDS]))
            if answer in ("0", "1"):
                return answer == "1"
            if _stop(child) == -signal.SIGPROF:
                break  # its time was up; for any other death the pair gets a second child
        return False


def _child() -> "subprocess.Popen[str]":
    global _CHILD
    if _CHILD is None or _CHILD.poll() is not None:
        path = os.pathsep.join(filter(None, sys.path))
        _CHILD = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            env={**os.environ, "PYTHONPATH": path},
        )
        if _ask(_CHILD, None) != _READY:
            code = _CHILD.wait()
            _CHILD = None
            raise RuntimeError(
                f"math-verify does not start in {sys.executable} (exit code {code}); see: "
                f"{sys.executable} {__file__} < /dev/null"
            )
    return _CHILD


def _ask(child: "subprocess.Popen[str]", line: "str | None") -> str:
    """One line there, one back; empty if the child died or did not answer in time."""
    assert child.stdin is not None  # noqa: S101  (for mypy: callers see to it)
    assert child.stdout is not None  # noqa: S101  (for mypy: callers see to it)
    watch = threading.Timer(MAX_WALL_SECONDS, child.kill)
    watch.daemon = True
    watch.start()
    try:
        if line is not None:
            child.stdin.write(line + "\n")
            child.stdin.flush()
        return child.stdout.readline().rstrip("\n")
    except (BrokenPipeError, ValueError):
        return ""
    finally:
        watch.cancel()


def _stop(child: "subprocess.Popen[str]") -> int:
    """Ends a child that did not answer; its exit code."""
    global _CHILD
    try:
        child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    _CHILD = None
    return int(child.returncode)


def _forget() -> None:
    """In a forked process: the child belongs to the parent, and its pipes with it."""
    global _CHILD, _LOCK
    if _CHILD is not None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in (_CHILD.stdin, _CHILD.stdout):
            if pipe is not None:
                os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
        _CHILD.returncode = 0
    _CHILD, _LOCK = None, threading.RLock()


os.register_at_fork(after_in_child=_forget)


def _imaginary(answer: object) -> object:
    """An answer whose only letter is i: that is the imaginary unit. math-verify sees it only in
    the form a + bi."""
    import sympy  # type: ignore[import-untyped]

    letters: set[object] = getattr(answer, "free_symbols", set())
    if not isinstance(answer, sympy.Expr) or {str(letter) for letter in letters} != {"i"}:
        return answer
    return answer.doit().subs(dict.fromkeys(letters, sympy.I))


def _differ(gold: object, given: object) -> bool:
    """Whether two expressions of the same letters differ, by far, at one point. Much sooner known
    than that they are equal."""
    import sympy

    if not (isinstance(gold, sympy.Expr) and isinstance(given, sympy.Expr)):
        return False
    letters = sorted({*gold.free_symbols, *given.free_symbols}, key=str)
    if gold.free_symbols != given.free_symbols:
        return False
    point = {letter: sympy.Rational(29 + 12 * n, 17) for n, letter in enumerate(letters)}
    try:
        there, here = (complex(x.doit().subs(point).evalf(15)) for x in (gold, given))
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return False
    return abs(there - here) > 1e-3 * max(1.0, abs(there))  # false where either is not a number


def _serve() -> None:
    import logging
    import resource

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (as sys.path has it: a string)
    sys.path[:] = [path for path in sys.path if path != here]
    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]

    @lru_cache(maxsize=4096)
    def parsed(text: str) -> list[object]:
        found: list[object] = parse(
            f"\\boxed{{{text}}}", config, fallback_mode="no_fallback", parsing_timeout=None
        )
        return [_imaginary(answer) for answer in found]

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    print(_READY, flush=True)  # noqa: T201  (stdout is the child's answer)
    for line in sys.stdin:
        gold, given, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            one, other = parsed(gold), parsed(given)
            far = len(one) == len(other) == 1 and "%" not in line and _differ(one[0], other[0])
            equal = not far and verify(one, other, timeout_seconds=None)
        except (Exception, RecursionError, MemoryError):
            equal = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(int(bool(equal)), flush=True)  # noqa: T201  (stdout is the child's answer)


if __name__ == "__main__":
    _serve()
