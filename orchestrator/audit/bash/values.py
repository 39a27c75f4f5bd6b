"""Values of a script that is not run: known text, and placeholders for unknown text.

A value is a sequence of pieces. A piece is text, a Hole (known only when the script runs), or a
BranchValue (one value for each arm of a branch). `Ways` chooses an arm for each branch. In every
function that takes Ways, a branch without an entry goes its first way.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.audit.bash.syntax import ShellSource, SyntaxNode
from orchestrator.library.launches import UNKNOWN, UNSET, CommandWord

Ways = Mapping[int, int]
"""Branch -> the arm it takes."""
HEAVIEST = 6_000
"""Maximum weight of a value. A piece weighs 1, and each 10 characters of its text weigh 1."""


class ShellText(NamedTuple):
    """Known text, with its line in the file."""

    text: str
    line: int
    default_of: tuple[str, ...] = ()
    """Variables that nothing in the script sets (`$X`), of whose default this text is a part."""


class Hole(NamedTuple):
    """Text that is known only when the script runs, with the reason.

    `unset`: True for a variable that the script does not set. It is empty unless the environment
    has it.
    """

    why: str
    line: int
    unset: bool = False


@dataclass(frozen=True, slots=True)
class BranchValue:
    """A piece with one value for each arm of `branch`."""

    branch: int
    arms: tuple["ShellValue", ...]


ShellValue = tuple[ShellText | Hole | BranchValue, ...]
EMPTY: ShellValue = ()


@dataclass(frozen=True, slots=True)
class BranchElements:
    """Array elements with one list for each arm of `branch`."""

    branch: int
    arms: tuple[tuple["ArrayElement", ...], ...]


ArrayElement = ShellValue | BranchElements


@dataclass(frozen=True, slots=True)
class ShellArray:
    """The value of an array."""

    elements: tuple[ArrayElement, ...]


class WordPart(NamedTuple):
    """A piece of a word; `quoted` parts are not split into several words."""

    value: ShellValue
    quoted: bool


WordTerm = tuple[WordPart, ...] | BranchElements
"""A word as written. Expansion turns it into any number of words, including none."""


@dataclass(slots=True)
class Branch:
    """A statement of the script that can go several ways: an `if`, a `case`, a test with `&&`."""

    labels: tuple[str, ...]
    usual: int | None = None
    """The arm that a run without arguments takes, or None if something else also decides."""
    dead: set[int] = field(default_factory=set)
    """Arms that leave the script."""
    decided: tuple[tuple[Ways, int], ...] = ()
    """Pairs of the ways of other branches and the arm that those ways decide."""


@dataclass(slots=True)
class Scope:
    """The variables, functions and arguments at one statement of a script."""

    variables: dict[str, ShellValue | ShellArray] = field(default_factory=dict)
    functions: dict[str, tuple[SyntaxNode, ShellSource]] = field(default_factory=dict)
    arguments: tuple[ArrayElement, ...] = ()
    in_function: bool = False
    exported: set[str] = field(default_factory=set)
    """Names of the variables that programs get in their environment."""
    exports_all: bool = False
    """True after `set -a`: every assignment exports its variable."""

    def copy(self) -> "Scope":
        """Return an independent copy of the scope."""
        return Scope(
            dict(self.variables),
            dict(self.functions),
            self.arguments,
            self.in_function,
            set(self.exported),
            self.exports_all,
        )

    def restore(self, other: "Scope") -> None:
        """Take all values from another scope, in place."""
        self.variables, self.functions = other.variables, other.functions
        self.arguments, self.exported = other.arguments, other.exported
        self.exports_all = other.exports_all


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A program that the script would start."""

    terms: tuple[WordTerm, ...]
    guard: tuple[tuple[int, int], ...]
    """The (branch, arm) pairs that lead to the command."""
    loops: tuple[str, ...]
    line: int
    sourced: tuple[str, ...] = ()
    """Files that the script sources before the command and that are not available."""
    promising: bool = False
    """True if it may hold a launch."""


def literal(text: str, line: int) -> ShellValue:
    """Return known text as a value with one piece for each line. `line`: number of the first."""
    if "\n" not in text:
        return (ShellText(text, line),) if text else EMPTY
    lines = text.split("\n")
    ended = [f"{each}\n" for each in lines[:-1]] + lines[-1:]
    return tuple(ShellText(each, line + i) for i, each in enumerate(ended) if each)


def pieces(value: ShellValue, ways: Ways) -> Iterator[ShellText | Hole]:
    """Yield the pieces of a value if branches go these ways."""
    for piece in value:
        if isinstance(piece, BranchValue):
            yield from pieces(piece.arms[ways.get(piece.branch, 0)], ways)
        else:
            yield piece


def known_text(value: ShellValue) -> str | None:
    """Return the text of a value, or None if a piece is unknown. Unset variables are empty."""
    texts = []
    for piece in value:
        if isinstance(piece, ShellText):
            texts.append(piece.text)
        elif isinstance(piece, BranchValue) or not piece.unset:
            return None
    return "".join(texts)


def readable_text(value: ShellValue) -> str:
    """Return the text of a value with `?` for unknown pieces, if branches go their first way."""
    return "".join(p.text if isinstance(p, ShellText) else "?" for p in pieces(value, {}))


def branches_in(value: ShellValue) -> Iterator[int]:
    """Yield every branch that a value depends on."""
    for piece in value:
        if isinstance(piece, BranchValue):
            yield piece.branch
            for arm in piece.arms:
                yield from branches_in(arm)


