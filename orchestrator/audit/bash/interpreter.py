"""`$x`, `${x:-d}`, `${x:=d}`, `${x%...}`, `${a[@]}`, `${@:1}`: what a parameter stands for."""

import fnmatch
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from orchestrator.audit.bash import arithmetic
from orchestrator.audit.bash.values import (
    EMPTY,
    FIRST_PRIVATE,
    LAST_PRIVATE,
    ArrayElement,
    Branch,
    BranchSpread,
    Budget,
    Hole,
    Pick,
    Scope,
    ShellArray,
    ShellCommand,
    ShellSource,
    ShellText,
    ShellValue,
    SyntaxNode,
    TooDeep,
    Ways,
    WordPart,
    WordTerm,
    branches,
    elements_of,
    flat,
    join,
    light,
    plain,
    text_of,
    words,
)
from orchestrator.library.launches import CommandWord

FROM_OUTSIDE = re.compile(
    r"^(HOME|USER|PWD|OLDPWD|HOSTNAME|PATH|SHELL|UID|RANDOM|SECONDS|LOGNAME|TMPDIR|TERM|LANG"
    r"|LD_LIBRARY_PATH|PYTHONPATH|CONDA_\w+|VIRTUAL_ENV|MASTER_\w+|WORLD_SIZE|RANK|LOCAL_RANK"
    r"|NODE_RANK|BASH_SOURCE|FUNCNAME|LINENO|PPID|(SLURM|SKYPILOT|ARNOLD|PBS|LSB|MLP|OMPI)_\w+)$"
)
"""Variables that a shell, a scheduler or a cluster sets."""
LONGEST_CHANGED = 1_000
"""Characters of a value of which parts are cut or replaced."""
MAY_SET = " may set"
_OPERATORS = {":-", "-", ":=", "=", ":+", "+", ":?", "?"}


def variable(run: "Interpreter", name: str, line: int) -> ShellValue:
    """The value of `$name` in one string."""
    if name.isdigit():
        return _argument(run, int(name), line)
    if name == "#":
        arguments = run.settled(run.scope.arguments)
        return (ShellText(str(len(arguments)), line),)
    if name in ("@", "*"):
        return spaced(run, list(run.scope.arguments), line)
    if not (name[:1].isalpha() or name[:1] == "_"):
        return (Hole(f"${name}", line),)
    found = run.scope.variables.get(name)
    if isinstance(found, ShellArray):
        first = run.settled(found.elements)[:1]
        return first[0] if first else EMPTY
    if found is not None:
        return found
    if FROM_OUTSIDE.match(name):
        return (Hole(f"${name}", line),)
    if run.sourced:
        return (Hole(f"${name}, which {run.sourced[-1]}{MAY_SET}", line),)
    return (Hole(f"${name}", line, unset=True),)


def _argument(run: "Interpreter", index: int, line: int) -> ShellValue:
    if index == 0:
        return (Hole("$0", line),)
    elements = run.settled(run.scope.arguments)
    if index <= len(elements):
        return elements[index - 1]
    if run.scope.in_function:
        return EMPTY
    return (Hole(f"argument ${index}", line, unset=True),)


def expansion(
    run: "Interpreter", node: SyntaxNode, src: ShellSource
) -> ShellValue | list[ArrayElement]:
    """A value, or the elements of `${a[@]}` and `$@`."""
    line = src.line(node)
    children = [c for c in node.children if c.type not in ("$", "${", "}")]
    if not children:
        return EMPTY
    prefix = children[0].type if children[0].type in ("#", "!", "##") else ""
    if prefix and len(children) > 1:
        return _prefixed(run, prefix, children[1], src, line)
    subject, rest = children[0], children[1:]
    text = src.text(subject)
    if subject.type == "subscript":
        name, _, index = text.partition("[")
        index = index[:-1]
        if index in ("@", "*"):
            return _sliced(run, _elements(run, name, line), rest, src)
        base = _element(run, name, index, line)
    elif text in ("@", "*"):
        return _sliced(run, list(run.scope.arguments), rest, src)
    else:
        name, base = text, variable(run, text, line)
    if not rest:
        return base
    return _operated(run, name, base, rest, src, line)


def _prefixed(
    run: "Interpreter", prefix: str, subject: SyntaxNode, src: ShellSource, line: int
) -> ShellValue | list[ArrayElement]:
    text = src.text(subject)
    name, _, index = text.partition("[")
    if prefix == "!":
        if index:
            count = len(run.settled(_elements(run, name, line)))
            return [(ShellText(str(i), line),) for i in range(count)]
        told = plain(variable(run, name, line))
        return variable(run, told, line) if told else (Hole(f"${{!{name}}}", line),)
    if index:
        return (ShellText(str(len(run.settled(_elements(run, name, line)))), line),)
    if name in ("@", "*"):
        return variable(run, "#", line)
    told = plain(variable(run, name, line))
    return (
        (Hole(f"the length of ${name}", line),)
        if told is None
        else (ShellText(str(len(told)), line),)
    )


def _elements(run: "Interpreter", name: str, line: int) -> list[ArrayElement]:
    found = run.scope.variables.get(name)
    if isinstance(found, ShellArray):
        return list(found.elements)
    if found is not None:
        return [found]
    return [(Hole(f"${name}", line),)] if run.sourced else []


def _element(run: "Interpreter", name: str, index: str, line: int) -> ShellValue:
    found = run.scope.variables.get(name)
    at = plain(variable(run, index.lstrip("$").strip("{}"), line)) if not index.isdigit() else index
    keyed = run.scope.variables.get(f"{name}[{_unquoted(index)}]")
    if keyed is None and at:
        keyed = run.scope.variables.get(f"{name}[{at}]")
    if keyed is not None and not isinstance(keyed, ShellArray):
        return keyed
    if isinstance(found, ShellArray) and at is not None and at.isdigit():
        elements = run.settled(found.elements)
        return elements[int(at)] if int(at) < len(elements) else EMPTY
    return (Hole(f"${{{name}[{index}]}}", line),)


def _unquoted(text: str) -> str:
    return text.strip("\"'")


def _sliced(
    run: "Interpreter", elements: list[ArrayElement], rest: list[SyntaxNode], src: ShellSource
) -> list[ArrayElement]:
    """`${@:2}`, `${a[@]:1:3}`; of other operators on whole arrays nothing is made."""
    if not rest or src.text(rest[0]) != ":" or any(isinstance(e, BranchSpread) for e in elements):
        return elements
    bounds = [plain(_bound(run, node, src)) for node in rest if node.type != ":"]
    if not bounds or any(b is None or not b.strip().isdigit() for b in bounds):
        return elements
    arguments = src.text(rest[0].parent).startswith(("${@", "${*"))
    start = max(int(bounds[0] or 0) - (1 if arguments else 0), 0)
    stop = start + int(bounds[1] or 0) if len(bounds) > 1 else None
    return elements[start:stop]


