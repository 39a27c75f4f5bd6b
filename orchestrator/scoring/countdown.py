"""The score of a Countdown answer, as reasoning-gym 0.1.25 gives it.

1 for an expression that uses every number once and makes the target; 0.05 for another expression
that can be computed; 0.01 for none. The expression is what stands in the last <answer></answer>,
else in the last closed \\boxed{}, else the whole response. It is parsed, never evaluated as Python:
whole numbers, brackets and + - * / only, where reasoning-gym lets sympy evaluate anything. Division
by 0 is as sympy has it: 1/0 is an infinity, which is no number, and 0/0 is nan, which is one.
"""

import ast
import json
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

RIGHT, EXPRESSION, NO_EXPRESSION = 1.0, 0.05, 0.01
LONGEST = 200
"""Characters of an expression; what is longer is none. Bounds nesting and the size of values."""
ABSOLUTE, RELATIVE = Fraction(1, 1_000_000), Fraction(1, 100_000)
"""Of a target: reasoning-gym asks numpy.isclose, with atol 1e-6."""
INFINITY, NAN = None, "nan"
"""sympy's zoo, which has no sign, and its nan."""
Value = Fraction | str | None


def _plus(one: Value, other: Value) -> Value:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one + other
    return NAN if NAN in (one, other) or one is other else INFINITY


def _times(one: Value, other: Value) -> Value:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one * other
    return NAN if NAN in (one, other) or 0 in (one, other) else INFINITY


def _minus(value: Value) -> Value:
    return -value if isinstance(value, Fraction) else value


def _inverse(value: Value) -> Value:
    if isinstance(value, Fraction):
        return 1 / value if value else INFINITY
    return NAN if value == NAN else Fraction(0)


_OPERATORS: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: _plus,
    ast.Sub: lambda one, other: _plus(one, _minus(other)),
    ast.Mult: _times,
    ast.Div: lambda one, other: _times(one, _inverse(other)),
}
_LATEX = (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\\left", ""), ("\\right", ""))
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


def extract(response: str) -> str | None:
    """The text that is taken for the expression; None if there is none short enough."""
    tail = response[-20 * LONGEST :]
    if tagged := _TAGGED.findall(tail):
        return str(tagged[-1]).strip()
    if boxed := re.findall(r"\\boxed\s*\{([^{}]*)\}", tail):
        text = str(boxed[-1])
        for name, sign in _LATEX:
            text = text.replace(name, sign)
        return text.strip()
    return response.strip() if len(response) <= LONGEST else None


def score(response: str, numbers: Sequence[int], target: int) -> float:
    text = extract(response)
    if not text or len(text) > LONGEST:
        return NO_EXPRESSION
    used: list[int] = []
    try:
        value = _value(ast.parse(text, mode="eval").body, used)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return NO_EXPRESSION
    if not isinstance(value, Fraction):
        return EXPRESSION if value == NAN else NO_EXPRESSION
    near = abs(value - target) <= ABSOLUTE + RELATIVE * abs(target)
    right = sorted(used) == sorted(numbers) and near
    return RIGHT if right else EXPRESSION


def _value(node: ast.expr, used: list[int]) -> Value:
    """The value of an arithmetic expression; `used` gets its numbers. ValueError for others."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, used), _value(node.right, used))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _minus(_value(node.operand, used))
    raise ValueError("not arithmetic")


def reward(response: str, label: str) -> float:
    """`label`: JSON with `numbers` and `target`."""
    asked = json.loads(label)
    return score(response, asked["numbers"], asked["target"])