def branches_in_elements(elements: Iterable[ArrayElement]) -> Iterator[int]:
    """Yield every branch that array elements depend on."""
    for each in elements:
        if isinstance(each, BranchElements):
            yield each.branch
            for arm in each.arms:
                yield from branches_in_elements(arm)
        else:
            yield from branches_in(each)


def elements_left(elements: Iterable[ArrayElement], ways: Ways) -> Iterator[ShellValue]:
    """Yield the array elements that remain if branches go these ways."""
    for each in elements:
        if isinstance(each, BranchElements):
            yield from elements_left(each.arms[ways.get(each.branch, 0)], ways)
        else:
            yield each


def command_words(term: WordTerm, ways: Ways) -> Iterator[CommandWord]:
    """Yield the words that a term expands to. Unquoted parts are split at blanks."""
    if isinstance(term, BranchElements):
        for value in elements_left((term,), ways):
            yield from command_words((WordPart(value, True),), ways)
        return
    words = _WordBuilder()
    for part in term:
        # A quoted part makes a word, even if it is empty.
        words.begun = words.begun or part.quoted
        for piece in pieces(part.value, ways):
            if isinstance(piece, Hole):
                words.add(UNSET if piece.unset else UNKNOWN, piece.line, piece.why)
            elif part.quoted:
                words.add(piece.text, piece.line, default_of=piece.default_of)
            else:
                words.add_split(piece)
    yield from words.finish()


class _WordBuilder:
    """A builder of words from pieces."""

    def __init__(self) -> None:
        self.words: list[CommandWord] = []
        self._clear()

    def _clear(self) -> None:
        self.begun = False
        self.text = ""
        self.lines: list[int] = []
        self.why: list[str] = []
        self.default_of: list[str] = []

    def add(self, text: str, line: int, why: str = "", default_of: tuple[str, ...] = ()) -> None:
        self.begun = True
        self.text += text
        if line and line not in self.lines:
            self.lines.append(line)
        if why and why not in self.why:
            self.why.append(why)
        self.default_of += (each for each in default_of if each not in self.default_of)

    def add_split(self, piece: ShellText) -> None:
        """Add text, and end the current word at each blank of the text."""
        for i, chunk in enumerate(re.split(r"[ \t\n]", piece.text)):
            if i:
                self.finish()
            if chunk or not piece.text:
                self.add(chunk, piece.line, default_of=piece.default_of)

    def finish(self) -> list[CommandWord]:
        """End the current word, and return all words."""
        if self.begun:
            word = CommandWord(
                self.text, tuple(self.lines), tuple(self.why), tuple(self.default_of)
            )
            self.words.append(word)
        self._clear()
        return self.words


def bounded(
    value: ShellValue | ShellArray, spend: Callable[[int], None]
) -> ShellValue | ShellArray:
    """Return the value, or a hole if it weighs more than HEAVIEST. `spend` receives its weight."""
    remaining = [HEAVIEST]
    items = value.elements if isinstance(value, ShellArray) else (value,)
    fits = all(_weigh(each, remaining) for each in items)
    spend(HEAVIEST - remaining[0])
    if fits:
        return value
    hole: ShellValue = (Hole("a value too long to follow", 0),)
    return ShellArray((hole,)) if isinstance(value, ShellArray) else hole


def _weigh(each: ArrayElement, remaining: list[int]) -> bool:
    """Subtract the weight of a value from `remaining[0]`. Return False if nothing remains."""
    remaining[0] -= 1
    if isinstance(each, BranchElements):
        return remaining[0] > 0 and all(_weigh(e, remaining) for arm in each.arms for e in arm)
    for piece in each:
        remaining[0] -= 1 + (len(piece.text) // 10 if isinstance(piece, ShellText) else 0)
        if remaining[0] <= 0:
            return False
        if isinstance(piece, BranchValue) and not all(_weigh(arm, remaining) for arm in piece.arms):
            return False
    return remaining[0] > 0


def merge_scopes(
    branch: int, before: Scope, arms: Sequence[Scope], spend: Callable[[int], None]
) -> Scope:
    """Return the scope after a fork. Values that differ between its arms become a BranchValue."""
    after = arms[0].copy()
    for name in {name for arm in arms for name in arm.variables}:
        values = [arm.variables.get(name, before.variables.get(name)) for arm in arms]
        first = values[0]
        if first is not None and all(each is first or each == first for each in values[1:]):
            after.variables[name] = first
        else:
            after.variables[name] = bounded(_branched(branch, name, values), spend)
    if any(arm.arguments != after.arguments for arm in arms):
        after.arguments = (BranchElements(branch, tuple(arm.arguments for arm in arms)),)
    for arm in arms:
        after.functions.update(arm.functions)
        after.exported |= arm.exported
    return after


def _branched(
    branch: int, name: str, values: Sequence[ShellValue | ShellArray | None]
) -> ShellValue | ShellArray:
    """Return one value that has each of `values` in the arm of its index.

    Elements that all arrays have at their beginning are not duplicated for each arm.
    """
    if any(isinstance(each, ShellArray) for each in values):
        arms = [_elements(each) for each in values]
        shared = 0
        while all(len(arm) > shared and arm[shared] == arms[0][shared] for arm in arms):
            shared += 1
        rest = tuple(arm[shared:] for arm in arms)
        return ShellArray((*arms[0][:shared], BranchElements(branch, rest)))
    unset: ShellValue = (Hole(f"${name}", 0, unset=True),)
    texts = tuple(
        unset if each is None or isinstance(each, ShellArray) else each for each in values
    )
    return (BranchValue(branch, texts),)


def _elements(value: ShellValue | ShellArray | None) -> tuple[ArrayElement, ...]:
    if value is None:
        return ()
    return value.elements if isinstance(value, ShellArray) else (value,)
