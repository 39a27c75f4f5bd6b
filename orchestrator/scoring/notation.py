"""Answers as models write them, brought to one notation, and read as far as needs no algebra."""

import re
from fractions import Fraction
from typing import NamedTuple

MAX_PARTS = 40
"""Elements of a list, a tuple or a matrix; what has more is compared as text."""
MAX_DEPTH = 6
"""Of brackets within brackets that are taken apart."""

_ROW = "\x01"
"""Stands for the two backslashes that end a row of a matrix."""
_DEGREES = r"(?:\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])|°)"
_ANGLE = r"(\d{1,9}(?:\.\d{1,9})?|\\[dt]?frac\s*\{\d{1,9}\}\s*\{\d{1,9}\})"
_OF_ANGLE = r"\\?(?<![A-Za-z])(sin|cos|tan|cot|sec|csc)(\s*\^\s*\{?-?\d\}?)?\s*"
_REPLACED = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        # the sine of an angle in degrees, before degrees are dropped as a unit
        (
            rf"{_OF_ANGLE}\\left\s*\(\s*{_ANGLE}\s*{_DEGREES}\s*\\right\s*\)",
            r"\\\1\2(\\frac{\3\\pi}{180})",
        ),
        (rf"{_OF_ANGLE}\(\s*{_ANGLE}\s*{_DEGREES}\s*\)", r"\\\1\2(\\frac{\3\\pi}{180})"),
        (rf"{_OF_ANGLE}\{{\s*{_ANGLE}\s*{_DEGREES}\s*\}}", r"\\\1\2(\\frac{\3\\pi}{180})"),
        (rf"{_OF_ANGLE}{_ANGLE}\s*{_DEGREES}", r"\\\1\2(\\frac{\3\\pi}{180})"),
        (r"\\log\s*_\s*\{?\s*e\s*\}?", r"\\ln "),
        (r"\\\\(?:\[[^\[\]]*\])?", _ROW),
        (r"\\[($]|\\[)\[\]]|\$", ""),
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|[bB]ig+[lrm]?|displaystyle|textstyle|limits|hfill)(?![A-Za-z])", ""),
        (r"\{,\}|,\\!|\\!,\\!|\\!,", "THOUSAND"),
        (r"(?<=\d)THOUSAND(?=\d{3})", ""),
        (r"THOUSAND", ","),
        (r"\\[,;:! >]|\\q?quad(?![A-Za-z])|~|\\(?=\s)|\s+", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\d)(?!\d)", r"\\frac\1{\2}"),
        (r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}"),
        (r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![A-Za-z])|°|(?<=\d)\s*\bdegrees?\b", ""),
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|≤|<=", r"\\le "),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])|≥|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\l(?:brace|Brace)(?![A-Za-z])", r"\\{"),
        (r"\\r(?:brace|Brace)(?![A-Za-z])", r"\\}"),
        (r"\\(?:infin|infty)(?![A-Za-z])|∞", r"\\infty "),
        (r"\\ast(?![A-Za-z])", "*"),
        (r"\\cdotp(?![A-Za-z])", r"\\cdot "),
        (r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\mathbb{\1}"),
        (r"\\(?:triangle|angle)(?![A-Za-z])|^\s*\\approx", ""),
        (r"(?i)(?:\\text\s*\{)?\s*all real numbers\s*\}?", r"\\mathbb{R}"),
        (r"\\%", "%"),
        (r"\\(?:varnothing|emptyset)(?![A-Za-z])|∅|\\\{\s*\\\}", r"\\emptyset "),
        (r"[−–]", "-"),
        ("×", r"\\times "),
        ("·", r"\\cdot "),
        ("÷", r"\\div "),
        ("π", r"\\pi "),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\w+)", r"\\sqrt{\1}"),
        ("±", r"\\pm "),
        ("∪", r"\\cup "),
        ("∈", r"\\in "),
        ("²", "^2"),
        ("³", "^3"),
        ("½", r"\\frac{1}{2}"),
        ("⅓", r"\\frac{1}{3}"),
        ("¼", r"\\frac{1}{4}"),
        ("¾", r"\\frac{3}{4}"),
    )
)
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm"
    r"|operatorname|emph|underline|boxed|fbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_UNIT_WORDS = (
    "mm|cm|km|m|in|inch|inches|ft|foot|feet|yd|yards?|mi|miles?|mph|km/h|m/s|kg|g|mg|grams?|"
    "kilograms?|pounds?|lbs?|oz|ounces?|liters?|litres?|ml|gallons?|cups?|hours?|hrs?|h|minutes?|"
    "mins?|seconds?|secs?|s|days?|weeks?|months?|years?|dollars?|cents?|usd|units?|"
    "meters?|metres?|centimeters?|centimetres?|millimeters?|kilometers?|kilometres?|"
    "radians?|rad|percent|points?|people|students?|ways?|times|"
    "coins?|marbles?|balls?|apples?|books?|numbers?|integers?|solutions?|triangles?"
)
_UNIT = re.compile(
    r"(?<=[\d})\]iI])\s*(?:\b|(?<=\d))(?:(?:sq(?:uare|\.)?|cu(?:bic|\.)?)\s*)?"
    rf"(?:{_UNIT_WORDS})\b(?:\s*(?:per|/)\s*(?:{_UNIT_WORDS})\b)?\.?"
    r"(?:\s*\^\s*\{?[-\d]+\}?)?(?:\s*(?:squared|cubed|old|long|wide|tall|high|deep|each))?$",
    re.IGNORECASE,
)
_INTEGER = r"\d{1,60}"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d{{0,60}})?|\.\d{{1,60}})"
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\overline\{(\d{1,20})\}")
_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905  (as above)
_COUNTED = {
    **{word: n for n, word in enumerate(_ONES)},
    **{word: 10 * n for n, word in enumerate(_TENS, start=2)},
    **{
        f"{tens}{mark}{ones}": 10 * n + m
        for n, tens in enumerate(_TENS, start=2)
        for m, ones in enumerate(_ONES[1:10], start=1)
        for mark in ("-", " ")
    },
}
"""Whole numbers below a hundred in words."""
_SAID = {"dne": "doesnotexist", "nosolution": "nosolutions", "none": "none"}
"""Words without white space -> the same in other words."""
_PRODUCT = re.compile(r"(?!.*(.).*\1)[abckmnpqrstuvwxyz]{2,3}")
"""Letters that may be a product of variables: `xy`. Other words of letters are names: `ASA`."""
_PLAIN_NUMBER = re.compile(rf"{_DECIMAL}")
_POWER = re.compile(
    rf"({_DECIMAL})(?:(?:\\times|\\cdot|\*|x)10\^\{{?([+-]?\d{{1,3}})\}}?|[eE]([+-]?\d{{1,3}}))"
)
_FRACTION = re.compile(
    rf"(-?{_DECIMAL})/(-?{_DECIMAL})|\\frac\{{(-?{_DECIMAL})\}}\{{(-?{_DECIMAL})\}}"
)
_MIXED = re.compile(
    rf"({_INTEGER})\s*\\frac\{{({_INTEGER})\}}\{{({_INTEGER})\}}|({_INTEGER})\s+({_INTEGER})/({_INTEGER})"
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_PAIR = re.compile(r"[(\[]\s*[+-]?\d{1,3},\d{3}\s*[)\]]")
_NAME = re.compile(r"(?:[A-Za-z](?:_\{?\w+\}?)?|[A-Za-z]\([A-Za-z]\)|[A-Za-z' ]{2,40}|\\[a-z]+)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z\s'.,/-]*")
_RELATION = re.compile(r"(.*?)(\\le|\\ge|<|>)(.*)")
_MATRIX = re.compile(
    r"\\begin\{([pbvBV]?matrix|array|smallmatrix)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}"
)
_CLOSES = {"(": ")", "[": "]", "{": "}"}


class Value(NamedTuple):
    """An answer as far as it could be read. `text` is its notation without white space."""

    kind: str
    """number, words, sequence, set, union, matrix, base, or other: left to algebra."""
    text: str
    number: Fraction | None = None
    rounded: bool = False
    """The number was written with a decimal point."""
    percent: bool = False
    parts: "tuple[Value, ...]" = ()
    mark: str = ""
    """Brackets of a sequence, shape of a matrix, base of a number, left side of an equation."""
    letter: str = ""
    """The one variable of a relation or an equation: `x` of `x > 2`."""


def plain(text: str) -> str:
    """One way of writing: no dollar signs, sizes, styles, degrees, thin spaces, or \\text."""
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    for _ in range(MAX_DEPTH):
        text, count = _TEXT.subn(r" \1 ", text)
        if not count:
            break
    return re.sub(r"\s+", " ", text).strip().rstrip(".;,").strip()


def read(text: str, depth: int = 0) -> Value:
    """Return the parts of an answer that is already `plain`."""
    text = text.strip()
    if not _PAIR.fullmatch(text):  # the comma of a pair of numbers separates them
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _without_unit(text)
    bare = re.sub(r"\s", "", text)
    number = _number(text)
    if number is not None:
        return number
    if re.fullmatch(r"[0-9A-Fa-f]{1,60}_\{?\d{1,2}\}?", bare):
        digits, _, base = bare.replace("{", "").replace("}", "").partition("_")
        return Value("base", bare, mark=base, parts=(read(digits, depth + 1),))
    if depth < MAX_DEPTH:
        value = _equation(text, depth) or _relation(bare, depth) or _compound(text, depth)
        if value is not None and len(value.parts) <= MAX_PARTS:
            return value
    if _is_name(text):
        words = re.sub(r"[\s.]", "", text).casefold()
        return Value("words", _SAID.get(words, words))
    return Value("other", bare.replace(_ROW, "\\\\"))


def _is_name(text: str) -> bool:
    """Return True for words, and for letters that are no product of variables."""
    if re.fullmatch(r"[A-Za-z]{2,}", text):
        return not _PRODUCT.fullmatch(text)
    return bool(_WORDS.fullmatch(text) and (" " in text or re.search(r"[A-Za-z]{4}", text)))


def _without_unit(text: str) -> str:
    """`5 cm^2` is 5; `2x m` keeps its m, which may be a variable."""
    unit = _UNIT.search(text)
    glued = unit is not None and re.fullmatch("[A-Za-z]", unit[0]) is not None
    if unit and not glued and re.search(r"\d|\\pi|\\sqrt", text[: unit.start()]):
        return text[: unit.start()].strip()
    return text


def _number(text: str) -> Value | None:
    percent = text.endswith("%")
    body = text.removesuffix("%").strip()
    negative = body.startswith("-")
    body = body.lstrip("+-").strip() if body[:2] not in ("--", "-+", "+-", "++") else body
    bare = re.sub(r"\s", "", body)
    rounded = "." in bare
    try:
        value = _magnitude(body, bare)
    except ZeroDivisionError:
        return None
    if value is None:
        return None
    value = -value if negative else value
    return Value("number", str(value), value, rounded, percent)


def _magnitude(body: str, bare: str) -> Fraction | None:
    if _PLAIN_NUMBER.fullmatch(body):
        return Fraction(bare.rstrip(".") or "0")
    if match := _REPEATING.fullmatch(bare):
        return _repeating(*match.groups(default=""))
    if body.lower() in _COUNTED:
        return Fraction(_COUNTED[body.lower()])
    if match := _POWER.fullmatch(bare):
        return Fraction(match[1].rstrip(".")) * Fraction(10) ** int(match[2] or match[3])
    if match := _MIXED.fullmatch(body):
        whole, top, bottom = (int(x) for x in match.groups() if x is not None)
        return whole + Fraction(top, bottom)
    if match := _FRACTION.fullmatch(bare):
        top_text, bottom_text = (x for x in match.groups() if x is not None)
        return Fraction(top_text.rstrip(".")) / Fraction(bottom_text.rstrip("."))
    return None


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    """0.1(6) is 1/6."""
    repeated = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    return Fraction(f"{whole or 0}.{fixed or 0}") + repeated


def _equation(text: str, depth: int) -> Value | None:
    """`x = 5` and `x \\in [0, 1]` are their right side, with the left side as mark."""
    left, sign, right = text.partition("=")
    if not sign:
        left, sign, right = text.partition("\\in ")
    left = left.strip()
    if sign == "=" and re.fullmatch(r"[A-Za-z]", right.strip()) and not _NAME.fullmatch(left):
        left, right = right.strip(), left  # 5 = x
    if not sign or "=" in right or not right.strip() or not _NAME.fullmatch(left):
        return None
    if len(split(right)) > 1 and not right.strip().startswith(("(", "[", "\\{")):
        return None
    value = read(right, depth + 1)
    if re.fullmatch(r"[A-Za-z]", left):
        value = value._replace(letter=left)
    return value._replace(mark=left) if sign == "=" and value.kind in ("number", "other") else value


def _relation(bare: str, depth: int) -> Value | None:
    """`2 < x \\le 5` is the interval (2, 5] of x; `b > a` is `a < b`."""
    pieces = re.split(r"(\\le|\\ge|<|>)", bare)
    if len(pieces) == 3:
        left, sign, right = pieces
        if re.fullmatch(r"[a-zA-Z]", left) and re.fullmatch(r"[a-zA-Z]", right):
            if sign in (">", "\\ge"):
                left, sign, right = right, {">": "<", "\\ge": "\\le"}[sign], left
            return Value("relation", f"{left}{sign}{right}")
        if not re.fullmatch(r"[a-zA-Z]", left):
            left, sign, right = (
                right,
                {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}[sign],
                left,
            )
        if not re.fullmatch(r"[a-zA-Z]", left) or not right:
            return None
        if sign in ("<", "\\le"):
            interval = _interval("-\\infty", right, "(", ")" if sign == "<" else "]", depth)
        else:
            interval = _interval(right, "\\infty", "(" if sign == ">" else "[", ")", depth)
        return interval._replace(letter=left)
    if len(pieces) != 5 or not re.fullmatch(r"[a-zA-Z]", pieces[2]):
        return None
    low, first, _, second, high = pieces
    if first in (">", "\\ge") and second in (">", "\\ge"):
        low, high = high, low
        first, second = second.replace(">", "<").replace("ge", "le"), first.replace(">", "<")
        second = second.replace("ge", "le")
    if first not in ("<", "\\le") or second not in ("<", "\\le"):
        return None
    interval = _interval(
        low, high, "(" if first == "<" else "[", ")" if second == "<" else "]", depth
    )
    return interval._replace(letter=pieces[2])


def _interval(low: str, high: str, opening: str, closing: str, depth: int) -> Value:
    parts = (read(low, depth + 1), read(high, depth + 1))
    return Value("sequence", f"{opening}{low},{high}{closing}", parts=parts, mark=opening + closing)


def _compound(text: str, depth: int) -> Value | None:
    bare = re.sub(r"\s", "", text)

    def parts(texts: list[str]) -> tuple[Value, ...]:
        return tuple(read(part, depth + 1) for part in texts)

    union = split(text, "\\cup")
    if len(union) > 1:
        return Value("union", bare, parts=parts(union))
    several = split(re.sub(r",?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", ",", text))
    if len(several) > 1 and all(several) and not _WORDS.fullmatch(text):
        return Value("set", bare, parts=parts(several))
    if text.count("\\pm") == 1 and not split(text)[1:]:
        before, _, after = text.partition("\\pm")
        if _balanced(before) and _balanced(after):
            plus, minus = (f"{before}+{after}", f"{before}-{after}")
            if not before.strip():
                plus = after
            return Value("set", bare, parts=parts([plus, minus]))
    if match := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in match[2].split(_ROW) if row.strip()]
        cells = [cell for row in rows for cell in row]
        return Value("matrix", bare, parts=parts(cells), mark="x".join(str(len(r)) for r in rows))
    return _bracketed(text, bare, depth)


