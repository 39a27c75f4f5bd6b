"""The answer to a MATH problem: found in a response, and compared with the right one.

Found: what stands in the last closed, non-empty \\boxed{} (or \\fbox{}), braces balanced. Without a
box, unless only boxes count: what follows the last `answer is`, `answer:` or `####` on its line;
else the last mathematics between dollar signs or \\( \\) or \\[ \\]. Of a long response only the
last 100,000 characters are read for boxes, the last 2,000 otherwise.

Compared: as text in one notation; as exact numbers (where one is written with a decimal point, to
six decimals and to one part in a million); part by part for lists, tuples, intervals, sets and
matrices; what is left is judged by math-verify, in a process that can be killed. Units, dollar
signs and degrees do not count, but the sine of 30 degrees is 1/2; 10\\% is 10 and 0.1. Relations of
two variables differ; several letters are a name, unless they can be a product (`xy`). What is
longer than 1,000 characters, nested deeper than 40, larger than `magnitude` allows, or takes longer
than `judge.MAX_CPU_SECONDS`, is wrong: 0.
"""

import re
from functools import lru_cache

from . import answered, judge
from .magnitude import is_small
from .notation import MAX_PARTS, Value, plain, read

LONGEST = 1000
"""Characters of an answer."""
LONGEST_RESPONSE = 100_000
LONGEST_TAIL = 2000
DEEPEST = 40
"""Brackets within brackets of an answer."""
DECIMALS = 6
RELATIVE = 10**6
"""One part in so many: 1.6e-19 is not 3.2e-19, and no number but 0 is 0."""
_MANY = re.compile(r"\\(?:pm|mp|cup|\{|in|text)|[,=]")
"""Marks of an answer that may be several."""
_INVERSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]\^\{?-1\}?\(")
"""An inverse function, which algebra would take for a power."""
_INDEXED = re.compile(r"\d_")
"""A number with an index, which algebra would drop."""
_DEGREES = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![A-Za-z])|°)"
)
_OPTION = re.compile(r"(?:\\text\s*\{\s*)?(?:\(([A-H])\)|([A-H])[.)](?=\s*\S))\s*\}?\s*")
"""The letter of an option before its text: `(A) 5`, `B. 12`."""

_OPERATORS = tuple("+-*/^=,([")
"""They go on with an expression after a letter in brackets."""

ready = judge.ready
_TOKEN = re.compile(r"\\+(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s+([^\s$.{][^\s$]*)|\\boxed(\d)")
_STATED = re.compile(
    r"(?:\banswer\b(?:\*\*)?\s*(?:is|was|equals|:|=)(?:\*\*)?:?|####)", re.IGNORECASE
)
_MATH = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_TRAILING = re.compile(r"\.\s+[A-Z].*$|\.?\s*(?:I hope|Therefore|Thus|So )\b.*$", re.DOTALL)


def extract(response: str, *, boxed_only: bool = False) -> str | None:
    """Return the answer as written; None if there is none."""
    response = answered(response)[-LONGEST_RESPONSE:]
    boxes, box = _last_box(response)
    if boxes or boxed_only:
        return box
    tail = response[-LONGEST_TAIL:]
    if bare := _BARE_BOX.findall(tail):
        return "".join(bare[-1])
    lines = [
        tail[match.end() :].strip().partition("\n")[0].strip() for match in _STATED.finditer(tail)
    ]
    if stated := [line for line in lines if line.strip(" .*:$")]:
        text = stated[-1]
        formula = _MATH.match(text)
        if formula:
            return next(group for group in formula.groups() if group is not None).strip()
        return _TRAILING.sub("", text).strip(" .*") or None
    inside_all = [next(filter(None, groups)) for groups in _MATH.findall(tail)]
    return inside_all[-1].strip() if inside_all else None


def _last_box(text: str) -> "tuple[int, str | None]":
    """Return how many boxes were begun, and what the last one holds: None where it is empty or was
    never closed; of boxes within boxes, what the outermost holds.

    One pass, with a stack of open braces: the number of the box that begins there, or 0, and where
    its content starts.
    """
    opened: list[tuple[int, int]] = []
    begun, last = 0, None
    for token in _TOKEN.finditer(text):
        kind = token[0]
        if kind == "{":
            opened.append((0, 0))
        elif kind == "}":
            box, start = opened.pop() if opened else (0, 0)
            if box and (box == begun or last is not None):
                last = text[start : token.start()].strip() or None
        elif kind.endswith("{") and len(kind) > 2:
            begun += 1
            last = None
            opened.append((begun, token.end()))
    return begun, last


