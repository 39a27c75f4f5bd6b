"""How much reading one file may cost, whatever is in it."""

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

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
