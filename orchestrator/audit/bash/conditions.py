"""Which way a condition goes: true, false, or not known before the script runs."""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.audit.bash import arithmetic
from orchestrator.audit.bash.state import Node, Source
from orchestrator.audit.bash.values import Hole, Value, Ways, branches, flat, plain
from orchestrator.audit.bash.words import number, value

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
_ORDER = {"<": "-lt", ">": "-gt", "<=": "-le", ">=": "-ge", "==": "-eq", "!=": "-ne"}
_SIMPLE = re.compile(r"\^?\(?[\w.|-]{0,100}\)?\$?")
"""Patterns of `=~` that are tried: no repetition, and no group but one around the whole."""
Truth = bool | None


@dataclass(frozen=True, slots=True)
class Condition:
    """`truth(ways, usual)`; usual: arguments nobody gave count as empty."""

    branches: frozenset[int]
    truth: Callable[[Ways, bool], Truth]


NOT_KNOWN = Condition(frozenset(), lambda _ways, _usual: None)


def _constant(known: Truth) -> Condition:
    return Condition(frozenset(), lambda _ways, _usual: known)


def condition(run: "Run", node: Node, src: Source) -> Condition:
    """A condition as the shell has it: a test, a command, or several joined."""
    kind = node.type
    if kind in ("test_command", "parenthesized_expression", "compound_statement", "subshell"):
        text = src.text(node)
        if text.startswith("(("):
            return _arithmetic(run, node, src)
        inner = [c for c in node.children if c.is_named]
        return condition(run, inner[0], src) if len(inner) == 1 else NOT_KNOWN
    if kind in ("list", "binary_expression"):
        return _joined(run, node, src)
    if kind == "negated_command":
        inner = [c for c in node.children if c.is_named]
        return _negated(condition(run, inner[-1], src)) if inner else NOT_KNOWN
    if kind == "unary_expression":
        return _unary(run, node, src)
    if kind == "command":
        return _command(run, node, src)
    if kind in ("string", "simple_expansion", "expansion", "word", "raw_string", "concatenation"):
        found = value(run, node, src)
        return _on((found,), lambda texts: bool(texts[0]))
    return NOT_KNOWN


def _negated(found: Condition) -> Condition:
    def truth(ways: Ways, usual: bool) -> Truth:
        told = found.truth(ways, usual)
        return None if told is None else not told

    return Condition(found.branches, truth)


def _joined(run: "Run", node: Node, src: Source) -> Condition:
    operator = next((c for c in node.children if not c.is_named or c.type == "test_operator"), None)
    sides = [c for c in node.children if c.is_named and c.type != "test_operator"]
    text = src.text(operator) if operator is not None else ""
    if text in ("&&", "||", "-a", "-o") and len(sides) == 2:
        first, second = (condition(run, side, src) for side in sides)
        both = text in ("&&", "-a")

        def truth(ways: Ways, usual: bool) -> Truth:
            told = first.truth(ways, usual), second.truth(ways, usual)
            if (not both) in told:
                return not both
            return None if None in told else both

        return Condition(first.branches | second.branches, truth)
    if len(sides) != 2:
        return NOT_KNOWN
    values = tuple(value(run, side, src) for side in sides)
    quoted = sides[1].type in ("string", "raw_string")
    return _compared(text, values, quoted)


def _compared(operator: str, values: tuple[Value, ...], quoted: bool) -> Condition:
    if operator in ("=", "==", "!="):

        def equal(texts: list[str]) -> bool:
            same = texts[0] == texts[1] if quoted else fnmatch.fnmatchcase(texts[0], texts[1])
            return same == (operator != "!=")

        return _on(values, equal)
    if operator in _COMPARE:

        def ordered(texts: list[str]) -> Truth:
            numbers = [arithmetic.evaluate(text.strip() or "x") for text in texts]
            if numbers[0] is None or numbers[1] is None:
                return None
            return _COMPARE[operator](numbers[0], numbers[1])

        return _on(values, ordered)
    if operator == "=~":

        def matches(texts: list[str]) -> Truth:
            if _SIMPLE.fullmatch(texts[1]) is None or len(texts[0]) > 200:
                return None
            try:
                return re.search(texts[1], texts[0]) is not None
            except re.error:
                return None

        return _on(values, matches)
    return NOT_KNOWN


def _unary(run: "Run", node: Node, src: Source) -> Condition:
    operator = src.text(node.children[0])
    operand = node.children[-1]
    if operator == "!":
        return _negated(condition(run, operand, src))
    if operator == "-z":
        return _on((value(run, operand, src),), lambda texts: not texts[0], given=True)
    if operator == "-n":
        return _on((value(run, operand, src),), lambda texts: bool(texts[0]), given=True)
    if operator == "-v":
        return _constant(src.text(operand) in run.scope.variables)
    return NOT_KNOWN


def _command(run: "Run", node: Node, src: Source) -> Condition:
    text = src.text(node).strip()
    if text in ("true", ":"):
        return _constant(True)
    if text == "false":
        return _constant(False)
    single = [c for c in node.children if c.type == "command_name"]
    if len(node.children) == 1 and single:
        found = value(run, single[0], src)
        told = plain(found)
        if told in ("true", "false"):
            return _constant(told == "true")
    return NOT_KNOWN


def _arithmetic(run: "Run", node: Node, src: Source) -> Condition:
    text = src.text(node).strip()
    found = number(run, _Wrapped(node, text), src) if text.startswith("((") else ()
    told = plain(found)
    return NOT_KNOWN if told is None or told == "" else _constant(told != "0")


class _Wrapped:
    """`((...))` in the clothes of `$((...))`: one byte more in front."""

    def __init__(self, node: Node, text: str) -> None:
        self.start_byte, self.end_byte = node.start_byte - 1, node.end_byte
        self.start_point, self.text = node.start_point, text


def _on(
    values: tuple[Value, ...], told: Callable[[list[str]], Truth], *, given: bool = False
) -> Condition:
    """A condition on texts. `given`: it asks whether there is a value, which a missing argument
    answers; else, what it would be stays open."""

    def truth(ways: Ways, usual: bool) -> Truth:
        texts = []
        for each in values:
            pieces = tuple(flat(each, ways))
            asked = any(
                isinstance(p, Hole) and p.unset and p.why.startswith("argument ") for p in pieces
            )
            text = plain(pieces)
            if text is None or (asked and not given and not usual):
                return None
            texts.append(text)
        return told(texts)

    return Condition(frozenset(b for each in values for b in branches(each)), truth)