def score(response: str, answer: str, *, boxed_only: bool = False) -> float:
    """1 if the response's answer equals `answer` (bare, or the last box of a solution), else 0."""
    given = extract(response, boxed_only=boxed_only)
    return float(given is not None and equal(_gold(answer), given))


def reward(response: str, label: str) -> float:
    """Return the reward of training, which counts only a boxed answer."""
    return score(response, label, boxed_only=True)


def canonical(response: str) -> str:
    """Return a text that answers share if they are equal without algebra; empty without an answer.

    For votes and for counting answers: `\\frac12` and `0.5` are one, `2(x+1)` and `2x+2` two.
    """
    given = extract(response)
    if given is None:
        return ""
    value = _value(given) if _fit(given) else None
    return given[:LONGEST] if value is None else _spelled(value)


def _spelled(value: Value) -> str:
    if not value.parts:
        return value.text + "%" * value.percent
    parts = [_spelled(part) for part in value.parts]
    if value.kind in ("set", "union"):
        parts.sort()
    return f"{value.kind}{value.mark}({';'.join(parts)})"


def equal(gold: str, given: str) -> bool:
    """Return whether two answers, without their boxes, are the same."""
    if gold.strip() == given.strip():
        return bool(given.strip())
    if not (_fit(gold) and _fit(given)):
        return False
    if "\\pi" in gold and "\\pi" not in given:
        given = _DEGREES.sub(r"\\frac{\1\\pi}{180}", given)
    options = _option(gold), _option(given)
    for (letter, text), other, of_other in zip(options, (given, gold), options[::-1], strict=True):
        if of_other[0] and text:
            return letter == of_other[0] and (not of_other[1] or equal(text, of_other[1]))
        if text:
            pairs = ((one, other) if other is given else (other, one) for one in (letter, text))
            return any(equal(*pair) for pair in pairs)
    return _same(_value(gold), _value(given))


def _option(answer: str) -> "tuple[str, str]":
    """Return the letter of an option and the text after it: `(A) 5`; of others nothing."""
    match = _OPTION.match(answer)
    text = answer[match.end() :].strip(" }") if match else ""
    return ("", "") if match is None or text[:1] in _OPERATORS else (match[1] or match[2], text)


def _fit(text: str) -> bool:
    if len(text) > LONGEST:
        return False
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest <= DEEPEST


@lru_cache(maxsize=20_000)
def _gold(answer: str) -> str:
    return _last_box(answer)[1] or answer


@lru_cache(maxsize=50_000)
def _value(text: str) -> Value:
    return read(plain(text))


def _same(gold: Value, given: Value) -> bool:
    if gold.letter and given.letter and gold.letter != given.letter:
        return False  # x > 2 is not y > 2
    if gold.unit is not None and given.unit is not None and gold.unit != given.unit:
        # 60 minutes are 1 hour; no number of seconds is a length
        same_dimensions = gold.unit.dimensions == given.unit.dimensions
        return same_dimensions and _same_number(_in_basic_units(gold), _in_basic_units(given))
    kinds = {gold.kind, given.kind}
    if gold.text == given.text and gold.kind == given.kind:
        return _marks_agree(gold, given)
    if gold.number is not None and given.number is not None:
        return _same_number(gold, given)
    if "base" in kinds:
        return _same_in_base(gold, given)
    if kinds & {"words", "modulus"}:
        return gold.text == given.text
    if (
        gold.parts
        and given.parts
        and kinds <= {"set", "sequence"}
        and _same_assignments(gold, given)
    ):
        return True
    if gold.parts and given.parts and (kinds <= {"set", "sequence"} or len(kinds) == 1):
        return _same_parts(gold, given) or (
            kinds == {"union"} and _same_by_algebra(gold.text, given.text)
        )
    if kinds == {"matrix", "sequence"}:
        return _same_column(gold, given)
    if "set" in kinds and "solutions" not in kinds:
        return _same_as_set(gold, given)
    return _same_by_algebra(_whole(gold, given), _whole(given, gold))


