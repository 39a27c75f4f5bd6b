"""Reading a script from its first line to its last without running any of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from orchestrator.audit.bash import commands
from orchestrator.audit.bash.budget import Budget, TooDeep
from orchestrator.audit.bash.conditions import NOT_KNOWN, Condition, condition
from orchestrator.audit.bash.forks import case_statement, if_statement, list_statement
from orchestrator.audit.bash.loops import c_style, for_statement, while_statement
from orchestrator.audit.bash.state import Branch, Command, Node, Scope, Source
from orchestrator.audit.bash.values import (
    EMPTY,
    Array,
    Element,
    Pick,
    Value,
    Ways,
    elements_of,
    light,
)  # fmt: skip
from orchestrator.audit.bash.words import heredoc, terms, value

Flow = str | None
"""How a statement ends: None, or `exit`, `return`, `break`, `continue`."""

DEEPEST = 60
MOST_COMMANDS = 500
MOST_WAYS = 16


class Run:
    """A reading in progress."""

    def __init__(self, budget: Budget, beside: Mapping[str, str]) -> None:
        self.budget = budget
        self.parse, self.spend = budget.parse, budget.spend
        self.beside = beside
        self.every_way = False
        self.left = ""
        self.scope = Scope()
        self.branches: list[Branch] = []
        self.guard: tuple[tuple[int, int], ...] = ()
        self.loops: tuple[str, ...] = ()
        self.commands: list[Command] = []
        self.sourced: list[str] = []
        self.files: dict[str, Value] = {}
        self.bounded: set[str] = set()
        self.called: set[str] = set()
        self.depth = 0
        self.nested = 0
        self.opened = 0

    def started(self) -> None:
        """Count a command. Raises TooDeep where there are more than are looked at."""
        if len(self.commands) >= MOST_COMMANDS:
            raise TooDeep(f"it starts more than {MOST_COMMANDS} commands")

    def settled(self, elements: Iterable[Element]) -> list[Value]:
        """Elements, every branch going its first way."""
        return list(elements_of(elements, {}))

    def mapped(self, value: Value, change: Callable[[Value], Value]) -> Value:
        """A Pick with each arm changed."""
        return tuple(
            Pick(each.branch, tuple(change(arm) for arm in each.arms))
            if isinstance(each, Pick) else each
            for each in value
        )  # fmt: skip

    def ways_of(self, needed: Iterable[int]) -> list[Ways]:
        """Every way these branches can go from here, at most MOST_WAYS."""
        fixed = dict(self.guard)
        open_branches = sorted({b for b in needed if b not in fixed})
        arms = [
            [a for a in range(len(self.branches[b].labels)) if a not in self.branches[b].dead]
            for b in open_branches
        ]
        found: list[Ways] = []
        for chosen in product(*arms):
            ways = fixed | dict(zip(open_branches, chosen, strict=True))
            if self.possible(ways):
                found.append(ways)
            if len(found) == MOST_WAYS:
                self.bounded.add(f"only the first {MOST_WAYS} of its cases were looked at")
                break
        return found or [fixed]

    def possible(self, ways: Ways) -> bool:
        """Whether branches that others decide go the way they are decided to."""
        for branch, arm in ways.items():
            for others, decided in self.branches[branch].decided:
                if decided != arm and all(ways.get(b) == a for b, a in others.items()):
                    return False
        return True

    def children(self, nodes: Sequence[Node], src: Source) -> Flow:
        for node in nodes:
            flow = self.statement(node, src)
            if flow is not None:
                return flow
        return None

    def statement(self, node: Node, src: Source) -> Flow:
        """One statement. Words, comments and punctuation are none."""
        reader = _READERS.get(node.type)
        if reader is None:
            return None
        self.budget.step()
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooDeep("it is nested deeper than any launch needs")
        try:
            return reader(self, node, src)
        finally:
            self.depth -= 1

    def condition(self, node: Node, src: Source) -> Condition:
        return NOT_KNOWN if self.every_way else condition(self, node, src)


def _block(run: Run, node: Node, src: Source) -> Flow:
    return run.children(node.children, src)


def _subshell(run: Run, node: Node, src: Source) -> Flow:
    before = run.scope.copy()
    run.children(node.children, src)
    run.scope.become(before)
    return None


def _function(run: Run, node: Node, src: Source) -> Flow:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        run.scope.functions[src.text(name)] = (body, src)
    return None


def _assignment(run: Run, node: Node, src: Source) -> Flow:
    target, given = node.child_by_field_name("name"), node.child_by_field_name("value")
    if target is None:
        return None
    name = src.text(target).replace('"', "").replace("'", "")
    before = run.scope.variables.get(name)
    new: Value | Array
    if given is not None and given.type == "array":
        new = Array(tuple(_array(run, given, src)))
    else:
        new = EMPTY if given is None else value(run, given, src)
    if before is not None and any(c.type == "+=" for c in node.children):
        new = _appended(before, new)
    run.scope.variables[name] = light(new, run.spend)
    return None


def _appended(before: Value | Array, new: Value | Array) -> Value | Array:
    """`x+=...`: one more element of an array, or more text."""
    if isinstance(before, tuple) and isinstance(new, tuple):
        return (*before, *new)
    head: tuple[Element, ...] = before.elements if isinstance(before, Array) else (before,)
    return Array((*head, *(new.elements if isinstance(new, Array) else (new,))))


def _array(run: Run, node: Node, src: Source) -> Iterable[Element]:
    """Elements of `( ... )`; unquoted strings in it are split into their words."""
    from orchestrator.audit.bash.commands import element

    for child in node.children:
        if child.is_named and child.type != "comment":
            for term in terms(run, child, src):
                yield from element(run, term)


def _declaration(run: Run, node: Node, src: Source) -> Flow:
    for child in node.children:
        if child.type == "variable_assignment":
            _assignment(run, child, src)
    return None


def _redirected(run: Run, node: Node, src: Source) -> Flow:
    body = node.child_by_field_name("body")
    redirects = [c for c in node.children if c.type.endswith("redirect")]
    here = next((c for c in redirects if c.type == "heredoc_redirect"), None)
    more: list[Node] = []
    target = None
    for each in redirects:
        inner = each.children
        if each.type == "heredoc_redirect":
            inner = [g for c in inner if c.type == "file_redirect" for g in (c, *c.children)]
        named = [
            c
            for c in inner
            if c.is_named and c.type not in ("file_descriptor", "comment", "file_redirect")
        ]
        more += named[1:] if each.type == "file_redirect" else []
        if named and any(c.type in (">", ">>", "&>") for c in inner):
            target = value(run, named[0], src)
    if here is not None and any(c.type == "pipeline" for c in here.children):
        run.children([c for c in here.children if c.type == "pipeline"], src)
    text = heredoc(run, here, src) if here is not None else None
    if body is None:
        return None
    if body.type == "command":
        return commands.command(run, body, src, more=more, stdin=text, target=target)
    return run.statement(body, src)


_READERS: dict[str, Callable[[Run, Node, Source], Flow]] = {
    "program": _block,
    "compound_statement": _block,
    "do_group": _block,
    "else_clause": _block,
    "ERROR": _block,
    "pipeline": _block,
    "negated_command": _block,
    "subshell": _subshell,
    "list": list_statement,
    "if_statement": if_statement,
    "case_statement": case_statement,
    "for_statement": for_statement,
    "c_style_for_statement": c_style,
    "while_statement": while_statement,
    "function_definition": _function,
    "variable_assignment": _assignment,
    "variable_assignments": _declaration,
    "declaration_command": _declaration,
    "redirected_statement": _redirected,
    "command": commands.command,
}
