"""Reward of a Countdown answer, as reasoning-gym 0.1.25 scores it: 1 for an expression in
<answer></answer> that uses every number once and makes the target; 0.05 for another expression;
0.01 for none. `answer` is JSON: {"numbers": [...], "target": n}.
"""

import ast
import json
import operator
import re
from collections.abc import Callable

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
LONGEST = 200
"""Characters of an expression: deeper nesting than fits could exhaust the stack."""
NO_EXPRESSION, EXPRESSION, RIGHT = 0.01, 0.05, 1.0


def value(node: ast.expr) -> float:
    """The value of an arithmetic expression. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    raise ValueError("not arithmetic")


def score(response: str, answer: str) -> float:
    asked = json.loads(answer)
    given = re.findall(r"<answer>(.*?)</answer>", response, re.DOTALL)
    text = given[-1].strip() if given else ""
    if not text or len(text) > LONGEST:
        return NO_EXPRESSION
    try:
        made = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return NO_EXPRESSION
    used = sorted(int(number) for number in re.findall(r"\d+", text))
    right = used == sorted(asked["numbers"]) and abs(made - asked["target"]) <= 1e-6
    return RIGHT if right else EXPRESSION
