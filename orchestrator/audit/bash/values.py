"""Values of a script that is not run: text where it is known, and what stands in for the rest.

A value is a sequence of pieces. A Hole is what only running would tell; a Pick is one of several
values, by the way a branch of the script goes. `resolve` chooses the ways.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from orchestrator.library.launches import UNKNOWN, UNSET, CommandWord


class ShellText(NamedTuple):
    text: str
    line: int


class Hole(NamedTuple):
    """`unset`: a variable nobody sets, which is empty unless the environment has it."""

    why: str
    line: int
    unset: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """The value of the arm that `branch` takes."""

    branch: int
    arms: tuple["ShellValue", ...]


Piece = ShellText | Hole | Pick
ShellValue = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class BranchSpread:
    """Array elements by the way a branch goes."""

    branch: int
    arms: tuple[tuple["ArrayElement", ...], ...]


ArrayElement = ShellValue | BranchSpread
EMPTY: ShellValue = ()


@dataclass(frozen=True, slots=True)
class ShellArray:
    elements: tuple[ArrayElement, ...]


class WordPart(NamedTuple):
    """A piece of a word; `quoted` parts are not split into several words."""

    value: ShellValue
    quoted: bool


WordTerm = tuple[WordPart, ...] | BranchSpread
"""A word as written, before expansion makes none, one or several words of it."""

Ways = Mapping[int, int]
"""Branch -> the arm it takes."""


def text_of(text: str, line: int) -> ShellValue:
    """Literal text; each line of it keeps its number."""
    if "\n" not in text:
        return (ShellText(text, line),) if text else EMPTY
    lines = text.split("\n")
    told = [f"{each}\n" for each in lines[:-1]] + lines[-1:]
    return tuple(ShellText(each, line + i) for i, each in enumerate(told) if each)


def flat(value: ShellValue, ways: Ways) -> Iterator[ShellText | Hole]:
    """The pieces left when branches go these ways; a branch not named takes its first arm."""
    for piece in value:
        if isinstance(piece, Pick):
            yield from flat(piece.arms[ways.get(piece.branch, 0)], ways)
        else:
            yield piece


def plain(value: ShellValue, ways: Ways | None = None) -> str | None:
    """The text of a value, unset variables as nothing; None where something is not known."""
    parts = []
    for piece in value if ways is None else flat(value, ways):
        if isinstance(piece, ShellText):
            parts.append(piece.text)
        elif isinstance(piece, Pick) or not piece.unset:
            return None
    return "".join(parts)


def branches(value: ShellValue) -> Iterator[int]:
    """Every branch on whose way the value hangs."""
    for piece in value:
        if isinstance(piece, Pick):
            yield piece.branch
            for arm in piece.arms:
                yield from branches(arm)


def branches_of(elements: Iterable[ArrayElement]) -> Iterator[int]:
    """The same, of array elements."""
    for each in elements:
        if isinstance(each, BranchSpread):
            yield each.branch
            for arm in each.arms:
                yield from branches_of(arm)
        else:
            yield from branches(each)


def elements_of(elements: Iterable[ArrayElement], ways: Ways) -> Iterator[ShellValue]:
    """The elements left when branches go these ways."""
    for each in elements:
        if isinstance(each, BranchSpread):
            yield from elements_of(each.arms[ways.get(each.branch, 0)], ways)
        else:
            yield each


class Writing:
    """A word being put together from pieces."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.lines: list[int] = []
        self.why: list[str] = []
        self.begun = False

    def add(self, text: str, line: int, why: str = "") -> None:
        self.begun = True
        self.text.append(text)
        if line and line not in self.lines:
            self.lines.append(line)
        if why and why not in self.why:
            self.why.append(why)

    def word(self) -> CommandWord:
        return CommandWord("".join(self.text), tuple(self.lines), tuple(self.why))


def words(term: WordTerm, ways: Ways) -> Iterator[CommandWord]:
    """The words a term expands to: unquoted parts are split where they hold blanks."""
    if isinstance(term, BranchSpread):
        for value in elements_of((term,), ways):
            yield from words((WordPart(value, True),), ways)
        return
    at = Writing()
    for part in term:
        if part.quoted:
            at.begun = True
        for piece in flat(part.value, ways):
            if isinstance(piece, Hole):
                mark = UNSET if piece.unset else UNKNOWN
                at.add(mark, piece.line, piece.why)
            elif part.quoted or not any(c in piece.text for c in " \t\n"):
                at.add(piece.text, piece.line)
            else:
                yield from _split(at, piece)
                at = _rest(piece)
    if at.begun:
        yield at.word()


def _split(at: Writing, piece: ShellText) -> Iterator[CommandWord]:
    """Every word that ends within the piece."""
    chunks = piece.text.replace("\n", " ").replace("\t", " ").split(" ")
    for i, chunk in enumerate(chunks[:-1]):
        now = at if i == 0 else Writing()
        if chunk:
            now.add(chunk, piece.line)
        if now.begun:
            yield now.word()


def _rest(piece: ShellText) -> Writing:
    """What the piece leaves open at its end."""
    last = piece.text.replace("\n", " ").replace("\t", " ").split(" ")[-1]
    rest = Writing()
    if last:
        rest.add(last, piece.line)
    return rest


HEAVIEST = 6_000
"""Pieces, and tenths of characters, of a value that is still followed."""


