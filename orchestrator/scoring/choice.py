"""The letter that a response to a multiple-choice question chooses.

Read after the reasoning, in this order: the last closed \\boxed{}; the last `answer is X` or
`answer: X`; a response that is nothing but a letter; the first line or the last one, if it starts
with `X.` or `(X)`.
"""

import re

from . import answered

LONGEST_TAIL = 4000
"""Characters at the end of a response in which a statement of the answer is looked for."""
_WRAP = re.compile(r"\\(?:text|mathrm|mathbf|textbf|rm|bf)\b|[{}$*_\[\]\s]")
_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_STATED = re.compile(
    r"(?:(?:answer|choice|option)\**\s*(?:is|would be|must be|:|=)?\s*:?\s*\**\s*"
    r"(?:(?:for sure|definitely|clearly|certainly)\s+)?"
    r"|\b(?:choose|pick|select)\s+|\bit(?:'s| is| must be)\s+(?=\W*[A-Z]\W*(?:$|\n)))"
    r"(?P<named>option\s*|choice\s*)?(?:\\text\{|\$|\\boxed\{|\(|\*|\{|\s)*(?P<letter>[A-Z])(?![A-Za-z'])"
    r"(?P<hedge>\W{0,3}\s+or\s+(?:option\s+)?\(?[A-Z](?![A-Za-z']))?(?P<ends>\W*(?:$|[.,;:!)\n]))?",
    re.IGNORECASE,
)
"""A stated letter. A second one after `or` makes it no answer; a small letter counts only after
`option`, at the end of its clause."""
_LED = re.compile(r"\s*\**\(?([A-Z])(?:\)|\.|:|\s*$)")


def extract(response: str, letters: str = "ABCD") -> str | None:
    """The chosen letter, upper case; None if none can be read."""
    response = answered(response)
    tail = response[-LONGEST_TAIL:]
    for boxed in reversed(_BOX.findall(tail)):
        letter = _letter(boxed, letters)
        if letter:
            return letter
    stated = [
        match
        for match in _STATED.finditer(tail)
        if match["letter"] in letters
        or (match["letter"].upper() in letters and match["named"] and match["ends"] is not None)
    ]
    if stated:
        return None if stated[-1]["hedge"] else stated[-1]["letter"].upper()
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
    return float(extract(response, letters) == answer.strip().strip("()").upper())
