"""Reward of a Countdown answer, as reasoning-gym 0.1.25 scores it: 1 for an expression in
<answer></answer> that uses every number once and makes the target; 0.05 for another expression;
0.01 for none.

Loaded by OpenRLHF's samplers, one response a call. `label` is JSON with `numbers` and `target`.
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Sequence

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
LONGEST = 200
"""Characters of an expression; nesting deeper than this text allows could exhaust the stack."""


def value(node: ast.expr) -> float:
    """The value of an arithmetic expression. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    raise ValueError("not arithmetic")


def close(made: float, target: float) -> bool:
    """numpy.isclose with atol 1e-6, as reasoning-gym has it."""
    return abs(made - target) <= 1e-6 + 1e-5 * abs(target)


def score(response: str, label: str) -> float:
    asked = json.loads(label)
    answers = re.findall(r"<answer>(.*?)</answer>", response, re.DOTALL)
    text = answers[-1].strip() if answers else ""
    if not text or len(text) > LONGEST:
        return 0.01
    try:
        made = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return 0.01
    used = [int(number) for number in re.findall(r"\d+", text)]
    right = sorted(used) == sorted(asked["numbers"]) and close(made, asked["target"])
    return 1.0 if right else 0.05


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> dict[str, object]:
    """`queries`: prompt and response as one text. Each argument has one element."""
    response = queries[0].removeprefix(prompts[0])
    reward = score(response, labels[0])
    return {"rewards": reward, "scores": reward, "extra_logs": {}}
