"""Two answers compared by algebra, in a child of `judge`: never by two floats.

math-verify's parser (latex2sympy2_extended) reads the LaTeX, with capitals as letters of their own
and without dropping units. Then (agreement at digits or points is strong evidence, and no proof):

- numbers are equal if they are the same rational number, or agree to `PROOF_DIGITS` digits: twice
  as many as `magnitude` allows in any number on the way;
- expressions of letters are equal if they agree to 50 digits at `POINTS` points of both signs. A
  letter below a root or within a logarithm on both sides is positive;
- relations of one letter, intervals and unions are sets of real numbers;
- math-verify decides the rest: equations, matrices, and numbers with a decimal point.
"""

from collections.abc import Iterator
from functools import lru_cache

import sympy  # type: ignore[import-untyped]  # it has no types
from latex2sympy2_extended.latex2sympy2 import (  # type: ignore[import-untyped]  # likewise
    ConversionConfig,
    NormalizationConfig,
    latex2sympy,
)
from math_verify import verify
from sympy.core.relational import Relational  # type: ignore[import-untyped]  # likewise

PROOF_DIGITS = 5200
POINTS = 6
OR, AND, EITHER = r"\lor ", r"\land ", ";"
"""Between the relations of a set, as `notation` writes them. `EITHER` is a comma: one of them is
true, or both where one of the two always is."""
_SMALLEST = sympy.Float("1e-2500")
"""Smaller than any number that `magnitude` lets pass."""
_FREE_INTEGERS = frozenset("jklmn")
_CONSTANTS = frozenset({"C", "c", "K", "k"})

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_NORMALIZATION = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")


def equal(gold: str, given: str) -> bool:
    """Return whether two answers in LaTeX are equal. Raise what the parser raises."""
    one, other = _parsed(gold), _parsed(given)
    if _is_solution_set(one) or _is_solution_set(other):
        return _same_solutions(one, other)
    if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
        return _same_expression(one, other)
    if isinstance(one, sympy.Eq) and isinstance(other, sympy.Eq):
        return _same_equation(one, other)
    return _verified(one, other)


