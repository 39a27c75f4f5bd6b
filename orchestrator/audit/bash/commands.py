"""Commands: the few built-ins that change what is known, scripts within scripts, and the programs
that are left, which is what a launch script is for."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.audit.bash.nested import HINT, run_text
from orchestrator.audit.bash.state import Command, Node, Source
from orchestrator.audit.bash.values import (
    EMPTY,
    Array,
    Element,
    Hole,
    Part,
    Spread,
    Term,
    Text,
    Value,
    branches,
    flat,
    plain,
)  # fmt: skip
from orchestrator.audit.bash.words import terms

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

Flow = str | None
SILENT = frozenset({
    "echo", "printf", "mkdir", "cd", "rm", "cp", "mv", "ls", "cat", "sleep", "wait", "chmod", "ln",
    "touch", "grep", "sed", "awk", "find", "which", "type", "date", "tee", "head", "tail", "kill",
    "ulimit", "pip", "pip3", "apt-get", "conda", "module", "git", "wget", "curl", "tar",
    "nvidia-smi",
    "pushd", "popd", "trap", "hash", "alias", "local", "log", "info", "usage", "die", "[", "test",
    "command", "huggingface-cli", "hf", "read", "wandb", "export", "unset", "ray stop",
})  # fmt: skip
MOST_OPENED, LONGEST_BESIDE = 6, 60_000
"""Other scripts that are opened, and the characters of one."""
SHELLS = ("bash", "sh", "zsh", "sbatch", "/bin/bash", "/bin/sh", "dash")
STARTS = re.compile(r"\bpython|torchrun|\buv |\bray |\brl |bash|deepspeed|accelerate|-m |\.sh")
ACTIVATES = re.compile(r"bashrc|activate|conda|profile|modules?\b|venv|setvars|set_env\.sh|\.zshrc")


def element(run: "Run", term: Term) -> Iterable[Element]:
    """A word as array elements. What hangs on a branch and is not split stays open."""
    if isinstance(term, Spread):
        yield term
        return
    value: Value = tuple(piece for part in term for piece in part.value)
    needed = set(branches(value))
    if not needed or all(part.quoted for part in term):
        yield from _split(term, {})
        return
    if len(needed) == 1:
        branch = needed.pop()
        arms = range(len(run.branches[branch].labels))
        yield Spread(branch, tuple(tuple(_split(term, {branch: arm})) for arm in arms))
        return
    yield value


def _split(term: tuple[Part, ...], ways: dict[int, int]) -> Iterable[Value]:
    """A term's words as values: pieces that are not text are kept."""
    if all(part.quoted for part in term):
        yield tuple(piece for part in term for piece in part.value)
        return
    now: list[object] = []
    begun = False
    for part in term:
        begun = begun or part.quoted
        for piece in flat(part.value, ways):
            if part.quoted or isinstance(piece, Hole) or not re.search(r"\s", piece.text):
                now.append(piece)
                continue
            for i, chunk in enumerate(re.split(r"\s+", piece.text)):
                if i and now:
                    yield tuple(now)  # type: ignore[arg-type]
                    now, begun = [], False
                if chunk:
                    now.append(Text(chunk, piece.line))
    if (now or begun) and not all(isinstance(p, Hole) and p.unset for p in now):
        yield tuple(now)  # type: ignore[arg-type]


def command(
    run: "Run", node: Node, src: Source, *, more: Sequence[Node] = (), stdin: Value | None = None,
    target: Value | None = None,
) -> Flow:  # fmt: skip
    """One simple command."""
    found: list[Term] = []
    for child in node.children:
        if child.type == "variable_assignment":
            run.statement(child, src)
        elif child.type == "herestring_redirect":
            continue
        elif child.is_named and child.type not in ("comment", "file_redirect"):
            found += terms(run, child, src)
        elif child.type == "file_redirect":
            named = [c for c in child.children if c.is_named and c.type != "file_descriptor"]
            for each in named[1:]:
                found += terms(run, each, src)
    for each in more:
        found += terms(run, each, src)
    return invoke(run, tuple(found), src.line(node), stdin, target)


