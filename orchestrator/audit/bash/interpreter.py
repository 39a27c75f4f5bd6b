"""Read a script from its first line to its last without running it.

`Interpreter.statement` reads one statement of any kind. A condition whose value is unknown opens a
Branch: every arm is read from the same scope, and the scopes are merged after the statement.
Programs outside the shell become `commands`; a launch is one of them. A script within the script
(`bash -c`, `eval`, heredocs, files that it writes, scripts in its folder) is read at the command
that runs it.

Reading a statement returns a Flow: None, or the kind of jump that leaves the block.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product, takewhile, zip_longest
from typing import ClassVar, Literal

from orchestrator.audit.bash.conditions import NOT_KNOWN, Condition, condition, is_missing_argument
from orchestrator.audit.bash.expansion import (
    FIRST_PRIVATE,
    LAST_PRIVATE,
    Expander,
    printf,
    split_text,
)
from orchestrator.audit.bash.syntax import Budget, ShellSource, SyntaxNode, TooDeep
from orchestrator.audit.bash.values import (
    EMPTY,
    ArrayElement,
    Branch,
    BranchElements,
    BranchValue,
    Hole,
    Scope,
    ShellArray,
    ShellCommand,
    ShellText,
    ShellValue,
    Ways,
    WordPart,
    WordTerm,
    bounded,
    branches_in,
    known_text,
    merge_scopes,
    pieces,
    readable_text,
)
from orchestrator.audit.libraries import STARTS, may_launch

Flow = Literal["exit", "return", "break", "continue"] | None
Arms = Callable[[Ways, bool], list[int]]
"""(ways, usual) -> the arms that are possible. `usual`: True if missing arguments are empty."""
DEEPEST = 60
"""Maximum depth of statements within statements."""
DEEPEST_CALL = 40
MOST_COMMANDS = 500
MOST_WAYS = 16
"""Maximum number of cases of one command."""
MOST_TURNS = 64
"""Maximum number of turns of one loop."""
MOST_NESTED, LONGEST_NESTED = 80, 60_000
"""Maximum number of scripts within the script, and of bytes of one."""
MOST_OPENED, LONGEST_OPENED = 6, 60_000
"""Maximum number of other scripts that are opened, and of characters of one."""
LONGEST_LABEL, LONGEST_LOOP_LABEL = 70, 60
SHELLS = ("bash", "sh", "zsh", "sbatch", "/bin/bash", "/bin/sh", "dash")
_SETS_UP = re.compile(r"bashrc|activate|conda|profile|modules?\b|venv|setvars|set_env\.sh|\.zshrc")
"""Sourced files that only set up an environment. They set no variable of a launch."""
_NO_LAUNCH = re.compile(
    r"\[|alias|apt-get|awk|cd|chmod|command|cp|curl|date|die|echo|export|find|git|grep|hash|head"
    r"|hf|huggingface-cli|info|kill|ln|local|log|ls|mkdir|module|mv|nvidia-smi|pip3?|popd|printf"
    r"|pushd|read|rm|sed|sleep|tail|tar|test|touch|trap|type|ulimit|unset|usage|wait|wandb|wget"
    r"|which"
)
"""Commands that start no trainer."""
_KEY = re.compile(r"\[([\w./:-]+)\]=")
"""The key of an element of an array: `[key]=value`."""
_NAME = r"[A-Za-z_]\w{0,60}"
_STEP = re.compile(
    rf"\s*(?:(?P<name>{_NAME})\s*(?P<sign>\+\+|--)|(?P<before>\+\+|--)(?P<first>{_NAME}))"
    r"(?P<right>)\s*"
)
"""`N++` and `--N`."""
_COMPUTED = re.compile(
    rf"\s*(?P<name>{_NAME})\s*(?P<sign>[-+*/%]?=)(?P<right>[^=][^,]{{0,200}})(?P<first>)(?P<before>)"
)
"""`N = 2` and `N += 2`."""
_CHANGED = re.compile(rf"({_NAME})\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)|(?:\+\+|--)({_NAME})")
"""A variable that arithmetic changes."""
_SUBSCRIPT = re.compile(r"([A-Za-z_]\w*)\[([^\]]+)\]")
"""An element of an array: `x[1]`."""
_FRESH = ("docker", "podman", "nerdctl", "ssh", "kubectl", "pdsh")
"""Programs that start others without the environment of the script."""
_NO_WORD = ("file_descriptor", "comment", "file_redirect", "ERROR")
"""Parts of a redirection that are no word of the command. `3<<< a` is an error to the grammar."""
_ASSIGNS = ("variable_assignment", "variable_assignments", "declaration_command")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*=")
"""The option in a word that also has the value: `--wrap=VALUE`."""


class Interpreter(Expander):
    """The state of reading one script."""

    def __init__(
        self, budget: Budget, neighbours: Mapping[str, str], *, every_way: bool = False
    ) -> None:
        super().__init__(budget)
        self.neighbours = neighbours
        """Texts of other scripts, by the path that a script uses to call them."""
        self.every_way = every_way
        """True: read every arm, as if no condition were known."""
        self.commands: list[ShellCommand] = []
        self.written: dict[str, ShellValue] = {}
        """Path -> text of each file that the script writes and may run later."""
        self.called: set[str] = set()
        """Names of the functions that have been called."""
        self.guard: tuple[tuple[int, int], ...] = ()
        """The (branch, arm) pairs that lead to the current statement."""
        self.loops: tuple[str, ...] = ()
        self.caveats: set[str] = set()
        self.constants: set[str] = set()
        """Variables of `readonly`: an assignment to one fails."""
        self.cased: set[str] = set()
        """Variables of `declare -l`, `-u` and `-c`, whose letters bash changes."""
        self.integers: set[str] = set()
        """Variables of `declare -i`, to which arithmetic is assigned."""
        self._levels = 0
        """How many more loops `break 2` or `continue 2` leaves."""
        self._locals: list[dict[str, ShellValue | ShellArray | None]] = []
        """For each function being read: the values outside it of its local variables."""
        self._depth = 0
        self._nested = 0
        self._opened = 0

    def statement(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read one statement and return its Flow. Skip words, comments and punctuation."""
        read = self._STATEMENTS.get(node.type)
        if read is None:
            return None
        self.budget.step()
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooDeep("it is nested deeper than any launch needs")
        try:
            return read(self, node, source)
        finally:
            self._depth -= 1

    def statements(self, nodes: Sequence[SyntaxNode], source: ShellSource) -> Flow:
        """Read statements until one of them leaves the block."""
        for i, node in enumerate(nodes):
            if i + 1 < len(nodes) and nodes[i + 1].type == "&":
                self._apart(node, source)
                continue
            flow = self.statement(node, source)
            if flow is not None:
                return flow
        return None

    def _block(self, node: SyntaxNode, source: ShellSource) -> Flow:
        if node.type == "compound_statement" and source.text(node).startswith("(("):
            self._calculate(source.text(node)[2:-2], source.line(node))
            return None
        return self.statements(node.children, source)

    def _calculate(self, text: str, line: int) -> None:
        """Read the assignments in `((N -= 1))` and `let N=2`."""
        for part in text.split(","):
            match = _STEP.fullmatch(part) or _COMPUTED.fullmatch(part)
            if match is not None:
                name = match["name"] or match["first"]
                sign = (match["sign"] or match["before"])[0]
                value = f"{name} {sign} ({match['right'] or 1})" if sign != "=" else match["right"]
                self.scope.variables[name] = self.arithmetic(value, line)
                continue
            for name in _CHANGED.findall(part):
                # One of the expression's two groups is empty.
                self.scope.variables["".join(name)] = (Hole("arithmetic", line),)

    def _let(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        for each in arguments:
            self._calculate(_text(each) or "", line)
        return None

    def _subshell(self, node: SyntaxNode, source: ShellSource) -> Flow:
        before = self.scope.copy()
        self.statements(node.children, source)
        self.scope.restore(before)
        return None

    def _apart(self, node: SyntaxNode, source: ShellSource) -> None:
        """Read a statement of another process: in the background, or in a pipe."""
        before = self.scope.copy()
        self.statement(node, source)
        self.scope.restore(before)

    def _pipeline(self, node: SyntaxNode, source: ShellSource) -> Flow:
        if not any(child.type in ("|", "|&") for child in node.children):
            return self.statements(node.children, source)
        *before, last = node.children
        for child in before:
            self._apart(child, source)
        if "lastpipe" in self.options:
            return self.statement(last, source)
        self._apart(last, source)
        return None

    def _function(self, node: SyntaxNode, source: ShellSource) -> Flow:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.scope.functions[source.text(name)] = (body, source)
        return None

    # Assignments

    def _assignment(self, node: SyntaxNode, source: ShellSource) -> Flow:
        target, given = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return None
        name = source.text(target).replace('"', "").replace("'", "")
        before = self.scope.variables.get(name)
        value: ShellValue | ShellArray
        if given is not None and given.type == "array":
            value = ShellArray(tuple(self._array(given, source)))
        else:
            value = EMPTY if given is None else self.value(given, source)
        appends = any(c.type == "+=" for c in node.children)
        if name in self.constants | self.cased:
            why = "which is readonly" if name in self.constants else "whose letters declare changes"
            value = (Hole(f"${name}, {why}", source.line(node)),)
        if self.scope.exports_all:
            self.scope.exported.add(name)
        subscript = _SUBSCRIPT.fullmatch(name)
        if subscript is not None and not isinstance(value, ShellArray):
            element = bounded(value, self.budget.spend)
            if not isinstance(element, ShellArray):
                at = source.line(node)
                self._assign_element(subscript[1], subscript[2], element, appends, at)
            return None
        if name in self.integers and not isinstance(value, ShellArray):
            text = known_text(value)
            old = known_text(before) if isinstance(before, tuple) else ""
            unknown: ShellValue = (Hole(f"arithmetic over ${name}", source.line(node)),)
            if text is None or old is None:
                value = unknown
            else:
                sum_of = f"({old or 0}) + ({text or 0})" if appends else text or "0"
                value = self.arithmetic(sum_of, source.line(node))
        elif before is not None and appends:
            value = _appended(before, value)
        if not appends:
            self._forget_elements(name)
        self.scope.variables[name] = bounded(value, self.budget.spend)
        if isinstance(value, ShellArray):
            self._keep_keys(name, value)
        return None

    def _assign_element(
        self, name: str, index: str, value: ShellValue, appends: bool, line: int
    ) -> None:
        """Read `name[index]=value`: an array's element, or a variable of its own for a text key."""
        array, at = self.scope.variables.get(name), self._number(index, line)
        keyed = any(key.startswith(f"{name}[") for key in self.scope.variables)
        elements = list(array.elements) if isinstance(array, ShellArray) and not keyed else []
        # An index beyond the end would leave a gap: such an element is kept under its key.
        if at is not None and not keyed and at <= len(elements):
            if any(isinstance(each, BranchElements) for each in elements[: at + 1]):
                elements = [(Hole(f"an element of ${name}", line),)]
            elif at < len(elements):
                old = elements[at]
                more = (*old, *value) if appends and not isinstance(old, BranchElements) else value
                elements[at] = more
            else:
                elements.append(value)
            self.scope.variables[name] = ShellArray(tuple(elements))
            return
        key = f"{name}[{index}]"
        before = self.scope.variables.get(key)
        if appends and before is not None and not isinstance(before, ShellArray):
            value = (*before, *value)
        self.scope.variables[key] = value
        if isinstance(array, ShellArray) and not keyed:
            self.scope.variables[name] = ShellArray(((Hole(f"an element of ${name}", line),),))
            return
        own = [v for k, v in self.scope.variables.items() if k.startswith(f"{name}[")]
        self.scope.variables[name] = ShellArray(
            tuple(each for each in own if not isinstance(each, ShellArray))
        )

    def _forget_elements(self, name: str) -> None:
        """Drop the elements that are kept under their keys: the variable gets a new value."""
        for key in [key for key in self.scope.variables if key.startswith(f"{name}[")]:
            del self.scope.variables[key]

    def _number(self, index: str, line: int) -> int | None:
        """Return the number of an element, or None for a text key and an unknown number."""
        text = index.strip("\"'")
        if not text.isdecimal() and text.lstrip("$").strip("{}").isidentifier():
            text = known_text(self.variable(text.lstrip("$").strip("{}"), line)) or ""
        return int(text) if text.isdecimal() and len(text) < 6 else None

    def _keep_keys(self, name: str, array: ShellArray) -> None:
        """Record `x=([a]=1 [b]=2)` as the variables `x[a]` and `x[b]`, and x as their values."""
        values: dict[str, ShellValue] = {}
        for each in array.elements:
            if isinstance(each, BranchElements):
                return
            known = [piece for piece in takewhile(_is_text, each) if isinstance(piece, ShellText)]
            text = "".join(piece.text for piece in known)
            key = _KEY.match(text)
            if key is None:
                return
            rest = ShellText(text[key.end() :], known[0].line)
            values[f"{name}[{key[1]}]"] = (rest, *each[len(known) :])
        self.scope.variables |= values
        self.scope.variables[name] = ShellArray(tuple(values.values()))

    def _array(self, node: SyntaxNode, source: ShellSource) -> Iterable[ArrayElement]:
        """Yield the elements of `( ... )`. Split its unquoted words at blanks."""
        for child in node.children:
            if child.is_named and child.type != "comment":
                for term in self.terms(child, source):
                    yield from self.elements(term)

    def _declaration(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read `export`, `local`, `declare`: a function's own variables end with it."""
        kind = source.text(node.children[0]) if node.children else ""
        flags = "".join(t for c in node.children if (t := source.text(c)).startswith("-"))
        declares = kind in ("declare", "typeset")
        is_local = kind == "local" or (declares and self.scope.in_function and "g" not in flags)
        for child in node.children:
            assigned = child.type == "variable_assignment"
            target = child.child_by_field_name("name") if assigned else child
            if target is None or not (assigned or child.type == "variable_name"):
                self._declare_words(child, source, is_local=is_local)
                continue
            name = source.text(target).partition("[")[0]
            if "i" in flags and (declares or kind == "local"):
                self.integers.add(name)
            if set(flags) & {*"luc"} and (declares or kind == "local"):
                self.cased.add(name)
            if is_local and self._locals:
                self._locals[-1].setdefault(name, self.scope.variables.get(name))
                if not assigned:
                    self.scope.variables.pop(name, None)
            if assigned:
                self._assignment(child, source)
            if "n" in flags and (declares or kind == "local"):
                self._refer(name, source.line(child))
            elif kind == "readonly" or (declares and "r" in flags):
                self.constants.add(name)
            elif kind == "export" or (declares and "x" in flags):
                (self.scope.exported.discard if "n" in flags else self.scope.exported.add)(name)
        return None

    def _declare_words(self, node: SyntaxNode, source: ShellSource, *, is_local: bool) -> None:
        """Read a word of `declare "$NAME=1"`."""
        if node.type not in ("string", "concatenation", "simple_expansion", "expansion"):
            return
        for element in (each for term in self.terms(node, source) for each in self.elements(term)):
            text = _text(element)
            if text is None:
                self.sourced.append(source.text(node))
                continue
            name, value = _assigned((ShellText(text, source.line(node)),))
            if value is not None:
                if is_local and self._locals:
                    self._locals[-1].setdefault(name, self.scope.variables.get(name))
                self.scope.variables[name] = value

    def _refer(self, name: str, line: int) -> None:
        """Read `local -n name=other`: what is assigned to `name` changes `other`."""
        value = self.scope.variables.get(name)
        other = known_text(value) if value is not None and not isinstance(value, ShellArray) else ""
        unknown: ShellValue = (Hole(f"${name}, another name of a variable", line),)
        self.scope.variables[name] = unknown
        if other and other.isidentifier():
            self.scope.variables[other] = unknown
        else:
            self.sourced.append(f"${name}, another name of a variable,")

    # Forks

    def _if(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Test conditions in turn. An unknown condition opens a branch."""
        clauses: list[tuple[Condition, list[SyntaxNode], str]] = []
        for clause in (node, *(c for c in node.children if c.type == "elif_clause")):
            tests, body = _clause(clause)
            if not tests:
                continue
            for before in tests[:-1]:
                self.statement(before, source)
            label = " ".join(source.text(tests[-1]).split())[:LONGEST_LABEL]
            clauses.append((self._condition(tests[-1], source), body, label))
        otherwise = next((c for c in node.children if c.type == "else_clause"), None)
        bodies = [body for _, body, _ in clauses]
        bodies.append(list(otherwise.children) if otherwise is not None else [])
        labels = [label for _, _, label in clauses]
        labels.append(f"not {labels[0]}" if len(labels) == 1 else "none of its conditions")

        def arms(ways: Ways, usual: bool) -> list[int]:
            possible = []
            for i, (test, _, _) in enumerate(clauses):
                known = test.truth(ways, usual)
                if known is not False:
                    possible.append(i)
                # A condition that is surely true hides all later arms.
                if known:
                    return possible
            return [*possible, len(clauses)]

        needed = {branch for test, _, _ in clauses for branch in test.branches}
        return self._fork(bodies, labels, needed, arms, source)

    def _case(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read the first arm whose pattern matches. Read every arm if the word is unknown."""
        subject = node.child_by_field_name("value")
        if subject is None:
            return None
        word = self.value(subject, source)
        items = [c for c in node.children if c.type == "case_item"]
        patterns = [self._patterns(item, source) for item in items]
        ends = [source.text(item.children[-1]) for item in items]
        shown = " ".join(source.text(subject).split())
        labels = [f"{shown} is {_written(item, source)}"[:LONGEST_LABEL] for item in items]

        def arms(ways: Ways, usual: bool) -> list[int]:
            matched = tuple(pieces(word, ways))
            text = known_text(matched)
            exhaustive = any("*" in each for each in patterns)
            if text is None or (is_missing_argument(matched) and not usual):
                return list(range(len(items) + (not exhaustive)))
            possible = []
            for i, each in enumerate(patterns):
                known = self.matches(text, each)
                if known is not False:
                    possible.append(i)
                if known:
                    return possible
            return [*possible, len(items)]

        # `;&` goes on with the next body; what `;;&` goes on with, depends on the word.
        bodies: list[list[SyntaxNode]] = [[]]
        for item, end in zip(reversed(items), reversed(ends), strict=True):
            goes_on = bodies[0] if end == ";&" else []
            bodies.insert(0, [*_case_body(item), *goes_on])
        if ";;&" in ends:
            return self._case_goes_on(known_text(word), patterns, bodies, ends, source)
        labels.append(f"{shown} is something else")
        return self._fork(bodies, labels, set(branches_in(word)), arms, source)

    def _case_goes_on(
        self,
        text: str | None,
        patterns: Sequence[Sequence[str | None]],
        bodies: Sequence[Sequence[SyntaxNode]],
        ends: Sequence[str],
        source: ShellSource,
    ) -> Flow:
        """Read a `case` in which `;;&` goes on with the next pattern that matches."""
        known = [None if text is None else self.matches(text, each) for each in patterns]
        if None in known:
            self.sourced.append("a case with several arms")
            return None
        reached: list[SyntaxNode] = []
        for holds, body, end in zip(known, bodies, ends, strict=False):
            reached += body if holds else []
            if holds and end != ";;&":
                break
        return self.statements(reached, source)

    def _patterns(self, item: SyntaxNode, source: ShellSource) -> list[str | None]:
        patterns = []
        for child in item.children:
            if child.type == ")":
                break
            if child.is_named:
                patterns.append(self.pattern(child, source))
        return patterns

    def _list(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read `a && b` and `a || b`. Fork if `a` is a test; otherwise read both sides in turn.

        If `a` is a program, the side after `||` handles its failure, so a jump there is ignored.
        """
        if len(node.children) < 3:
            return self.statements(node.children, source)
        left, operator, right = node.children[0], source.text(node.children[1]), node.children[2]
        chosen = _choice(left, source) if operator == "||" else None
        if chosen is not None:
            test, yes = self._condition(chosen[0], source), chosen[1]
            label = " ".join(source.text(chosen[0]).split())[:LONGEST_LABEL]

            def both(ways: Ways, usual: bool) -> list[int]:
                known = test.truth(ways, usual)
                return [0, 1] if known is None else [0 if known else 1]

            needed = set(test.branches)
            return self._fork([[yes], [right]], [label, f"not {label}"], needed, both, source)
        test = self._condition(left, source)
        is_test = left.type in ("test_command", "negated_command", "list")
        is_known = test.truth(dict(self.guard), False) is not None
        if not is_known and (not is_test or "[" not in source.text(left)):
            flow = self.statement(left, source)
            if flow is not None:
                return flow
            if right.type in _ASSIGNS:
                labels = [
                    f"{' '.join(source.text(left).split())[:LONGEST_LABEL]} succeeds",
                    "it fails",
                ]
                only_after_failure = operator == "||"
                bodies = [[], [right]] if only_after_failure else [[right], []]
                return self._fork(bodies, labels, set(), lambda _ways, _usual: [0, 1], source)
            after = self.statement(right, source)
            return None if operator == "||" else after
        if left.type == "compound_statement" and source.text(left).startswith("(("):
            self.statement(left, source)
        wanted = operator == "&&"

        def arms(ways: Ways, usual: bool) -> list[int]:
            known = test.truth(ways, usual)
            return [0, 1] if known is None else [0 if known == wanted else 1]

        label = " ".join(source.text(left).split())[:LONGEST_LABEL]
        labels = [label, f"not {label}"] if wanted else [f"not {label}", label]
        return self._fork([[right], []], labels, set(test.branches), arms, source)

    def _condition(self, node: SyntaxNode, source: ShellSource) -> Condition:
        return NOT_KNOWN if self.every_way else condition(self, node, source)

    def _fork(
        self,
        bodies: Sequence[Sequence[SyntaxNode]],
        labels: Sequence[str],
        needed: set[int],
        arms: Arms,
        source: ShellSource,
    ) -> Flow:
        """Read every possible arm, then continue with the merged scope."""
        outcomes = [(ways, arms(ways, False)) for ways in self.ways_of(needed)]
        possible = sorted({arm for _, each in outcomes for arm in each})
        if len(possible) == 1:
            before = self.scope.copy()
            flow = self.statements(bodies[possible[0]], source)
            if flow == "exit":  # the arm that prints the usage if the script has no arguments
                self.scope.restore(before)
                return None
            return flow
        usual = arms(dict(self.guard), True)
        number = len(self.branches)
        decided = tuple(
            ({b: ways[b] for b in needed if b in ways}, possible.index(each[0]))
            for ways, each in outcomes
            if len(each) == 1 and needed
        )
        self.branches.append(
            Branch(
                tuple(labels[arm] for arm in possible),
                possible.index(usual[0]) if len(usual) == 1 and usual[0] in possible else None,
                set(),
                decided,
            )
        )
        before, guard = self.scope, self.guard
        scopes: list[Scope] = []
        flows: list[Flow] = []
        for i, arm in enumerate(possible):
            self.scope = before.copy()
            self.guard = (*guard, (number, i))
            flows.append(self.statements(bodies[arm], source))
            scopes.append(self.scope)
        self.guard = guard
        return self._merge(number, before, scopes, flows)

    def _merge(self, number: int, before: Scope, scopes: list[Scope], flows: list[Flow]) -> Flow:
        """Merge the scopes of the arms that reach the end of a fork. Return the Flow of the fork.

        An arm that jumps out of the block is dead: no later value depends on it.
        """
        alive = [i for i, flow in enumerate(flows) if flow is None]
        branch = self.branches[number]
        if not alive:
            self.scope = before
            return flows[0] if len(set(flows)) == 1 and flows[0] != "exit" else None
        branch.dead |= {i for i in range(len(flows)) if i not in alive}
        if branch.usual in branch.dead:
            branch.usual = None
        # merge_scopes needs a scope for each arm. A dead arm is never chosen, so it gets the scope
        # of a living arm: then no variable differs because of it.
        kept = [scopes[i] if i in alive else scopes[alive[0]] for i in range(len(scopes))]
        self.scope = merge_scopes(number, before, kept, self.budget.spend)
        return None

    def ways_of(self, needed: Iterable[int]) -> list[Ways]:
        """Return the possible ways of these branches, at most MOST_WAYS.

        Branches in `guard` keep their arm. Dead arms and impossible combinations are left out.
        """
        fixed = dict(self.guard)
        free = sorted({branch for branch in needed if branch not in fixed})
        arms = [
            [a for a in range(len(self.branches[b].labels)) if a not in self.branches[b].dead]
            for b in free
        ]
        collected: list[Ways] = []
        for chosen in product(*arms):
            ways = fixed | dict(zip(free, chosen, strict=True))
            if self._possible(ways):
                collected.append(ways)
            if len(collected) == MOST_WAYS:
                self.caveats.add(f"only the first {MOST_WAYS} of its cases were looked at")
                break
        return collected or [fixed]

    def _possible(self, ways: Ways) -> bool:
        """Return True if no branch takes an arm that the ways of other branches rule out."""
        return not any(
            decided != arm and all(ways.get(b) == a for b, a in others.items())
            for branch, arm in ways.items()
            for others, decided in self.branches[branch].decided
        )

    # Loops

    def _for(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read the body of `for x in ...` once for each value; `for x` takes the arguments."""
        subject, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if subject is None or body is None:
            return None
        name = source.text(subject)
        listed = False
        items: list[ShellValue] = []
        for child in node.children:
            if child.type == "in":
                listed = True
            elif listed and child.is_named and child.type not in ("do_group", "comment"):
                for term in self.terms(child, source):
                    items += self.settled(self.elements(term))
        if not listed and not re.match(r"for\s+\w+\s+in\b", source.text(node)):
            items = self.settled(self.scope.arguments)
        if len(items) > MOST_TURNS:
            self.caveats.add(f"only the first {MOST_TURNS} turns of a loop were looked at")
            items = items[:MOST_TURNS]
        before = self.loops
        for item in items:
            self.scope.variables[name] = item
            if len(items) > 1:
                label = (known_text(item) or "?").strip()
                self.loops = (*before, f"{name}={label}"[:LONGEST_LOOP_LABEL])
            flow = self.statement(body, source)
            self.loops = before
            if flow in ("break", "continue") and self._levels:
                self._levels -= 1
                return flow
            if flow in ("exit", "return", "break"):
                break
        return None

    def _c_style_for(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read the turns of `for ((i = 0; i < 3; i++))`, or one turn with an unknown counter."""
        body = node.child_by_field_name("body")
        head = source.text(node).partition("((")[2].partition("))")[0].split(";")
        if body is None or len(head) != 3:
            return None
        line = source.line(node)
        self._calculate(head[0], line)
        for _ in range(MOST_TURNS):
            holds = known_text(self.arithmetic(head[1], line)) if head[1].strip() else None
            if holds == "0":
                return None
            if holds is None:
                return self._some_turns(node, body, source)
            flow = self.statement(body, source)
            if flow in ("break", "continue") and self._levels:
                self._levels -= 1
                return flow
            if flow in ("exit", "return", "break"):
                return None
            self._calculate(head[2], line)
        return self._some_turns(node, body, source)

    def _some_turns(self, node: SyntaxNode, body: SyntaxNode, source: ShellSource) -> Flow:
        """Read one turn of a loop whose number of turns is unknown.

        What it sets is unknown, in the turn and after the loop.
        """
        line = source.line(node)
        for name in self._set_in(node, source):
            self.scope.variables[name] = (Hole(f"${name}, which a loop sets", line),)
        before = dict(self.scope.variables)
        self.statement(body, source)
        self._levels = 0
        for name, value in list(self.scope.variables.items()):
            if before.get(name) != value:
                self.scope.variables[name] = (Hole(f"${name}, which a loop sets", line),)
        return None

    def _set_in(self, node: SyntaxNode, source: ShellSource) -> set[str]:
        """Return the variables that arithmetic in the head of a loop changes."""
        text = source.text(node).partition("((")[2].partition("))")[0]
        is_counted = node.type == "c_style_for_statement"
        return {"".join(names) for names in _CHANGED.findall(text)} if is_counted else set()

    def _while(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read a loop while its condition is true, or once if the condition is unknown.

        Read an endless loop (`while true`) once.
        """
        body = node.child_by_field_name("body")
        tests = [c for c in node.children if c.is_named and c.type not in ("do_group", "comment")]
        until = node.children[0].type == "until" if node.children else False
        if body is None or not tests:
            return None
        for turn in range(MOST_TURNS):
            for test in tests[:-1]:
                self.statement(test, source)
            holds = self._condition(tests[-1], source).truth(dict(self.guard), True)
            if holds is not None and holds == until:
                return None
            if tests[-1].type not in ("test_command", "negated_command"):
                self.statement(tests[-1], source)
            if holds is None:
                return self._some_turns(node, body, source)
            flow = self.statement(body, source)
            if flow in ("exit", "return"):
                # Only a first turn that surely happens leaves the block for sure.
                return flow if turn == 0 else None
            if flow in ("break", "continue") and self._levels:
                self._levels -= 1
                return flow
            if flow == "break":
                return None
            if source.text(tests[-1]).strip() in ("true", ":", "1"):
                return self._some_turns(node, body, source)
        return self._some_turns(node, body, source)

    # Commands

    def _redirected(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read a statement with redirections: `> file`, `<<EOF`."""
        body = node.child_by_field_name("body")
        redirects = [c for c in node.children if c.type.endswith("redirect")]
        heredoc = next((c for c in redirects if c.type == "heredoc_redirect"), None)
        more: list[SyntaxNode] = []
        target = None
        for each in redirects:
            inner = each.children
            if each.type == "heredoc_redirect":
                inner = [g for c in inner if c.type == "file_redirect" for g in (c, *c.children)]
            named = [c for c in inner if c.is_named and c.type not in _NO_WORD]
            # The grammar takes words after `> file` for more files; they are arguments.
            more += named[1:] if each.type == "file_redirect" else []
            if named and any(c.type in (">", ">>", "&>") for c in inner):
                target = self.value(named[0], source)
        if heredoc is not None:
            self.statements([c for c in heredoc.children if c.type == "pipeline"], source)
        stdin = self.heredoc(heredoc, source) if heredoc is not None else None
        if body is None:
            return None
        if body.type == "command":
            return self._command(body, source, more=more, stdin=stdin, target=target)
        return self.statement(body, source)

    def _command(
        self,
        node: SyntaxNode,
        source: ShellSource,
        *,
        more: Sequence[SyntaxNode] = (),
        stdin: ShellValue | None = None,
        target: ShellValue | None = None,
    ) -> Flow:
        """Read one simple command.

        `more`: words of the command that the grammar puts into a redirection. `stdin`: the text of
        its heredoc. `target`: the path of the file that it writes.
        """
        terms: list[WordTerm] = []
        own: dict[str, ShellValue | ShellArray | None] = {}
        for child, next_child in zip_longest(node.children, node.children[1:]):
            if child.type == "variable_assignment":
                if next_child is not None and next_child.start_byte == child.end_byte:
                    # The grammar ends `X=0.$1$2` too early: what follows is more of the value.
                    return self._unread_assignment(child, source)
                target = child.child_by_field_name("name")
                if target is not None:
                    own.setdefault(name := source.text(target), self.scope.variables.get(name))
                self.statement(child, source)
            elif child.type == "file_redirect":
                named = [c for c in child.children if c.is_named and c.type != "file_descriptor"]
                for each in named[1:]:
                    terms += self.terms(each, source)
            elif child.type == "herestring_redirect":
                stdin = self.value(child.named_children[-1], source)
            elif child.is_named and child.type != "comment":
                terms += self.terms(child, source)
        for each in more:
            terms += self.terms(each, source)
        if not own or not terms:
            return self._invoke(tuple(terms), source.line(node), stdin, target)
        # `K=1 program`: the program's own environment. Its words were expanded with K, which is
        # what the author means by `K=1 program $K`.
        exported = self.scope.exported
        self.scope.exported = {*exported, *own}
        flow = self._invoke(tuple(terms), source.line(node), stdin, target)
        self._put_back(own)
        self.scope.exported = exported
        return flow

    def _unread_assignment(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read an assignment whose value has parts that the grammar does not give."""
        target = node.child_by_field_name("name")
        if target is not None:
            name = source.text(target).partition("[")[0]
            self.scope.variables[name] = (Hole(f"the value of ${name}", source.line(node)),)
        return None

    def _invoke(
        self,
        terms: tuple[WordTerm, ...],
        line: int,
        stdin: ShellValue | None = None,
        target: ShellValue | None = None,
    ) -> Flow:
        """Read a command whose words are already expanded: a function, a built-in or a program."""
        words = [each for term in terms for each in self.elements(term)]
        self.budget.spend(len(words))
        if not words:
            return None
        head, arguments = words[0], tuple(words[1:])
        name = _text(head) or ""
        if name in ("command", "builtin") and not (_text(words[1:2][0]) or "-").startswith("-"):
            return self._invoke_values(words[1:], line, stdin, target)
        if name == "time" and arguments:
            return self._timed(arguments, line)
        if name in self.scope.functions and self._depth < DEEPEST_CALL:
            return self._call(name, arguments)
        if name in ("read", "mapfile", "readarray") and stdin is not None:
            self._read_text(name, arguments, stdin, line)
        elif name in self._BUILTINS:
            return self._BUILTINS[name](self, arguments, line)
        elif name in ("cat", "tee"):
            last = words[-1] if len(words) > 1 and not isinstance(words[-1], BranchElements) else ()
            self._write(target if name == "cat" else last or None, stdin)
        elif self._starts_nothing(name, words) or self._runs_script(name, words, line):
            return None
        elif stdin is not None and may_launch(readable_text(stdin)):
            self._run_in_child(stdin, words, arguments=self._after_s(words))
        elif not self._runs_strings(words):
            self._start(terms, words, line)
        return None

    def _invoke_values(
        self,
        words: Sequence[ArrayElement],
        line: int,
        stdin: ShellValue | None = None,
        target: ShellValue | None = None,
    ) -> Flow:
        terms = tuple(v if isinstance(v, BranchElements) else (WordPart(v, True),) for v in words)
        return self._invoke(terms, line, stdin, target)

    def _timed(self, arguments: Sequence[ArrayElement], line: int) -> Flow:
        """Read `time X=1`, which the grammar takes for a word, and `time -p program`."""
        rest = list(arguments)
        while rest and (_text(rest[0]) or "").startswith("-"):
            del rest[0]
        while rest and not isinstance(rest[0], BranchElements):
            name, value = _assigned(rest[0])
            if value is None:
                break
            self.scope.variables[name] = value
            del rest[0]
        return self._invoke_values(rest, line) if rest else None

    def _after_s(self, words: Sequence[ArrayElement]) -> tuple[ArrayElement, ...]:
        """Return the arguments of `bash -s a b`, which reads its script from its input."""
        texts = [_text(each) for each in words]
        at = texts.index("-s") + 1 if "-s" in texts else len(words)
        return tuple(words[at + (texts[at : at + 1] == ["--"]) :])

    def _starts_nothing(self, name: str, words: Sequence[ArrayElement]) -> bool:
        if name == "conda":
            return "run" not in map(_text, words[1:])
        return _NO_LAUNCH.fullmatch(name) is not None

    def _start(self, terms: tuple[WordTerm, ...], words: Sequence[ArrayElement], line: int) -> None:
        """Record a program that the script starts."""
        if len(self.commands) >= MOST_COMMANDS:
            raise TooDeep(f"it starts more than {MOST_COMMANDS} commands")
        promising = any(may_launch(text) for each in words for text in _texts(each))
        self.commands.append(
            ShellCommand(terms, self.guard, self.loops, line, tuple(self.sourced), promising)
        )

    def _call(self, name: str, arguments: tuple[ArrayElement, ...]) -> Flow:
        """Read a function's body with these arguments."""
        body, source = self.scope.functions[name]
        self.called.add(name)
        before, inside = self.scope.arguments, self.scope.in_function
        self.scope.arguments, self.scope.in_function = arguments, True
        self._locals.append({})
        flow = self.statement(body, source)
        self.scope.arguments, self.scope.in_function = before, inside
        self._put_back(self._locals.pop())
        return flow if flow == "exit" else None

    def _put_back(self, values: Mapping[str, ShellValue | ShellArray | None]) -> None:
        """Give variables their earlier values; None: they had none."""
        for name, value in values.items():
            if value is None:
                self.scope.variables.pop(name, None)
            else:
                self.scope.variables[name] = value

    # Scripts within the script

    def _run_in_child(
        self,
        text: ShellValue,
        starting: Sequence[ArrayElement],
        *,
        arguments: tuple[ArrayElement, ...] = (),
    ) -> None:
        """Read a string as the script of another process, which gets only the environment.

        `starting`: the words of the command up to the script, such as `docker run -e K=1 image`.
        """
        before, sourced = self.scope, len(self.sourced)
        self.scope = before.copy()
        self.scope.variables = self._environment(starting)
        self.scope.exported = set(self.scope.variables)
        self.scope.in_function = False
        self.run_text(text, arguments=arguments)
        self.scope = before
        # What a child process sources sets nothing in this script.
        del self.sourced[sourced:]

    def _environment(self, starting: Sequence[ArrayElement]) -> dict[str, ShellValue | ShellArray]:
        """Return the variables of a process that these words start.

        A container and a remote machine begin without the script's.
        """
        exported = {
            name: value
            for name, value in self.scope.variables.items()
            if name in self.scope.exported and not isinstance(value, ShellArray)
        }
        texts = [_text(each) or "" for each in starting]
        programs = [text.rpartition("/")[2] for text in texts]
        if any(each in _FRESH for each in programs[:3]):
            return self._of_container(starting, texts, exported)
        if any(each in ("apptainer", "singularity") for each in programs[:3]):
            closed = {"--cleanenv", "-e", "--containall", "-C"} & {*texts}
            own = self._of_container(starting, texts, {})
            return own if closed else {**exported, **own}
        if "ray" in programs[:4] and "submit" in programs:
            return self._of_ray(texts)
        if "sudo" in programs[:2] and not {"-E", "--preserve-env"} & {*texts}:
            self.sourced.append("what sudo keeps of the environment")
            exported = {}
        variables: dict[str, ShellValue | ShellArray] = {**exported}
        if any(each in ("srun", "sbatch", "salloc") for each in programs):
            _choose_exported(texts, variables)
        if "env" in programs:
            _apply_env(starting, texts, variables)
        return variables

    def _of_ray(self, texts: Sequence[str]) -> dict[str, ShellValue | ShellArray]:
        """Return the variables that `ray job submit --runtime-env-json=...` gives a job."""
        for i, text in enumerate(texts):
            option, is_set, value = text.partition("=")
            if option == "--runtime-env-json":
                given = value if is_set else "".join(texts[i + 1 : i + 2])
                try:
                    variables = json.loads(given)["env_vars"]
                    return {str(k): (ShellText(str(v), 1),) for k, v in variables.items()}
                except KeyError:
                    return {}
                except (ValueError, TypeError, AttributeError, RecursionError):
                    pass
            if option in ("--runtime-env", "--runtime-env-json"):
                self.sourced.append(f"the environment of {option}")
        return {}

    def _of_container(
        self,
        starting: Sequence[ArrayElement],
        texts: Sequence[str],
        exported: Mapping[str, ShellValue],
    ) -> dict[str, ShellValue | ShellArray]:
        """Return the variables that `docker run -e A=1 -e B --env-file F` hands on."""
        variables: dict[str, ShellValue | ShellArray] = {}
        for i, element in enumerate(starting):
            given = i > 0 and texts[i - 1] in ("-e", "--env")
            if texts[i].startswith("--env-file"):
                self.sourced.append("the file of --env-file")
            elif not isinstance(element, BranchElements) and (
                given or readable_text(element).startswith("--env=")
            ):
                name, value = _assigned(element if given else _without_option(element))
                if value is not None:
                    variables[name] = value
                elif name in exported:
                    variables[name] = exported[name]
        return variables

    def run_text(self, text: ShellValue, *, arguments: tuple[ArrayElement, ...] = ()) -> None:
        """Read a string as a script in the current scope, once for each way of its branches."""
        if self._nested >= MOST_NESTED:
            self.caveats.add(f"only the first {MOST_NESTED} scripts within the script were read")
            return
        self._nested += 1
        for ways in self.ways_of(set(branches_in(text))):
            source = self._nested_source(text, ways)
            if source is None:
                return
            guard, before = self.guard, self.scope.arguments
            self.guard = tuple(sorted(dict(guard).items() | dict(ways).items()))
            self.scope.arguments = arguments or before
            flow = self.statement(self.budget.parse(source.data), source)
            self.guard, self.scope.arguments = guard, before
            if flow == "exit":
                return

    def _nested_source(self, text: ShellValue, ways: Ways) -> ShellSource | None:
        """Return a value as a source, or None if it is too long or has too many holes.

        Each Hole becomes a private character. After parsing, the expander replaces the character by
        the Hole, so a value from outside keeps its reason.
        """
        data: list[bytes] = []
        starts: list[int] = []
        lines: list[int] = []
        private: dict[str, Hole | BranchValue] = {}
        length = 0
        for piece in pieces(text, ways):
            written = piece.text if isinstance(piece, ShellText) else ""
            if isinstance(piece, Hole) and not piece.unset:
                if FIRST_PRIVATE + len(private) > LAST_PRIVATE:
                    return None
                written = chr(FIRST_PRIVATE + len(private))
                private[written] = piece
            encoded = written.encode("utf-8", "replace")
            if encoded:
                starts.append(length)
                lines.append(piece.line)
            length += len(encoded)
            if length > LONGEST_NESTED:
                return None
            data.append(encoded)
        self.budget.spend(length // 2)
        return ShellSource(b"".join(data), starts, lines, 1, private)

    def _write(self, path: ShellValue | None, text: ShellValue | None) -> None:
        """Record a heredoc that the script writes to a file: the script may run it later."""
        if text is not None:
            name = known_text(path) if path is not None else None
            if name == "/dev/null":
                return
            self.written[name or f"unnamed file {len(self.written)}"] = text

    def _runs_script(self, name: str, words: Sequence[ArrayElement], line: int) -> bool:
        """Read `bash -c '...'`, scripts that this script has written, and scripts in its folder.

        Return True if the command was one of them.
        """
        texts = [_text(each) for each in words]
        if name in SHELLS and "-c" in texts[:4]:
            at = texts.index("-c") + 1
            body = words[at] if at < len(words) else None
            if body is not None and not isinstance(body, BranchElements):
                self._run_in_child(body, words[:at], arguments=tuple(words[at + 2 :]))
                return True
        for i, text in enumerate(texts[:6]):
            if text is not None and text in self.written and (name in SHELLS or text == name):
                more = tuple(words[i + 1 :])
                # Taken out, because `_read_leftovers` reads the files that are never started.
                self._run_in_child(self.written.pop(text), words[:i], arguments=more)
                return True
        for i, each in enumerate(words[:2] if name in SHELLS else words[:1]):
            script = None if isinstance(each, BranchElements) else self._neighbour(each)
            if script is not None:
                more = tuple(words[i + 1 :])
                self._run_in_child((ShellText(script, line),), words[:i], arguments=more)
                return True
        return False

    def _neighbour(self, path: ShellValue) -> str | None:
        """Return the text of another script in the script's folder, or None.

        Ignore the part of the path up to the last unknown piece: `$HERE/run.sh` is `run.sh`.
        """
        name = ""
        for piece in pieces(path, {}):
            name = "" if isinstance(piece, Hole) else name + piece.text
        name = name.lstrip("./")
        if not name.endswith((".sh", ".bash", ".slurm", ".sbatch")) or self._opened >= MOST_OPENED:
            return None
        text = self.neighbours.get(name)
        if text is None or len(text) > LONGEST_OPENED or not text.strip():
            return None
        self._opened += 1
        return text

    def _runs_strings(self, words: Sequence[ArrayElement]) -> bool:
        """Read commands that a command gets as one word (`srun bash -c "..."`, `--wrap="..."`).

        Return True if it has any.
        """
        values = [each for each in words if not isinstance(each, BranchElements)]
        texts = [readable_text(each) for each in values]
        # A word is a launch by itself: then the command is the launch, and its strings are
        # arguments.
        if any(may_launch(text) and not re.search(r"\s", text.strip()) for text in texts):
            return False
        scripts = [
            value
            for value, text in zip(values[1:], texts[1:], strict=True)
            if re.search(r"\s", text.strip()) and may_launch(text) and STARTS.search(text)
        ]
        for script in scripts:
            at = next(i for i, each in enumerate(words) if each is script)
            self._run_in_child(_without_option(script), words[:at])
        return bool(scripts)

    # Built-ins that change what is known

    def _set(self, arguments: tuple[ArrayElement, ...], _line: int) -> Flow:
        texts = [_text(each) or "" for each in arguments]
        if "--" in texts:
            self.scope.arguments = arguments[texts.index("--") + 1 :]
        for i, text in enumerate(texts):
            named = text[1:] == "o" and texts[i + 1 : i + 2] == ["allexport"]
            if named or re.fullmatch(r"[-+]\w*a\w*", text):
                self.scope.exports_all = text.startswith("-")
        return None

    def _shift(self, arguments: tuple[ArrayElement, ...], _line: int) -> Flow:
        count = _text(arguments[0]) if arguments else None
        places = int(count) if count and re.fullmatch(r"\d{1,6}", count) else 1
        self.scope.arguments = self.scope.arguments[places:]
        return None

    def _eval(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        self.run_text(self.joined(arguments, line))
        return None

    def _source(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        path = arguments[0] if arguments else EMPTY
        if isinstance(path, BranchElements):
            return None
        name, shown = known_text(path), readable_text(path)
        if name is not None and name in self.written:
            self.run_text(self.written.pop(name))
        elif not _SETS_UP.search(shown):
            text = self._neighbour(path)
            if text is not None:
                self.run_text((ShellText(text, line),), arguments=arguments[1:])
            else:
                self.sourced.append(shown)
        return None

    def _read(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        for name in self._names(arguments):
            self.scope.variables[name] = (Hole(f"${name}, which is read", line),)
        return None

    def _read_text(
        self, command: str, arguments: tuple[ArrayElement, ...], text: ShellValue, line: int
    ) -> None:
        """Assign a text to the names of `read` and `mapfile`: the lines of a heredoc, a herestring.

        `read` takes the first line, or all with `-d ''`, and splits it at IFS; `read -a` and
        `mapfile` assign an array.
        """
        words = [_text(each) for each in arguments]
        flags = [word for word in words if word is not None and word.startswith("-")]
        names = self._names(arguments)
        known = known_text(text)
        if command != "read":
            lines = None if known is None or flags not in ([], ["-t"]) else known.splitlines()
            if lines is not None and flags != ["-t"]:
                lines = None
            self._assign_array(names[-1:] or ["MAPFILE"], lines, line)
            return
        takes_all = any(
            flag.endswith("d") and words[i + 1 : i + 2] == [""]
            for i, flag in enumerate(words)
            if flag is not None and re.fullmatch(r"-\w+", flag)
        )
        letters = {letter for flag in flags for letter in flag[1:]}
        is_simple = letters <= {"r", "a", "s", "e"} or (takes_all and letters <= {"r", "d", "a"})
        if takes_all and names and "a" not in letters and is_simple:
            self.scope.variables[names[-1]] = text
            return
        first = None if known is None or "\\" in known else known.partition("\n")[0]
        separators = self.separators()
        parts = None if first is None or not is_simple else split_text(first, separators)
        if "a" in letters:
            self._assign_array(names[-1:], parts, line)
            return
        for i, name in enumerate(names or ["REPLY"]):
            value: ShellValue = (Hole(f"${name}, which is read", line),)
            if parts is not None and (i < len(names) - 1 or len(parts) <= len(names)):
                value = (ShellText(parts[i], line),) if i < len(parts) else EMPTY
            elif parts is not None and first is not None and separators == " \t\n":
                value = (ShellText(_remainder(first, i), line),)
            self.scope.variables[name] = value

    def _assign_array(self, names: Sequence[str], parts: Sequence[str] | None, line: int) -> None:
        for name in names:
            hole: ShellValue = (Hole(f"${name}, which is read", line),)
            elements = (hole,) if parts is None else tuple((ShellText(p, line),) for p in parts)
            self._forget_elements(name)
            self.scope.variables[name] = ShellArray(elements)

    def _mapfile(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        for name in self._names(arguments[-1:]):
            self.scope.variables[name] = ShellArray(((Hole(f"${name}, which is read", line),),))
        return None

    def _printf(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        """Read `printf -v NAME FORMAT WORD ...`."""
        words = [_text(each) for each in arguments]
        if words[:1] == ["-v"] and len(words) > 2:
            name, texts = words[1], words[2:]
            printed = None if None in texts else printf([text or "" for text in texts])
            if name is None or not name.isidentifier():
                self.sourced.append("printf -v")
                return None
            value: ShellValue = (Hole(f"${name}, which printf sets", line),)
            self.scope.variables[name] = value if printed is None else (ShellText(printed, line),)
        return None

    def _getopts(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        for name in ("OPTARG", "OPTIND", *self._names(arguments[1:2])):
            self.scope.variables[name] = (Hole(f"${name}, which getopts sets", line),)
        return None

    def _trap(self, arguments: tuple[ArrayElement, ...], _line: int) -> Flow:
        """Read `trap 'X=1' ERR`: from here on, X may be what the trap sets."""
        words = [_text(each) for each in arguments]
        if {"ERR", "DEBUG", "RETURN"} & {*words[1:]}:
            if words[0] is None or not re.fullmatch(r"[^`$]*", words[0]):
                self.sourced.append("a trap")
            self.trapped |= set(re.findall(rf"({_NAME})(?:\[[^\]]*\])?\+?=", words[0] or ""))
        return None

    def _shopt(self, arguments: tuple[ArrayElement, ...], _line: int) -> Flow:
        words = [_text(each) or "" for each in arguments]
        if "-s" in words:
            self.options |= {*words}
        elif "-u" in words:
            self.options -= {*words}
        return None

    def jump(self, arguments: tuple[ArrayElement, ...], flow: Flow) -> Flow:
        """Return the Flow of `break N` or `continue N`, and note how many loops more it leaves."""
        count = _text(arguments[0]) if arguments else None
        self._levels = int(count) - 1 if count and re.fullmatch(r"[1-9]\d?", count) else 0
        return flow

    def _unset(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        for each in self.settled(arguments):
            name = known_text(each) or ""
            if name not in self.scope.variables:
                self.scope.functions.pop(name, None)
            self.integers.discard(name)
            subscript = _SUBSCRIPT.fullmatch(name)
            if subscript is None:
                self.scope.variables.pop(name, None)
                self._forget_elements(name)
            else:
                self._unset_element(subscript[1], subscript[2], line)
        return None

    def _unset_command(self, node: SyntaxNode, source: ShellSource) -> Flow:
        named = [c for c in node.children if c.is_named and c.type != "comment"]
        values = tuple(self.value(each, source) for each in named)
        if any(known_text(each) == "-f" for each in values):
            for each in values:
                self.scope.functions.pop(known_text(each) or "", None)
            return None
        return self._unset(values, source.line(node))

    def _unset_element(self, name: str, index: str, line: int) -> None:
        """Read `unset 'name[index]'`."""
        array = self.scope.variables.get(name)
        if not isinstance(array, ShellArray):
            return
        at, elements = self._number(index, line), list(array.elements)
        if self.scope.variables.pop(f"{name}[{index}]", None) is not None:
            own = [v for k, v in self.scope.variables.items() if k.startswith(f"{name}[")]
            elements = [each for each in own if not isinstance(each, ShellArray)]
        elif at is None or any(isinstance(each, BranchElements) for each in elements):
            elements = [(Hole(f"an element of ${name}", line),)]
        else:
            del elements[at : at + 1]
        self.scope.variables[name] = ShellArray(tuple(elements))

    def _names(self, arguments: Iterable[ArrayElement]) -> list[str]:
        """Return the arguments that can be names of variables."""
        texts = [known_text(each) or "" for each in self.settled(arguments)]
        return [text for text in texts if text.isidentifier()]

    def _exec(self, arguments: tuple[ArrayElement, ...], line: int) -> Flow:
        if not arguments:
            return None
        self._invoke_values(arguments, line)
        # The program takes the place of the shell: nothing after it runs.
        return "exit"

    def _nothing(self, _arguments: tuple[ArrayElement, ...], _line: int) -> Flow:
        return None

    _STATEMENTS: ClassVar[Mapping[str, "_Statement"]] = {
        "program": _block,
        "compound_statement": _block,
        "do_group": _block,
        "else_clause": _block,
        # What the parser could read within a syntax error is read too.
        "ERROR": _block,
        "pipeline": _pipeline,
        "negated_command": _block,
        "subshell": _subshell,
        "list": _list,
        "if_statement": _if,
        "case_statement": _case,
        "for_statement": _for,
        "c_style_for_statement": _c_style_for,
        "while_statement": _while,
        "function_definition": _function,
        "variable_assignment": _assignment,
        "variable_assignments": _declaration,
        "declaration_command": _declaration,
        "unset_command": _unset_command,
        "redirected_statement": _redirected,
        "command": _command,
    }
    _BUILTINS: ClassVar[Mapping[str, "_Builtin"]] = {
        "set": _set,
        "shift": _shift,
        "eval": _eval,
        "source": _source,
        ".": _source,
        "read": _read,
        "mapfile": _mapfile,
        "readarray": _mapfile,
        "unset": _unset,
        "let": _let,
        "exec": _exec,
        "exit": lambda _run, _arguments, _line: "exit",
        "return": lambda _run, _arguments, _line: "return",
        "break": lambda run, arguments, _line: run.jump(arguments, "break"),
        "continue": lambda run, arguments, _line: run.jump(arguments, "continue"),
        "printf": _printf,
        "getopts": _getopts,
        "trap": _trap,
        "shopt": _shopt,
        ":": _nothing,
        "true": _nothing,
        "false": _nothing,
    }


_Statement = Callable[[Interpreter, SyntaxNode, ShellSource], Flow]
_Builtin = Callable[[Interpreter, tuple[ArrayElement, ...], int], Flow]


def _appended(
    before: ShellValue | ShellArray, more: ShellValue | ShellArray
) -> ShellValue | ShellArray:
    """Return the value after `x+=...`: further elements of an array, or further text."""
    if isinstance(before, tuple) and isinstance(more, tuple):
        return (*before, *more)
    head: tuple[ArrayElement, ...] = (
        before.elements if isinstance(before, ShellArray) else (before,)
    )
    return ShellArray((*head, *(more.elements if isinstance(more, ShellArray) else (more,))))


def _remainder(line: str, count: int) -> str:
    """Return what is left of a line after so many words, without blanks around it."""
    return re.sub(rf"^\s*(?:\S+\s+){{{count}}}", "", line).strip()


def _written(item: SyntaxNode, source: ShellSource) -> str:
    """Return the patterns of an arm of `case`, in words."""
    heads = [child for child in item.children if child.start_byte < _closing(item)]
    return " or ".join(source.text(child).strip("\"'") for child in heads if child.is_named)


def _closing(item: SyntaxNode) -> int:
    closing = next((c for c in item.children if c.type == ")"), item)
    return int(closing.start_byte if closing is not item else item.end_byte)


def _choice(node: SyntaxNode, source: ShellSource) -> tuple[SyntaxNode, SyntaxNode] | None:
    """Return the test and the action of `test && action`, or None for another list."""
    if node.type != "list" or len(node.children) < 3 or source.text(node.children[1]) != "&&":
        return None
    test, action = node.children[0], node.children[2]
    tests = ("test_command", "negated_command", "list")
    is_test = test.type in tests and "[" in source.text(test)
    return None if not is_test or action.type in tests else (test, action)


def _clause(node: SyntaxNode) -> tuple[list[SyntaxNode], list[SyntaxNode]]:
    """Return the statements of the condition and of the body of an `if` or an `elif`."""
    tests: list[SyntaxNode] = []
    body: list[SyntaxNode] = []
    part = tests
    for child in node.children:
        if child.type == "then":
            part = body
        elif child.type in ("elif_clause", "else_clause"):
            break
        elif child.type == "&" or (child.is_named and child.type != "comment"):
            part.append(child)
    return tests, body


def _case_body(item: SyntaxNode) -> list[SyntaxNode]:
    children = list(item.children)
    closed = next((i for i, c in enumerate(children) if c.type == ")"), len(children))
    return children[closed + 1 :]


def _text(element: ArrayElement) -> str | None:
    """Return the text of one element, or None if it is unknown."""
    return None if isinstance(element, BranchElements) else known_text(element)


def _texts(element: ArrayElement) -> Iterable[str]:
    """Yield every text that an element may have."""
    if isinstance(element, BranchElements):
        for arm in element.arms:
            for inner in arm:
                yield from _texts(inner)
    else:
        yield readable_text(element)


def _without_option(value: ShellValue) -> ShellValue:
    """Return VALUE for a word like `--wrap=VALUE`. Return other words unchanged."""
    first = value[0] if value else None
    option = _OPTION.match(first.text) if isinstance(first, ShellText) else None
    if option is None or not isinstance(first, ShellText):
        return value
    return (ShellText(first.text[option.end() :], first.line), *value[1:])


def _assigned(value: ShellValue) -> tuple[str, ShellValue | None]:
    """Return the name and the value of `NAME=VALUE`, or the text and None for another word."""
    first = value[0] if value else None
    if not isinstance(first, ShellText):
        return "", None
    name, is_set, rest = first.text.partition("=")
    if not is_set or not name.isidentifier():
        return first.text, None
    return name, (*((ShellText(rest, first.line),) if rest else ()), *value[1:])


def _choose_exported(texts: Sequence[str], variables: dict[str, ShellValue | ShellArray]) -> None:
    """Apply SLURM's `--export=ALL,K=1`, `--export=NONE` and `--export=K`."""
    given = next((t.removeprefix("--export=") for t in texts if t.startswith("--export=")), "ALL")
    parts, before = given.split(","), dict(variables)
    if "ALL" not in parts:
        variables.clear()
    for part in parts:
        name, is_set, value = part.partition("=")
        if is_set:
            variables[name] = (ShellText(value, 1),)
        elif name in before:
            variables[name] = before[name]


def _apply_env(
    starting: Sequence[ArrayElement],
    texts: Sequence[str],
    variables: dict[str, ShellValue | ShellArray],
) -> None:
    """Apply `env -i -u NAME NAME=VALUE`."""
    for i, element in enumerate(starting):
        if texts[i] in ("-i", "-", "--ignore-environment"):
            variables.clear()
        elif texts[i].startswith("--unset=") or (i and texts[i - 1] in ("-u", "--unset")):
            variables.pop(texts[i].removeprefix("--unset="), None)
        elif not isinstance(element, BranchElements):
            name, value = _assigned(element)
            if value is not None:
                variables[name] = value


def _is_text(piece: object) -> bool:
    return isinstance(piece, ShellText)