def _bound(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> ShellValue:

    return value(run, node, src)


def _operated(
    run: "Interpreter",
    name: str,
    base: ShellValue,
    rest: list[SyntaxNode],
    src: ShellSource,
    line: int,
) -> ShellValue:
    operator = src.text(rest[0])
    if operator in _OPERATORS:
        return _defaulted(run, name, base, operator, rest[1:], src)
    known = plain(base)
    if known is None or len(known) > LONGEST_CHANGED:
        return (Hole(f"a part of ${name}", line),)
    told = "".join(src.text(node) for node in rest[1:])
    if operator in ("%", "%%", "#", "##"):
        return (ShellText(_trimmed(known, operator, told), line),)
    if operator in ("/", "//") and len(rest) >= 2:
        old = src.text(rest[1])
        new = src.text(rest[3]) if len(rest) > 3 else ""
        if not re.search(r"[*?\[$]", old + new):
            return (ShellText(known.replace(old, new, -1 if operator == "//" else 1), line),)
    if operator in (",,", ",", "^^", "^"):
        return (ShellText(known.lower() if operator[0] == "," else known.upper(), line),)
    return (Hole(f"a part of ${name}", line),)


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """`${x%pattern}` and its kin."""
    ends = range(len(text) + 1)
    for cut in ends if operator in ("#", "%%") else reversed(ends):
        part, kept = (text[:cut], text[cut:]) if operator[0] == "#" else (text[cut:], text[:cut])
        if fnmatch.fnmatchcase(part, pattern):
            return kept
    return text


def _defaulted(
    run: "Interpreter",
    name: str,
    base: ShellValue,
    operator: str,
    rest: list[SyntaxNode],
    src: ShellSource,
) -> ShellValue:
    """`:-` and its kin: without arguments and environment, an unset variable is unset."""

    default = tuple(piece for node in rest for piece in value(run, node, src))
    if len(list(branches(base))) == 1 and len(base) == 1:
        return run.mapped(base, lambda arm: _chosen(arm, default, operator))
    chosen = _chosen(base, default, operator)
    if operator in (":=", "=") and chosen is default and name.isidentifier():
        run.scope.variables[name] = default
    return chosen


def _chosen(base: ShellValue, default: ShellValue, operator: str) -> ShellValue:
    is_set = not (base == EMPTY and operator[0] == ":") and not (
        base != EMPTY
        and all(
            isinstance(piece, Hole) and (piece.unset or piece.why.endswith(MAY_SET))
            for piece in base
        )
    )
    if plain(base) == "" and operator[0] == ":":
        is_set = False
    if operator.endswith("+"):
        return default if is_set else EMPTY
    if operator.endswith("?"):
        return base
    return base if is_set else default


# From words of the shell to values: quotes, variables, defaults, arrays, substitutions.


_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_BRACES = re.compile(r"^\{(-?\d+)\.\.(-?\d+)\}$")
MOST_NUMBERS = 100
CAPTURED = 60


def terms(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> list[WordTerm]:
    """What a word node expands to."""
    if node.type == "brace_expression" and (match := _BRACES.match(src.text(node))):
        low, high = int(match[1]), int(match[2])
        step = 1 if high >= low else -1
        numbers = range(low, high + step, step)[:MOST_NUMBERS]
        return [(WordPart((ShellText(str(n), src.line(node)),), True),) for n in numbers]
    if node.type == "command_name" and len(node.children) == 1:
        node = node.children[0]
    whole = _whole_array(run, node, src)
    if whole is None:
        whole = [tuple(parts(run, node, src))]
    run.spend(
        sum(
            1 if isinstance(term, BranchSpread) else 1 + sum(len(part.value) for part in term)
            for term in whole
        )
    )
    return whole


def _whole_array(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> list[WordTerm] | None:
    """`"${a[@]}"` and `"$@"`, alone in their word: one word an element."""
    inner = node
    quoted = node.type == "string"
    if quoted:
        named = [c for c in node.children if c.type != '"']
        if (
            len(named) != 1
            or node.end_byte - node.start_byte > named[0].end_byte - (named[0].start_byte) + 2
        ):
            return None
        inner = named[0]
    if inner.type not in ("expansion", "simple_expansion"):
        return None
    elements = expansion(run, inner, src)
    if not isinstance(elements, list):
        return None
    return [
        each if isinstance(each, BranchSpread) else (WordPart(each, quoted),) for each in elements
    ]


def parts(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> list[WordPart]:
    """The parts of one word."""
    kind = node.type
    if kind == "concatenation":
        found: list[WordPart] = []
        for child in node.children:
            found += parts(run, child, src)
        return found
    if kind in ("string", "translated_string"):
        return [WordPart(_between(run, node, src, '"'), True)]
    if kind == "raw_string":
        return [WordPart(_literal(src.text(node)[1:-1], src.line(node), src), True)]
    if kind == "ansi_c_string":
        return [WordPart(_ansi(src.text(node), src.line(node)), True)]
    if kind in ("expansion", "simple_expansion"):
        elements = expansion(run, node, src)
        if isinstance(elements, list):
            return [WordPart(spaced(run, elements, src.line(node)), False)]
        return [WordPart(elements, False)]
    if kind == "command_substitution":
        return [WordPart(substitution(run, node, src), False)]
    if kind == "arithmetic_expansion":
        return [WordPart(number(run, node, src), True)]
    if kind in ("process_substitution", "array"):
        return [WordPart((Hole(f"a {kind.replace('_', ' ')}", src.line(node)),), True)]
    if kind == "command_name":
        return [part for child in node.children for part in parts(run, child, src)]
    return [WordPart(_word(src.text(node), src.line(node), src), True)]


def _ansi(text: str, line: int) -> ShellValue:
    """`$'...'`."""
    told = text[2:-1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")
    return text_of(told, line)


def value(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> ShellValue:
    """A word where it is not split: the right side of an assignment, a test's operand."""
    found = tuple(piece for part in parts(run, node, src) for piece in part.value)
    run.spend(len(found))
    return found


def spaced(run: "Interpreter", elements: list[ArrayElement], line: int) -> ShellValue:
    """Array elements in one string."""
    found: list[object] = []
    for each in run.settled(elements):
        found += [ShellText(" ", line), *each] if found else list(each)
    run.spend(len(found))
    return tuple(found)  # type: ignore[arg-type]


def _word(text: str, line: int, src: ShellSource) -> ShellValue:
    if "\\" in text:
        text = _ESCAPED.sub(lambda m: "" if m[1] == "\n" else m[1], text)
    if text.startswith("~/") or text == "~":
        return (Hole("the home directory", line), *_literal(text[1:], line, src))
    return _literal(text, line, src)


def _literal(text: str, line: int, src: ShellSource) -> ShellValue:
    """Text in which private characters of nested sources stand for what they replaced."""
    if not src.pieces:
        return text_of(text, line)
    found: list[object] = []
    plain_text = ""
    for character in text:
        if FIRST_PRIVATE <= ord(character) <= LAST_PRIVATE and character in src.pieces:
            found += [*text_of(plain_text, line), src.pieces[character]]
            plain_text = ""
        else:
            plain_text += character
    return (*found, *text_of(plain_text, line))  # type: ignore[arg-type]


def _between(run: "Interpreter", node: SyntaxNode, src: ShellSource, quote: str) -> ShellValue:
    """A double-quoted string or a heredoc's body: expansions, and the text between them."""
    start = node.start_byte + (1 if quote else 0)
    end = node.end_byte - (
        1 if quote and src.data[node.end_byte - 1 : node.end_byte] == b'"' else 0
    )
    found: list[object] = []
    at, row = start, node.start_point[0]

    def literal(upto: int) -> None:
        """The text up to the next expansion, line by line."""
        byte = at
        for i, each in enumerate(src.data[at:upto].splitlines(keepends=True)):
            told = each.decode("utf-8", "replace")
            told = _IN_QUOTES.sub(lambda m: "" if m[1] == "\n" else m[1], told)
            found.extend(_literal(told, src.at(byte, row + i), src))
            byte += len(each)

    for child in node.children:
        if child.type in (
            "expansion",
            "simple_expansion",
            "command_substitution",
            "arithmetic_expansion",
        ):
            literal(child.start_byte)
            found += [piece for part in parts(run, child, src) for piece in part.value]
            at, row = child.end_byte, child.end_point[0]
    literal(max(at, end))
    return tuple(found)  # type: ignore[arg-type]


def heredoc(run: "Interpreter", redirect: SyntaxNode, src: ShellSource) -> ShellValue:
    """The text a heredoc gives; expanded unless its word is quoted."""
    start = next((c for c in redirect.children if c.type == "heredoc_start"), None)
    body = next((c for c in redirect.children if c.type == "heredoc_body"), None)
    if body is None:
        return EMPTY
    if start is not None and src.text(start)[:1] in "'\"\\":
        return _literal(src.text(body), src.line(body), src)
    return _between(run, body, src, "")


def number(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> ShellValue:
    """`$((...))`, where every variable in it is a number."""
    line = src.line(node)
    text = src.text(node)[3:-2]
    if len(text) > arithmetic.LONGEST:
        return (Hole("arithmetic", line),)
    for name in set(re.findall(r"\$?\{?([A-Za-z_]\w*)\}?", text)):
        known = plain(variable(run, name, line))
        if known is None or not re.fullmatch(r"\s*-?\d+\s*|", known):
            return (Hole(f"arithmetic over ${name}", line),)
        text = re.sub(rf"\$?\{{?\b{name}\b\}}?", known.strip() or "0", text)
    found = arithmetic.evaluate(text)
    return (Hole("arithmetic", line),) if found is None else (ShellText(str(found), line),)


def substitution(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> ShellValue:
    """`$(...)`: never run. `echo`, `basename`, `dirname` and a heredoc need no running."""
    line = src.line(node)
    inner = [c for c in node.children if c.is_named and c.type != "comment"]
    told = " ".join(src.text(node).split())[:CAPTURED]
    hole = (Hole(f"the output of {told}", line),)
    if len(inner) != 1:
        return hole
    first = inner[0]
    if first.type == "redirected_statement":
        redirect = next((c for c in first.children if c.type == "heredoc_redirect"), None)
        body = first.child_by_field_name("body")
        if redirect is not None and body is not None and src.text(body).strip() == "cat":
            text = plain(heredoc(run, redirect, src))
            return text_of(text.rstrip("\n"), line) if text is not None else hole
        return hole
    if first.type != "command":
        return hole
    return _computed(run, first, src, line) or hole


def _computed(
    run: "Interpreter", command: SyntaxNode, src: ShellSource, line: int
) -> ShellValue | None:
    values = [value(run, child, src) for child in command.children if child.type != "file_redirect"]
    name = plain(values[0]) if values else None
    if name == "echo" and len(values) >= 2:
        told: list[object] = []
        for each in values[1:]:
            told += [ShellText(" ", line), *each] if told else list(each)
        return tuple(told)  # type: ignore[arg-type]
    path = plain(values[1]) if len(values) == 2 else None
    if path and name in ("basename", "dirname"):
        return text_of(getattr(posixpath, name)(path.rstrip("/")), line)
    return None


# Which way a condition goes: true, false, or not known before the script runs.


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
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


def condition(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Condition:
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


def _joined(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Condition:
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


def _compared(operator: str, values: tuple[ShellValue, ...], quoted: bool) -> Condition:
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


def _unary(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Condition:
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


def _command(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Condition:
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


def _arithmetic(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Condition:
    text = src.text(node).strip()
    found = number(run, _Wrapped(node, text), src) if text.startswith("((") else ()
    told = plain(found)
    return NOT_KNOWN if told is None or told == "" else _constant(told != "0")


class _Wrapped:
    """`((...))` in the clothes of `$((...))`: one byte more in front."""

    def __init__(self, node: SyntaxNode, text: str) -> None:
        self.start_byte, self.end_byte = node.start_byte - 1, node.end_byte
        self.start_point, self.text = node.start_point, text


def _on(
    values: tuple[ShellValue, ...], told: Callable[[list[str]], Truth], *, given: bool = False
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


# `if`, `case`, `&&` and `||`: the ways a script can go, and what is the same after them.


Flow = str | None
Arms = Callable[[Ways, bool], list[int]]
"""The arms possible when branches go these ways; without arguments, if asked."""
LONGEST_LABEL = 70


def if_statement(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Flow:
    """Conditions are asked in turn; those that cannot be told open a branch."""
    clauses = [node, *(c for c in node.children if c.type == "elif_clause")]
    asked: list[tuple[Condition, list[SyntaxNode], str]] = []
    for clause in clauses:
        tests, body = _clause(clause)
        if not tests:
            continue
        for before in tests[:-1]:
            run.statement(before, src)
        found = run.condition(tests[-1], src)
        label = " ".join(src.text(tests[-1]).split())
        asked.append((found, body, label[:LONGEST_LABEL]))
    otherwise = next((c for c in node.children if c.type == "else_clause"), None)
    last = list(otherwise.children) if otherwise is not None else []
    needed = {b for found, _, _ in asked for b in found.branches}
    bodies = [body for _, body, _ in asked] + [last]
    labels = [label for _, _, label in asked]
    labels.append(f"not {labels[0]}" if len(labels) == 1 else "none of its conditions")

    def arms(ways: Ways, usual: bool) -> list[int]:
        possible = []
        for i, (found, _, _) in enumerate(asked):
            told = found.truth(ways, usual)
            if told is not False:
                possible.append(i)
            if told:
                return possible
        return [*possible, len(asked)]

    return fork(run, bodies, labels, needed, arms, src)


def _clause(node: SyntaxNode) -> tuple[list[SyntaxNode], list[SyntaxNode]]:
    """The condition's statements and the body's, of an `if` or an `elif`."""
    tests: list[SyntaxNode] = []
    body: list[SyntaxNode] = []
    where = tests
    for child in node.children:
        if child.type == "then":
            where = body
        elif child.type in ("elif_clause", "else_clause"):
            break
        elif child.is_named and child.type != "comment":
            where.append(child)
    return tests, body


def case_statement(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Flow:
    """The arm whose pattern fits; every arm, where the word is not known."""
    subject = node.child_by_field_name("value")
    if subject is None:
        return None
    word = value(run, subject, src)
    items = [c for c in node.children if c.type == "case_item"]
    patterns = [_patterns(run, item, src) for item in items]
    bodies = [_body(item) for item in items]
    told = " ".join(src.text(subject).split())
    labels = [f"{told} is {' or '.join(each)}"[:LONGEST_LABEL] for each in patterns]

    def arms(ways: Ways, usual: bool) -> list[int]:
        pieces = tuple(flat(word, ways))
        text = plain(pieces)
        asked = any(
            isinstance(p, Hole) and p.unset and p.why.startswith("argument ") for p in pieces
        )
        if text is None or (asked and not usual):
            open_ended = not any("*" in each for each in patterns)
            return list(range(len(items) + open_ended))
        for i, each in enumerate(patterns):
            if any(fnmatch.fnmatchcase(text, pattern) for pattern in each):
                return [i]
        return [len(items)]

    return fork(
        run, [*bodies, []], [*labels, f"{told} is something else"], set(branches(word)), arms, src
    )


def _patterns(run: "Interpreter", item: SyntaxNode, src: ShellSource) -> list[str]:
    found = []
    for child in item.children:
        if child.type == ")":
            break
        if child.is_named:
            known = plain(value(run, child, src))
            found.append(known if known is not None else "?*")
    return found


def _body(item: SyntaxNode) -> list[SyntaxNode]:
    children = list(item.children)
    closed = next((i for i, c in enumerate(children) if c.type == ")"), len(children))
    return children[closed + 1 :]


def list_statement(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> Flow:
    """`a && b`, `a || b`. What follows `||` is for what went wrong, unless `a` is a test."""
    if len(node.children) < 3:
        return run.children(node.children, src)
    left, operator, right = node.children[0], src.text(node.children[1]), node.children[2]
    found = run.condition(left, src)
    is_test = left.type in ("test_command", "negated_command", "list") and "[" in src.text(left)
    if not is_test:
        flow = run.statement(left, src)
        if flow is not None:
            return flow
        if operator == "||":
            run.statement(right, src)
            return None
        return run.statement(right, src)
    wanted = operator == "&&"

    def arms(ways: Ways, usual: bool) -> list[int]:
        told = found.truth(ways, usual)
        return [0, 1] if told is None else [0 if told == wanted else 1]

    label = " ".join(src.text(left).split())[:LONGEST_LABEL]
    labels = [label, f"not {label}"] if wanted else [f"not {label}", label]
    return fork(run, [[right], []], labels, set(found.branches), arms, src)


def fork(
    run: "Interpreter",
    bodies: Sequence[Sequence[SyntaxNode]],
    labels: Sequence[str],
    needed: set[int],
    arms: Arms,
    src: ShellSource,
) -> Flow:
    """Go every way that is possible, then go on with what is known after all of them."""
    ways = run.ways_of(needed)
    outcomes = [(each, arms(each, False)) for each in ways]
    possible = sorted({arm for _, found in outcomes for arm in found})
    if len(possible) == 1:
        before = run.scope.copy()
        flow = run.children(bodies[possible[0]], src)
        if flow == "exit":  # without arguments this script would only say how to use it
            run.scope.become(before)
            return None
        return flow
    usual = arms(dict(run.guard), True)
    number = len(run.branches)
    decided = tuple(
        ({b: w[b] for b in needed if b in w}, possible.index(found[0]))
        for w, found in outcomes
        if len(found) == 1 and needed
    )
    run.branches.append(
        Branch(
            tuple(labels[arm] for arm in possible),
            possible.index(usual[0]) if len(usual) == 1 and usual[0] in possible else None,
            set(),
            decided,
        )
    )
    before, guard = run.scope, run.guard
    scopes, flows = [], []
    for i, arm in enumerate(possible):
        run.scope = before.copy()
        run.guard = (*guard, (number, i))
        flows.append(run.children(bodies[arm], src))
        scopes.append(run.scope)
    run.guard = guard
    return _after(run, number, before, scopes, flows)


def _after(
    run: "Interpreter", number: int, before: Scope, scopes: list[Scope], flows: list[Flow]
) -> Flow:
    alive = [i for i, flow in enumerate(flows) if flow is None]
    branch = run.branches[number]
    if not alive:
        run.scope = before
        return flows[0] if len(set(flows)) == 1 and flows[0] != "exit" else None
    branch.dead |= {i for i in range(len(flows)) if i not in alive}
    if branch.usual in branch.dead:
        branch.usual = None
    stand_in = scopes[alive[0]]
    kept = [scopes[i] if i in alive else stand_in for i in range(len(scopes))]
    run.scope = join(number, before, kept, run.spend)
    return None


# Loops: once for each of the values a script lists, and once where it does not.


LoopsFlow = str | None
MOST_TURNS = 64
LONGEST_LOOP_LABEL = 60


def for_statement(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> LoopsFlow:
    """`for x in ...`: one turn a value; `for x` alone goes over the arguments."""

    subject, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if subject is None or body is None:
        return None
    name = src.text(subject)
    listed = False
    items: list[ShellValue] = []
    for child in node.children:
        if child.type == "in":
            listed = True
        elif listed and child.is_named and child.type not in ("do_group", "comment"):
            for term in terms(run, child, src):
                items += run.settled(element(run, term))
    if not listed:
        items = run.settled(run.scope.arguments)
    if len(items) > MOST_TURNS:
        run.bounded.add(f"only the first {MOST_TURNS} turns of a loop were looked at")
        items = items[:MOST_TURNS]
    several = len(items) > 1
    for item in items:
        label = (plain(item) or "?").strip()
        if _turn(run, body, src, name, item, f"{name}={label}" if several else "") == "exit":
            break
    return None


def _turn(
    run: "Interpreter",
    body: SyntaxNode,
    src: ShellSource,
    name: str,
    item: ShellValue | ShellArray,
    label: str,
) -> LoopsFlow:
    before = run.loops
    run.scope.variables[name] = item
    if label:
        run.loops = (*before, label[:LONGEST_LOOP_LABEL])
    flow = run.statement(body, src)
    run.loops = before
    return "exit" if flow in ("exit", "return", "break") else None


def c_style(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> LoopsFlow:
    """`for ((i = 0; ...))`: one turn, the counter at its first value or not known."""
    body = node.child_by_field_name("body")
    for child in node.children:
        if child.type == "variable_assignment":
            run.statement(child, src)
            target = child.child_by_field_name("name")
            if target is not None:
                line = src.line(child)
                run.scope.variables[src.text(target)] = (Hole("a loop's counter", line),)
    if body is not None:
        run.statement(body, src)
    return None


def while_statement(run: "Interpreter", node: SyntaxNode, src: ShellSource) -> LoopsFlow:
    """As often as its condition is known to hold, and once where that is not known."""
    body = node.child_by_field_name("body")
    tests = [c for c in node.children if c.is_named and c.type not in ("do_group", "comment")]
    until = node.children[0].type == "until" if node.children else False
    if body is None or not tests:
        return None
    for turn in range(MOST_TURNS):
        told = run.condition(tests[-1], src).truth(dict(run.guard), True)
        if told is not None and told == until:
            return None
        flow = run.statement(body, src)
        if flow in ("exit", "return"):
            return flow if told is not None and turn == 0 else None
        if flow == "break" or told is None:
            return None
        if src.text(tests[-1]).strip() in ("true", ":", "1"):
            return None
    return None


# Scripts within scripts: strings and heredocs that the script hands to another shell.


HINT = re.compile(
    r"main_ppo|train_ppo|verl\.trainer|openrlhf|skyrl|actor_rollout_ref|worker\.actor\."
    r"|trainer\.algorithm|algorithm\."
    r"|prime.?rl|zeroband|--init_kl|--algo\.kl|use_kl|kl_coef|\brl @|main_\w+"
    r"|\buv run (rl|trainer)\b"
)
"""Text in which a launch of one of the libraries may be."""
MOST_NESTED = 80
LONGEST_NESTED = 60_000


def run_text(
    run: "Interpreter", value: ShellValue, *, arguments: tuple[ArrayElement, ...] = ()
) -> None:
    """Read a string as a script, in the scope it is in."""
    if run.nested >= MOST_NESTED:
        run.bounded.add(f"only the first {MOST_NESTED} scripts within the script were looked at")
        return
    run.nested += 1
    for ways in run.ways_of(set(branches(value))):
        source = _source(run, value, ways)
        if source is None:
            return
        guard, before = run.guard, run.scope.arguments
        run.guard = tuple(sorted(dict(guard).items() | dict(ways).items()))
        run.scope.arguments = arguments or before
        flow = run.statement(run.parse(source.data), source)
        run.guard, run.scope.arguments = guard, before
        if flow == "exit":
            return


def _source(run: "Interpreter", value: ShellValue, ways: Ways) -> ShellSource | None:
    """The text of a value; what is not text gets a character of its own."""
    text: list[bytes] = []
    starts: list[int] = []
    lines: list[int] = []
    pieces: dict[str, Hole | Pick] = {}
    length = 0
    for piece in flat(value, ways):
        told = piece.text if isinstance(piece, ShellText) else ""
        if isinstance(piece, Hole) and not piece.unset:
            if FIRST_PRIVATE + len(pieces) > LAST_PRIVATE:
                return None
            told = chr(FIRST_PRIVATE + len(pieces))
            pieces[told] = piece
        data = told.encode("utf-8", "replace")
        if data:
            starts.append(length)
            lines.append(piece.line)
        length += len(data)
        if length > LONGEST_NESTED:
            return None
        text.append(data)
    run.spend(length // 2)
    return ShellSource(b"".join(text), starts, lines, 1, pieces)


# Commands: the few built-ins that change what is known, scripts within scripts, and the programs
# that are left, which is what a launch script is for.


CommandsFlow = str | None
SILENT = frozenset(
    {
        "echo",
        "printf",
        "mkdir",
        "cd",
        "rm",
        "cp",
        "mv",
        "ls",
        "cat",
        "sleep",
        "wait",
        "chmod",
        "ln",
        "touch",
        "grep",
        "sed",
        "awk",
        "find",
        "which",
        "type",
        "date",
        "tee",
        "head",
        "tail",
        "kill",
        "ulimit",
        "pip",
        "pip3",
        "apt-get",
        "conda",
        "module",
        "git",
        "wget",
        "curl",
        "tar",
        "nvidia-smi",
        "pushd",
        "popd",
        "trap",
        "hash",
        "alias",
        "local",
        "log",
        "info",
        "usage",
        "die",
        "[",
        "test",
        "command",
        "huggingface-cli",
        "hf",
        "read",
        "wandb",
        "export",
        "unset",
        "ray stop",
    }
)
MOST_OPENED, LONGEST_BESIDE = 6, 60_000
"""Other scripts that are opened, and the characters of one."""
SHELLS = ("bash", "sh", "zsh", "sbatch", "/bin/bash", "/bin/sh", "dash")
STARTS = re.compile(r"\bpython|torchrun|\buv |\bray |\brl |bash|deepspeed|accelerate|-m |\.sh")
ACTIVATES = re.compile(r"bashrc|activate|conda|profile|modules?\b|venv|setvars|set_env\.sh|\.zshrc")


def element(run: "Interpreter", term: WordTerm) -> Iterable[ArrayElement]:
    """A word as array elements. What hangs on a branch and is not split stays open."""
    if isinstance(term, BranchSpread):
        yield term
        return
    value: ShellValue = tuple(piece for part in term for piece in part.value)
    needed = set(branches(value))
    if not needed or all(part.quoted for part in term):
        yield from _split(term, {})
        return
    if len(needed) == 1:
        branch = needed.pop()
        arms = range(len(run.branches[branch].labels))
        yield BranchSpread(branch, tuple(tuple(_split(term, {branch: arm})) for arm in arms))
        return
    yield value


def _split(term: tuple[WordPart, ...], ways: dict[int, int]) -> Iterable[ShellValue]:
    """A term's words as values: pieces that are not text are kept."""
    if all(part.quoted for part in term):
        yield tuple(piece for part in term for piece in part.value)
        return
    now: list[object] = []
    begun = False
    for part in term:
        begun = begun or part.quoted
        for piece in flat(part.value, ways):
            if part.quoted or isinstance(piece, Hole) or not re.search(r"\s", piece.text):
                now.append(piece)
                continue
            for i, chunk in enumerate(re.split(r"\s+", piece.text)):
                if i and now:
                    yield tuple(now)  # type: ignore[arg-type]
                    now, begun = [], False
                if chunk:
                    now.append(ShellText(chunk, piece.line))
    if (now or begun) and not all(isinstance(p, Hole) and p.unset for p in now):
        yield tuple(now)  # type: ignore[arg-type]


def command(
    run: "Interpreter",
    node: SyntaxNode,
    src: ShellSource,
    *,
    more: Sequence[SyntaxNode] = (),
    stdin: ShellValue | None = None,
    target: ShellValue | None = None,
) -> CommandsFlow:
    """One simple command."""
    found: list[WordTerm] = []
    for child in node.children:
        if child.type == "variable_assignment":
            run.statement(child, src)
        elif child.type == "herestring_redirect":
            continue
        elif child.is_named and child.type not in ("comment", "file_redirect"):
            found += terms(run, child, src)
        elif child.type == "file_redirect":
            named = [c for c in child.children if c.is_named and c.type != "file_descriptor"]
            for each in named[1:]:
                found += terms(run, each, src)
    for each in more:
        found += terms(run, each, src)
    return invoke(run, tuple(found), src.line(node), stdin, target)


def invoke(
    run: "Interpreter",
    found: tuple[WordTerm, ...],
    line: int,
    stdin: ShellValue | None = None,
    target: ShellValue | None = None,
) -> CommandsFlow:
    """A command of words already expanded."""
    values = [each for term in found for each in element(run, term)]
    run.spend(len(values))
    if not values:
        return None
    head = values[0]
    name = None if isinstance(head, BranchSpread) else plain(head)
    if name in run.scope.functions and run.depth < 40:
        return _call(run, name or "", tuple(values[1:]))
    if name in ("read", "mapfile", "readarray") and stdin is not None:
        _read_text(run, tuple(values[1:]), stdin)
        return None
    builtin = _BUILTINS.get(name or "")
    if builtin is not None:
        return builtin(run, tuple(values[1:]), line)
    if name == "cat" or name == "tee":
        _kept(run, target if name == "cat" else _first(values), stdin)
        return None
    if name in SILENT:
        return None
    if _script(
        run, name or _told(head) if not isinstance(head, BranchSpread) else "", values, line
    ):
        return None
    if stdin is not None and _hints(stdin):
        run_text(run, stdin)
        return None
    if _strings(run, values):
        return None
    run.started()
    hinted = any(HINT.search(text) for each in values for text in _texts(each))
    run.commands.append(
        ShellCommand(found, run.guard, run.loops, line, tuple(run.sourced), promising=hinted)
    )
    return None


def _first(values: Sequence[ArrayElement]) -> ShellValue | None:
    if len(values) < 2:
        return None
    last = values[-1]
    return None if isinstance(last, BranchSpread) else last


def _kept(run: "Interpreter", target: ShellValue | None, stdin: ShellValue | None) -> None:
    """A heredoc written to a file that may be run later."""
    name = plain(target) if target is not None else None
    if stdin is not None:
        name = name or f"a file written at line {len(run.files)}"
        run.files[name] = stdin


def _script(run: "Interpreter", name: str, values: Sequence[ArrayElement], line: int) -> bool:
    """`bash -c '...'`, and scripts that this one has written itself."""
    texts = [None if isinstance(v, BranchSpread) else plain(v) for v in values]
    if name in SHELLS and "-c" in texts[:4]:
        at = texts.index("-c") + 1
        body = values[at] if at < len(values) else None
        if body is not None and not isinstance(body, BranchSpread):
            run_text(run, body, arguments=tuple(values[at + 2 :]))
            return True
    for text in texts[:6]:
        if text is not None and text in run.files and (name in SHELLS or text == name):
            run_text(run, run.files.pop(text))
            return True
    return _beside(run, name, values, line)


def _beside(run: "Interpreter", name: str, values: Sequence[ArrayElement], line: int) -> bool:
    """`bash other.sh ...`, where the other script can be had: read in its own scope."""
    for i, each in enumerate(values[:2] if name in SHELLS else values[:1]):
        text = None if isinstance(each, BranchSpread) else _opened(run, each)
        if text is not None:
            before = run.scope.copy()
            run_text(run, (ShellText(text, line),), arguments=tuple(values[i + 1 :]))
            run.scope.become(before)
            return True
    return False


def _opened(run: "Interpreter", path: ShellValue) -> str | None:
    """The text of a script beside this one; a folder that is not known is left out of its path."""
    known = ""
    for piece in flat(path, {}):
        known = "" if isinstance(piece, Hole) else known + piece.text
    known = known.lstrip("./")
    if not known.endswith((".sh", ".bash", ".slurm", ".sbatch")) or run.opened >= MOST_OPENED:
        return None
    text = run.beside.get(known)
    if text is None or len(text) > LONGEST_BESIDE or not text.strip():
        return None
    run.opened += 1
    return text


def _strings(run: "Interpreter", values: Sequence[ArrayElement]) -> bool:
    """Whole commands that other commands are given as one word (`srun bash -c "..."`)."""
    texts = [each for each in values if not isinstance(each, BranchSpread)]
    plains = [_told(each) for each in texts]
    if any(HINT.search(t) and not re.search(r"\s", t.strip()) for t in plains):
        return False
    nested = [
        value
        for value, told in zip(texts[1:], plains[1:], strict=True)
        if re.search(r"\s", told.strip()) and HINT.search(told) and STARTS.search(told)
    ]
    for value in nested:
        run_text(run, value)
    return bool(nested)


def _told(value: ShellValue) -> str:
    """The text of a value as far as it is known."""
    return "".join(p.text if isinstance(p, ShellText) else "?" for p in flat(value, {}))


def _texts(each: ArrayElement) -> Iterable[str]:
    """The text of an element, of whichever way it may go."""
    if isinstance(each, BranchSpread):
        for arm in each.arms:
            for inner in arm:
                yield from _texts(inner)
    else:
        yield _told(each)


def _hints(value: ShellValue) -> bool:
    return HINT.search(_told(value)) is not None


def _call(run: "Interpreter", name: str, arguments: tuple[ArrayElement, ...]) -> CommandsFlow:
    body, src = run.scope.functions[name]
    run.called.add(name)
    before, inside = run.scope.arguments, run.scope.in_function
    run.scope.arguments, run.scope.in_function = arguments, True
    flow = run.statement(body, src)
    run.scope.arguments, run.scope.in_function = before, inside
    return flow if flow == "exit" else None


def _set(run: "Interpreter", arguments: tuple[ArrayElement, ...], _line: int) -> CommandsFlow:
    texts = [None if isinstance(v, BranchSpread) else plain(v) for v in arguments]
    if "--" in texts:
        run.scope.arguments = arguments[texts.index("--") + 1 :]
    return None


def _shift(run: "Interpreter", arguments: tuple[ArrayElement, ...], _line: int) -> CommandsFlow:
    first = arguments[0] if arguments else EMPTY
    told = None if isinstance(first, BranchSpread) else plain(first)
    run.scope.arguments = run.scope.arguments[int(told) if told and told.isdigit() else 1 :]
    return None


def _eval(run: "Interpreter", arguments: tuple[ArrayElement, ...], line: int) -> CommandsFlow:
    text: list[object] = []
    for each in run.settled(arguments):
        text += [ShellText(" ", line), *each] if text else list(each)
    run_text(run, tuple(text))  # type: ignore[arg-type]
    return None


def _source_file(
    run: "Interpreter", arguments: tuple[ArrayElement, ...], line: int
) -> CommandsFlow:
    first = arguments[0] if arguments else EMPTY
    if isinstance(first, BranchSpread):
        return None
    name = plain(first)
    if name is not None and name in run.files:
        run_text(run, run.files.pop(name))
    elif not ACTIVATES.search(_told(first)):
        text = _opened(run, first)
        if text is not None:
            run_text(run, (ShellText(text, line),), arguments=arguments[1:])
            return None
        run.sourced.append(_told(first))
    return None


def _read(run: "Interpreter", arguments: tuple[ArrayElement, ...], line: int) -> CommandsFlow:
    for each in run.settled(arguments):
        name = plain(each)
        if name and name.isidentifier():
            run.scope.variables[name] = (Hole(f"${name}, which is read", line),)
    return None


def _read_text(run: "Interpreter", arguments: tuple[ArrayElement, ...], stdin: ShellValue) -> None:
    """`read -r -d '' x <<EOF`: the variable named last has the text."""
    named = [plain(each) for each in run.settled(arguments)]
    if named and named[-1] and named[-1].isidentifier():
        run.scope.variables[named[-1]] = stdin


def _fill(run: "Interpreter", arguments: tuple[ArrayElement, ...], line: int) -> CommandsFlow:
    for each in run.settled(arguments)[-1:]:
        name = plain(each)
        if name and name.isidentifier():
            run.scope.variables[name] = ShellArray(((Hole(f"${name}, which is read", line),),))
    return None


def _unset(run: "Interpreter", arguments: tuple[ArrayElement, ...], _line: int) -> CommandsFlow:
    for each in run.settled(arguments):
        run.scope.variables.pop(plain(each) or "", None)
    return None


def _leave(how: str) -> Callable[["Interpreter", tuple[ArrayElement, ...], int], CommandsFlow]:
    return lambda _run, _arguments, _line: how


def _exec(run: "Interpreter", arguments: tuple[ArrayElement, ...], line: int) -> CommandsFlow:
    if arguments:
        found = tuple(v if isinstance(v, BranchSpread) else (WordPart(v, True),) for v in arguments)
        invoke(run, found, line)
        return "exit"
    return None


def _nothing(_run: "Interpreter", _arguments: tuple[ArrayElement, ...], _line: int) -> CommandsFlow:
    return None


_BUILTINS: dict[str, Callable[["Interpreter", tuple[ArrayElement, ...], int], CommandsFlow]] = {
    "set": _set,
    "shift": _shift,
    "eval": _eval,
    "source": _source_file,
    ".": _source_file,
    "read": _read,
    "mapfile": _fill,
    "readarray": _fill,
    "unset": _unset,
    "exit": _leave("exit"),
    "return": _leave("return"),
    "break": _leave("break"),
    "continue": _leave("continue"),
    "exec": _exec,
    ":": _nothing,
    "true": _nothing,
    "false": _nothing,
}


# Reading a script from its first line to its last without running any of it.


RunFlow = str | None
"""How a statement ends: None, or `exit`, `return`, `break`, `continue`."""

DEEPEST = 60
MOST_COMMANDS = 500
MOST_WAYS = 16


class Interpreter:
    """A reading in progress."""

    def __init__(self, budget: Budget, beside: Mapping[str, str]) -> None:
        self.budget = budget
        self.parse, self.spend = budget.parse, budget.spend
        self.beside = beside
        self.every_way = False
        self.left = ""
        self.scope = Scope()
        self.branches: list[Branch] = []
        self.guard: tuple[tuple[int, int], ...] = ()
        self.loops: tuple[str, ...] = ()
        self.commands: list[ShellCommand] = []
        self.sourced: list[str] = []
        self.files: dict[str, ShellValue] = {}
        self.bounded: set[str] = set()
        self.called: set[str] = set()
        self.depth = 0
        self.nested = 0
        self.opened = 0

    def started(self) -> None:
        """Count a command. Raises TooDeep where there are more than are looked at."""
        if len(self.commands) >= MOST_COMMANDS:
            raise TooDeep(f"it starts more than {MOST_COMMANDS} commands")

    def settled(self, elements: Iterable[ArrayElement]) -> list[ShellValue]:
        """Elements, every branch going its first way."""
        return list(elements_of(elements, {}))

    def mapped(self, value: ShellValue, change: Callable[[ShellValue], ShellValue]) -> ShellValue:
        """A Pick with each arm changed."""
        return tuple(
            Pick(each.branch, tuple(change(arm) for arm in each.arms))
            if isinstance(each, Pick)
            else each
            for each in value
        )

    def ways_of(self, needed: Iterable[int]) -> list[Ways]:
        """Every way these branches can go from here, at most MOST_WAYS."""
        fixed = dict(self.guard)
        open_branches = sorted({b for b in needed if b not in fixed})
        arms = [
            [a for a in range(len(self.branches[b].labels)) if a not in self.branches[b].dead]
            for b in open_branches
        ]
        found: list[Ways] = []
        for chosen in product(*arms):
            ways = fixed | dict(zip(open_branches, chosen, strict=True))
            if self.possible(ways):
                found.append(ways)
            if len(found) == MOST_WAYS:
                self.bounded.add(f"only the first {MOST_WAYS} of its cases were looked at")
                break
        return found or [fixed]

    def possible(self, ways: Ways) -> bool:
        """Whether branches that others decide go the way they are decided to."""
        for branch, arm in ways.items():
            for others, decided in self.branches[branch].decided:
                if decided != arm and all(ways.get(b) == a for b, a in others.items()):
                    return False
        return True

    def children(self, nodes: Sequence[SyntaxNode], src: ShellSource) -> RunFlow:
        for node in nodes:
            flow = self.statement(node, src)
            if flow is not None:
                return flow
        return None

    def statement(self, node: SyntaxNode, src: ShellSource) -> RunFlow:
        """One statement. Words, comments and punctuation are none."""
        reader = _READERS.get(node.type)
        if reader is None:
            return None
        self.budget.step()
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooDeep("it is nested deeper than any launch needs")
        try:
            return reader(self, node, src)
        finally:
            self.depth -= 1

    def condition(self, node: SyntaxNode, src: ShellSource) -> Condition:
        return NOT_KNOWN if self.every_way else condition(self, node, src)


def _block(run: Interpreter, node: SyntaxNode, src: ShellSource) -> RunFlow:
    return run.children(node.children, src)


def _subshell(run: Interpreter, node: SyntaxNode, src: ShellSource) -> RunFlow:
    before = run.scope.copy()
    run.children(node.children, src)
    run.scope.become(before)
    return None


def _function(run: Interpreter, node: SyntaxNode, src: ShellSource) -> RunFlow:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        run.scope.functions[src.text(name)] = (body, src)
    return None


def _assignment(run: Interpreter, node: SyntaxNode, src: ShellSource) -> RunFlow:
    target, given = node.child_by_field_name("name"), node.child_by_field_name("value")
    if target is None:
        return None
    name = src.text(target).replace('"', "").replace("'", "")
    before = run.scope.variables.get(name)
    new: ShellValue | ShellArray
    if given is not None and given.type == "array":
        new = ShellArray(tuple(_array(run, given, src)))
    else:
        new = EMPTY if given is None else value(run, given, src)
    if before is not None and any(c.type == "+=" for c in node.children):
        new = _appended(before, new)
    run.scope.variables[name] = light(new, run.spend)
    return None


def _appended(
    before: ShellValue | ShellArray, new: ShellValue | ShellArray
) -> ShellValue | ShellArray:
    """`x+=...`: one more element of an array, or more text."""
    if isinstance(before, tuple) and isinstance(new, tuple):
        return (*before, *new)
    head: tuple[ArrayElement, ...] = (
        before.elements if isinstance(before, ShellArray) else (before,)
    )
    return ShellArray((*head, *(new.elements if isinstance(new, ShellArray) else (new,))))


def _array(run: Interpreter, node: SyntaxNode, src: ShellSource) -> Iterable[ArrayElement]:
    """Elements of `( ... )`; unquoted strings in it are split into their words."""

    for child in node.children:
        if child.is_named and child.type != "comment":
            for term in terms(run, child, src):
                yield from element(run, term)


def _declaration(run: Interpreter, node: SyntaxNode, src: ShellSource) -> RunFlow:
    for child in node.children:
        if child.type == "variable_assignment":
            _assignment(run, child, src)
    return None


def _redirected(run: Interpreter, node: SyntaxNode, src: ShellSource) -> RunFlow:
    body = node.child_by_field_name("body")
    redirects = [c for c in node.children if c.type.endswith("redirect")]
    here = next((c for c in redirects if c.type == "heredoc_redirect"), None)
    more: list[SyntaxNode] = []
    target = None
    for each in redirects:
        inner = each.children
        if each.type == "heredoc_redirect":
            inner = [g for c in inner if c.type == "file_redirect" for g in (c, *c.children)]
        named = [
            c
            for c in inner
            if c.is_named and c.type not in ("file_descriptor", "comment", "file_redirect")
        ]
        more += named[1:] if each.type == "file_redirect" else []
        if named and any(c.type in (">", ">>", "&>") for c in inner):
            target = value(run, named[0], src)
    if here is not None and any(c.type == "pipeline" for c in here.children):
        run.children([c for c in here.children if c.type == "pipeline"], src)
    text = heredoc(run, here, src) if here is not None else None
    if body is None:
        return None
    if body.type == "command":
        return command(run, body, src, more=more, stdin=text, target=target)
    return run.statement(body, src)


_READERS: dict[str, Callable[[Interpreter, SyntaxNode, ShellSource], RunFlow]] = {
    "program": _block,
    "compound_statement": _block,
    "do_group": _block,
    "else_clause": _block,
    "ERROR": _block,
    "pipeline": _block,
    "negated_command": _block,
    "subshell": _subshell,
    "list": list_statement,
    "if_statement": if_statement,
    "case_statement": case_statement,
    "for_statement": for_statement,
    "c_style_for_statement": c_style,
    "while_statement": while_statement,
    "function_definition": _function,
    "variable_assignment": _assignment,
    "variable_assignments": _declaration,
    "declaration_command": _declaration,
    "redirected_statement": _redirected,
    "command": command,
}


# Scripts that the grammar cannot read whole, and commands cut short by a broken continuation.


MOST_RESTARTS, LONGEST_RECOVERED = 6, 60_000
"""How often, and on how many characters."""
_OPENS = frozenset({'"', "`", "(", "((", "{", "$(", "${", "<(", "[[", "if", "then", "do", "case"})
_FLAG = re.compile(r"^(?:(?:\+\+|\+|~)?[A-Za-z_]\w*(?:\.[\w@-]+)+=|--?[A-Za-z][\w.-]*)")


def restart(run: "Interpreter", text: str, tree: SyntaxNode, first_line: int) -> None:
    """Read on behind an error that has swallowed a launch: from the line after it, as a script of
    its own in the scope so far."""
    for _ in range(MOST_RESTARTS):
        row = _error_row(tree) if tree.has_error else None
        lines = text.split("\n")
        if row is None or row + 1 >= len(lines):
            return
        text = "\n".join(lines[row + 1 :])
        first_line += row + 1
        if len(text) > LONGEST_RECOVERED or not HINT.search(text):
            return
        if any(c.line >= first_line and c.promising for c in run.commands):
            return
        source = ShellSource(text.encode("utf-8", "replace"), first_line=first_line)
        tree = run.parse(source.data)
        run.statement(tree, source)


def _error_row(tree: SyntaxNode) -> int | None:
    """The row of the outermost error that goes on over several rows, where it opens."""
    todo = deque([tree])
    while todo:
        node = todo.popleft()
        if node.type == "ERROR" and node.end_point[0] > node.start_point[0]:
            opened = [c.start_point[0] for c in node.children if c.type in _OPENS]
            return int(max(opened, default=node.start_point[0]))
        todo.extend(c for c in node.children if c.has_error)
    return None


def _recovery_told(command: ShellCommand) -> list[CommandWord]:
    return [word for term in command.terms for word in words(term, {})]


def cut(commands: list[ShellCommand]) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Commands whose line was not continued as meant: index -> the line from which flags follow
    that are not handed to it, and those flags."""
    found: dict[int, tuple[int, tuple[str, ...]]] = {}
    head: int | None = None
    for i, command in enumerate(commands):
        if not is_flag(command):
            head = i if command.promising else None
        elif head is not None and command.guard == commands[head].guard:
            line, flags = found.get(head, (command.line, ()))
            found[head] = (line, (*flags, *(word.text for word in _recovery_told(command))))
    return found


def is_flag(command: ShellCommand) -> bool:
    """Whether it is no command but flags of one before it: `a.b=c`, `--flag`."""
    first = command.terms[0] if command.terms else None
    if first is None or isinstance(first, BranchSpread):
        return False
    return bool(
        _FLAG.match(
            "".join(
                piece.text for part in first for piece in part.value if isinstance(piece, ShellText)
            )
        )
    )
