"""Values of a script that is not run: text where it is known, and what stands in for the rest.

A value is a sequence of pieces. A Hole is what only running would tell; a Pick is one of several
values, by the way a branch of the script goes. `resolve` chooses the ways.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.audit.types import UNKNOWN, UNSET, Word


class Text(NamedTuple):
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
    arms: tuple["Value", ...]


Piece = Text | Hole | Pick
Value = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Array elements by the way a branch goes."""

    branch: int
    arms: tuple[tuple["Element", ...], ...]


Element = Value | Spread
EMPTY: Value = ()


@dataclass(frozen=True, slots=True)
class Array:
    elements: tuple[Element, ...]


class Part(NamedTuple):
    """A piece of a word; `quoted` parts are not split into several words."""

    value: Value
    quoted: bool


Term = tuple[Part, ...] | Spread
"""A word as written, before expansion makes none, one or several words of it."""

Ways = Mapping[int, int]
"""Branch -> the arm it takes."""


def text_of(text: str, line: int) -> Value:
    """Literal text; each line of it keeps its number."""
    if "\n" not in text:
        return (Text(text, line),) if text else EMPTY
    lines = text.split("\n")
    told = [f"{each}\n" for each in lines[:-1]] + lines[-1:]
    return tuple(Text(each, line + i) for i, each in enumerate(told) if each)


def flat(value: Value, ways: Ways) -> Iterator[Text | Hole]:
    """The pieces left when branches go these ways; a branch not named takes its first arm."""
    for piece in value:
        if isinstance(piece, Pick):
            yield from flat(piece.arms[ways.get(piece.branch, 0)], ways)
        else:
            yield piece


def plain(value: Value, ways: Ways | None = None) -> str | None:
    """The text of a value, unset variables as nothing; None where something is not known."""
    parts = []
    for piece in value if ways is None else flat(value, ways):
        if isinstance(piece, Text):
            parts.append(piece.text)
        elif isinstance(piece, Pick) or not piece.unset:
            return None
    return "".join(parts)


def branches(value: Value) -> Iterator[int]:
    """Every branch on whose way the value hangs."""
    for piece in value:
        if isinstance(piece, Pick):
            yield piece.branch
            for arm in piece.arms:
                yield from branches(arm)


def branches_of(elements: Iterable[Element]) -> Iterator[int]:
    """The same, of array elements."""
    for each in elements:
        if isinstance(each, Spread):
            yield each.branch
            for arm in each.arms:
                yield from branches_of(arm)
        else:
            yield from branches(each)


def elements_of(elements: Iterable[Element], ways: Ways) -> Iterator[Value]:
    """The elements left when branches go these ways."""
    for each in elements:
        if isinstance(each, Spread):
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

    def word(self) -> Word:
        return Word("".join(self.text), tuple(self.lines), tuple(self.why))


def words(term: Term, ways: Ways) -> Iterator[Word]:
    """The words a term expands to: unquoted parts are split where they hold blanks."""
    if isinstance(term, Spread):
        for value in elements_of((term,), ways):
            yield from words((Part(value, True),), ways)
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


def _split(at: Writing, piece: Text) -> Iterator[Word]:
    """Every word that ends within the piece."""
    chunks = piece.text.replace("\n", " ").replace("\t", " ").split(" ")
    for i, chunk in enumerate(chunks[:-1]):
        now = at if i == 0 else Writing()
        if chunk:
            now.add(chunk, piece.line)
        if now.begun:
            yield now.word()


def _rest(piece: Text) -> Writing:
    """What the piece leaves open at its end."""
    last = piece.text.replace("\n", " ").replace("\t", " ").split(" ")[-1]
    rest = Writing()
    if last:
        rest.add(last, piece.line)
    return rest


HEAVIEST = 6_000
"""Pieces, and tenths of characters, of a value that is still followed."""


def light(value: Value | Array, spend: Callable[[int], None]) -> Value | Array:
    """The value, or, where it has grown beyond use, a hole. `spend` is told its weight."""
    left = [HEAVIEST]
    items = value.elements if isinstance(value, Array) else (value,)
    whole = all(_weigh(each, left) for each in items)
    spend(HEAVIEST - left[0])
    if whole:
        return value
    hole: Value = (Hole("a value too long to follow", 0),)
    return Array((hole,)) if isinstance(value, Array) else hole


def _weigh(each: Element, left: list[int]) -> bool:
    """Take the weight of a value from what is left; False where that is not enough."""
    left[0] -= 1
    if isinstance(each, Spread):
        return left[0] > 0 and all(_weigh(e, left) for arm in each.arms for e in arm)
    for piece in each:
        left[0] -= 1 + (len(piece.text) // 10 if isinstance(piece, Text) else 0)
        if left[0] <= 0:
            return False
        if isinstance(piece, Pick) and not all(_weigh(arm, left) for arm in piece.arms):
            return False
    return left[0] > 0
