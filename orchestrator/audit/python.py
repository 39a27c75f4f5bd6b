"""Commands that a Python file would start: strings and lists of strings, read and never run."""

import ast
import warnings
from collections.abc import Iterator

from orchestrator.audit.bash.commands import STARTS
from orchestrator.audit.bash.nested import HINT
from orchestrator.audit.types import UNKNOWN, UnreadableScript, Word


def commands(text: str) -> Iterator[tuple[int, str | tuple[Word, ...]]]:
    """Line and command; a list or tuple of strings is a command line already split."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableScript(f"this Python cannot be read: {error}") from None
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            words = tuple(_word(each) for each in node.elts)
            if any(HINT.search(w.text) for w in words):
                inside |= {id(child) for child in ast.walk(node)}
                yield node.lineno, words
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inside:
            if isinstance(node, ast.JoinedStr):
                inside |= {id(child) for child in ast.walk(node)}
            word = _word(node)
            text = word.text
            if " " in text.strip() and HINT.search(text) and STARTS.search(text):
                yield node.lineno, text.replace(UNKNOWN, "$__unknown")


def _word(node: ast.expr) -> Word:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Word(node.value.replace("\x00", ""), (node.lineno,))
    if isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in node.values
        )
        return Word(text, (node.lineno,), ("a value put in by Python",))
    return Word(UNKNOWN, (node.lineno,), ("a value put in by Python",))