def light(value: ShellValue | ShellArray, spend: Callable[[int], None]) -> ShellValue | ShellArray:
    """The value, or, where it has grown beyond use, a hole. `spend` is told its weight."""
    left = [HEAVIEST]
    items = value.elements if isinstance(value, ShellArray) else (value,)
    whole = all(_weigh(each, left) for each in items)
    spend(HEAVIEST - left[0])
    if whole:
        return value
    hole: ShellValue = (Hole("a value too long to follow", 0),)
    return ShellArray((hole,)) if isinstance(value, ShellArray) else hole


def _weigh(each: ArrayElement, left: list[int]) -> bool:
    """Take the weight of a value from what is left; False where that is not enough."""
    left[0] -= 1
    if isinstance(each, BranchSpread):
        return left[0] > 0 and all(_weigh(e, left) for arm in each.arms for e in arm)
    for piece in each:
        left[0] -= 1 + (len(piece.text) // 10 if isinstance(piece, ShellText) else 0)
        if left[0] <= 0:
            return False
        if isinstance(piece, Pick) and not all(_weigh(arm, left) for arm in piece.arms):
            return False
    return left[0] > 0


# What is known at one point of a script: variables, functions, arguments; and where it forked.


SyntaxNode = Any
"""A node of tree-sitter's syntax tree."""

FIRST_PRIVATE = 0xE000
LAST_PRIVATE = 0xF8FF
"""Characters that stand in nested text for pieces that are not text."""


@dataclass(frozen=True, slots=True)
class ShellSource:
    """A text being read: the file, or a string in it that is run as a script of its own."""

    data: bytes
    starts: Sequence[int] | None = None
    """Bytes at which a new line of the file begins in this text; None: the file itself."""
    lines: Sequence[int] = ()
    """The lines of the file that begin there."""
    first_line: int = 1
    pieces: Mapping[str, Hole | Pick] = field(default_factory=dict)

    def line(self, node: SyntaxNode) -> int:
        """The line of the file on which a node stands."""
        return self.at(node.start_byte, node.start_point[0])

    def at(self, byte: int, row: int) -> int:
        """The line of a byte, which is on that row of this text."""
        if self.starts is None:
            return row + self.first_line
        return self.lines[max(bisect_right(self.starts, byte) - 1, 0)] if self.lines else 1

    def text(self, node: SyntaxNode) -> str:
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
    variables: dict[str, ShellValue | ShellArray] = field(default_factory=dict)
    functions: dict[str, tuple[SyntaxNode, ShellSource]] = field(default_factory=dict)
    arguments: tuple[ArrayElement, ...] = ()
    in_function: bool = False

    def copy(self) -> "Scope":
        return Scope(dict(self.variables), dict(self.functions), self.arguments, self.in_function)

    def become(self, other: "Scope") -> None:
        self.variables, self.functions = other.variables, other.functions
        self.arguments = other.arguments


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A program the script would start."""

    terms: tuple[WordTerm, ...]
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
        after.arguments = (BranchSpread(branch, tuple(arm.arguments for arm in arms)),)
    for arm in arms:
        after.functions.update(arm.functions)
    return after


def _pick(
    branch: int, name: str, found: Sequence[ShellValue | ShellArray | None]
) -> ShellValue | ShellArray:
    nothing: ShellValue = (Hole(f"${name}", 0, unset=True),)
    if any(isinstance(each, ShellArray) for each in found):
        arms = [_elements(each) for each in found]
        shared = 0
        while all(len(arm) > shared and arm[shared] == arms[0][shared] for arm in arms):
            shared += 1
        rest = tuple(arm[shared:] for arm in arms)
        return ShellArray((*arms[0][:shared], BranchSpread(branch, rest)))
    values = tuple(
        nothing if each is None or isinstance(each, ShellArray) else each for each in found
    )
    return (Pick(branch, values),)


def _elements(value: ShellValue | ShellArray | None) -> tuple[ArrayElement, ...]:
    if value is None:
        return ()
    return value.elements if isinstance(value, ShellArray) else (value,)


# How much reading one file may cost, whatever is in it.


MOST_STEPS, MOST_WORK, MOST_SECONDS = 5_000, 80_000, 0.3
"""Statements read, pieces of words put together, CPU seconds of the grammar; of 2,770 real scripts
none took more than 1,138, 12,030 and 0.004."""
CHUNK = 65_536


class TooDeep(Exception):
    """The script is nested deeper, or is longer, than anything a launch needs."""


@cache
def _parser() -> Any:
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    return Parser(Language(language()))


@dataclass(slots=True)
class Budget:
    """What is left of it for one file. Every method raises TooDeep when it is used up."""

    steps: int = MOST_STEPS
    work: int = MOST_WORK
    seconds: float = MOST_SECONDS

    def step(self) -> None:
        """One statement."""
        self.steps -= 1
        if self.steps < 0:
            raise TooDeep("it takes more steps than any launch needs")

    def spend(self, pieces: int) -> None:
        """Pieces of words."""
        self.work -= pieces
        if self.work < 0:
            raise TooDeep("it builds longer texts than any launch needs")

    def parse(self, data: bytes) -> Any:
        """The root of the syntax tree. The grammar's own search for errors can take for ever."""
        parser = _parser()
        start = time.thread_time()
        over = start + self.seconds
        try:
            tree = parser.parse(
                lambda byte, _point: data[byte : byte + CHUNK],
                progress_callback=lambda _byte, _error: time.thread_time() > over,
            )
        except ValueError:
            parser.reset()
            self.seconds = 0.0
            raise TooDeep("its syntax is too broken to be read") from None
        self.seconds -= time.thread_time() - start
        if self.seconds < 0:
            self.seconds = 0.01
        return tree.root_node
