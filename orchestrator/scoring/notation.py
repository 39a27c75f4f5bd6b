"""Answers as models write them, brought to one notation, and read as far as needs no algebra."""

import re
from fractions import Fraction
from typing import NamedTuple

from .units import MULTIPLIES, NOT_A_THING, Unit, unit

MAX_PARTS = 40
"""Elements of a list, a tuple or a matrix; what has more is compared as text."""
MAX_DEPTH = 6
"""Of brackets within brackets that are taken apart."""

_ROW = "\x01"
"""Stands for the two backslashes that end a row of a matrix."""
_AS_TEXT = "\x02"
"""Stands before words that were written as text after a number: a unit, or a thing."""
_DEGREES = r"(?:\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])|°)"
_ANGLE = r"(\d{1,9}(?:\.\d{1,9})?|\\[dt]?frac\s*\{\d{1,9}\}\s*\{\d{1,9}\})"
_OF_ANGLE = r"\\?(?<![A-Za-z])(sin|cos|tan|cot|sec|csc)(\s*\^\s*\{?-?\d\}?)?\s*"
_CIS = r"(?:\\operatorname\s*\{cis\}|\\cis(?![A-Za-z])|(?<![A-Za-z\\])cis(?![A-Za-z]))"
_FUNCTION = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
_BUT = r"(?:except|other than|excluding)(?:\s+for)?"
_REPLACED = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"(?<=\d)\s*pct\b", "%"),
        # the sine of an angle in degrees, before degrees are dropped as a unit
        (
            rf"{_OF_ANGLE}\\left\s*\(\s*{_ANGLE}\s*{_DEGREES}\s*\\right\s*\)",
            r"\\\1\2(\\frac{\3\\pi}{180})",
        ),
        (rf"{_OF_ANGLE}\(\s*{_ANGLE}\s*{_DEGREES}\s*\)", r"\\\1\2(\\frac{\3\\pi}{180})"),
        (rf"{_OF_ANGLE}\{{\s*{_ANGLE}\s*{_DEGREES}\s*\}}", r"\\\1\2(\\frac{\3\\pi}{180})"),
        (rf"{_OF_ANGLE}{_ANGLE}\s*{_DEGREES}", r"\\\1\2(\\frac{\3\\pi}{180})"),
        (
            rf"{_CIS}\s*\(?\s*{_ANGLE}\s*{_DEGREES}\s*\)?",
            r"(\\cos(\\frac{\1\\pi}{180})+i\\sin(\\frac{\1\\pi}{180}))",
        ),
        (
            rf"{_CIS}\s*\(?\s*(\\[dt]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|[\d\\a-z]+)\s*\)?",
            r"(\\cos(\1)+i\\sin(\1))",
        ),
        (r"\\log\s*_\s*\{?\s*e\s*\}?", r"\\ln "),
        (r"\\\\(?:\[[^\[\]]*\])?", _ROW),
        (r"\\[($]|\\[)\[\]]|\$", ""),
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|[bB]ig+[lrm]?|displaystyle|textstyle|limits|hfill)(?![A-Za-z])", ""),
        (r"\{,\}|,\\!\s*|\\!,\\!|\\!,", "THOUSAND"),
        (r"(?<=\d)THOUSAND(?=\d{3})", ""),
        (r"THOUSAND", ","),
        (r"(?<!\\);", ","),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\[,;:! >]|\\q?quad(?![A-Za-z])|~|\\(?=\s)|\s+", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\d)(?!\d)", r"\\frac\1{\2}"),
        (r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}"),
        (r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![A-Za-z])|°|(?<=\d)\s*\bdegrees?\b", ""),
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|≤|<=", r"\\le "),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])|≥|>=", r"\\ge "),
        (r"\\neq?(?![A-Za-z])|≠|!=", r"\\ne "),
        (r"\\(?:setminus|backslash)(?![A-Za-z])|(?<=\\mathbb\{R\})\s*-(?=\s*\\\{)", r"\\setminus "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\l(?:brace|Brace)(?![A-Za-z])", r"\\{"),
        (r"\\r(?:brace|Brace)(?![A-Za-z])", r"\\}"),
        (r"\\(?:infin|infty)(?![A-Za-z])|∞", r"\\infty "),
        (r"\\ast(?![A-Za-z])", "*"),
        (r"\\cdotp(?![A-Za-z])", r"\\cdot "),
        (r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\mathbb{\1}"),
        (r"\\(?:triangle|angle)(?![A-Za-z])|^\s*\\approx", ""),
        (
            rf"(?i)(?:\\text\s*\{{)?\s*all real numbers,?\s*(?:[a-z]\s*)?{_BUT}\s*\}}?\s*(.+)$",
            r"\\mathbb{R}\\setminus \\{\1\\}",
        ),
        (r"(?i)(?:\\text\s*\{)?\s*all real numbers\s*\}?", r"\\mathbb{R}"),
        (
            r"\(?\s*(?:\\pmod|\\bmod|\\mod|\\text\s*\{\s*mod\s*\}|(?<![a-z])mod)\s*\{?\s*(\d{1,30})\s*\}?\s*\)?",
            r"\\pmod{\1}",
        ),
        (rf"(?<![A-Za-z\\])({_FUNCTION})(?=\s*[\\({{\dA-Za-z^])(?![a-z]{{2}})", r"\\\1"),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
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
_THING = re.compile(
    rf"(.*[\d}})\]%]|.*\\pi|)(\s*)([A-Za-z€£¥₹\\][^=<>&{_AS_TEXT}{_ROW}]*)", re.DOTALL
)
"""A number, white space, what stands after it."""
_CURRENCY = re.compile(r"(€|£|¥|₹|(?:Rs|USD|EUR|GBP)\b\.?)\s*(?=[\d.])")
_NO_VARIABLE = re.compile(
    r"\\(?:frac|sqrt|pi|cdot|times|div)(?![A-Za-z])|[\d\s.,+\-*/^!(){}\[\]iI%]"
)
"""What a complete number is written with."""
_NAMED = re.compile(r"(?<![A-Za-z\\{])(arsinh|arcosh|artanh|floor|ceil)\s*\(")
"""Functions that have no command of their own."""
_SIGN = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|[<>]")
_SET_BUILDER = re.compile(
    r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\\mid|\\vert|\||:)(.+)\\\}"
)
_REALS = re.compile(r"(?:[A-Za-z]\s*\\in\s*)?\\mathbb\{R\}")
_MODULUS = re.compile(r"([A-Za-z]?)\\equiv([+-]?\d{1,30})\\pmod\{(\d{1,30})\}")
_COMMUTING = ("\\cup", "\\cap", "\\land", "\\wedge", "\\lor", "\\vee")
_MOST_SIGNS = 3
"""Of plus-minus in an answer: 8 values."""
_INTEGER = r"\d{1,60}"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d{{0,60}})?|\.\d{{1,60}})"
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\overline\{(\d{1,20})\}")
_ONES = re.findall(
    r"\w+",
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen""",
)
_TENS = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")
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
_DATE = re.compile(
    r"(?i)(\d{1,2})?\s*((?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)\.?\s*(\d{1,2})?"
)
_SHORT_WORDS = frozenset({"no", "yes", "none", "even", "odd", "true", "zero", "one", "two", "all"})
"""Words that mean the same in capitals; `AB` and `ab` are two names."""
_PRODUCT = re.compile(r"(?!.*(.).*\1)[abckmnpqrstuvwxyz]{2,3}")
"""Letters that may be a product of variables: `xy`. Other words of letters are names: `ASA`."""
OR, AND, EITHER = r"\lor ", r"\land ", ";"
"""Between the relations of a set; `EITHER`: a comma, which may be both (`algebra` has the same)."""
_BASE = re.compile(
    r"((?=\d)[0-9A-Fa-f]{1,60}|[A-Fa-f][0-9A-Fa-f]{0,59}\d[0-9A-Fa-f]{0,20})_\{?([2-9]|[12]\d|3[0-6])\}?"
)
_TEXT_AFTER_NUMBER = re.compile(
    r"(?:(?<=[\d})\]])|(?<=\\pi)|(?<=\\pi ))(?:\\[,;:! ]|~|\s)*"
    r"\\(?:text|textrm|textnormal|mbox|hbox|mathrm|rm)\s*"
    r"\{\s*((?!and\b|or\b|if\b|mod\b|for\b|where\b|is\b)[A-Za-z€£¥₹.][^{}$\\=<>\d]*)\}"
    r"(?=\s*(?:\^\s*\{?-?\d\}?\s*)?\.?\s*(?:$|[,;)\]/]|\\(?:cup|text|\}|cdot\s*\\mathrm)|and\b|or\b))"
)
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
_NAME = re.compile(
    r"(?:\([A-Za-z](?:,\s*[A-Za-z])+\)|[A-Za-z](?:_\{?\w+\}?)?|[A-Za-z]\([A-Za-z]\)"
    r"|[A-Za-z' ]{2,40}|\\[a-z]+)"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z\s'.,/-]*")
_MATRIX = re.compile(
    r"\\begin\{([pbvBV]?matrix|array|smallmatrix)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}"
)
_FREE_INTEGER = re.compile(
    r"(?<=\S)[,;]?\s*(?:where|for|with)?\s*\(?[jklmn]\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\)?$"
)
"""What says that the letter of a family of solutions is any integer."""


class Value(NamedTuple):
    """An answer as far as it could be read. `text` is its notation without white space."""

    kind: str
    """number, words, sequence, set, union, matrix, base, modulus, solutions (a set of real numbers,
    as relations), or other: left to algebra."""
    text: str
    number: Fraction | None = None
    rounded: bool = False
    """The number was written with a decimal point."""
    percent: bool = False
    parts: "tuple[Value, ...]" = ()
    mark: str = ""
    """Brackets of a sequence, shape of a matrix, base of a number, left side of an equation,
    operator of a union."""
    letter: str = ""
    """The one variable of a relation or an equation: `x` of `x > 2`."""
    unit: "Unit | None" = None


def plain(text: str) -> str:
    """One way of writing: no dollar signs, sizes, styles, degrees, thin spaces, or \\text."""
    text = _TEXT_AFTER_NUMBER.sub(_AS_TEXT + r"\1 ", text)
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    for _ in range(MAX_DEPTH):
        text, count = _TEXT.subn(r" \1 ", text)
        if not count:
            break
    text = _NAMED.sub(r"\\operatorname{\1}(", text)
    text = re.sub(r"\s+", " ", text).rstrip(f".;, \\{_ROW}").strip()
    text = _FREE_INTEGER.sub("", text)
    return re.sub(
        r"(?i)^(?:so |hence |thus )?(?:the )?(?:final |right |correct )?answer (?:is|=):? ?",
        "",
        text,
    )


def read(text: str, depth: int = 0) -> Value:
    """Return the parts of an answer that is already `plain`."""
    text = _without_thousands(text.strip())
    text, unit_of_it = (text, None) if _DATE.fullmatch(text) else _without_thing(text)
    value = _read(text.replace(_AS_TEXT, " "), depth)
    return value if unit_of_it is None else value._replace(unit=unit_of_it)


def _read(text: str, depth: int) -> Value:
    if (date := _DATE.fullmatch(text)) and (date[1] is None) != (date[3] is None):
        return Value("words", f"{date[2].casefold()} {date[1] or date[3]}")
    bare = re.sub(r"\s", "", text)
    number = _number(text)
    if number is not None:
        return number
    if (match := _BASE.fullmatch(bare)) and all(int(x, 36) < int(match[2]) for x in match[1]):
        return Value("base", bare, mark=match[2], parts=(read(match[1], depth + 1),))
    if match := _MODULUS.fullmatch(bare):
        modulus = int(match[3]) or 1
        return Value("modulus", f"{int(match[2]) % modulus} mod {modulus}", letter=match[1])
    if depth < MAX_DEPTH:
        value = _solutions(text) or _equation(text, depth) or _compound(text, depth)
        if value is not None and len(value.parts) <= MAX_PARTS:
            return value
    if _is_name(text):
        return Value("words", _spelling(re.sub(r"[\s.]", "", text)))
    return Value("other", bare.replace(_ROW, "\\\\"))


def _is_name(text: str) -> bool:
    """Return True for words, and for letters that are no product of variables."""
    if re.fullmatch(r"[A-Za-z]{2,}", text):
        return not _PRODUCT.fullmatch(text)
    if re.fullmatch(r"(?:[-+]\s*)?[A-Za-z](?:\s*[-+/ ]\s*[A-Za-z])*", text):
        return False  # an expression of letters: `a - b`, `x y`
    return bool(_WORDS.fullmatch(text) and (" " in text or re.search(r"[A-Za-z]{4}", text)))


def _spelling(word: str) -> str:
    """Return words in small letters, and names (`AB`, `ASA`) as they are."""
    small = word.casefold()
    if small in _SAID:
        return _SAID[small]
    if small in _SHORT_WORDS:
        return small
    is_name = len(word) <= 2 or (len(word) <= 4 and word.isupper())
    return word if is_name else small


def _without_thousands(text: str) -> str:
    """Return a text without the commas that group digits. Within brackets, a comma separates."""
    pieces, depth, start = [], 0, 0
    for match in re.finditer(r"[()\[\]{}]", text):
        opens = match[0] in "([{"
        if depth == 0 and opens:
            pieces += [_THOUSANDS.sub(_joined, text[start : match.start()])]
            start = match.start()
        depth = max(0, depth + (1 if opens else -1))
        if depth == 0 and not opens:
            pieces.append(text[start : match.end()])
            start = match.end()
    rest = text[start:]
    return "".join([*pieces, rest if depth else _THOUSANDS.sub(_joined, rest)])


def _joined(match: "re.Match[str]") -> str:
    return match[0].replace(",", "")


def _without_thing(text: str) -> "tuple[str, Unit | None]":
    """Return a number without the unit or the thing after it, and the unit.

    `5 cm^2` is 5 and `12 eggs` 12; `2 million` is 2000000; `2x m` and `2m` keep their m, which may
    be a variable.
    """
    if (currency := _CURRENCY.match(text)) and (money := unit(currency[1])):
        return text[currency.end() :].strip(), money
    body, mark, thing = text.rpartition(_AS_TEXT)
    if not mark:
        match = _THING.fullmatch(text)
        if match is None:
            return text, None
        body, space, thing = match.groups()
        if _NO_VARIABLE.sub("", body) or not re.search(r"\d|\\pi", body):
            return text, None
        if not _reads_as_a_thing(thing, glued=not space):
            return text, None
    words = thing.lower().split()
    first = words[0].strip(".,") if words else ""
    if first in MULTIPLIES:
        rest, unit_of_it = _without_thing(f"{body.strip()} {' '.join(thing.split()[1:])}".strip())
        value = _number(rest)
        if value is None or value.number is None or value.percent:
            return text, None
        return str(value.number * MULTIPLIES[first]), unit_of_it
    if first in ("percent", "percents"):
        return f"{body.strip()}%", None
    if first in NOT_A_THING:
        return text, None
    return body.strip(), unit(thing)


def _reads_as_a_thing(thing: str, *, glued: bool) -> bool:
    """Return whether letters after a number are words: a unit, a word of four letters, or several
    words. Single letters may be variables, unless one is a unit after white space."""
    if re.fullmatch(r"[A-Za-z](?:\s+[A-Za-z])*", thing):
        return not glued and len(thing) == 1 and unit(thing) is not None
    if unit(thing) is not None:
        return True
    if not re.fullmatch(r"[A-Za-z][A-Za-z' .,-]*", thing):
        return False
    return bool(re.match(r"[A-Za-z']{4}", thing)) or len(re.findall(r"[A-Za-z]{3,}", thing)) > 1


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


def _solutions(text: str) -> "Value | None":
    """`2 < x \\le 5`, `x < 1 or x > 3`, `\\{x \\mid x \\ne 2\\}`: as a set."""
    if match := _SET_BUILDER.fullmatch(text):
        text = match[1].strip()
    if not _SIGN.search(text) or "=" in text or text[:1] in "([" or not _balanced(text):
        return None
    joint = OR if re.search(r"(?<![A-Za-z\\])or(?![A-Za-z])|\\lor(?![A-Za-z])", text) else AND
    pieces = split(
        re.sub(r",?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\l(?:or|and)(?![A-Za-z])", ",", text)
    )
    relations = [piece for piece in pieces if not _REALS.fullmatch(piece)]
    if not all(_SIGN.search(relation) for relation in relations):
        return None
    by_comma = (
        len(pieces) > 1 and joint == AND and not re.search(r"(?<![A-Za-z\\])and|\\land", text)
    )
    if by_comma and len(pieces) == len(relations) and not all("\\ne" in x for x in relations):
        joint = EITHER
    letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", " ".join(relations))))
    joined = joint.join(re.sub(r"\s", "", relation) for relation in relations)
    return Value("solutions", joined, letter=letters.pop() if len(letters) == 1 else "")


def _compound(text: str, depth: int) -> Value | None:
    bare = re.sub(r"\s", "", text)

    def parts(texts: list[str]) -> tuple[Value, ...]:
        return tuple(read(part, depth + 1) for part in texts)

    for operator in _COMMUTING:
        operands = split(text, operator)
        if len(operands) > 1 and all(operands):
            return Value("union", bare, parts=parts(operands), mark=operator)
    several = split(re.sub(r",?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", ",", text))
    is_list = len(several) > 1 and all(several)
    if is_list and not (_WORDS.fullmatch(text) and any(" " in piece for piece in several)):
        values = parts(several)
        flat = [x for value in values for x in (value.parts if value.mark == "\\pm" else (value,))]
        return Value("set", bare, parts=tuple(flat))
    if 0 < text.count("\\pm") + text.count("\\mp") <= _MOST_SIGNS:
        return Value("set", bare, parts=parts(_both_signs(text)), mark="\\pm")
    while text[:1] == "{" and text[-1:] == "}" and _balanced(text[1:-1]):
        text = text[1:-1].strip()
    if match := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in match[2].split(_ROW) if row.strip()]
        cells = [cell for row in rows for cell in row]
        return Value("matrix", bare, parts=parts(cells), mark="x".join(str(len(r)) for r in rows))
    return _bracketed(text, bare, depth)


def _both_signs(text: str) -> list[str]:
    """Return a text with plus and with minus for each plus-minus; `\\mp` has the other sign."""
    if text.count("\\pm") == text.count("\\mp") == 1:
        texts = [text.replace("\\pm", a).replace("\\mp", b) for a, b in ("+-", "-+")]
    else:
        texts = [text]
        for _ in range(text.count("\\pm") + text.count("\\mp")):
            texts = [re.sub(r"\\[pm][pm]", sign, one, count=1) for one in texts for sign in "+-"]
    return [re.sub(r"(^|[({,])\s*\+\s*", r"\1", one) for one in texts]


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
