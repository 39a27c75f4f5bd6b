"""Reward of a MATH answer: 1 if what stands in its last \\boxed{} equals the label, else 0."""

from math_verify import parse, verify


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...}, braces balanced; None without one."""
    opening = "\\boxed{"
    start = text.rfind(opening)
    if start < 0:
        return None
    begin = start + len(opening)
    depth = 1
    for at, letter in enumerate(text[begin:], begin):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return text[begin:at]
    return None


def score(response: str, answer: str) -> float:
    """`answer` without its box. math-verify's timeouts are signals, which threads cannot have."""
    given = last_boxed(response)
    if given is None or not given.strip():
        return 0.0
    wanted, got = (parse(f"\\boxed{{{x}}}", parsing_timeout=None) for x in (answer, given))
    return float(bool(verify(wanted, got, timeout_seconds=None)))
