"""Reward of a MATH answer: 1 if what stands in its last \\boxed{} equals the label, else 0.

Loaded by OpenRLHF's samplers, one response a call. It runs in a thread, where math-verify's
timeouts (signals) cannot; and what it raises is swallowed, so that training dies much later.
"""

from collections.abc import Sequence

from math_verify import parse, verify


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...}, braces balanced; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return None


def is_right(response: str, label: str) -> bool:
    answer = last_boxed(response)
    if not answer or not answer.strip():
        return False
    gold, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (label, answer))
    return bool(verify(gold, given, timeout_seconds=None))


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> dict[str, object]:
    """`queries`: prompt and response as one text. Each argument has one element."""
    response = queries[0].removeprefix(prompts[0])
    score = float(is_right(response, labels[0]))
    return {"rewards": score, "scores": score, "extra_logs": {}}
