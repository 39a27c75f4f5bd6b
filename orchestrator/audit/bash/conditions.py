"""Evaluate conditions of a script that runs without arguments: true, false, or unknown."""

import re
from collections.abc import Callable

from orchestrator.audit.bash import expansion
from orchestrator.audit.bash.expansion import Expander
from orchestrator.audit.bash.syntax import ShellSource, SyntaxNode
from orchestrator.audit.bash.values import ShellValue, known_text

Truth = bool | None
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_GROUPS = ("test_command", "parenthesized_expression", "compound_statement", "subshell")
_VALUES = ("string", "simple_expansion", "expansion", "word", "raw_string", "concatenation")


def condition(expander: Expander, node: SyntaxNode, source: ShellSource) -> Truth:
    """Return the truth of a syntax node: a test, a command, or several joined."""
    kind = node.type
    operands = [c for c in node.children if c.is_named]
    if kind in _GROUPS:
        text = source.text(node)
        if text.startswith("(("):
            return _arithmetic(expander, text.strip(), source.line(node))
        return condition(expander, operands[0], source) if len(operands) == 1 else None
    if kind in ("list", "binary_expression"):
        return _binary(expander, node, source)
    if kind == "negated_command":
        return _negated(condition(expander, operands[-1], source)) if operands else None
    if kind == "unary_expression":
        return _unary(expander, node, source)
    if kind == "command":
        return _command(expander, node, source)
    if kind in _VALUES:
        return _of_texts((expander.value(node, source),), lambda texts: bool(texts[0]))
    return None


def _negated(inner: Truth) -> Truth:
    return None if inner is None else not inner


def _binary(expander: Expander, node: SyntaxNode, source: ShellSource) -> Truth:
    """Return the condition of `a && b`, `a -a b`, `x = y`, `x -lt y`, `x =~ y`."""
    operator = next((c for c in node.children if not c.is_named or c.type == "test_operator"), None)
    sides = [c for c in node.children if c.is_named and c.type != "test_operator"]
    text = source.text(operator) if operator is not None else ""
    if len(sides) != 2:
        return None
    if re.search(r"\s-[ao]\s", source.text(node)):
        return None  # the grammar does not group them as the shell does
    if text in ("&&", "||"):
        both = {condition(expander, side, source) for side in sides}
        # One side alone may decide: false for `&&`, true for `||`.
        decides = text == "||"
        return decides if decides in both else None if None in both else not decides
    if sides[0].type == "unary_expression" and source.text(sides[0]).startswith("!"):
        # `! a == b` is `! (a == b)`, which the grammar reads as `(! a) == b`.
        values = tuple(expander.value(side, source) for side in (sides[0].children[-1], sides[1]))
        return _negated(_compared(expander, text, values, sides[1], source))
    values = tuple(expander.value(side, source) for side in sides)
    return _compared(expander, text, values, sides[1], source)


def _compared(
    expander: Expander,
    operator: str,
    values: tuple[ShellValue, ...],
    right: SyntaxNode,
    source: ShellSource,
) -> Truth:
    is_pattern = _is_in_double_brackets(right)
    pattern = expander.pattern(right, source) if is_pattern else None

    def equal(texts: list[str]) -> Truth:
        # Only `[[` has patterns, in what is not quoted.
        known = expander.matches(texts[0], [pattern]) if is_pattern else texts[0] == texts[1]
        return None if known is None else known == (operator != "!=")

    def ordered(texts: list[str]) -> Truth:
        # `x` is no number: a comparison with an empty text stays unknown.
        left, right = (expansion.arithmetic_value(text.strip() or "x") for text in texts)
        if left is None or right is None:
            return None
        return _COMPARISONS[operator](left, right)

    if operator in ("=", "==", "!="):
        return _of_texts(values, equal)
    if operator in _COMPARISONS:
        return _of_texts(values, ordered)
    return None


def _is_in_double_brackets(node: SyntaxNode) -> bool:
    while node is not None and node.type != "test_command":
        node = node.parent
    return node is not None and node.children[0].type == "[["


def _unary(expander: Expander, node: SyntaxNode, source: ShellSource) -> Truth:
    """Return the condition of `! x`, `-z x`, `-n x`, `-v x`."""
    operator, operand = source.text(node.children[0]), node.children[-1]
    if operator == "!":
        return _negated(condition(expander, operand, source))
    if operator in ("-z", "-n"):
        wants_text = operator == "-n"
        if wants_text and not _is_in_double_brackets(node) and "expansion" in operand.type:
            return True  # unquoted and empty, it is no word: `[ -n ]` is true
        value = expander.value(operand, source)
        return _of_texts((value,), lambda texts: bool(texts[0]) == wants_text)
    if operator == "-v":
        return source.text(operand) in expander.scope.variables
    return None


def _command(expander: Expander, node: SyntaxNode, source: ShellSource) -> Truth:
    """Return the condition of `true`, `false`, `:`, and of a variable that holds one of them."""
    text: str | None = source.text(node).strip()
    if len(node.children) == 1 and node.children[0].type == "command_name":
        text = known_text(expander.value(node.children[0], source))
    return {"true": True, ":": True, "false": False}.get(text or "")


def _arithmetic(expander: Expander, text: str, line: int) -> Truth:
    """Return the condition of `((...))`."""
    number = known_text(expander.arithmetic(text[2:-2], line))
    return number != "0" if number else None


def _of_texts(values: tuple[ShellValue, ...], test: Callable[[list[str]], Truth]) -> Truth:
    """Return the truth of a test of texts; unknown if one of them is."""
    texts = [text for value in values if (text := known_text(value)) is not None]
    return test(texts) if len(texts) == len(values) else None
