"""Pairs of answers with known truth: one value written two ways by rule, or two values."""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction

Pair = tuple[str, str, bool]
"""Gold, given, whether they are equal."""


def number(value: Fraction, rng: random.Random) -> str:
    """A rational number in one of the ways in which models write it."""
    ways = [lambda: f"\\frac{{{value.numerator}}}{{{value.denominator}}}"]
    if value.denominator == 1:
        n = value.numerator
        ways = [lambda: str(n), lambda: f"{n - 3}+3", lambda: f"\\frac{{{2 * n}}}{{2}}"]
        if n >= 10_000:
            ways += [lambda: f"{n:,}", lambda: f"{n:,}".replace(",", "{,}")]
        if n > 0:
            things = ("\\text{ eggs}", "\\text{ red balls}", " cookies", "\\text{ ways}")
            ways += [lambda: f"{n}{rng.choice(things)}", lambda: f"x = {n}", lambda: f"${n}$"]
    else:
        ways += [
            lambda: f"\\dfrac{{{value.numerator * 3}}}{{{value.denominator * 3}}}",
            lambda: f"{value.numerator}/{value.denominator}",
        ]
    return rng.choice(ways)()


def interval(low: int, high: int, rng: random.Random) -> str:
    """The numbers outside [low, high]."""
    return rng.choice(
        [
            f"(-\\infty, {low})\\cup({high}, \\infty)",
            f"x < {low} \\text{{ or }} x > {high}",
            f"\\{{x \\mid x < {low} \\text{{ or }} x > {high}\\}}",
            f"x > {high} \\text{{ or }} {low} > x",
            f"2x < {2 * low} \\text{{ or }} x > {high}",
        ]
    )


def roots(a: int, b: int, rng: random.Random) -> str:
    """The roots of x^2 - 2ax + a^2 - b."""
    both = [f"{a}+\\sqrt{{{b}}}", f"{a}-\\sqrt{{{b}}}"]
    rng.shuffle(both)
    return rng.choice(
        [
            f"{a} \\pm \\sqrt{{{b}}}",
            ", ".join(both),
            " \\text{ and } ".join(both),
            f"\\frac{{{2 * a} \\pm 2\\sqrt{{{b}}}}}{{2}}",
            f"\\{{{', '.join(both)}\\}}",
            " \\text{ or } ".join(f"x = {each}" for each in both),
        ]
    )


def polynomial(a: int, b: int, rng: random.Random) -> str:
    """(x + a)(x + b)."""
    return rng.choice(
        [
            f"(x+{a})(x+{b})",
            f"x^2+{a + b}x+{a * b}",
            f"{a * b}+x({a + b}+x)",
            f"x^2 + {a}x + {b}x + {a * b}",
        ]
    )


def radical(n: int, m: int, rng: random.Random) -> str:
    """n^m times the root of n, for a letter and for a number."""
    return rng.choice(
        [f"\\sqrt{{{n ** (2 * m + 1)}}}", f"{n**m}\\sqrt{{{n}}}", f"{n}^{{{m}.5}}"][:2]
    )


def small(n: int, m: int, rng: random.Random) -> str:
    """One minus n to the power of -m."""
    return rng.choice(
        [
            f"1-{n}^{{-{m}}}",
            f"1-\\frac{{1}}{{{n}^{{{m}}}}}",
            f"\\frac{{{n}^{{{m}}}-1}}{{{n}^{{{m}}}}}",
        ]
    )


def tuple_of(a: int, b: int, rng: random.Random) -> str:
    """A point."""
    return rng.choice(
        [
            f"({a},{b})",
            f"({a}, {b})",
            f"\\left({a},{b}\\right)",
            f"\\langle {a}, {b} \\rangle",
            f"x={a}, y={b}",
        ]
    )


def letters_of(a: int, b: int, rng: random.Random) -> str:
    """A difference of two letters, times two numbers."""
    return rng.choice(
        [f"{a}m - {b}n", f"-{b}n + {a}m", f"-({b}n - {a}m)", f"\\frac{{{2 * a}m-{2 * b}n}}{{2}}"]
    )


def quantity(hours: int, _: int, rng: random.Random) -> str:
    """A time."""
    return rng.choice(
        [
            f"{hours} \\text{{ hours}}",
            f"{hours}\\,\\text{{h}}",
            f"{60 * hours} minutes",
            f"{hours}\\text{{ hr}}",
        ]
    )


WRITERS: "tuple[tuple[Callable[[int, int, random.Random], str], int, int], ...]" = (
    (lambda a, b, rng: number(Fraction(a), rng), 2, 99_999),
    (lambda a, b, rng: number(Fraction(a, b) if a % b else Fraction(2 * a + 1, 2), rng), 2, 60),
    (lambda a, b, rng: interval(a, a + b, rng), 2, 90),
    (lambda a, b, rng: roots(a, 4 * b + 2, rng), 2, 20),
    (polynomial, 2, 30),
    (lambda a, b, rng: radical(4 * a + 2, b % 3 + 1, rng), 1, 12),
    (lambda a, b, rng: small(a, 10 + b, rng), 2, 60),
    (tuple_of, 1, 300),
    (letters_of, 2, 30),
    (quantity, 1, 40),
)
"""Writer of a value given by two numbers, the smallest and the largest of these."""


def pairs(count: int, seed: int) -> Iterator[Pair]:
    """Yield pairs, half of which are equal. The other half are of neighbouring values."""
    rng = random.Random(seed)  # noqa: S311  (no secret)
    for index in range(count):
        writer, low, high = WRITERS[index % len(WRITERS)]
        a, b = rng.randint(low, high), rng.randint(low, high)
        gold = writer(a, b, rng)
        if rng.random() < 0.5:
            yield gold, writer(a, b, rng), True
        else:
            given = writer(a + 1, b, rng)
            yield gold, given, False


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