def invoke(
    run: "Run", found: tuple[Term, ...], line: int, stdin: Value | None = None,
    target: Value | None = None,
) -> Flow:  # fmt: skip
    """A command of words already expanded."""
    values = [each for term in found for each in element(run, term)]
    run.spend(len(values))
    if not values:
        return None
    head = values[0]
    name = None if isinstance(head, Spread) else plain(head)
    if name in run.scope.functions and run.depth < 40:
        return _call(run, name or "", tuple(values[1:]))
    if name in ("read", "mapfile", "readarray") and stdin is not None:
        _read_text(run, tuple(values[1:]), stdin)
        return None
    builtin = _BUILTINS.get(name or "")
    if builtin is not None:
        return builtin(run, tuple(values[1:]), line)
    if name == "cat" or name == "tee":
        _kept(run, target if name == "cat" else _first(values), stdin)
        return None
    if name in SILENT:
        return None
    if _script(run, name or _told(head) if not isinstance(head, Spread) else "", values, line):
        return None
    if stdin is not None and _hints(stdin):
        run_text(run, stdin)
        return None
    if _strings(run, values):
        return None
    run.started()
    hinted = any(HINT.search(text) for each in values for text in _texts(each))
    run.commands.append(
        Command(found, run.guard, run.loops, line, tuple(run.sourced), promising=hinted)
    )
    return None


def _first(values: Sequence[Element]) -> Value | None:
    if len(values) < 2:
        return None
    last = values[-1]
    return None if isinstance(last, Spread) else last


def _kept(run: "Run", target: Value | None, stdin: Value | None) -> None:
    """A heredoc written to a file that may be run later."""
    name = plain(target) if target is not None else None
    if stdin is not None:
        name = name or f"a file written at line {len(run.files)}"
        run.files[name] = stdin


def _script(run: "Run", name: str, values: Sequence[Element], line: int) -> bool:
    """`bash -c '...'`, and scripts that this one has written itself."""
    texts = [None if isinstance(v, Spread) else plain(v) for v in values]
    if name in SHELLS and "-c" in texts[:4]:
        at = texts.index("-c") + 1
        body = values[at] if at < len(values) else None
        if body is not None and not isinstance(body, Spread):
            run_text(run, body, arguments=tuple(values[at + 2 :]))
            return True
    for text in texts[:6]:
        if text is not None and text in run.files and (name in SHELLS or text == name):
            run_text(run, run.files.pop(text))
            return True
    return _beside(run, name, values, line)


def _beside(run: "Run", name: str, values: Sequence[Element], line: int) -> bool:
    """`bash other.sh ...`, where the other script can be had: read in its own scope."""
    for i, each in enumerate(values[:2] if name in SHELLS else values[:1]):
        text = None if isinstance(each, Spread) else _opened(run, each)
        if text is not None:
            before = run.scope.copy()
            run_text(run, (Text(text, line),), arguments=tuple(values[i + 1 :]))
            run.scope.become(before)
            return True
    return False


def _opened(run: "Run", path: Value) -> str | None:
    """The text of a script beside this one; a folder that is not known is left out of its path."""
    known = ""
    for piece in flat(path, {}):
        known = "" if isinstance(piece, Hole) else known + piece.text
    known = known.lstrip("./")
    if not known.endswith((".sh", ".bash", ".slurm", ".sbatch")) or run.opened >= MOST_OPENED:
        return None
    text = run.beside.get(known)
    if text is None or len(text) > LONGEST_BESIDE or not text.strip():
        return None
    run.opened += 1
    return text


def _strings(run: "Run", values: Sequence[Element]) -> bool:
    """Whole commands that other commands are given as one word (`srun bash -c "..."`)."""
    texts = [each for each in values if not isinstance(each, Spread)]
    plains = [_told(each) for each in texts]
    if any(HINT.search(t) and not re.search(r"\s", t.strip()) for t in plains):
        return False
    nested = [
        value for value, told in zip(texts[1:], plains[1:], strict=True)
        if re.search(r"\s", told.strip()) and HINT.search(told) and STARTS.search(told)
    ]  # fmt: skip
    for value in nested:
        run_text(run, value)
    return bool(nested)


def _told(value: Value) -> str:
    """The text of a value as far as it is known."""
    return "".join(p.text if isinstance(p, Text) else "?" for p in flat(value, {}))


