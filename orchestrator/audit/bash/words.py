"""From words of the shell to values: quotes, variables, defaults, arrays, substitutions."""

import posixpath
import re
from typing import TYPE_CHECKING

from orchestrator.audit.bash import arithmetic
from orchestrator.audit.bash.parameters import expansion, variable
from orchestrator.audit.bash.state import FIRST_PRIVATE, LAST_PRIVATE, Node, Source
from orchestrator.audit.bash.values import (
    EMPTY,
    Element,
    Hole,
    Part,
    Spread,
    Term,
    Text,
    Value,
    plain,
    text_of,
)  # fmt: skip

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_BRACES = re.compile(r"^\{(-?\d+)\.\.(-?\d+)\}$")
MOST_NUMBERS = 100
CAPTURED = 60


def terms(run: "Run", node: Node, src: Source) -> list[Term]:
    """What a word node expands to."""
    if node.type == "brace_expression" and (match := _BRACES.match(src.text(node))):
        low, high = int(match[1]), int(match[2])
        step = 1 if high >= low else -1
        numbers = range(low, high + step, step)[:MOST_NUMBERS]
        return [(Part((Text(str(n), src.line(node)),), True),) for n in numbers]
    if node.type == "command_name" and len(node.children) == 1:
        node = node.children[0]
    whole = _whole_array(run, node, src)
    if whole is None:
        whole = [tuple(parts(run, node, src))]
    run.spend(sum(
        1 if isinstance(term, Spread) else 1 + sum(len(part.value) for part in term)
        for term in whole
    ))  # fmt: skip
    return whole


def _whole_array(run: "Run", node: Node, src: Source) -> list[Term] | None:
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
    return [each if isinstance(each, Spread) else (Part(each, quoted),) for each in elements]


def parts(run: "Run", node: Node, src: Source) -> list[Part]:
    """The parts of one word."""
    kind = node.type
    if kind == "concatenation":
        found: list[Part] = []
        for child in node.children:
            found += parts(run, child, src)
        return found
    if kind in ("string", "translated_string"):
        return [Part(_between(run, node, src, '"'), True)]
    if kind == "raw_string":
        return [Part(_literal(src.text(node)[1:-1], src.line(node), src), True)]
    if kind == "ansi_c_string":
        return [Part(_ansi(src.text(node), src.line(node)), True)]
    if kind in ("expansion", "simple_expansion"):
        elements = expansion(run, node, src)
        if isinstance(elements, list):
            return [Part(spaced(run, elements, src.line(node)), False)]
        return [Part(elements, False)]
    if kind == "command_substitution":
        return [Part(substitution(run, node, src), False)]
    if kind == "arithmetic_expansion":
        return [Part(number(run, node, src), True)]
    if kind in ("process_substitution", "array"):
        return [Part((Hole(f"a {kind.replace('_', ' ')}", src.line(node)),), True)]
    if kind == "command_name":
        return [part for child in node.children for part in parts(run, child, src)]
    return [Part(_word(src.text(node), src.line(node), src), True)]


def _ansi(text: str, line: int) -> Value:
    """`$'...'`."""
    told = text[2:-1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")
    return text_of(told, line)


def value(run: "Run", node: Node, src: Source) -> Value:
    """A word where it is not split: the right side of an assignment, a test's operand."""
    found = tuple(piece for part in parts(run, node, src) for piece in part.value)
    run.spend(len(found))
    return found


def spaced(run: "Run", elements: list[Element], line: int) -> Value:
    """Array elements in one string."""
    found: list[object] = []
    for each in run.settled(elements):
        found += [Text(" ", line), *each] if found else list(each)
    run.spend(len(found))
    return tuple(found)  # type: ignore[arg-type]


def _word(text: str, line: int, src: Source) -> Value:
    if "\\" in text:
        text = _ESCAPED.sub(lambda m: "" if m[1] == "\n" else m[1], text)
    if text.startswith("~/") or text == "~":
        return (Hole("the home directory", line), *_literal(text[1:], line, src))
    return _literal(text, line, src)


def _literal(text: str, line: int, src: Source) -> Value:
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


def _between(run: "Run", node: Node, src: Source, quote: str) -> Value:
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
            "expansion", "simple_expansion", "command_substitution", "arithmetic_expansion",
        ):  # fmt: skip
            literal(child.start_byte)
            found += [piece for part in parts(run, child, src) for piece in part.value]
            at, row = child.end_byte, child.end_point[0]
    literal(max(at, end))
    return tuple(found)  # type: ignore[arg-type]


def heredoc(run: "Run", redirect: Node, src: Source) -> Value:
    """The text a heredoc gives; expanded unless its word is quoted."""
    start = next((c for c in redirect.children if c.type == "heredoc_start"), None)
    body = next((c for c in redirect.children if c.type == "heredoc_body"), None)
    if body is None:
        return EMPTY
    if start is not None and src.text(start)[:1] in "'\"\\":
        return _literal(src.text(body), src.line(body), src)
    return _between(run, body, src, "")


def number(run: "Run", node: Node, src: Source) -> Value:
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
    return (Hole("arithmetic", line),) if found is None else (Text(str(found), line),)


def substitution(run: "Run", node: Node, src: Source) -> Value:
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


def _computed(run: "Run", command: Node, src: Source, line: int) -> Value | None:
    values = [value(run, child, src) for child in command.children if child.type != "file_redirect"]
    name = plain(values[0]) if values else None
    if name == "echo" and len(values) >= 2:
        told: list[object] = []
        for each in values[1:]:
            told += [Text(" ", line), *each] if told else list(each)
        return tuple(told)  # type: ignore[arg-type]
    path = plain(values[1]) if len(values) == 2 else None
    if path and name in ("basename", "dirname"):
        return text_of(getattr(posixpath, name)(path.rstrip("/")), line)
    return None
