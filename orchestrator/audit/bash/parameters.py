"""`$x`, `${x:-d}`, `${x:=d}`, `${x%...}`, `${a[@]}`, `${@:1}`: what a parameter stands for."""

import fnmatch
import re
from typing import TYPE_CHECKING

from orchestrator.audit.bash.state import Node, Source
from orchestrator.audit.bash.values import (
    EMPTY,
    Array,
    Element,
    Hole,
    Spread,
    Text,
    Value,
    branches,
    plain,
)  # fmt: skip

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

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


def variable(run: "Run", name: str, line: int) -> Value:
    """The value of `$name` in one string."""
    if name.isdigit():
        return _argument(run, int(name), line)
    if name == "#":
        arguments = run.settled(run.scope.arguments)
        return (Text(str(len(arguments)), line),)
    if name in ("@", "*"):
        from orchestrator.audit.bash.words import spaced

        return spaced(run, list(run.scope.arguments), line)
    if not (name[:1].isalpha() or name[:1] == "_"):
        return (Hole(f"${name}", line),)
    found = run.scope.variables.get(name)
    if isinstance(found, Array):
        first = run.settled(found.elements)[:1]
        return first[0] if first else EMPTY
    if found is not None:
        return found
    if FROM_OUTSIDE.match(name):
        return (Hole(f"${name}", line),)
    if run.sourced:
        return (Hole(f"${name}, which {run.sourced[-1]}{MAY_SET}", line),)
    return (Hole(f"${name}", line, unset=True),)


def _argument(run: "Run", index: int, line: int) -> Value:
    if index == 0:
        return (Hole("$0", line),)
    elements = run.settled(run.scope.arguments)
    if index <= len(elements):
        return elements[index - 1]
    if run.scope.in_function:
        return EMPTY
    return (Hole(f"argument ${index}", line, unset=True),)


def expansion(run: "Run", node: Node, src: Source) -> Value | list[Element]:
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
    run: "Run", prefix: str, subject: Node, src: Source, line: int
) -> Value | list[Element]:
    text = src.text(subject)
    name, _, index = text.partition("[")
    if prefix == "!":
        if index:
            count = len(run.settled(_elements(run, name, line)))
            return [(Text(str(i), line),) for i in range(count)]
        told = plain(variable(run, name, line))
        return variable(run, told, line) if told else (Hole(f"${{!{name}}}", line),)
    if index:
        return (Text(str(len(run.settled(_elements(run, name, line)))), line),)
    if name in ("@", "*"):
        return variable(run, "#", line)
    told = plain(variable(run, name, line))
    return (
        (Hole(f"the length of ${name}", line),) if told is None else (Text(str(len(told)), line),)
    )


def _elements(run: "Run", name: str, line: int) -> list[Element]:
    found = run.scope.variables.get(name)
    if isinstance(found, Array):
        return list(found.elements)
    if found is not None:
        return [found]
    return [(Hole(f"${name}", line),)] if run.sourced else []


def _element(run: "Run", name: str, index: str, line: int) -> Value:
    found = run.scope.variables.get(name)
    at = plain(variable(run, index.lstrip("$").strip("{}"), line)) if not index.isdigit() else index
    keyed = run.scope.variables.get(f"{name}[{_unquoted(index)}]")
    if keyed is None and at:
        keyed = run.scope.variables.get(f"{name}[{at}]")
    if keyed is not None and not isinstance(keyed, Array):
        return keyed
    if isinstance(found, Array) and at is not None and at.isdigit():
        elements = run.settled(found.elements)
        return elements[int(at)] if int(at) < len(elements) else EMPTY
    return (Hole(f"${{{name}[{index}]}}", line),)


def _unquoted(text: str) -> str:
    return text.strip("\"'")


def _sliced(run: "Run", elements: list[Element], rest: list[Node], src: Source) -> list[Element]:
    """`${@:2}`, `${a[@]:1:3}`; of other operators on whole arrays nothing is made."""
    if not rest or src.text(rest[0]) != ":" or any(isinstance(e, Spread) for e in elements):
        return elements
    bounds = [plain(_bound(run, node, src)) for node in rest if node.type != ":"]
    if not bounds or any(b is None or not b.strip().isdigit() for b in bounds):
        return elements
    arguments = src.text(rest[0].parent).startswith(("${@", "${*"))
    start = max(int(bounds[0] or 0) - (1 if arguments else 0), 0)
    stop = start + int(bounds[1] or 0) if len(bounds) > 1 else None
    return elements[start:stop]


def _bound(run: "Run", node: Node, src: Source) -> Value:
    from orchestrator.audit.bash.words import value

    return value(run, node, src)


def _operated(
    run: "Run", name: str, base: Value, rest: list[Node], src: Source, line: int
) -> Value:
    operator = src.text(rest[0])
    if operator in _OPERATORS:
        return _defaulted(run, name, base, operator, rest[1:], src)
    known = plain(base)
    if known is None or len(known) > LONGEST_CHANGED:
        return (Hole(f"a part of ${name}", line),)
    told = "".join(src.text(node) for node in rest[1:])
    if operator in ("%", "%%", "#", "##"):
        return (Text(_trimmed(known, operator, told), line),)
    if operator in ("/", "//") and len(rest) >= 2:
        old = src.text(rest[1])
        new = src.text(rest[3]) if len(rest) > 3 else ""
        if not re.search(r"[*?\[$]", old + new):
            return (Text(known.replace(old, new, -1 if operator == "//" else 1), line),)
    if operator in (",,", ",", "^^", "^"):
        return (Text(known.lower() if operator[0] == "," else known.upper(), line),)
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
    run: "Run", name: str, base: Value, operator: str, rest: list[Node], src: Source
) -> Value:
    """`:-` and its kin: without arguments and environment, an unset variable is unset."""
    from orchestrator.audit.bash.words import value

    default = tuple(piece for node in rest for piece in value(run, node, src))
    if len(list(branches(base))) == 1 and len(base) == 1:
        return run.mapped(base, lambda arm: _chosen(arm, default, operator))
    chosen = _chosen(base, default, operator)
    if operator in (":=", "=") and chosen is default and name.isidentifier():
        run.scope.variables[name] = default
    return chosen


def _chosen(base: Value, default: Value, operator: str) -> Value:
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
