"""Read a script from its first line to its last without running it.

`Interpreter.statement` reads one statement of any kind. There is one scope. Every arm of a
condition that is not known is read from a copy of it; a variable that the arms leave different is
then a hole. What is not followed makes the variables that it may change unknown.
Programs outside the shell become `commands`; a launch is one of them. A script within the script
(`bash -c`, `eval`, heredocs, files that it writes, scripts in its folder) is read at the command
that runs it.

Reading a statement returns a Flow: None, or the kind of jump that leaves the block.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import ClassVar, Literal

from orchestrator.audit.bash.conditions import Truth, condition
from orchestrator.audit.bash.expansion import (
    ASSIGNS,
    FIRST_PRIVATE,
    LAST_PRIVATE,
    Expander,
    default_of,
    is_counted,
)
from orchestrator.audit.bash.syntax import Budget, ShellSource, SyntaxNode, TooDeep, readable
from orchestrator.audit.bash.values import (
    EMPTY,
    Hole,
    Scope,
    ShellArray,
    ShellCommand,
    ShellText,
    ShellValue,
    WordPart,
    WordTerm,
    bounded,
    known_text,
    literal,
    merge_scopes,
    readable_text,
)
from orchestrator.audit.libraries import STARTS, found_beside, may_launch

Flow = Literal["exit", "return", "break", "continue"] | None
DEEPEST = 60
"""Maximum depth of statements within statements."""
DEEPEST_CALL = 40
MOST_COMMANDS = 500
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
    r"\[|:|true|false|alias|apt-get|awk|cd|chmod|command|cp|curl|date|die|echo|export|find|git|hash|head"
    r"|huggingface-cli|kill|ln|local|ls|mkdir|module|mv|nvidia-smi|pip3?|popd|printf|p?grep|ps"
    r"|pkill|pushd|read|rm|sed|sleep|tail|tar|test|touch|trap|type|ulimit|unset|usage|wait|wandb|wget"
    r"|which|(?:log|print|info|warn|warning|debug|error|fail|say|msg|banner|section)(?:_\w+)?"
)
"""Commands that start no trainer."""
_KEY = re.compile(r"\[[^\]]+\]=")
"""The key of an element of an array: `[key]=value`."""
_SUBSCRIPT = re.compile(r"([A-Za-z_]\w*)\[([^\]]+)\]")
"""An element of an array: `x[1]`."""
_FRESH = (
    *("docker", "podman", "nerdctl", "ssh", "kubectl", "pdsh", "apptainer", "singularity"),
    *("ray", "sudo", "env"),
)
"""Programs that start others in an environment that is not, or not all, the script's."""
_CHANGES_ENVIRONMENT = ("--export", "--cleanenv", "--runtime-env", "--env")
"""Begins of options that do so."""
_UNFOLLOWED = re.compile(
    r"trap .*=|shopt .*\b(lastpipe|nocasematch|extglob)\b|(break|continue) (?!1$)", re.DOTALL
)
"""Commands that change what a script means, in a way that is not followed."""
_EXPANDED = ("string", "concatenation", "simple_expansion", "expansion")
"""Words of `declare` with an expansion: `declare "$NAME=1"`."""
_IMPLIED = ("REPLY", "MAPFILE", "OPTARG", "OPTIND")
"""Variables that `read`, `mapfile` and `getopts` set without naming them."""
_NO_WORD = ("file_descriptor", "comment", "file_redirect", "ERROR")
"""Parts of a redirection that are no word of the command. `3<<< a` is an error to the grammar."""
_ASSIGNS = ("variable_assignment", "variable_assignments", "declaration_command")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*=")
"""The option in a word that also has the value: `--wrap=VALUE`."""
_TAKES = re.compile(r"\b(\w+)=\"?\$\{?[1-9]")
"""A variable that takes an argument."""


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
        self._is_kept = False
        """True: what a command prints goes to a file or a pipe."""
        self.called: set[str] = set()
        """Names of the functions that have been called."""
        self.case: tuple[str, ...] = ()
        """The turns of loops and the arms of conditions that lead to the current statement."""
        self.caveats: set[str] = set()
        self._locals: list[dict[str, ShellValue | ShellArray | None]] = []
        """For each function being read: the values outside it of its local variables."""
        self._jumps: list[tuple[Flow, Scope]] = []
        """Where an arm of an unknown condition left a loop or a function, with its scope there."""
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
                self._apart([node], source)
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
        """Read `((N -= 1))` and `let N=2`: the variables that they change are unknown."""
        for names in ASSIGNS.findall(text):
            # One of the expression's two groups is empty.
            self.scope.variables["".join(names)] = (Hole("arithmetic", line),)

    def _subshell(self, node: SyntaxNode, source: ShellSource) -> Flow:
        self._apart(node.children, source)
        return None

    def _apart(self, nodes: Sequence[SyntaxNode], source: ShellSource) -> None:
        """Read statements of another process: in parentheses, in the background, or in a pipe."""
        before, self.scope = self.scope, self.scope.copy()
        self.statements(nodes, source)
        self.scope = before

    def _pipeline(self, node: SyntaxNode, source: ShellSource) -> Flow:
        if not any(child.type in ("|", "|&") for child in node.children):
            return self.statements(node.children, source)
        before, self._is_kept = self._is_kept, True
        for child in node.children:
            self._apart([child], source)
        self._is_kept = before
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
            value = ShellArray(tuple(self._words(given.children, source)))
        else:
            value = EMPTY if given is None else self._captured(given, source)
        appends = any(c.type == "+=" for c in node.children)
        if self.scope.exports_all:
            self.scope.exported.add(name)
        subscript = _SUBSCRIPT.fullmatch(name)
        if subscript is not None:
            self.untracked[subscript[1]] = "of which an element is assigned"
            return None
        if before is not None and appends:
            value = _appended(before, value)
        self.scope.variables[name] = bounded(value, self.budget.spend)
        texts = map(readable_text, value.elements if isinstance(value, ShellArray) else ())
        if any(map(_KEY.match, texts)):
            self.untracked[name] = "whose elements have keys"
        return None

    def _captured(self, node: SyntaxNode, source: ShellSource) -> ShellValue:
        """Return the value of the right side of `x=...`; read a launch whose output it takes."""
        value = self.value(node, source)
        for each in (node, *node.children):
            is_run = each.type == "command_substitution" and known_text(value) is None
            if is_run and STARTS.search(source.text(each)):
                self._subshell(each, source)
        return value

    def _words(self, nodes: Iterable[SyntaxNode], source: ShellSource) -> Iterator[ShellValue]:
        """Yield the elements of `( ... )`, or the words after `in`; unquoted ones are split."""
        for node in nodes:
            if node.is_named and node.type not in ("comment", "do_group"):
                for term in self.terms(node, source):
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
            if child.type in _EXPANDED and kind == "export":
                self.sourced.append(source.text(child))
            elif child.type in _EXPANDED:
                raise TooDeep(f"it declares a variable whose name is {source.text(child)}")
            if target is None or not (assigned or child.type == "variable_name"):
                continue
            name = source.text(target).partition("[")[0]
            if "n" in flags and kind != "export":
                raise TooDeep(f"it uses {kind} -n: a variable with two names")
            if set(flags) & {*"ilucA"} and (declares or kind == "local"):
                self.untracked[name] = f"of `{kind} {flags}`"
            if is_local and self._locals:
                self._locals[-1].setdefault(name, self.scope.variables.get(name))
                if not assigned:
                    self.scope.variables.pop(name, None)
            if assigned:
                self._assignment(child, source)
            if kind == "export" or (declares and "x" in flags):
                (self.scope.exported.discard if "n" in flags else self.scope.exported.add)(name)
        return None

    # Forks

    def _if(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Test conditions in turn. An unknown condition opens a branch."""
        tests: list[Truth] = []
        bodies: list[list[SyntaxNode]] = []
        labels: list[str] = []
        for clause in (node, *(c for c in node.children if c.type == "elif_clause")):
            heads, body = _clause(clause)
            if not heads:
                continue
            for before in heads[:-1]:
                self.statement(before, source)
            if may_launch(source.text(heads[-1])) and heads[-1].type != "test_command":
                self.statement(heads[-1], source)  # `if ray job submit ...; then`
            tests.append(self._condition(heads[-1], source))
            bodies.append(body)
            labels.append(_label(heads[-1], source))
        otherwise = next((c for c in node.children if c.type == "else_clause"), None)
        bodies.append(list(otherwise.children) if otherwise is not None else [])
        labels.append(f"not {labels[0]}" if len(labels) == 1 else "none of its conditions")
        return self._fork(bodies, labels, tests, source)

    def _case(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read the first arm whose pattern matches. Read every arm if the word is unknown."""
        subject = node.child_by_field_name("value")
        if subject is None:
            return None
        word, shown = self.value(subject, source), " ".join(source.text(subject).split())
        labels, tests, bodies = list[str](), list[Truth](), list[Sequence[SyntaxNode]]()
        for item in (c for c in node.children if c.type == "case_item"):
            closed = next((i for i, c in enumerate(item.children) if c.type == ")"), 0)
            heads = [each for each in item.children[:closed] if each.is_named]
            patterns = [self.pattern(each, source) for each in heads]
            written = " or ".join(source.text(each).strip("\"'") for each in heads)
            labels.append(f"{shown} is {written}"[:LONGEST_LABEL])
            tests.append(self._matched(word, patterns))
            bodies.append(item.children[closed + 1 :])
        # `;&` goes on with the next body, and `;;&` with the next pattern: no text decides them.
        if any(each and source.text(each[-1]) in (";&", ";;&") for each in bodies):
            tests = [None] * len(tests)
        bodies.append([])
        labels.append(f"{shown} is something else")
        return self._fork(bodies, labels, tests, source)

    def _matched(self, word: ShellValue, patterns: Sequence[str | None]) -> Truth:
        text = known_text(word)
        if text is None or "*" in patterns:
            return True if "*" in patterns else None
        return self.matches(text, patterns)

    def _list(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read `a && b` and `a || b`. Fork if `a` is a test; otherwise read both sides in turn.

        If `a` is a program, the side after `||` handles its failure, so a jump there is ignored.
        """
        if len(node.children) < 3:
            return self.statements(node.children, source)
        left = node.children[0]
        operator = source.text(node.children[1])
        right = node.children[2]
        chosen = _choice(left, source) if operator == "||" else None
        if chosen is not None:
            test, label = self._condition(chosen[0], source), _label(chosen[0], source)
            return self._fork([[chosen[1]], [right]], [label, f"not {label}"], [test], source)
        test, label = self._condition(left, source), _label(left, source)
        is_test = left.type in ("test_command", "negated_command", "list")
        if test is None and (not is_test or "[" not in source.text(left)):
            flow = self.statement(left, source)
            if flow is not None:
                return flow
            if right.type in _ASSIGNS:
                bodies = [[], [right]] if operator == "||" else [[right], []]
                return self._fork(bodies, [f"{label} succeeds", "it fails"], [None], source)
            after = self.statement(right, source)
            return None if operator == "||" else after
        if left.type == "compound_statement" and source.text(left).startswith("(("):
            self.statement(left, source)
        bodies = [[right], []] if operator == "&&" else [[], [right]]
        return self._fork(bodies, [label, f"not {label}"], [test], source)

    def _condition(self, node: SyntaxNode, source: ShellSource) -> Truth:
        return None if self.every_way else condition(self, node, source)

    def _fork(
        self,
        bodies: Sequence[Sequence[SyntaxNode]],
        labels: Sequence[str],
        tests: Sequence[Truth],
        source: ShellSource,
    ) -> Flow:
        """Read every arm that is possible, the last where no test holds; then go on with one scope.

        What an arm that jumps out of the block sets is open where the jump leads (`_land`).
        """
        possible = _possible(tests)
        if len(possible) == 1:
            before = self.scope.copy()
            flow = self.statements(bodies[possible[0]], source)
            if flow == "exit":  # the arm that prints the usage if the script has no arguments
                self.scope = before
                return None
            return flow
        before, case = self.scope, self.case
        ends: dict[int, Scope] = {}
        flows: list[Flow] = []
        for arm in possible:
            self.scope = before.copy()
            self.case = (*case, labels[arm])
            flows.append(self.statements(bodies[arm], source))
            if flows[-1] is None:
                ends[arm] = self.scope
            else:
                self._jumps.append((flows[-1], self.scope))
        self.case = case
        if not ends:
            self.scope = before
            return flows[0] if len(set(flows)) == 1 and flows[0] != "exit" else None
        line = source.line(bodies[possible[0]][0]) if bodies[possible[0]] else 0
        named = {labels[arm]: scope for arm, scope in ends.items()}
        if len(named) < len(ends):
            named = {f"{labels[arm]} ({arm})": scope for arm, scope in ends.items()}
        self.scope = merge_scopes(named, before, line, self.budget.spend)
        return None

    def _land(self, *kinds: Flow) -> None:
        """Leave open what the arms that may have jumped here have otherwise."""
        for _, scope in (each for each in self._jumps if each[0] in kinds):
            for name in scope.variables:
                if scope.variables[name] != self.scope.variables.get(name):
                    why = f"${name}, which an unknown jump decides"
                    self.scope.variables[name] = (Hole(why, 0, several=True),)
        self._jumps = [each for each in self._jumps if each[0] not in kinds]

    # Loops

    def _for(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read the body of `for x in ...` once for each value; `for x` takes the arguments."""
        subject, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if subject is None or body is None:
            return None
        name, items = source.text(subject), self._listed(node, source)
        if not is_counted(items):
            self.scope.variables[name] = (_by_loop(name, source.line(node)),)
            return self._some_turns(node, body, source)
        if len(items) > MOST_TURNS:
            self.caveats.add(f"only the first {MOST_TURNS} turns of a loop were looked at")
            items = items[:MOST_TURNS]
        before = self.case
        for item in items:
            self.scope.variables[name] = item
            if len(items) > 1:
                label = (known_text(item) or "?").strip()
                self.case = (*before, f"{name}={label}"[:LONGEST_LOOP_LABEL])
            flow = self.statement(body, source)
            self._land("break", "continue")
            self.case = before
            if flow in ("exit", "return", "break"):
                break
        return None

    def _listed(self, node: SyntaxNode, source: ShellSource) -> list[ShellValue]:
        """Return the words after `in`; the arguments where there is no `in`."""
        at = next((i for i, each in enumerate(node.children) if each.type == "in"), None)
        if at is not None or re.match(r"for\s+\w+\s+in\b", source.text(node)):
            return [*self._words(node.children[at:] if at else (), source)]
        return list(self.scope.arguments)

    def _c_style_for(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read one turn of `for ((i = 0; i < 3; i++))` with an unknown counter."""
        body = node.child_by_field_name("body")
        self._calculate(source.text(node).partition("((")[2].partition("))")[0], source.line(node))
        return None if body is None else self._some_turns(node, body, source)

    def _some_turns(self, node: SyntaxNode, body: SyntaxNode, source: ShellSource) -> Flow:
        """Read one turn of a loop whose number of turns is unknown.

        What it sets is unknown, in the turn and after the loop.
        """
        line = source.line(node)
        before = self.scope.copy()
        commands, sourced, written = len(self.commands), len(self.sourced), dict(self.written)
        self.statement(body, source)  # to see what it sets
        self._land("break", "continue")
        del self.commands[commands:], self.sourced[sourced:]
        self.written = written
        changed = {
            name
            for name in {*self.scope.variables, *before.variables}
            if before.variables.get(name) != self.scope.variables.get(name)
        }
        if self.scope.arguments != before.arguments:  # a turn may shift them
            before.arguments = ((Hole("its arguments", line, several=True),),)
        self.scope = before
        for name in changed:
            before.variables[name] = (_by_loop(name, line),)
        self.statement(body, source)
        self._land("break", "continue")
        for name in changed:
            self.scope.variables[name] = (_by_loop(name, line),)
        return None

    def _while(self, node: SyntaxNode, source: ShellSource) -> Flow:
        """Read a loop over known arguments turn by turn, and one turn of any other; none if its
        condition is known to be false at first."""
        body = node.child_by_field_name("body")
        tests = [c for c in node.children if c.is_named and c.type not in ("do_group", "comment")]
        until = node.children[0].type == "until" if node.children else False
        if body is None or not tests:
            return None
        if self._condition(tests[-1], source) is until:
            for name in [] if self.called_script else _TAKES.findall(source.text(body)):
                if isinstance(value := self.scope.variables.get(name), tuple):
                    self.scope.variables[name] = default_of(name, value)
            return None
        shifts = re.search(r"\bshift\b", source.text(body)) is not None
        for _ in range(MOST_TURNS):
            if (truth := self._condition(tests[-1], source)) is until:
                break
            before = self.scope.arguments
            self.statements(tests, source)
            if truth is None or not shifts or not before:
                return self._some_turns(node, body, source)
            flow = self.statement(body, source)
            self._land("break", "continue")
            if flow in ("exit", "return"):
                return flow
            if flow == "break" or self.scope.arguments == before:
                break
        return None

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
        before, stdin = self._is_kept, None
        if heredoc is not None:
            pipes = [c for c in heredoc.children if c.type == "pipeline"]
            self.statements(pipes, source)
            stdin = self.heredoc(heredoc, source)
            target = target or (EMPTY if pipes else None)
        if body is None:
            return None
        self._is_kept |= target is not None
        if body.type == "command":
            flow = self._command(
                body,
                source,
                more=more,
                stdin=stdin,
                target=target,
            )
        else:
            flow = self.statement(body, source)
        self._is_kept = before
        return flow

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
                    name = re.split(r"[+=\[]", source.text(child))[0]
                    hole = Hole(f"the value of ${name}", source.line(child))
                    self.scope.variables[name] = (hole,)
                    return None
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
        exported, begun = self.scope.exported, len(self.commands)
        self.scope.exported = {*exported, *own}
        flow = self._invoke(tuple(terms), source.line(node), stdin, target)
        if not any(each.promising for each in self.commands[begun:]):
            self._run_variables(own)
        self._put_back(own)
        self.scope.exported = exported
        return flow

    def _run_variables(self, names: Iterable[str]) -> None:
        """Read the commands in the variables of a program: `COMMAND="uv run ..." sbatch x`."""
        for name in names:
            value = self.scope.variables.get(name)
            if value is not None and not isinstance(value, ShellArray) and _is_command(value):
                self._run_in_child(value, ())

    def _invoke(
        self,
        terms: tuple[WordTerm, ...],
        line: int,
        stdin: ShellValue | None,
        target: ShellValue | None,
    ) -> Flow:
        """Read a command whose words are already expanded: a function, a built-in or a program."""
        words = [each for term in terms for each in self.elements(term)]
        self.budget.spend(len(words))
        if not words:
            return None
        head, arguments = words[0], tuple(words[1:])
        name = known_text(head) or ""
        if name in ("command", "builtin", "time") and arguments:
            asks = readable_text(arguments[0]).startswith("-")
            return None if asks else self._invoke_values(arguments, line, stdin, target)
        if name in self.scope.functions and self._depth < DEEPEST_CALL:
            return self._call(name, arguments)
        if name == "read" and stdin is not None and _reads_all(words):
            self.scope.variables[readable_text(words[-1])] = stdin
            return None
        if _UNFOLLOWED.match(shown := " ".join(map(readable_text, words))):
            raise TooDeep(f"it uses {shown[:LONGEST_LABEL]}")
        if name in self._BUILTINS:
            return self._BUILTINS[name](self, arguments, line)
        if name in ("cat", "tee"):
            self._write(target if name == "cat" else (words[-1] if arguments else None), stdin)
        elif self._starts_nothing(name, words) or self._runs_script(name, words, line):
            return None
        elif stdin is not None and may_launch(readable_text(stdin)):
            self._run_in_child(stdin, words, arguments=self._after_s(words))
        elif not self._runs_strings(words):
            self._start(terms, words, line)
        return None

    def _invoke_values(
        self,
        words: Sequence[ShellValue],
        line: int,
        stdin: ShellValue | None = None,
        target: ShellValue | None = None,
    ) -> Flow:
        terms = tuple((WordPart(value, True),) for value in words)
        return self._invoke(terms, line, stdin, target)

    def _after_s(self, words: Sequence[ShellValue]) -> tuple[ShellValue, ...]:
        """Return the arguments of `bash -s a b`, which reads its script from its input."""
        texts = [known_text(each) for each in words]
        at = texts.index("-s") + 1 if "-s" in texts else len(words)
        return tuple(words[at + (texts[at : at + 1] == ["--"]) :])

    def _starts_nothing(self, name: str, words: Sequence[ShellValue]) -> bool:
        if name in ("conda", "hf"):  # `conda run`, `hf jobs run`
            return "run" not in map(known_text, words[1:])
        return _NO_LAUNCH.fullmatch(name) is not None

    def _start(self, terms: tuple[WordTerm, ...], words: Sequence[ShellValue], line: int) -> None:
        """Record a program that the script starts."""
        if len(self.commands) >= MOST_COMMANDS:
            raise TooDeep(f"it starts more than {MOST_COMMANDS} commands")
        promising = any(may_launch(readable_text(each)) for each in words)
        self.commands.append(
            ShellCommand(terms, self.case, line, tuple(self.sourced), promising, self.called_script)
        )

    def _call(self, name: str, arguments: tuple[ShellValue, ...]) -> Flow:
        """Read a function's body with these arguments."""
        body, source = self.scope.functions[name]
        self.called.add(name)
        before, inside = self.scope.arguments, self.scope.in_function
        self.scope.arguments, self.scope.in_function = arguments, True
        self._locals.append({})
        flow = self.statement(body, source)
        self._land("return")
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
        starting: Sequence[ShellValue],
        *,
        arguments: tuple[ShellValue, ...] = (),
    ) -> None:
        """Read a string as the script of another process, which gets only the environment.

        `starting`: the words of the command up to the script, such as `docker run -e K=1 image`.
        """
        before, sourced = self.scope, len(self.sourced)
        self.scope = before.copy()
        self.scope.variables = {
            name: value
            for name, value in before.variables.items()
            if name in before.exported and not isinstance(value, ShellArray)
        }
        self._begin_without(starting)
        self.scope.exported = set(self.scope.variables)
        self.scope.in_function = False
        self.run_text(text, arguments=arguments)
        self.scope = before
        # What a child process sources sets nothing in this script.
        del self.sourced[sourced:]

    def _begin_without(self, starting: Sequence[ShellValue]) -> None:
        """Forget the variables that a container or a remote machine may have otherwise."""
        texts = [known_text(each) or "" for each in starting]
        programs = (text.rpartition("/")[2] for text in texts[:4])
        fresh = next((each for each in programs if each in _FRESH), "")
        if not fresh and not any(text.startswith(_CHANGES_ENVIRONMENT) for text in texts):
            return
        why = f"the environment of {fresh or 'the command'}"
        self.sourced.append(why)
        named = (n for each in texts for n in re.findall(r"[A-Za-z_]\w*", each))
        for name in (*self.scope.variables, *named):
            self.scope.variables[name] = (Hole(f"${name}, which {why} may have", 0, several=True),)
        for name, is_set, text in (each.partition("=") for each in texts):
            if is_set and name.isidentifier():
                self.scope.variables[name] = literal(text, 0)

    def run_text(self, text: ShellValue, *, arguments: tuple[ShellValue, ...] = ()) -> None:
        """Read a string as a script in the current scope."""
        if self._nested >= MOST_NESTED:
            self.caveats.add(f"only the first {MOST_NESTED} scripts within the script were read")
            return
        self._nested += 1
        source = self._nested_source(text)
        if source is not None:
            before = self.scope.arguments
            self.scope.arguments = arguments or before
            self.statement(self.budget.parse(source.data), source)
            self.scope.arguments = before

    def _nested_source(self, text: ShellValue) -> ShellSource | None:
        """Return a value as a source, or None if it is too long or has too many holes.

        Each Hole becomes a private character. After parsing, the expander replaces the character by
        the Hole, so a value from outside keeps its reason.
        """
        data: list[bytes] = []
        starts: list[int] = []
        lines: list[int] = []
        private: dict[str, Hole] = {}
        length = 0
        for piece in text:
            written = readable(piece.text) if isinstance(piece, ShellText) else ""
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
        if text is not None and (self._is_kept or path):  # else it is printed
            name = known_text(path or EMPTY) or f"unnamed file {len(self.written)}"
            if not name.startswith("/dev/"):
                self.written[name] = text

    def _runs_script(self, name: str, words: Sequence[ShellValue], line: int) -> bool:
        """Read `bash -c '...'`, scripts that this script has written, and scripts in its folder.

        Return True if the command was one of them.
        """
        texts = [known_text(each) for each in words]
        if name in SHELLS and "-c" in texts[:4]:
            at = texts.index("-c") + 1
            body = words[at] if at < len(words) else None
            if body is not None:
                self._run_in_child(body, words[:at], arguments=tuple(words[at + 2 :]))
                return True
        for i, text in enumerate(texts[:6]):
            if text is not None and text in self.written and (name in SHELLS or text == name):
                more = tuple(words[i + 1 :])
                # Taken out, because `_read_leftovers` reads the files that are never started.
                self._run_in_child(self.written.pop(text), words[:i], arguments=more)
                return True
        for i, each in enumerate(words[:2] if name in SHELLS else words[:1]):
            found = self._neighbour(each)
            if found is not None:
                more = tuple(words[i + 1 :])
                before = self.called_script
                self.called_script = (found[0], *filter(None, map(known_text, more)))
                self._run_in_child((ShellText(found[1], line),), words[:i], arguments=more)
                self.called_script = before
                return True
        return False

    def _neighbour(self, path: ShellValue) -> tuple[str, str] | None:
        """Return path and text of another script in the script's folder, or None.

        Ignore the part of the path up to the last unknown piece: `$HERE/run.sh` is `run.sh`.
        """
        name = ""
        for piece in path:
            name = "" if isinstance(piece, Hole) else name + piece.text
        name = found_beside(name, self.neighbours) or name.lstrip("./")
        if not name.endswith((".sh", ".bash", ".slurm", ".sbatch")) or self._opened >= MOST_OPENED:
            return None
        text = self.neighbours.get(name)
        if text is None or len(text) > LONGEST_OPENED or not text.strip():
            return None
        self._opened += 1
        return name, text

    def _runs_strings(self, words: Sequence[ShellValue]) -> bool:
        """Read commands that a command gets as one word (`srun bash -c "..."`, `--wrap="..."`).

        Return True if it has any.
        """
        values = [each for each in words if is_counted([each])]
        texts = [readable_text(each) for each in values]
        # A word is a launch by itself: then the command is the launch, and its strings are
        # arguments; but for those of a shell, whose other words are its own.
        of_shell = any(a in SHELLS and re.fullmatch(r"-\w*c", b) for a, b in pairwise(texts))
        plain = [] if of_shell else [text for text in texts if not re.search(r"\s", text.strip())]
        if any(map(may_launch, plain)):
            return False
        scripts = [value for value in values[1:] if _is_command(value)]
        for script in scripts:
            at = next(i for i, each in enumerate(words) if each is script)
            self._run_in_child(_without_option(script), words[:at])
        return bool(scripts)

    # Built-ins that change what is known

    def _set(self, arguments: tuple[ShellValue, ...], _line: int) -> Flow:
        texts = [known_text(each) or "" for each in arguments]
        if "--" in texts:
            self.scope.arguments = arguments[texts.index("--") + 1 :]
        options = " ".join(texts).partition("--")[0]
        if named := re.search(r"([-+])(?:\w*a|o allexport)", options):
            self.scope.exports_all = named[1] == "-"
        return None

    def _shift(self, arguments: tuple[ShellValue, ...], _line: int) -> Flow:
        count = known_text(arguments[0]) if arguments else None
        places = int(count) if count and re.fullmatch(r"\d{1,6}", count) else 1
        for _ in range(places):
            if is_counted(self.scope.arguments[:1]):
                self.scope.arguments = self.scope.arguments[1:]
        return None

    def _eval(self, arguments: tuple[ShellValue, ...], line: int) -> Flow:
        text = self.joined(arguments, line)
        opened = [p.why for p in text[:1] if isinstance(p, Hole) and not (p.unset or p.arms)]
        if opened and not _SETS_UP.search(opened[0]):
            self.sourced.append(opened[0])  # it may set any variable, and these for sure
            for name in re.findall(r"(\w+)=", opened[0]):
                self.scope.variables[name] = (Hole(f"${name}, which an eval sets", line),)
        self.run_text(text)
        return None

    def _source(self, arguments: tuple[ShellValue, ...], line: int) -> Flow:
        path = arguments[0] if arguments else EMPTY
        name, shown = known_text(path), readable_text(path)
        if shown == "?" and isinstance(path[0], Hole):
            shown = path[0].why
        if name is not None and name in self.written:
            self.run_text(self.written.pop(name))
        elif not _SETS_UP.search(shown):
            found = self._neighbour(path)
            if found is not None:
                self.run_text((ShellText(found[1], line),), arguments=arguments[1:])
            else:
                self.sourced.append(shown)
        return None

    def _set_names(self, arguments: tuple[ShellValue, ...], line: int) -> Flow:
        """Read `read`, `mapfile`, `getopts`, `let`, `printf -v`: what they set is not known."""
        text = " ".join(map(readable_text, arguments))
        for name in (*re.findall(r"[A-Za-z_]\w*", text), *_IMPLIED):
            hole = Hole(f"${name}, which a command sets", line, several=True)
            self.scope.variables[name] = (hole,)
        return None

    def _printf(self, arguments: tuple[ShellValue, ...], line: int) -> Flow:
        is_set = [known_text(each) for each in arguments[:1]] == ["-v"]
        return self._set_names(arguments[1:2], line) if is_set else None

    def _unset(self, arguments: tuple[ShellValue, ...], _line: int) -> Flow:
        for name in map(readable_text, arguments):
            self.scope.functions.pop(name, None)
            self.scope.variables.pop(name, None)
            if "[" in name:
                self.untracked[name.partition("[")[0]] = "of which an element is unset"
        return None

    def _unset_command(self, node: SyntaxNode, source: ShellSource) -> Flow:
        named = [c for c in node.children if c.is_named and c.type != "comment"]
        return self._unset(tuple(self.value(each, source) for each in named), source.line(node))

    def _exec(self, arguments: tuple[ShellValue, ...], line: int) -> Flow:
        if not arguments:
            return None
        self._invoke_values(arguments, line)
        # The program takes the place of the shell: nothing after it runs.
        return "exit"

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
        "read": _set_names,
        "mapfile": _set_names,
        "readarray": _set_names,
        "getopts": _set_names,
        "unset": _unset,
        "let": _set_names,
        "exec": _exec,
        "exit": lambda _run, _arguments, _line: "exit",
        "return": lambda _run, _arguments, _line: "return",
        "break": lambda _run, _arguments, _line: "break",
        "continue": lambda _run, _arguments, _line: "continue",
        "printf": _printf,
    }


_Statement = Callable[[Interpreter, SyntaxNode, ShellSource], Flow]
_Builtin = Callable[[Interpreter, tuple[ShellValue, ...], int], Flow]


def _appended(
    before: ShellValue | ShellArray, more: ShellValue | ShellArray
) -> ShellValue | ShellArray:
    """Return the value after `x+=...`: further elements of an array, or further text."""
    if isinstance(before, tuple) and isinstance(more, tuple):
        return (*before, *more)
    head: tuple[ShellValue, ...] = before.elements if isinstance(before, ShellArray) else (before,)
    return ShellArray((*head, *(more.elements if isinstance(more, ShellArray) else (more,))))


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


def _possible(known: Sequence[bool | None]) -> list[int]:
    """Return the arms that tests in turn may lead to; the last one is that without a test."""
    arms = []
    for i, each in enumerate(known):
        if each is not False:
            arms.append(i)
        if each:
            return arms
    return [*arms, len(known)]


def _reads_all(words: Sequence[ShellValue]) -> bool:
    """Return True for `read -r -d '' NAME`."""
    texts = [known_text(each) for each in words]
    return texts[-2:-1] == [""] and re.fullmatch(r"-[rd]*d", texts[-3] or "") is not None


def _by_loop(name: str, line: int) -> Hole:
    return Hole(f"${name}, which a loop sets", line, several=True)


def _label(node: SyntaxNode, source: ShellSource) -> str:
    return " ".join(source.text(node).split())[:LONGEST_LABEL]


def _is_command(value: ShellValue) -> bool:
    """Return True if a value is a command line that may start a trainer."""
    text = readable_text(value)
    named = re.search(r"\s", text.strip()) and may_launch(text) and STARTS.search(text)
    return named is not None


def _without_option(value: ShellValue) -> ShellValue:
    """Return VALUE for a word like `--wrap=VALUE`. Return other words unchanged."""
    first = value[0] if value else None
    option = _OPTION.match(first.text) if isinstance(first, ShellText) else None
    if option is None or not isinstance(first, ShellText):
        return value
    return (ShellText(first.text[option.end() :], first.line), *value[1:])
