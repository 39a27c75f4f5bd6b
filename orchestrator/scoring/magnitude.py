"""How large an answer is, read from its text: asked before any algebra is done on it.

A policy that collapses writes digits and carets. sympy would compute `9^{9^{9}}` or expand
`(x+1)^{1000}` for ever; the text alone says that no answer of a textbook is so large. The reading
is a bound and no value: it knows numbers, powers, factorials, binomials, roots and how many terms a
product of sums has. What it cannot bound (sums and products over a range, integrals, limits,
remainders) counts as too large.
"""

import math
import re
from functools import lru_cache
from typing import NamedTuple

MAX_TOKENS = 240
MAX_DEPTH = 16
"""Brackets within brackets."""
MAX_DIGITS = 2500.0
"""Decimal digits of any number on the way."""
MAX_TERMS = 600.0
"""Terms of an expanded product or power of sums."""
MAX_ROOTS = 8
"""Roots; they multiply when an expression is simplified."""
MAX_FUNCTIONS = 5
"""Sines, logarithms and their kin; they are costly when one stands in another."""
MAX_COMMANDS = 12
"""Other commands: Greek letters, symbols."""
MAX_LETTERS = 10
"""Different letters."""

_TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[lcr|]*\})?|\\[A-Za-z]+|\\.|\d+(?:\.\d*)?|\.\d+|\S",
    re.DOTALL,
)
_OPEN = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
_CLOSE = frozenset(_OPEN.values())
_BETWEEN = frozenset({"+", "-", ",", ";", "=", "<", ">", "&", "\\\\", "|", ":", "\\pm", "\\mp"}) | {
    f"\\{name}" for name in ("le", "ge", "ne", "neq", "in", "cup", "cap", "to", "mid", "approx")
}
_TIMES = frozenset({"*", "/", "\\cdot", "\\times", "\\div", "'", ".", "\\", "!"})
_DIGITS = {"i": 0.0, "e": 0.5, "\\pi": 0.5}
"""Decimal digits of a constant; any other letter counts as one."""
_UNBOUNDED = frozenset(
    (
        *("\\sum", "\\prod", "\\coprod", "\\int", "\\iint", "\\iiint", "\\oint", "\\lim"),
        *("\\limsup", "\\liminf", "\\bmod", "\\pmod", "\\mod", "\\bigcup", "\\bigcap"),
        *("\\bigoplus", "\\gcd", "\\lcm", "\\zeta", "\\Gamma", "\\uparrow"),
    )
)
_FUNCTIONS = frozenset(
    f"\\{arc}{name}{h}"
    for name in ("sin", "cos", "tan", "cot", "sec", "csc")
    for arc in ("", "arc")
    for h in ("", "h")
) | {"\\log", "\\ln", "\\lg", "\\exp"}
_NESTED = re.compile(r"(?:\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|lg|exp)h?[({\s]*){3}")
"""A function of a function of a function."""
_ROOTS = frozenset({"\\sqrt"})
_PAIRS = frozenset({"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"})
_BINOMIALS = frozenset({"\\binom", "\\dbinom", "\\tbinom", "\\choose"})


class UnboundedError(ValueError):
    """Raised where a bound is passed."""


class _Bound(NamedTuple):
    """`digits`: log10 of a bound of the value. `terms`: of the sum that it expands to."""

    digits: float = 0.0
    terms: float = 1.0
    symbolic: bool = False


@lru_cache(maxsize=20_000)
def is_small(text: str) -> bool:
    """Return True if algebra on this LaTeX stays small, whatever it is set against."""
    tokens = _TOKEN.findall(text)
    if len(tokens) > MAX_TOKENS:
        return False
    names = [t for t in tokens if t[0] == "\\" and t[1:].isalpha() and t not in _PAIRS | _ROOTS]
    functions = sum(t in _FUNCTIONS for t in names)
    commands = sum(t not in _BETWEEN and t not in _TIMES for t in names) - functions
    letters = {t for t in tokens if len(t) == 1 and t.isalpha()}
    if (
        functions > MAX_FUNCTIONS
        or _NESTED.search(text)
        or commands > MAX_COMMANDS
        or len(letters) > MAX_LETTERS
        or sum(t in _ROOTS for t in tokens) > MAX_ROOTS
    ):
        return False
    try:
        _Reader(tokens).sum_of("", 0)
    except (UnboundedError, OverflowError):
        return False
    return True


