"""The text being read, its syntax tree, and the budget for reading one file."""

import re
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

SyntaxNode = Any
"""A node of tree-sitter's syntax tree."""
MOST_STEPS, MOST_WORK, MOST_SECONDS = 5_000, 80_000, 0.3
"""Statements read, pieces of words put together, CPU seconds of the grammar. Of 2,770 real scripts
none took more than 1,138, 12,030 and 0.004."""
CHUNK = 65_536
"""Bytes that the grammar gets at once."""
LOOKS_BETWEEN = 16
"""Calls of the grammar between two looks at the clock, which may cost more than the parsing."""
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+")
"""Bytes that stand for the grammar as dots: parts of words, and of no name of a variable."""


class TooDeep(Exception):
    """Raised if the script is nested deeper, or is longer, than any launch needs."""


@dataclass(frozen=True, slots=True)
class ShellSource:
    """A text being read: the file, or a string in it that is run as a script of its own.

    A nested string consists of pieces from several lines, so it stores the file's line for each of
    its bytes.
    """

    data: bytes
    starts: Sequence[int] | None = None
    """Bytes at which a new line of the file begins in this text; None: the file itself."""
    lines: Sequence[int] = ()
    """The lines of the file that begin there."""
    first_line: int = 1
    pieces: Mapping[str, Any] = field(default_factory=dict)
    """Private characters -> the unknown or branching pieces that they stand for."""

    def text(self, node: SyntaxNode) -> str:
        """Return the text of a node."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def line(self, node: SyntaxNode) -> int:
        """Return the line of the file on which a node begins."""
        return self.line_at(node.start_byte, node.start_point[0])

    def line_at(self, byte: int, row: int) -> int:
        """Return the file's line of a byte that is on `row` of this text."""
        if self.starts is None:
            return row + self.first_line
        return self.lines[max(bisect_right(self.starts, byte) - 1, 0)] if self.lines else 1


@dataclass(slots=True)
class Budget:
    """The budget that is left for one file.

    Every method raises TooDeep if the budget is used up.
    """

    steps: int = MOST_STEPS
    work: int = MOST_WORK
    seconds: float = MOST_SECONDS

    def step(self) -> None:
        """Count one statement."""
        self.steps -= 1
        if self.steps < 0:
            raise TooDeep("it takes more steps than any launch needs")

    def spend(self, pieces: int) -> None:
        """Count pieces of words."""
        self.work -= pieces
        if self.work < 0:
            raise TooDeep("it builds longer texts than any launch needs")

    def parse(self, data: bytes) -> SyntaxNode:
        """Return the root of the syntax tree.

        The grammar searches for the best repair of a broken script, which may take very long. Stop
        it when its time is up. It gets ASCII only: its scanner asks C's isalnum of any character,
        which reads behind a table and may end the process (tree-sitter-bash 0.25.1, `{` before a
        character of four bytes).
        """
        parser = _parser()
        plain = _BEYOND_ASCII.sub(lambda match: b"." * len(match[0]), data)
        start = time.thread_time()
        over = start + self.seconds
        calls = 0

        def is_over(_byte: int, _error: bool) -> bool:
            nonlocal calls
            calls += 1
            return calls % LOOKS_BETWEEN == 0 and time.thread_time() > over

        try:
            tree = parser.parse(
                lambda byte, _point: plain[byte : byte + CHUNK], progress_callback=is_over
            )
        except ValueError:
            parser.reset()
            self.seconds = 0.0
            raise TooDeep("its syntax is too broken to be read") from None
        self.seconds -= time.thread_time() - start
        if self.seconds < 0:
            self.seconds = 0.01
        return tree.root_node


@cache
def _parser() -> Any:
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    return Parser(Language(language()))
