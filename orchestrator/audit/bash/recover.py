"""Scripts that the grammar cannot read whole, and commands cut short by a broken continuation."""

import re
from collections import deque
from typing import TYPE_CHECKING

from orchestrator.audit.bash.nested import HINT
from orchestrator.audit.bash.state import Command, Node, Source
from orchestrator.audit.bash.values import Spread, Text, words
from orchestrator.audit.types import Word

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

MOST_RESTARTS, LONGEST = 6, 60_000
"""How often, and on how many characters."""
_OPENS = frozenset({'"', "`", "(", "((", "{", "$(", "${", "<(", "[[", "if", "then", "do", "case"})
_FLAG = re.compile(r"^(?:(?:\+\+|\+|~)?[A-Za-z_]\w*(?:\.[\w@-]+)+=|--?[A-Za-z][\w.-]*)")


def restart(run: "Run", text: str, tree: Node, first_line: int) -> None:
    """Read on behind an error that has swallowed a launch: from the line after it, as a script of
    its own in the scope so far."""
    for _ in range(MOST_RESTARTS):
        row = _error_row(tree) if tree.has_error else None
        lines = text.split("\n")
        if row is None or row + 1 >= len(lines):
            return
        text = "\n".join(lines[row + 1 :])
        first_line += row + 1
        if len(text) > LONGEST or not HINT.search(text):
            return
        if any(c.line >= first_line and c.promising for c in run.commands):
            return
        source = Source(text.encode("utf-8", "replace"), first_line=first_line)
        tree = run.parse(source.data)
        run.statement(tree, source)


def _error_row(tree: Node) -> int | None:
    """The row of the outermost error that goes on over several rows, where it opens."""
    todo = deque([tree])
    while todo:
        node = todo.popleft()
        if node.type == "ERROR" and node.end_point[0] > node.start_point[0]:
            opened = [c.start_point[0] for c in node.children if c.type in _OPENS]
            return int(max(opened, default=node.start_point[0]))
        todo.extend(c for c in node.children if c.has_error)
    return None


def _told(command: Command) -> list[Word]:
    return [word for term in command.terms for word in words(term, {})]


def cut(commands: list[Command]) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Commands whose line was not continued as meant: index -> the line from which flags follow
    that are not handed to it, and those flags."""
    found: dict[int, tuple[int, tuple[str, ...]]] = {}
    head: int | None = None
    for i, command in enumerate(commands):
        if not is_flag(command):
            head = i if command.promising else None
        elif head is not None and command.guard == commands[head].guard:
            line, flags = found.get(head, (command.line, ()))
            found[head] = (line, (*flags, *(word.text for word in _told(command))))
    return found


def is_flag(command: Command) -> bool:
    """Whether it is no command but flags of one before it: `a.b=c`, `--flag`."""
    first = command.terms[0] if command.terms else None
    if first is None or isinstance(first, Spread):
        return False
    return bool(_FLAG.match("".join(
        piece.text for part in first for piece in part.value if isinstance(piece, Text)
    )))  # fmt: skip