def _checked(bound: _Bound) -> _Bound:
    if bound.digits > MAX_DIGITS or bound.terms > MAX_TERMS:
        raise UnboundedError
    return bound


class _Reader:
    """Reads tokens once, from left to right; never fails on what is no mathematics."""

    def __init__(self, tokens: "list[str]"):
        self.tokens, self.at = tokens, 0

    def sum_of(self, closing: str, depth: int) -> _Bound:
        """Return the bound of everything up to a closing bracket, which is passed."""
        if depth > MAX_DEPTH:
            raise UnboundedError
        digits, terms, symbolic = 0.0, 0.0, False
        product, begun = _Bound(), False
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == closing or (closing and token in _CLOSE):
                self.at += 1
                break
            if token in _BETWEEN:
                self.at += 1
                digits, terms = max(digits, product.digits), terms + product.terms * begun
                symbolic, product, begun = symbolic or product.symbolic, _Bound(), False
                continue
            factor = self.power(depth)
            product, begun = _times(product, factor), True
        bound = _Bound(
            max(digits, product.digits) + math.log10(max(1.0, terms + begun)),
            max(1.0, terms + product.terms * begun),
            symbolic or product.symbolic,
        )
        return _checked(bound)

    def power(self, depth: int) -> _Bound:
        """Return the bound of one factor with what follows it: powers, factorials, subscripts."""
        base = self.atom(depth)
        while self.at < len(self.tokens) and self.tokens[self.at] in ("!", "^", "_"):
            token = self.tokens[self.at]
            self.at += 1
            if token == "!":  # noqa: S105  (a factorial)
                base = _checked(_Bound(_factorial(base.digits), 1.0, base.symbolic))
            elif token == "^":  # noqa: S105  (a power)
                base = _checked(_raised(base, self.power(depth)))  # towers bind to the right
            else:
                self.atom(depth)
        return base

    def atom(self, depth: int) -> _Bound:
        """Return the bound of a number, a letter, a bracket or a command with its arguments."""
        if self.at >= len(self.tokens):
            return _Bound()
        token = self.tokens[self.at]
        self.at += 1
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            digits = len(token) + 1 if len(token) > 300 else math.log10(max(float(token), 1.0))
            return _checked(_Bound(max(digits, len(token.partition(".")[2]))))
        if token in _OPEN:
            return self.sum_of(_OPEN[token], depth + 1)
        if token in _UNBOUNDED:
            raise UnboundedError
        if token in _PAIRS:
            top, bottom = self.atom(depth + 1), self.atom(depth + 1)
            return _times(top, bottom)
        if token in _BINOMIALS:
            top, bottom = self.atom(depth + 1), self.atom(depth + 1)
            digits = 0.302 * 10.0 ** min(top.digits, 12.0)
            return _checked(_Bound(digits, 1.0, top.symbolic or bottom.symbolic))
        if token in _ROOTS:
            if self.at < len(self.tokens) and self.tokens[self.at] == "[":
                self.atom(depth + 1)
            return self.atom(depth + 1)
        if token == "\\exp":  # noqa: S105  (a power of e)
            return _checked(_raised(_Bound(0.5), self.atom(depth + 1)))
        digits = 0.0 if token in _TIMES else _DIGITS.get(token, 1.0)
        return _Bound(digits, 1.0, token.isalpha())


def _times(one: _Bound, other: _Bound) -> _Bound:
    symbolic = one.symbolic or other.symbolic
    terms = one.terms * other.terms if symbolic else 1.0
    return _checked(_Bound(one.digits + other.digits, terms, symbolic))


def _raised(base: _Bound, exponent: _Bound) -> _Bound:
    """Return the bound of a power. A sum of t terms to the n has C(n + t - 1, t - 1) of them."""
    n = 10.0 ** min(exponent.digits, 12.0)
    symbolic = base.symbolic or exponent.symbolic
    terms = 1.0
    if base.symbolic and base.terms > 1 and n > 1:
        t = min(base.terms, 40.0)
        log_terms = math.lgamma(n + t) - math.lgamma(t) - math.lgamma(n + 1)
        terms = math.exp(min(log_terms, 50.0))
    return _Bound(max(base.digits, 0.31) * n if n > 1 else base.digits, terms, symbolic)


def _factorial(digits: float) -> float:
    """Return log10 of n! for n = 10**digits, from above."""
    return math.exp(min(digits, 12.0) * math.log(10.0)) * max(digits, 0.5)
