"""A shell script -> the command lines it would start, in each of its cases."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from orchestrator.audit.bash.interpreter import HINT, Interpreter, cut, is_flag, restart, run_text
from orchestrator.audit.bash.values import (
    MOST_WORK,
    BranchSpread,
    Budget,
    Hole,
    ShellCommand,
    ShellSource,
    ShellText,
    ShellValue,
    TooDeep,
    Ways,
    branches,
    branches_of,
    flat,
    words,
)
from orchestrator.library.launches import CommandWord, Launch, UnreadableScript

RELEVANT = re.compile(
    r"kl|adv|estimator|main|train|config|rollout\.n=|n_samples|group_size|policy_loss|loss_mode"
    r"|algo|unbiased|entry|\.toml|\.ya?ml|^-m$|python|@|reward",
    re.IGNORECASE,
)
"""Words whose several values make several cases."""


def launches(
    text: str,
    *,
    first_line: int = 1,
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
    budget: Budget | None = None,
) -> tuple[list[Launch], dict[str, str]]:
    """The command lines, and the texts of files the script writes. `files`: scripts it may call.
    `budget`: what is left for the file it is in.

    Raises UnreadableScript for a script nested or branching beyond all use.
    """
    source = ShellSource(text.encode("utf-8", "replace"), first_line=first_line)
    left = budget or Budget()
    try:
        tree = left.parse(source.data)
    except TooDeep as error:
        raise UnreadableScript(f"this script cannot be followed: {error}") from None
    run = _read(text, source, tree, environment or {}, files, left, every_way=False)
    if not any(c.promising for c in run.commands) and HINT.search(text):
        again = _read(text, source, tree, environment or {}, files, left, every_way=True)
        if any(c.promising for c in again.commands):
            run = again
        elif run.left:
            raise UnreadableScript(f"this script cannot be followed: {run.left}")
    run.guard = ()
    written = {name: _text(value) for name, value in run.files.items()}
    lost = cut(run.commands)
    return [
        each
        for i, command in enumerate(run.commands)
        if not is_flag(command)
        for each in _cases(run, command, lost.get(i))
    ], written


def _read(
    text: str,
    source: ShellSource,
    tree: Any,
    environment: Mapping[str, str],
    files: Mapping[str, str],
    budget: Budget,
    *,
    every_way: bool,
) -> Interpreter:
    """Read it; `every_way`: conditions stay open, whatever is known of them."""
    run = Interpreter(budget, files)
    run.every_way = every_way
    for name, given in environment.items():
        run.scope.variables[name] = (ShellText(given, source.first_line),)
    try:
        run.statement(tree, source)
        restart(run, text, tree, source.first_line)
        _leftovers(run)
    except (TooDeep, RecursionError) as error:
        why = str(error) if isinstance(error, TooDeep) else "it is nested deeper than any launch"
        run.left = why
        run.bounded.add(f"what came before was looked at; then the script is left: {why}")
    return run


def _leftovers(run: Interpreter) -> None:
    """Functions nobody calls here, and scripts written but not started: a launch may be in them."""
    for name, (body, src) in list(run.scope.functions.items()):
        if name not in run.called and HINT.search(src.text(body)):
            run.scope.in_function = False
            run.statement(body, src)
    for name, value in list(run.files.items()):
        if not re.search(r"\.(ya?ml|toml|py|json|md|txt)$", name) and HINT.search(_text(value)):
            run_text(run, run.files.pop(name))


def _text(value: ShellValue) -> str:
    return "".join(p.text for p in flat(value, {}) if isinstance(p, ShellText))


def _cases(
    run: Interpreter, command: ShellCommand, lost: tuple[int, tuple[str, ...]] | None
) -> Iterator[Launch]:
    """The command in every case that could matter to its KL."""
    needed = {branch for branch, _ in command.guard}
    for term in command.terms:
        if isinstance(term, BranchSpread) or any(True for p in term for _ in branches(p.value)):
            needed |= _mattering(term)
    run.guard = command.guard
    for ways in run.ways_of(_closed(run, needed)):
        found = tuple(word for term in command.terms for word in words(term, ways))
        run.budget.work -= len(found)
        if run.budget.work < -MOST_WORK or not _promising(found):
            return
        yield Launch(
            words=found,
            line=command.line,
            case=_label(run, command, ways),
            usual=_usual(run, ways),
            caveats=tuple(sorted(run.bounded)) + _sourced(command),
            lost=lost,
        )
    run.guard = ()


def _closed(run: Interpreter, needed: set[int]) -> set[int]:
    """With the branches that decide these."""
    todo, found = list(needed), set(needed)
    while todo:
        for others, _ in run.branches[todo.pop()].decided:
            fresh = set(others) - found
            found |= fresh
            todo += fresh
    return found


def _mattering(term: Any) -> set[int]:
    """Branches of a word, if any of its texts matters."""
    found = (
        set(branches_of((term,)))
        if isinstance(term, BranchSpread)
        else {b for part in term for b in branches(part.value)}
    )
    told = " ".join(_all_text(term))
    return found if RELEVANT.search(told) else set()


def _all_text(term: Any) -> Iterator[str]:
    """Every text that is anywhere in it."""
    todo: list[Any] = [term]
    while todo:
        each = todo.pop()
        if isinstance(each, ShellText):
            yield each.text
        elif isinstance(each, Hole):
            continue
        elif hasattr(each, "arms"):
            todo += each.arms
        elif isinstance(each, tuple):
            todo += [x for x in each if not isinstance(x, bool)]


def _promising(found: Sequence[CommandWord]) -> bool:
    return any(HINT.search(word.text) for word in found) or any(
        word.text in ("rl", "trainer", "orchestrator") for word in found[:8]
    )


def _usual(run: Interpreter, ways: Ways) -> bool:
    return all(run.branches[b].usual in (None, arm) for b, arm in ways.items())


def _label(run: Interpreter, command: ShellCommand, ways: Ways) -> str | None:
    told = list(command.loops)
    for branch, arm in ways.items():
        if len(run.branches[branch].labels) > 1:
            told.append(run.branches[branch].labels[arm])
    return ", ".join(told) or None


def _sourced(command: ShellCommand) -> tuple[str, ...]:
    return tuple(f"{name} is read before it and may set variables" for name in command.sourced)
