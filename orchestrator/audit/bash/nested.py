"""Scripts within scripts: strings and heredocs that the script hands to another shell."""

import re
from typing import TYPE_CHECKING

from orchestrator.audit.bash.state import FIRST_PRIVATE, LAST_PRIVATE, Source
from orchestrator.audit.bash.values import (
    Element,
    Hole,
    Pick,
    Text,
    Value,
    Ways,
    branches,
    flat,
)  # fmt: skip

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

HINT = re.compile(
    r"main_ppo|train_ppo|verl\.trainer|openrlhf|skyrl|actor_rollout_ref|worker\.actor\."
    r"|trainer\.algorithm|algorithm\."
    r"|prime.?rl|zeroband|--init_kl|--algo\.kl|use_kl|kl_coef|\brl @|main_\w+"
    r"|\buv run (rl|trainer)\b"
)
"""Text in which a launch of one of the libraries may be."""
MOST_NESTED = 80
LONGEST = 60_000


def run_text(run: "Run", value: Value, *, arguments: tuple[Element, ...] = ()) -> None:
    """Read a string as a script, in the scope it is in."""
    if run.nested >= MOST_NESTED:
        run.bounded.add(f"only the first {MOST_NESTED} scripts within the script were looked at")
        return
    run.nested += 1
    for ways in run.ways_of(set(branches(value))):
        source = _source(run, value, ways)
        if source is None:
            return
        guard, before = run.guard, run.scope.arguments
        run.guard = tuple(sorted(dict(guard).items() | dict(ways).items()))
        run.scope.arguments = arguments or before
        flow = run.statement(run.parse(source.data), source)
        run.guard, run.scope.arguments = guard, before
        if flow == "exit":
            return


def _source(run: "Run", value: Value, ways: Ways) -> Source | None:
    """The text of a value; what is not text gets a character of its own."""
    text: list[bytes] = []
    starts: list[int] = []
    lines: list[int] = []
    pieces: dict[str, Hole | Pick] = {}
    length = 0
    for piece in flat(value, ways):
        told = piece.text if isinstance(piece, Text) else ""
        if isinstance(piece, Hole) and not piece.unset:
            if FIRST_PRIVATE + len(pieces) > LAST_PRIVATE:
                return None
            told = chr(FIRST_PRIVATE + len(pieces))
            pieces[told] = piece
        data = told.encode("utf-8", "replace")
        if data:
            starts.append(length)
            lines.append(piece.line)
        length += len(data)
        if length > LONGEST:
            return None
        text.append(data)
    run.spend(length // 2)
    return Source(b"".join(text), starts, lines, 1, pieces)
