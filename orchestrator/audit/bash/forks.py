"""`if`, `case`, `&&` and `||`: the ways a script can go, and what is the same after them."""

import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.audit.bash.conditions import Condition
from orchestrator.audit.bash.state import Branch, Node, Scope, Source, join
from orchestrator.audit.bash.values import Hole, Ways, branches, flat, plain
from orchestrator.audit.bash.words import value

if TYPE_CHECKING:
    from orchestrator.audit.bash.run import Run

Flow = str | None
Arms = Callable[[Ways, bool], list[int]]
"""The arms possible when branches go these ways; without arguments, if asked."""
LONGEST_LABEL = 70


def if_statement(run: "Run", node: Node, src: Source) -> Flow:
    """Conditions are asked in turn; those that cannot be told open a branch."""
    clauses = [node, *(c for c in node.children if c.type == "elif_clause")]
    asked: list[tuple[Condition, list[Node], str]] = []
    for clause in clauses:
        tests, body = _clause(clause)
        if not tests:
            continue
        for before in tests[:-1]:
            run.statement(before, src)
        found = run.condition(tests[-1], src)
        label = " ".join(src.text(tests[-1]).split())
        asked.append((found, body, label[:LONGEST_LABEL]))
    otherwise = next((c for c in node.children if c.type == "else_clause"), None)
    last = list(otherwise.children) if otherwise is not None else []
    needed = {b for found, _, _ in asked for b in found.branches}
    bodies = [body for _, body, _ in asked] + [last]
    labels = [label for _, _, label in asked]
    labels.append(f"not {labels[0]}" if len(labels) == 1 else "none of its conditions")

    def arms(ways: Ways, usual: bool) -> list[int]:
        possible = []
        for i, (found, _, _) in enumerate(asked):
            told = found.truth(ways, usual)
            if told is not False:
                possible.append(i)
            if told:
                return possible
        return [*possible, len(asked)]

    return fork(run, bodies, labels, needed, arms, src)


def _clause(node: Node) -> tuple[list[Node], list[Node]]:
    """The condition's statements and the body's, of an `if` or an `elif`."""
    tests: list[Node] = []
    body: list[Node] = []
    where = tests
    for child in node.children:
        if child.type == "then":
            where = body
        elif child.type in ("elif_clause", "else_clause"):
            break
        elif child.is_named and child.type != "comment":
            where.append(child)
    return tests, body


def case_statement(run: "Run", node: Node, src: Source) -> Flow:
    """The arm whose pattern fits; every arm, where the word is not known."""
    subject = node.child_by_field_name("value")
    if subject is None:
        return None
    word = value(run, subject, src)
    items = [c for c in node.children if c.type == "case_item"]
    patterns = [_patterns(run, item, src) for item in items]
    bodies = [_body(item) for item in items]
    told = " ".join(src.text(subject).split())
    labels = [f"{told} is {' or '.join(each)}"[:LONGEST_LABEL] for each in patterns]

    def arms(ways: Ways, usual: bool) -> list[int]:
        pieces = tuple(flat(word, ways))
        text = plain(pieces)
        asked = any(
            isinstance(p, Hole) and p.unset and p.why.startswith("argument ") for p in pieces
        )
        if text is None or (asked and not usual):
            open_ended = not any("*" in each for each in patterns)
            return list(range(len(items) + open_ended))
        for i, each in enumerate(patterns):
            if any(fnmatch.fnmatchcase(text, pattern) for pattern in each):
                return [i]
        return [len(items)]

    return fork(
        run, [*bodies, []], [*labels, f"{told} is something else"], set(branches(word)), arms, src
    )


def _patterns(run: "Run", item: Node, src: Source) -> list[str]:
    found = []
    for child in item.children:
        if child.type == ")":
            break
        if child.is_named:
            known = plain(value(run, child, src))
            found.append(known if known is not None else "?*")
    return found


def _body(item: Node) -> list[Node]:
    children = list(item.children)
    closed = next((i for i, c in enumerate(children) if c.type == ")"), len(children))
    return children[closed + 1 :]


def list_statement(run: "Run", node: Node, src: Source) -> Flow:
    """`a && b`, `a || b`. What follows `||` is for what went wrong, unless `a` is a test."""
    if len(node.children) < 3:
        return run.children(node.children, src)
    left, operator, right = node.children[0], src.text(node.children[1]), node.children[2]
    found = run.condition(left, src)
    is_test = left.type in ("test_command", "negated_command", "list") and "[" in src.text(left)
    if not is_test:
        flow = run.statement(left, src)
        if flow is not None:
            return flow
        if operator == "||":
            run.statement(right, src)
            return None
        return run.statement(right, src)
    wanted = operator == "&&"

    def arms(ways: Ways, usual: bool) -> list[int]:
        told = found.truth(ways, usual)
        return [0, 1] if told is None else [0 if told == wanted else 1]

    label = " ".join(src.text(left).split())[:LONGEST_LABEL]
    labels = [label, f"not {label}"] if wanted else [f"not {label}", label]
    return fork(run, [[right], []], labels, set(found.branches), arms, src)


def fork(
    run: "Run", bodies: Sequence[Sequence[Node]], labels: Sequence[str], needed: set[int],
    arms: Arms, src: Source,
) -> Flow:  # fmt: skip
    """Go every way that is possible, then go on with what is known after all of them."""
    ways = run.ways_of(needed)
    outcomes = [(each, arms(each, False)) for each in ways]
    possible = sorted({arm for _, found in outcomes for arm in found})
    if len(possible) == 1:
        before = run.scope.copy()
        flow = run.children(bodies[possible[0]], src)
        if flow == "exit":  # without arguments this script would only say how to use it
            run.scope.become(before)
            return None
        return flow
    usual = arms(dict(run.guard), True)
    number = len(run.branches)
    decided = tuple(
        ({b: w[b] for b in needed if b in w}, possible.index(found[0]))
        for w, found in outcomes if len(found) == 1 and needed
    )  # fmt: skip
    run.branches.append(
        Branch(
            tuple(labels[arm] for arm in possible),
            possible.index(usual[0]) if len(usual) == 1 and usual[0] in possible else None,
            set(), decided,
        )
    )  # fmt: skip
    before, guard = run.scope, run.guard
    scopes, flows = [], []
    for i, arm in enumerate(possible):
        run.scope = before.copy()
        run.guard = (*guard, (number, i))
        flows.append(run.children(bodies[arm], src))
        scopes.append(run.scope)
    run.guard = guard
    return _after(run, number, before, scopes, flows)


def _after(run: "Run", number: int, before: Scope, scopes: list[Scope], flows: list[Flow]) -> Flow:
    alive = [i for i, flow in enumerate(flows) if flow is None]
    branch = run.branches[number]
    if not alive:
        run.scope = before
        return flows[0] if len(set(flows)) == 1 and flows[0] != "exit" else None
    branch.dead |= {i for i in range(len(flows)) if i not in alive}
    if branch.usual in branch.dead:
        branch.usual = None
    stand_in = scopes[alive[0]]
    kept = [scopes[i] if i in alive else stand_in for i in range(len(scopes))]
    run.scope = join(number, before, kept, run.spend)
    return None