def _bracketed(text: str, bare: str, depth: int) -> Value | None:
    """`(a, b)`, `[a, b)`, `\\{a, b\\}`; a single thing in round brackets is that thing."""
    is_set = text.startswith("\\{") and text.endswith("\\}")
    inner = text[2:-2] if is_set else text[1:-1]
    if not is_set and not (text[:1] in ("(", "[") and text[-1:] in (")", "]")):
        return None
    if not _balanced(inner):
        return None
    pieces = split(inner)
    if len(pieces) == 1 and _MATRIX.fullmatch(inner.strip()):
        return read(inner, depth + 1)
    if len(pieces) == 1 and not is_set:
        return read(inner, depth + 1) if bare[0] == "(" and bare[-1] == ")" else None
    if not all(pieces):
        return None
    parts = tuple(read(part, depth + 1) for part in pieces)
    if is_set:
        return Value("set", bare, parts=parts)
    return Value("sequence", bare, parts=parts, mark=bare[0] + bare[-1])


def split(text: str, at: str = ",") -> list[str]:
    """Return the pieces between the separators that stand in no bracket and no environment."""
    pieces, depth, start, i = [], 0, 0, 0
    while i < len(text):
        if text.startswith("\\begin", i):
            depth += 1
        elif text.startswith("\\end", i):
            depth -= 1
        elif text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(at, i):
            pieces.append(text[start:i].strip())
            start = i + len(at)
            i = start
            continue
        i += 1
    return [*pieces, text[start:].strip()]


def _balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return False
    return depth == 0
