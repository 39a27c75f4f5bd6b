"""Evaluate the shell's integer arithmetic without a shell."""

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\s*(?:(\d+)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!]))")
_LEVELS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    # The bound keeps a shift from making a number of any length.
    {"<<": lambda a, b: a << min(b, 63), ">>": lambda a, b: a >> min(b, 63)},
    {"+": operator.add, "-": operator.sub},
    # The shell cuts a quotient towards 0, where Python's // cuts it down.
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
)
LONGEST = 400
"""Maximum number of characters of an expression."""


def evaluate(text: str) -> int | None:
    """Return the value of an arithmetic expression of numbers, or None for any other text."""
    if len(text) > LONGEST:
        return None
    tokens: list[str] = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            return None
        tokens.append(match[1] or match[2])
        at = match.end()
    try:
        value = _level(tokens, 0)
    except (IndexError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return value if not tokens and abs(value) < 2**63 else None


def _level(tokens: list[str], depth: int) -> int:
    if depth == len(_LEVELS):
        return _unit(tokens)
    value = _level(tokens, depth + 1)
    while tokens and tokens[0] in _LEVELS[depth]:
        value = _LEVELS[depth][tokens.pop(0)](value, _level(tokens, depth + 1))
    return value


def _unit(tokens: list[str]) -> int:
    first = tokens.pop(0)
    if first in "+-!":
        value = _unit(tokens)
        return {"+": value, "-": -value, "!": int(not value)}[first]
    if first == "(":
        value = _level(tokens, 0)
        if tokens.pop(0) != ")":
            raise ValueError
        return value
    base = int(first)
    if tokens and tokens[0] == "**":
        tokens.pop(0)
        power = _unit(tokens)
        return int(base**power) if 0 <= power < 64 else 0
    return base
