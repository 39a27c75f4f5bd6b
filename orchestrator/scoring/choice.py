"""The letter that a response to a multiple-choice question chooses.

Read, in this order: the last closed \\boxed{}; the last `answer is X` or `answer: X`; a response
that is nothing but a letter; the first line or the last one, if it starts with `X.` or `(X)`.
"""

import re

LONGEST_TAIL = 4000
"""Characters at the end of a response in which a statement of the answer is looked for."""
_WRAP = re.compile(r"\\(?:text|mathrm|mathbf|textbf|rm|bf)\b|[{}$*_\[\]\s]")
_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_STATED = re.compile(
    r"(?:answer|choice|option)\**\s*(?:is|would be|must be|:|=)?\s*:?\s*\**\s*"
    r"(?:option|choice)?\s*(?:\\text\{|\$|\\boxed\{|\(|\*|\{|\s)*([A-Z])(?![A-Za-z'])",
    re.IGNORECASE,
)
_LED = re.compile(r"\s*\**\(?([A-Z])(?:\)|\.|:|\s*$)")


def extract(response: str, letters: str = "ABCD") -> str | None:
    """The chosen letter, upper case; None if none can be read."""
    tail = response[-LONGEST_TAIL:]
    for boxed in reversed(_BOX.findall(tail)):
        letter = _letter(boxed, letters)
        if letter:
            return letter
    stated = [name for name in _STATED.findall(tail) if name in letters]
    if stated:
        return str(stated[-1])
    if len(response) <= LONGEST_TAIL and (letter := _letter(response, letters)):
        return letter
    lines = [line for line in response[:LONGEST_TAIL].splitlines() if line.strip()]
    last = [line for line in tail.splitlines() if line.strip()]
    for line in (*lines[:1], *last[-1:]):
        led = _LED.match(line)
        if led and led[1] in letters:
            return led[1]
    return None


def _letter(text: str, letters: str) -> str | None:
    """The letter a short text is, or begins with (`B`, `(b)`, `\\text{B. Paris}`)."""
    bare = _WRAP.sub(" ", text).strip().lstrip("(").strip()
    head = re.match(r"([A-Za-z])(?:\s*[.:)]|$)", bare)
    if not head:
        return None
    letter = head[1].upper()
    return letter if letter in letters else None


def score(response: str, answer: str, letters: str = "ABCD") -> float:
    """1 if the chosen letter is `answer`, else 0."""
    return float(extract(response, letters) == answer.strip().upper())