def _verified(gold: object, given: object) -> bool:
    """Return what math-verify says of answers with the same letters."""
    letters: list[object] = [getattr(x, "free_symbols", None) for x in (gold, given)]
    return letters[0] == letters[1] and bool(verify([gold], [given], timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> object:
    for joint in (OR, AND, EITHER):
        if joint in text:
            sets = [_solutions(_parsed(piece)) for piece in text.split(joint)]
            union = sympy.Union(*sets)
            is_any = joint == OR or (joint == EITHER and union != sympy.Reals)
            return union if is_any else sympy.Intersection(*sets)
    return latex2sympy(text, normalization_config=_NORMALIZATION, conversion_config=_CONVERSION)


# Numbers and expressions


def _same_expression(gold: sympy.Expr, given: sympy.Expr) -> bool:
    one, other = (_with_real_roots(_with_imaginary_unit(x.doit())) for x in (gold, given))
    if one.has(sympy.Float) or other.has(sympy.Float):
        return _verified(one, other)
    other = _renamed(one, other)
    if other is None:
        return False
    if one == other:
        return True
    return _same_function(one, other) if one.free_symbols else _same_number(one, other)


def _same_equation(gold: sympy.Eq, given: sympy.Eq) -> bool:
    """Return whether the difference of the sides is the same function but for a factor."""
    one, other = (x.lhs - x.rhs for x in (gold, given))
    if one.has(sympy.Float) or other.has(sympy.Float):
        return _verified(gold, given)
    other = _renamed(one, other)
    if other is None:
        return False
    ratios = []
    for point in _points(sorted(one.free_symbols, key=str), _rooted(one) & _rooted(other)):
        values = [x.subs(point).evalf(60) for x in (one, other)]
        if all(map(_is_finite, values)) and values[1] != 0:
            ratios.append(values[0] / values[1])
    if len(ratios) < POINTS // 2:
        return _verified(gold, given)
    return all(abs(each - ratios[0]) <= 1e-45 * abs(ratios[0]) for each in ratios)


def _with_imaginary_unit(answer: sympy.Expr) -> sympy.Expr:
    """Return an answer whose only letter is i with the imaginary unit in its place."""
    letters = answer.free_symbols
    return answer.subs(dict.fromkeys(letters, sympy.I)) if _names(letters) == {"i"} else answer


def _with_real_roots(answer: sympy.Expr) -> sympy.Expr:
    """Return an answer in which an odd root of a negative number is real, as in school: the cube
    root of -8 is -2."""

    def is_odd_root(x: sympy.Basic) -> bool:
        return bool(
            x.is_Pow
            and x.exp.is_Rational
            and x.exp.q > 1
            and x.exp.q % 2
            and x.base.is_number
            and x.base.is_negative
        )

    return answer.replace(is_odd_root, lambda x: (-1) ** x.exp.p * (-x.base) ** x.exp)


def _same_number(gold: sympy.Expr, given: sympy.Expr) -> bool:
    if gold.is_Rational and given.is_Rational:
        return bool(gold == given)
    for digits in (15, 60, PROOF_DIGITS):
        one, other = (x.evalf(digits, maxn=2 * digits + 100) for x in (gold, given))
        if not (_is_finite(one) and _is_finite(other)):
            return False
        size = max(abs(one), abs(other))
        if digits < PROOF_DIGITS and size < 1e-30:
            continue  # so few digits do not tell it from zero
        if abs(one - other) > sympy.Float(10) ** (10 - digits) * max(size, _SMALLEST):
            return False
    return True


def _is_finite(value: sympy.Expr) -> bool:
    """Return whether an evaluated expression is a real or complex number."""
    return all(part.is_Float or part.is_Rational for part in value.as_real_imag())


def _same_function(gold: sympy.Expr, given: sympy.Expr) -> bool:
    letters = sorted(gold.free_symbols, key=str)
    positive = _rooted(gold) & _rooted(given)
    agreed = 0
    for point in _points(letters, positive):
        one, other = (x.subs(point).evalf(60) for x in (gold, given))
        if not (_is_finite(one) and _is_finite(other)):
            continue  # a pole, or a function without a value
        if abs(one - other) > 1e-50 * max(abs(one), abs(other), 1e-100):
            return False
        agreed += 1
    return agreed >= POINTS // 2 or (not agreed and _verified(gold, given))


def _points(letters: "list[sympy.Symbol]", positive: "set[str]") -> Iterator[dict[object, object]]:
    for number in range(POINTS):
        yield {
            letter: sympy.Rational(29 + 12 * place + 22 * number, 17)
            * (-1 if (number >> (place % 3)) & 1 and str(letter) not in positive else 1)
            for place, letter in enumerate(letters)
        }


def _rooted(answer: sympy.Expr) -> "set[str]":
    """Return the letters below a root, or within a logarithm."""
    powers = {x for x in answer.atoms(sympy.Pow) if x.exp.is_Rational and not x.exp.is_Integer}
    within = [x.base for x in powers] + list(answer.atoms(sympy.log))
    return {name for x in within for name in _names(x.free_symbols)}


def _renamed(gold: sympy.Expr, given: sympy.Expr) -> "sympy.Expr | None":
    """Return the given answer with the gold's letters: a free integer or a constant of integration
    may have another name. Return None where the letters differ otherwise.

    `\\frac{\\pi}{4} + n\\pi` is `\\frac{\\pi}{4} + k\\pi`, and `45 + 180n` is `45 + 180k`: a free
    integer counts periods. `2n + 1` may speak of a given n.
    """
    missing, extra = gold.free_symbols - given.free_symbols, given.free_symbols - gold.free_symbols
    if not missing and not extra:
        return given
    if len(missing) != 1 or len(extra) != 1:
        return None
    (old,), (new,) = missing, extra
    slope = sympy.diff(gold, old)
    counts_periods = (
        {str(old), str(new)} <= _FREE_INTEGERS
        and slope.is_number
        and slope != 0
        and ((slope / sympy.pi).is_Rational or slope % 180 == 0)
    )
    is_constant = str(old) == "C" and str(new) in _CONSTANTS and slope == 1
    return given.subs(new, old) if counts_periods or is_constant else None


def _names(letters: "set[sympy.Symbol]") -> "set[str]":
    return {str(letter) for letter in letters}


# Sets of real numbers


def _is_solution_set(answer: object) -> bool:
    """Return whether an answer is a relation, an interval, a union or several relations."""
    if isinstance(answer, sympy.FiniteSet):
        return any(isinstance(x, Relational) and not isinstance(x, sympy.Eq) for x in answer.args)
    if isinstance(answer, sympy.Eq):
        return isinstance(answer.rhs, sympy.Set)
    return isinstance(answer, Relational | sympy.Set | sympy.And)


def _same_solutions(gold: object, given: object) -> bool:
    letters = [_names(getattr(x, "free_symbols", set())) for x in (gold, given)]
    if all(letters) and letters[0] != letters[1]:
        return False  # x > 2 is not y > 2
    if max(map(len, letters)) > 1:
        return _verified(gold, given)
    one, other = _solutions(gold), _solutions(given)
    return bool(one == other or sympy.SymmetricDifference(one, other).doit() == sympy.EmptySet)


def _solutions(answer: object) -> sympy.Set:
    """Return the real numbers of which an answer is true. Raise ValueError if it is no set."""
    if isinstance(answer, sympy.FiniteSet):
        if any(isinstance(x, Relational) for x in answer.args):
            return sympy.Union(*map(_solutions, answer.args))
        return answer
    if isinstance(answer, sympy.Eq) and isinstance(answer.rhs, sympy.Set):
        return answer.rhs
    if isinstance(answer, sympy.Set):
        return answer
    if isinstance(answer, sympy.And):
        return sympy.Intersection(*map(_solutions, answer.args))
    if isinstance(answer, Relational) and len(answer.free_symbols) == 1:
        (letter,) = answer.free_symbols
        return answer.doit().subs(letter, sympy.Symbol("x", real=True)).as_set()
    raise ValueError(f"no set of real numbers: {answer}")