def _texts(each: Element) -> Iterable[str]:
    """The text of an element, of whichever way it may go."""
    if isinstance(each, Spread):
        for arm in each.arms:
            for inner in arm:
                yield from _texts(inner)
    else:
        yield _told(each)


def _hints(value: Value) -> bool:
    return HINT.search(_told(value)) is not None


def _call(run: "Run", name: str, arguments: tuple[Element, ...]) -> Flow:
    body, src = run.scope.functions[name]
    run.called.add(name)
    before, inside = run.scope.arguments, run.scope.in_function
    run.scope.arguments, run.scope.in_function = arguments, True
    flow = run.statement(body, src)
    run.scope.arguments, run.scope.in_function = before, inside
    return flow if flow == "exit" else None


def _set(run: "Run", arguments: tuple[Element, ...], _line: int) -> Flow:
    texts = [None if isinstance(v, Spread) else plain(v) for v in arguments]
    if "--" in texts:
        run.scope.arguments = arguments[texts.index("--") + 1 :]
    return None


def _shift(run: "Run", arguments: tuple[Element, ...], _line: int) -> Flow:
    first = arguments[0] if arguments else EMPTY
    told = None if isinstance(first, Spread) else plain(first)
    run.scope.arguments = run.scope.arguments[int(told) if told and told.isdigit() else 1 :]
    return None


def _eval(run: "Run", arguments: tuple[Element, ...], line: int) -> Flow:
    text: list[object] = []
    for each in run.settled(arguments):
        text += [Text(" ", line), *each] if text else list(each)
    run_text(run, tuple(text))  # type: ignore[arg-type]
    return None


def _source(run: "Run", arguments: tuple[Element, ...], line: int) -> Flow:
    first = arguments[0] if arguments else EMPTY
    if isinstance(first, Spread):
        return None
    name = plain(first)
    if name is not None and name in run.files:
        run_text(run, run.files.pop(name))
    elif not ACTIVATES.search(_told(first)):
        text = _opened(run, first)
        if text is not None:
            run_text(run, (Text(text, line),), arguments=arguments[1:])
            return None
        run.sourced.append(_told(first))
    return None


def _read(run: "Run", arguments: tuple[Element, ...], line: int) -> Flow:
    for each in run.settled(arguments):
        name = plain(each)
        if name and name.isidentifier():
            run.scope.variables[name] = (Hole(f"${name}, which is read", line),)
    return None


def _read_text(run: "Run", arguments: tuple[Element, ...], stdin: Value) -> None:
    """`read -r -d '' x <<EOF`: the variable named last has the text."""
    named = [plain(each) for each in run.settled(arguments)]
    if named and named[-1] and named[-1].isidentifier():
        run.scope.variables[named[-1]] = stdin


def _fill(run: "Run", arguments: tuple[Element, ...], line: int) -> Flow:
    for each in run.settled(arguments)[-1:]:
        name = plain(each)
        if name and name.isidentifier():
            run.scope.variables[name] = Array(((Hole(f"${name}, which is read", line),),))
    return None


def _unset(run: "Run", arguments: tuple[Element, ...], _line: int) -> Flow:
    for each in run.settled(arguments):
        run.scope.variables.pop(plain(each) or "", None)
    return None


def _leave(how: str) -> Callable[["Run", tuple[Element, ...], int], Flow]:
    return lambda _run, _arguments, _line: how


def _exec(run: "Run", arguments: tuple[Element, ...], line: int) -> Flow:
    if arguments:
        found = tuple(v if isinstance(v, Spread) else (Part(v, True),) for v in arguments)
        invoke(run, found, line)
        return "exit"
    return None


def _nothing(_run: "Run", _arguments: tuple[Element, ...], _line: int) -> Flow:
    return None


_BUILTINS: dict[str, Callable[["Run", tuple[Element, ...], int], Flow]] = {
    "set": _set, "shift": _shift, "eval": _eval, "source": _source, ".": _source, "read": _read,
    "mapfile": _fill, "readarray": _fill, "unset": _unset, "exit": _leave("exit"),
    "return": _leave("return"), "break": _leave("break"), "continue": _leave("continue"),
    "exec": _exec, ":": _nothing, "true": _nothing, "false": _nothing,
}  # fmt: skip
