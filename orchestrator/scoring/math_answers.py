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

from . import judge
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
_COMMAND = re.compile(
    r"\\mathbb\{?[A-Z]\}?|\\(?:begin|end)\{[a-z]+\}"
    # white space is gone: `\sin x` is `\sinx`
    r"|\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|\\(?:log|ln|exp|lg|max|min|det|deg|gcd)"
    r"|\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|omega|phi|psi|rho|sigma|tau|pi)"
    r"|\\(?:frac|sqrt|binom|cdot|times|div|pm|mp|lvert|rvert|lfloor|rfloor|lceil|rceil|infty)"
    r"|\\(?:overline|vec|hat|bar|angle|circ|quad|ldots|cdots|dots)|\\[A-Za-z]+"
    r"|(?:sin|cos|tan|log|ln|exp|pi)"
)
"""What is written with letters and is no variable."""
_RELATED = re.compile(r"[=<>]|\\(?:le|ge|ne|in(?!fty)|cup|cap|to)|\\text")
"""Marks of something else than an expression."""
_INVERSE = re.compile(r"[A-Za-z]\^\{?-1\}?\(")
"""An inverse function, which algebra would take for a power."""

ready = judge.ready
num_at_once = judge.num_children
_TOKEN = re.compile(r"\\+(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s+([^\s$.{][^\s$]*)")
_STATED = re.compile(
    r"(?:\banswer\b(?:\*\*)?\s*(?:is|was|equals|:|=)(?:\*\*)?:?|####)", re.IGNORECASE
)
_MATH = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_TRAILING = re.compile(r"\.\s+[A-Z].*$|\.?\s*(?:I hope|Therefore|Thus|So )\b.*$", re.DOTALL)


def extract(response: str, *, boxed_only: bool = False) -> str | None:
    """Return the answer as written; None if there is none."""
    response = response[-LONGEST_RESPONSE:]
    box = _last_box(response)
    if box is not None or boxed_only:
        return box
    tail = response[-LONGEST_TAIL:]
    if bare := _BARE_BOX.findall(tail):
        return str(bare[-1])
    lines = [tail[match.end() :].partition("\n")[0].strip() for match in _STATED.finditer(tail)]
    if stated := [line for line in lines if line.strip(" .*:$")]:
        text = stated[-1]
        formula = _MATH.match(text)
        if formula:
            return next(group for group in formula.groups() if group is not None).strip()
        return _TRAILING.sub("", text).strip(" .*") or None
    inside_all = [next(filter(None, groups)) for groups in _MATH.findall(tail)]
    return inside_all[-1].strip() if inside_all else None


def _last_box(text: str) -> str | None:
    """One pass: a stack of open braces, each the start of a box's content or -1."""
    opened: list[int] = []
    last: str | None = None
    for token in _TOKEN.finditer(text):
        kind = token[0]
        if kind == "{":
            opened.append(-1)
        elif kind == "}":
            start = opened.pop() if opened else -1
            if start >= 0 and (content := text[start : token.start()].strip()):
                last = content
        elif kind.endswith("{") and len(kind) > 2:
            opened.append(token.end())
    return last


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
    return _same(_value(gold), _value(given))


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
    return _last_box(answer) or answer


@lru_cache(maxsize=50_000)
def _value(text: str) -> Value:
    return read(plain(text))


def _same(gold: Value, given: Value) -> bool:
    if (gold.letter and given.letter and gold.letter != given.letter) or (
        gold.kind != given.kind and "relation" in (gold.kind, given.kind)
    ):
        return False  # x > 2 is not y > 2
    if gold.text == given.text and gold.kind == given.kind:
        return _marks_agree(gold, given)
    if gold.number is not None and given.number is not None:
        return _same_number(gold, given)
    if "base" in (gold.kind, given.kind):
        return _same_in_base(gold, given)
    if "words" in (gold.kind, given.kind):
        return gold.text.casefold() == given.text.casefold()
    if (gold.parts and given.parts and {gold.kind, given.kind} <= {"set", "sequence"}) or (
        gold.parts and gold.kind == given.kind
    ):
        return _same_parts(gold, given)
    if {gold.kind, given.kind} == {"matrix", "sequence"}:
        return _same_column(gold, given)
    if "set" in (gold.kind, given.kind):
        return _same_as_set(gold, given)
    return _same_by_algebra(_whole(gold, given), _whole(given, gold))


def _same_as_set(gold: Value, given: Value) -> bool:
    """Compare a list with something that is none: 2,2 is not 2."""
    one, other = (gold, given) if gold.kind == "set" else (given, gold)
    if len(one.parts) == 1:
        return _same(one.parts[0], other)
    if other.kind in ("number", "matrix") or not _MANY.search(other.text):
        return False
    return _same_by_algebra(gold.text, given.text)


def _same_by_algebra(gold: str, given: str) -> bool:
    """Ask math-verify, of answers small enough to be asked about."""
    if not gold or not given or bool(_INVERSE.search(gold)) != bool(_INVERSE.search(given)):
        return False
    if not _same_letters(gold, given):
        return False
    return is_small(gold) and is_small(given) and judge.same(gold, given)


def _same_letters(gold: str, given: str) -> bool:
    """Return False for expressions of other variables: 2m is not 2, and 7a is not 7A.

    math-verify drops a letter after a number as a unit, and reads capitals as small letters.
    """
    if _RELATED.search(gold) or _RELATED.search(given):
        return True
    return _letters(gold) == _letters(given)


def _letters(text: str) -> "frozenset[str]":
    """Return the letters that are variables: not e and i, which algebra can make go away."""
    runs = re.findall(r"[A-Za-z]+", _COMMAND.sub(" ", text))
    return frozenset("".join(run for run in runs if len(run) <= 3)) - {"e", "i"}


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
    return gold.kind in ("number", "other") or gold.mark == given.mark


def _same_number(gold: Value, given: Value) -> bool:
    assert gold.number is not None  # noqa: S101  (for mypy: callers see to it)
    assert given.number is not None  # noqa: S101  (for mypy: callers see to it)
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
    if gold.kind != given.kind:
        return False
    left = list(given.parts)
    for part in gold.parts:
        match = next((other for other in left if _same(part, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True
