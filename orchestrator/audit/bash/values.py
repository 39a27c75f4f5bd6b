"""Values of a script that is not run: known text, and holes for text that only a run would show.

A value is a sequence of pieces. A piece is text or a Hole. Where the arms of an unknown condition
give a variable different values, it is a Hole that has the value of each arm.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestrator.audit.bash.syntax import ShellSource, SyntaxNode
from orchestrator.library.launches import UNKNOWN, UNSET, CommandWord

HEAVIEST = 6_000
"""Maximum weight of a value. A piece weighs 1, and each 10 characters of its text weigh 1."""
_ASSIGNS = re.compile(r"((?:\+\+|\+|~)?[A-Za-z_][\w@/.-]*|--?[A-Za-z_][\w.-]*)=", re.DOTALL)
"""A word with a key and its value: `a.b=c`, `--flag=c`."""


class ShellText(NamedTuple):
    """Known text, with its line in the file."""

    text: str
    line: int
    default_of: tuple[str, ...] = ()
    """Variables that nothing in the script sets (`$X`), of whose default this text is a part."""


class Arm(NamedTuple):
    """The words that a variable has in one arm of a condition."""

    label: str
    words: tuple["ShellValue", ...]


class Hole(NamedTuple):
    """Text that is known only when the script runs, with the reason.

    `unset`: True for a variable that the script does not set. It is empty unless the environment
    has it. `arms`: its words in each arm of the condition that decides it. `several`: they stay
    words in quotes too, as the elements of an array.
    """

    why: str
    line: int
    unset: bool = False
    arms: tuple[Arm, ...] = ()
    several: bool = False


ShellValue = tuple[ShellText | Hole, ...]
EMPTY: ShellValue = ()


@dataclass(frozen=True, slots=True)
class ShellArray:
    """The value of an array."""

    elements: tuple[ShellValue, ...]


class WordPart(NamedTuple):
    """A piece of a word; `quoted` parts are not split into several words."""

    value: ShellValue
    quoted: bool


WordTerm = tuple[WordPart, ...]
"""A word as written. Expansion turns it into any number of words, including none."""


@dataclass(slots=True)
class Scope:
    """The variables, functions and arguments at one statement of a script."""

    variables: dict[str, ShellValue | ShellArray] = field(default_factory=dict)
    functions: dict[str, tuple[SyntaxNode, ShellSource]] = field(default_factory=dict)
    arguments: tuple[ShellValue, ...] = ()
    in_function: bool = False
    exported: set[str] = field(default_factory=set)
    """Names of the variables that programs get in their environment."""
    exports_all: bool = False
    """True after `set -a`: every assignment exports its variable."""

    def copy(self) -> "Scope":
        """Return an independent copy of the scope."""
        return replace(
            self,
            variables={**self.variables},
            functions={**self.functions},
            exported={*self.exported},
        )


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A program that the script would start."""

    terms: tuple[WordTerm, ...]
    case: tuple[str, ...]
    """The turns of loops and the arms of conditions that lead to the command, in words."""
    line: int
    sourced: tuple[str, ...] = ()
    """Files that the script sources before the command and that are not available."""
    promising: bool = False
    """True if it may hold a launch."""
    called: tuple[str, ...] = ()
    """Another script that is called and has it, whose words have the line of the call, and the
    known words that are handed to it; empty: none."""


def literal(text: str, line: int) -> ShellValue:
    """Return known text as a value with one piece for each line. `line`: number of the first."""
    if "\n" not in text:
        return (ShellText(text, line),) if text else EMPTY
    lines = text.split("\n")
    ended = [f"{each}\n" for each in lines[:-1]] + lines[-1:]
    return tuple(ShellText(each, line + i) for i, each in enumerate(ended) if each)


def known_text(value: ShellValue) -> str | None:
    """Return the text of a value, or None if a piece is unknown. Unset variables are empty."""
    if any(isinstance(piece, Hole) and not piece.unset for piece in value):
        return None
    return "".join(piece.text for piece in value if isinstance(piece, ShellText))


def readable_text(value: ShellValue) -> str:
    """Return the text of a value with `?` for its holes, and all texts of a hole with arms."""
    return "".join(
        piece.text
        if isinstance(piece, ShellText)
        else " ".join(readable_text(word) for arm in piece.arms for word in arm.words) or "?"
        for piece in value
    )


def command_words(term: WordTerm) -> Iterator[CommandWord]:
    """Yield the words that a term expands to. Unquoted parts are split at blanks."""
    words = _WordBuilder()
    for part in term:
        # A quoted part makes a word, even if it is empty; an array's elements make their own.
        several = any(isinstance(p, Hole) and p.several and p.arms for p in part.value)
        words.begun = words.begun or (part.quoted and not several)
        for piece in part.value:
            if isinstance(piece, Hole):
                words.add_hole(piece, quoted=part.quoted)
            elif part.quoted:
                words.add(piece.text, piece.line, default_of=piece.default_of)
            else:
                words.add_split(piece)
    yield from words.finish()