def _in_basic_units(value: Value) -> Value:
    """Return `60 minutes` as the number of its seconds."""
    if value.number is None or value.unit is None:
        return value
    return value._replace(number=value.number * value.unit.scale, unit=None)


def _same_assignments(gold: Value, given: Value) -> bool:
    """Compare `x = 4, y = 9` with `(4, 9)`: the letters in the order of the alphabet."""
    named, row = (gold, given) if gold.kind == "set" else (given, gold)
    letters = [part.letter for part in named.parts]
    if row.mark != "()" or len(set(letters)) != len(row.parts) or not all(letters):
        return False
    values = sorted(named.parts, key=lambda part: part.letter)
    pairs = zip(values, row.parts, strict=True)
    return all(_same(a, b) if named is gold else _same(b, a) for a, b in pairs)


def _same_as_set(gold: Value, given: Value) -> bool:
    """Compare a list with something that is none: 2,2 is not 2."""
    one, other = (gold, given) if gold.kind == "set" else (given, gold)
    if len(one.parts) == 1:
        return _same(one.parts[0], other)
    if other.kind in ("number", "matrix") or not _MANY.search(other.text):
        return False
    return _same_by_algebra(gold.text, given.text)


def _same_by_algebra(gold: str, given: str) -> bool:
    """Ask algebra, of answers small enough to be asked about."""
    if not gold or not given:
        return False
    if any(bool(mark.search(gold)) != bool(mark.search(given)) for mark in (_INVERSE, _INDEXED)):
        return False
    return is_small(gold) and is_small(given) and judge.same(gold, given)


def _same_column(gold: Value, given: Value) -> bool:
    """Compare a column of numbers with the same as a tuple."""
    column, row = (gold, given) if gold.kind == "matrix" else (given, gold)
    flat = set(column.mark.split("x")) == {"1"} and row.mark == "()"
    if not flat or len(column.parts) != len(row.parts):
        return False
    return all(_same(a, b) for a, b in zip(gold.parts, given.parts, strict=True))


def _whole(value: Value, other: Value) -> str:
    """Return an answer with the left side of its equation, if the other is an equation too."""
    if value.kind == "other" and value.mark and (other.mark or re.search("=", other.text)):
        return f"{value.mark}={value.text}"
    return value.text


def _marks_agree(gold: Value, given: Value) -> bool:
    return gold.kind in ("number", "other", "solutions") or gold.mark == given.mark


def _same_number(gold: Value, given: Value) -> bool:
    if gold.number is None or given.number is None:
        return False
    pairs = [(gold.number, given.number)]
    if gold.percent != given.percent:
        pairs.append(
            (gold.number / 100, given.number) if gold.percent else (gold.number, given.number / 100)
        )
    if gold.rounded or given.rounded:
        return any(
            abs(a - b) * 10**DECIMALS * 2 <= 1 and abs(a - b) * RELATIVE <= max(abs(a), abs(b))
            for a, b in pairs
        )
    return any(a == b for a, b in pairs)


def _same_in_base(gold: Value, given: Value) -> bool:
    """`101_2` is given in full, or by its digits; a number that only the response put in a base
    is wrong."""
    if gold.kind != "base":
        return False
    if given.kind != "base":
        return gold.parts[0].text == given.text
    return gold.mark == given.mark and gold.parts[0].text == given.parts[0].text


def _same_parts(gold: Value, given: Value) -> bool:
    if len(gold.parts) != len(given.parts) or len(gold.parts) > MAX_PARTS:
        return False
    if gold.kind not in ("set", "union"):
        # A tuple may be given without its brackets.
        bare = gold.mark == "()" and given.kind == "set" and not given.text.startswith("\\{")
        return (bare or (gold.kind, gold.mark) == (given.kind, given.mark)) and all(
            _same(a, b) for a, b in zip(gold.parts, given.parts, strict=True)
        )
    if gold.kind != given.kind or (gold.kind == "union" and gold.mark != given.mark):
        return False
    left = list(given.parts)
    for part in gold.parts:
        match = next((other for other in left if _same(part, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True
