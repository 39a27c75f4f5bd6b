"""What is known at one point of a script: variables, functions, arguments; and where it forked."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.audit.bash.values import (
    Array,
    Element,
    Hole,
    Pick,
    Spread,
    Term,
    Value,
    Ways,
    light,
)

Node = Any
"""A node of tree-sitter's syntax tree."""

FIRST_PRIVATE = 0xE000
LAST_PRIVATE = 0xF8FF
"""Characters that stand in nested text for pieces that are not text."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text being read: the file, or a string in it that is run as a script of its own."""

    data: bytes
    starts: Sequence[int] | None = None
    """Bytes at which a new line of the file begins in this text; None: the file itself."""
    lines: Sequence[int] = ()
    """The lines of the file that begin there."""
    first_line: int = 1
    pieces: Mapping[str, Hole | Pick] = field(default_factory=dict)

    def line(self, node: Node) -> int:
        """The line of the file on which a node stands."""
        return self.at(node.start_byte, node.start_point[0])

    def at(self, byte: int, row: int) -> int:
        """The line of a byte, which is on that row of this text."""
        if self.starts is None:
            return row + self.first_line
        return self.lines[max(bisect_right(self.starts, byte) - 1, 0)] if self.lines else 1

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")


@dataclass(slots=True)
class Branch:
    """A place where the script can go several ways."""

    labels: tuple[str, ...]
    usual: int | None = None
    """The arm taken without arguments, where they alone decide."""
    dead: set[int] = field(default_factory=set)
    """Arms that leave the script."""
    decided: tuple[tuple[Ways, int], ...] = ()
    """Where other branches decide this one: their ways -> the arm."""


@dataclass(slots=True)
class Scope:
    variables: dict[str, Value | Array] = field(default_factory=dict)
    functions: dict[str, tuple[Node, Source]] = field(default_factory=dict)
    arguments: tuple[Element, ...] = ()
    in_function: bool = False

    def copy(self) -> "Scope":
        return Scope(dict(self.variables), dict(self.functions), self.arguments, self.in_function)

    def become(self, other: "Scope") -> None:
        self.variables, self.functions = other.variables, other.functions
        self.arguments = other.arguments


@dataclass(frozen=True, slots=True)
class Command:
    """A program the script would start."""

    terms: tuple[Term, ...]
    guard: tuple[tuple[int, int], ...]
    """Branches and arms on the way here."""
    loops: tuple[str, ...]
    line: int
    sourced: tuple[str, ...] = ()
    """Files read before it that set what we cannot see."""
    promising: bool = False
    """Whether a launch may be in it."""


def join(branch: int, before: Scope, arms: Sequence[Scope], spend: Callable[[int], None]) -> Scope:
    """The scope after a fork: what differs between its arms becomes a Pick."""
    after = arms[0].copy()
    for name in {name for arm in arms for name in arm.variables}:
        found = [arm.variables.get(name, before.variables.get(name)) for arm in arms]
        first = found[0]
        if first is not None and all(each is first or each == first for each in found[1:]):
            after.variables[name] = first
        else:
            after.variables[name] = light(_pick(branch, name, found), spend)
    if any(arm.arguments != after.arguments for arm in arms):
        after.arguments = (Spread(branch, tuple(arm.arguments for arm in arms)),)
    for arm in arms:
        after.functions.update(arm.functions)
    return after


def _pick(branch: int, name: str, found: Sequence[Value | Array | None]) -> Value | Array:
    nothing: Value = (Hole(f"${name}", 0, unset=True),)
    if any(isinstance(each, Array) for each in found):
        arms = [_elements(each) for each in found]
        shared = 0
        while all(len(arm) > shared and arm[shared] == arms[0][shared] for arm in arms):
            shared += 1
        rest = tuple(arm[shared:] for arm in arms)
        return Array((*arms[0][:shared], Spread(branch, rest)))
    values = tuple(nothing if each is None or isinstance(each, Array) else each for each in found)
    return (Pick(branch, values),)


def _elements(value: Value | Array | None) -> tuple[Element, ...]:
    if value is None:
        return ()
    return value.elements if isinstance(value, Array) else (value,)