def _words_of_arms(hole: Hole) -> Iterator[CommandWord]:
    """Yield the words that a hole stands for: those that all its arms have, and each key that they
    give different values, with an unknown one."""
    arms: list[dict[str, tuple[CommandWord, ...]]] = []
    for arm in hole.arms:
        terms = [(WordPart(value, hole.several),) for value in arm.words]
        arms.append(_keyed(word for term in terms for word in command_words(term)))
    for name in dict.fromkeys(name for each in arms for name in each):
        given = [each.get(name, ()) for each in arms]
        texts = [" ".join(word.text for word in words) for words in given]
        if all(text == texts[0] for text in texts):
            yield from given[0]
            continue
        values = [text.removeprefix(name)[1:] if name else text for text in texts]
        choices = tuple((arm.label, value) for arm, value in zip(hole.arms, values, strict=True))
        is_open = not all(given) or any(UNKNOWN in text for text in values)
        lines = tuple(dict.fromkeys(n for words in given for word in words for n in word.lines))
        text = f"{name}={UNKNOWN}" if name else UNKNOWN
        yield CommandWord(text, lines, (hole.why,), choices=() if is_open else choices)


def _keyed(words: Iterable[CommandWord]) -> dict[str, tuple[CommandWord, ...]]:
    """Return key -> the words that give it its last value; an empty key has all other words."""
    keyed: dict[str, tuple[CommandWord, ...]] = {}
    before = ""
    for word in words:
        match = _ASSIGNS.match(word.text)
        name = match[1] if match else word.text if word.text.startswith("--") else ""
        if name:
            keyed[name] = (word,)
        elif before:
            keyed[before] = (*keyed[before], word)
        else:
            keyed[""] = (*keyed.get("", ()), word)
        before = "" if match or not name else name
    return keyed


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
        self.choices: tuple[tuple[str, str], ...] = ()

    def add(self, text: str, line: int, why: str = "", default_of: tuple[str, ...] = ()) -> None:
        self.begun = True
        self.text += text
        if line and line not in self.lines:
            self.lines.append(line)
        if why and why not in self.why:
            self.why.append(why)
        self.default_of += (each for each in default_of if each not in self.default_of)

    def add_hole(self, hole: Hole, *, quoted: bool) -> None:
        """Add what is unknown: a part of the word, or the words of its arms."""
        texts = [" ".join(map(readable_text, arm.words)) for arm in hole.arms]
        is_split = not quoted and any(re.search(r"\s", text) for text in texts)
        if hole.arms and (hole.several or is_split):
            if self.text and not all(text[:1].isspace() for text in texts if text):
                self.add(UNKNOWN, hole.line, hole.why)
            self.finish()
            self.words += _words_of_arms(hole)
            return
        self.add(UNSET if hole.unset else UNKNOWN, hole.line, hole.why)
        self.choices = tuple(zip((arm.label for arm in hole.arms), texts, strict=True))
        if any(known_text(word) is None for arm in hole.arms for word in arm.words):
            self.choices = ()

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
            choices = self.choices if self.text.count(UNKNOWN) == 1 else ()
            word = CommandWord(
                self.text,
                tuple(self.lines),
                tuple(self.why),
                tuple(self.default_of),
                choices=choices,
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


def _weigh(value: ShellValue, remaining: list[int]) -> bool:
    """Subtract the weight of a value from `remaining[0]`. Return False if nothing remains."""
    remaining[0] -= 1
    for piece in value:
        remaining[0] -= 1 + (len(piece.text) // 10 if isinstance(piece, ShellText) else 0)
        if remaining[0] <= 0:
            return False
        if isinstance(piece, Hole):
            words = (word for arm in piece.arms for word in arm.words)
            if not all(_weigh(word, remaining) for word in words):
                return False
    return remaining[0] > 0


def merge_scopes(
    scopes: Mapping[str, Scope], before: Scope, line: int, spend: Callable[[int], None]
) -> Scope:
    """Return the scope after a condition that is not known. `scopes`: label of an arm -> its end.

    A variable that differs between the arms becomes a Hole.
    """
    arms = list(scopes.values())
    after = arms[0].copy()
    for name in dict.fromkeys(name for arm in arms for name in arm.variables):
        values = [arm.variables.get(name, before.variables.get(name)) for arm in arms]
        first = values[0]
        if first is not None and all(each is first or each == first for each in values[1:]):
            after.variables[name] = first
        else:
            after.variables[name] = bounded(_merged(name, list(scopes), values, line), spend)
    if any(arm.arguments != after.arguments for arm in arms):
        after.arguments = ((Hole("its arguments", line, several=True),),)
    for arm in arms:
        after.functions.update(arm.functions)
        after.exported |= arm.exported
    return after


def _merged(
    name: str, labels: Sequence[str], values: Sequence[ShellValue | ShellArray | None], line: int
) -> ShellValue | ShellArray:
    """Return what all values begin with, and a hole that has the rest of each."""
    is_array = any(isinstance(each, ShellArray) for each in values)
    unset: ShellValue = (Hole(f"${name}", line, unset=True),)
    if is_array:
        arms: list[tuple[Any, ...]] = [
            () if each is None else each.elements if isinstance(each, ShellArray) else (each,)
            for each in values
        ]
    else:
        arms = [unset if each is None or isinstance(each, ShellArray) else each for each in values]
    shared = 0
    while all(len(arm) > shared and arm[shared] == arms[0][shared] for arm in arms):
        shared += 1
    rests = [arm[shared:] for arm in arms]
    words = [rest if is_array else (rest,) for rest in rests]
    hole = Hole(
        f"${name}, which `{labels[0]}` decides",
        line,
        arms=tuple(Arm(label, each) for label, each in zip(labels, words, strict=True)),
        several=is_array,
    )
    return ShellArray((*arms[0][:shared], (hole,))) if is_array else (*arms[0][:shared], hole)
