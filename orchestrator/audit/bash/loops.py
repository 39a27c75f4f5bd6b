"""Loops: once for each of the values a script lists, and once where it does not."""

from typing import TYPE_CHECKING

from orchestrator.audit.bash.state import Node, Source
from orchestrator.audit.bash.values import Array, Hole, Value, plain
from orchestrator.audit.bash.words import terms

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

Flow = str | None
MOST_TURNS = 64
LONGEST_LABEL = 60


def for_statement(run: "Run", node: Node, src: Source) -> Flow:
    """`for x in ...`: one turn a value; `for x` alone goes over the arguments."""
    from orchestrator.audit.bash.commands import element

    subject, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if subject is None or body is None:
        return None
    name = src.text(subject)
    listed = False
    items: list[Value] = []
    for child in node.children:
        if child.type == "in":
            listed = True
        elif listed and child.is_named and child.type not in ("do_group", "comment"):
            for term in terms(run, child, src):
                items += run.settled(element(run, term))
    if not listed:
        items = run.settled(run.scope.arguments)
    if len(items) > MOST_TURNS:
        run.bounded.add(f"only the first {MOST_TURNS} turns of a loop were looked at")
        items = items[:MOST_TURNS]
    several = len(items) > 1
    for item in items:
        label = (plain(item) or "?").strip()
        if _turn(run, body, src, name, item, f"{name}={label}" if several else "") == "exit":
            break
    return None


def _turn(run: "Run", body: Node, src: Source, name: str, item: Value | Array, label: str) -> Flow:
    before = run.loops
    run.scope.variables[name] = item
    if label:
        run.loops = (*before, label[:LONGEST_LABEL])
    flow = run.statement(body, src)
    run.loops = before
    return "exit" if flow in ("exit", "return", "break") else None


def c_style(run: "Run", node: Node, src: Source) -> Flow:
    """`for ((i = 0; ...))`: one turn, the counter at its first value or not known."""
    body = node.child_by_field_name("body")
    for child in node.children:
        if child.type == "variable_assignment":
            run.statement(child, src)
            target = child.child_by_field_name("name")
            if target is not None:
                line = src.line(child)
                run.scope.variables[src.text(target)] = (Hole("a loop's counter", line),)
    if body is not None:
        run.statement(body, src)
    return None


def while_statement(run: "Run", node: Node, src: Source) -> Flow:
    """As often as its condition is known to hold, and once where that is not known."""
    body = node.child_by_field_name("body")
    tests = [c for c in node.children if c.is_named and c.type not in ("do_group", "comment")]
    until = node.children[0].type == "until" if node.children else False
    if body is None or not tests:
        return None
    for turn in range(MOST_TURNS):
        told = run.condition(tests[-1], src).truth(dict(run.guard), True)
        if told is not None and told == until:
            return None
        flow = run.statement(body, src)
        if flow in ("exit", "return"):
            return flow if told is not None and turn == 0 else None
        if flow == "break" or told is None:
            return None
        if src.text(tests[-1]).strip() in ("true", ":", "1"):
            return None
    return None
