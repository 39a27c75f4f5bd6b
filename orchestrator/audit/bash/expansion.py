"""Expand the words of a shell script to values: quotes, variables, defaults, arrays, substitutions.

    node --word_parts--> parts with and without quotes --terms--> words before splitting
    node --value--> one value, if the shell does not split the word (an assignment, a test)

Nothing is run. `$(...)` stays a Hole, except for a few commands that only rearrange their words.
"""

import fnmatch
import operator
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from orchestrator.audit.bash.syntax import Budget, ShellSource, SyntaxNode
from orchestrator.audit.bash.values import (
    EMPTY,
    ArrayElement,
    Branch,
    BranchElements,
    BranchValue,
    Hole,
    Scope,
    ShellArray,
    ShellText,
    ShellValue,
    Ways,
    WordPart,
    WordTerm,
    branches_in,
    elements_left,
    known_text,
    literal,
    pieces,
)

FIRST_PRIVATE, LAST_PRIVATE = 0xE000, 0xF8FF
"""Unicode's private characters. In nested text each represents a piece that is not text."""
LONGEST_CHANGED = 1_000
"""Maximum number of characters of a value that `%`, `#` and `/` are evaluated on."""
LONGEST_NUMBER = 9
"""Maximum number of digits of the index of an argument or an element."""
LONGEST_SHOWN = 60
"""Maximum number of characters of a substitution that the reason of a hole shows."""
MOST_NUMBERS = 100
"""Maximum number of words that `{1..9}` expands to."""
MAY_SET = " may set"
_FROM_OUTSIDE = re.compile(
    r"^(HOME|USER|PWD|OLDPWD|HOSTNAME|PATH|SHELL|UID|RANDOM|SECONDS|LOGNAME|TMPDIR|TERM|LANG"
    r"|LD_LIBRARY_PATH|PYTHONPATH|CONDA_\w+|VIRTUAL_ENV|MASTER_\w+|WORLD_SIZE|RANK|LOCAL_RANK"
    r"|NODE_RANK|BASH_SOURCE|FUNCNAME|LINENO|PPID|(SLURM|SKYPILOT|ARNOLD|PBS|LSB|MLP|OMPI)_\w+)$"
)
"""Variables that a shell, a scheduler or a cluster sets."""
_DEFAULTS = {":-", "-", ":=", "=", ":+", "+", ":?", "?"}
_EXPANSIONS = ("expansion", "simple_expansion", "command_substitution", "arithmetic_expansion")
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_RANGE = re.compile(r"(-?\d{1,9}|[A-Za-z])\.\.(-?\d{1,9}|[A-Za-z])(?:\.\.(-?\d{1,9}))?")
"""A range in braces: `1..9..3`, `01..03`, `a..c`."""
_FIRST_PLACEHOLDER = 0xF0000
"""Characters from here on stand for the quoted parts and the expansions of a word with braces."""
_ANSI_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_ANSI_LETTERS = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_EXTENDED = re.compile(r"[?*+@!]\(")
"""A pattern of `shopt -s extglob`."""


class Expander:
    """An expander of words in a scope. The scope changes while a script is read."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.scope = Scope()
        self.branches: list[Branch] = []
        self.sourced: list[str] = []
        """Files that the script sources and that are not available: each may set any variable."""
        self.trapped: set[str] = set()
        """Variables that a trap sets, at a time that is not known."""
        self.options: set[str] = set()
        """Options of `shopt -s` that change what a pattern matches."""

    # Words

    def terms(self, node: SyntaxNode, source: ShellSource) -> list[WordTerm]:
        """Return the words that a word node expands to, before they are split."""
        if node.type in ("brace_expression", "concatenation", "word"):
            words = self._brace_terms(node, source)
            if words is not None:
                return words
        if node.type == "command_name" and len(node.children) == 1:
            node = node.children[0]
        terms = self._array_terms(node, source)
        if terms is None:
            terms = [tuple(self.word_parts(node, source))]
        self.budget.spend(
            sum(
                1 if isinstance(term, BranchElements) else 1 + sum(len(p.value) for p in term)
                for term in terms
            )
        )
        return terms

    def _brace_terms(self, node: SyntaxNode, source: ShellSource) -> list[WordTerm] | None:
        """Return the words of `a.{b=1,c=$X}` and `{01..03}`, or None for a word without braces."""
        plain = ("word", "number", "{", "}", "..", "brace_expression")
        inner = [node] if node.type != "concatenation" else list(node.children)
        hidden = [child for child in inner if child.type not in plain]
        signs = {chr(_FIRST_PLACEHOLDER + i): child for i, child in enumerate(hidden)}
        own = {child.id: sign for sign, child in signs.items()}
        text = "".join(own.get(child.id) or source.text(child) for child in inner)
        if "{" not in text or "\\" in text:
            return None
        words = _brace_words(text)
        if words is None:
            return [(WordPart((Hole("braces with many words", source.line(node)),), True),)]
        if words == [text]:
            return None
        line = source.line(node)
        terms: list[WordTerm] = []
        for word in words:
            parts: list[WordPart] = []
            for piece in re.split(f"([{''.join(signs)}])" if signs else r"(\Z)", word):
                if piece in signs:
                    parts += self.word_parts(signs[piece], source)
                elif piece:
                    parts.append(WordPart((ShellText(piece, line),), True))
            terms.append(tuple(parts))
        return terms

    def _array_terms(self, node: SyntaxNode, source: ShellSource) -> list[WordTerm] | None:
        """Return one word for each element of `"${a[@]}"` or `"$@"`, or None for other words."""
        inner = node
        quoted = node.type == "string"
        if quoted:
            inside = [c for c in node.children if c.type != '"']
            if len(inside) != 1:
                return None
            inner = inside[0]
            # Only quotes around the expansion: with other text in the string, the shell joins the
            # elements.
            if node.end_byte - node.start_byte > inner.end_byte - inner.start_byte + 2:
                return None
        if inner.type not in ("expansion", "simple_expansion"):
            return None
        elements = self.expansion(inner, source)
        if not isinstance(elements, list):
            return None
        if quoted and _is_star(source.text(inner)):
            return [(WordPart(self.joined(elements, source.line(inner)), True),)]
        return [
            each if isinstance(each, BranchElements) else (WordPart(each, quoted),)
            for each in elements
        ]

    def word_parts(self, node: SyntaxNode, source: ShellSource) -> list[WordPart]:
        """Return the parts of one word."""
        kind, line = node.type, source.line(node)
        if kind in ("concatenation", "command_name"):
            return [part for child in node.children for part in self.word_parts(child, source)]
        if kind in ("string", "translated_string"):
            return [WordPart(self._text_with_expansions(node, source, quoted=True), True)]
        if kind == "raw_string":
            return [WordPart(_nested_literal(source.text(node)[1:-1], line, source), True)]
        if kind == "ansi_c_string":
            text = _ANSI_ESCAPE.sub(_ansi_character, source.text(node)[2:-1])
            return [WordPart(literal(text, line), True)]
        if kind in ("expansion", "simple_expansion"):
            value = self.expansion(node, source)
            if isinstance(value, list):
                value = self.joined(value, line)
            return [WordPart(value, False)]
        if kind == "command_substitution":
            return [WordPart(self._substitution(node, source), False)]
        if kind == "arithmetic_expansion":
            text = source.text(node)
            inside = text[3:-2] if text.startswith("$((") else text[2:-1]
            return [WordPart(self.arithmetic(inside, line), True)]
        if kind in ("process_substitution", "array"):
            return [WordPart((Hole(f"a {kind.replace('_', ' ')}", line),), True)]
        return [WordPart(_plain_word(source.text(node), line, source), True)]

    def value(self, node: SyntaxNode, source: ShellSource) -> ShellValue:
        """Return the value of a word that is not split: an operand, the right side of `x=...`."""
        value = tuple(piece for part in self.word_parts(node, source) for piece in part.value)
        self.budget.spend(len(value))
        return value

    def elements(self, term: WordTerm) -> Iterator[ArrayElement]:
        """Yield the array elements of a word.

        A word that depends on one branch is split for each of its arms. A word that depends on
        several branches stays one element.
        """
        if isinstance(term, BranchElements):
            yield term
            return
        value: ShellValue = tuple(piece for part in term for piece in part.value)
        needed = set(branches_in(value))
        if not needed or all(part.quoted for part in term):
            yield from _split(term, {}, self.separators())
        elif len(needed) == 1:
            branch = needed.pop()
            arms = range(len(self.branches[branch].labels))
            yield BranchElements(
                branch, tuple(tuple(_split(term, {branch: arm}, self.separators())) for arm in arms)
            )
        else:
            yield value

    def joined(self, elements: Iterable[ArrayElement], line: int) -> ShellValue:
        """Return array elements in one string, with the first character of IFS between them."""
        joined: list[ShellText | Hole | BranchValue] = []
        separators = self.separators()
        for i, each in enumerate(elements_left(elements, {})):
            if i and separators is None:
                joined.append(Hole("$IFS", line))
            elif i and separators:
                joined.append(ShellText(separators[0], line))
            joined += each
        self.budget.spend(len(joined))
        return tuple(joined)

    def separators(self) -> str | None:
        """Return the characters at which words are split, or None if IFS is unknown."""
        value = self.scope.variables.get("IFS")
        if isinstance(value, ShellArray):
            return None
        return " \t\n" if value is None else known_text(value)

    def _text_with_expansions(
        self, node: SyntaxNode, source: ShellSource, *, quoted: bool
    ) -> ShellValue:
        """Return the text and the expansions of a double-quoted string or a heredoc's body."""
        at, row = node.start_byte + quoted, node.start_point[0]
        # A syntax error may leave a string without its closing quote.
        closed = quoted and source.data[node.end_byte - 1 : node.end_byte] == b'"'
        end = node.end_byte - closed
        parts: list[ShellText | Hole | BranchValue] = []

        def add_text(upto: int) -> None:
            byte = at
            for i, each in enumerate(source.data[at:upto].splitlines(keepends=True)):
                text = each.decode("utf-8", "replace")
                text = _ESCAPED_IN_QUOTES.sub(lambda m: "" if m[1] == "\n" else m[1], text)
                parts.extend(_nested_literal(text, source.line_at(byte, row + i), source))
                byte += len(each)

        for child in node.children:
            if child.type in _EXPANSIONS:
                add_text(child.start_byte)
                parts += [p for part in self.word_parts(child, source) for p in part.value]
                at, row = child.end_byte, child.end_point[0]
        add_text(max(at, end))
        return tuple(parts)

    def heredoc(self, redirect: SyntaxNode, source: ShellSource) -> ShellValue:
        """Return the text of a heredoc. Expand it unless the delimiter is quoted (`<<'EOF'`)."""
        start = next((c for c in redirect.children if c.type == "heredoc_start"), None)
        body = next((c for c in redirect.children if c.type == "heredoc_body"), None)
        if body is None:
            return EMPTY
        if start is not None and source.text(start)[:1] in "'\"\\":
            return _nested_literal(source.text(body), source.line(body), source)
        return self._text_with_expansions(body, source, quoted=False)

    # Variables

    def variable(self, name: str, line: int) -> ShellValue:
        """Return the value of `$name`. Join the elements of `$@` and `$*`."""
        if name.isdigit():
            return self._argument(name, line)
        if name == "#":
            return (ShellText(str(len(self.settled(self.scope.arguments))), line),)
        if name in ("@", "*"):
            return self.joined(self.scope.arguments, line)
        if not (name[:1].isalpha() or name[:1] == "_"):
            return (Hole(f"${name}", line),)
        value = self.scope.variables.get(name)
        if isinstance(value, ShellArray):
            keyed = self.scope.variables.get(f"{name}[0]")
            if keyed is not None and not isinstance(keyed, ShellArray):
                return keyed
            if any(key.startswith(f"{name}[") for key in self.scope.variables):
                return EMPTY
            first = self.settled(value.elements)[:1]
            return first[0] if first else EMPTY
        if name in self.trapped:
            return (Hole(f"${name}, which a trap may set", line),)
        if value is not None:
            return value
        if _FROM_OUTSIDE.match(name):
            return (Hole(f"${name}", line),)
        if self.sourced:
            return (Hole(f"${name}, which {self.sourced[-1]}{MAY_SET}", line),)
        return (Hole(f"${name}", line, unset=True),)

    def _argument(self, number: str, line: int) -> ShellValue:
        index = _index(number)
        if index == 0:
            return (Hole("$0", line),)
        elements = self.settled(self.scope.arguments)
        if index is not None and index <= len(elements):
            return elements[index - 1]
        if self.scope.in_function:
            return EMPTY
        return (Hole(f"argument ${number[:LONGEST_SHOWN]}", line, unset=True),)

    def settled(self, elements: Iterable[ArrayElement]) -> list[ShellValue]:
        """Return the array elements that remain if every branch goes its first way."""
        return list(elements_left(elements, {}))

    def expansion(self, node: SyntaxNode, source: ShellSource) -> ShellValue | list[ArrayElement]:
        """Return the value of `$x` and `${x...}`, or the elements of `${a[@]}` and `$@`."""
        line = source.line(node)
        children = [c for c in node.children if c.type not in ("$", "${", "}")]
        if not children:
            return EMPTY
        prefix = children[0].type if children[0].type in ("#", "!", "##") else ""
        # `$#` and `$!` are variables. With a name after it, the sign is an operator.
        if prefix == "!" and len(children) > 2:
            return (Hole(source.text(node), line),)
        if prefix and len(children) > 1:
            return self._prefixed(prefix, source.text(children[1]), line)
        subject, operation = children[0], children[1:]
        text = source.text(subject)
        if node.type == "simple_expansion" and text.isdecimal() and len(text) > 1:
            # `$10` is `$1` and a 0.
            return (*self.variable(text[0], line), ShellText(text[1:], line))
        if subject.type == "subscript":
            name, _, index = text.partition("[")
            index = index[:-1]
            if index in ("@", "*"):
                elements = self._sliced(self._all_elements(name, line), operation, source)
                return self._each_changed(name, elements, operation, source, line)
            base = self._element(name, index, line)
        elif text in ("@", "*"):
            elements = self._sliced(list(self.scope.arguments), operation, source)
            return self._each_changed(text, elements, operation, source, line)
        else:
            name, base = text, self.variable(text, line)
        return self._operated(name, base, operation, source, line) if operation else base

    def _prefixed(self, prefix: str, subject: str, line: int) -> ShellValue | list[ArrayElement]:
        """Return the value of `${!x}`, `${!a[@]}`, `${#x}` and `${#a[@]}`."""
        name, _, index = subject.partition("[")
        keys = [key for key in self.scope.variables if key.startswith(f"{name}[")]
        if prefix == "!" and index and keys:
            return [(ShellText(key[len(name) + 1 : -1], line),) for key in keys]
        if prefix == "!" and index:
            count = len(self.settled(self._all_elements(name, line)))
            return [(ShellText(str(i), line),) for i in range(count)]
        if prefix == "!":
            target = known_text(self.variable(name, line))
            return self.variable(target, line) if target else (Hole(f"${{!{name}}}", line),)
        if index:
            return (ShellText(str(len(self.settled(self._all_elements(name, line)))), line),)
        if name in ("@", "*"):
            return self.variable("#", line)
        text = known_text(self.variable(name, line))
        if text is None:
            return (Hole(f"the length of ${name}", line),)
        return (ShellText(str(len(text)), line),)

    def _all_elements(self, name: str, line: int) -> list[ArrayElement]:
        value = self.scope.variables.get(name)
        if isinstance(value, ShellArray):
            return list(value.elements)
        if value is not None:
            return [value]
        return [(Hole(f"${name}", line),)] if self.sourced else []

    def _element(self, name: str, index: str, line: int) -> ShellValue:
        """Return the value of `${a[1]}`, `${a[i]}` or `${a[key]}`."""
        number = index.replace(" ", "")
        if _signed(number) is None:
            number = known_text(self.variable(index.lstrip("$").strip("{}"), line)) or ""
        unquoted = index.strip("\"'")
        keyed = self.scope.variables.get(f"{name}[{unquoted}]")
        if keyed is None and number:
            keyed = self.scope.variables.get(f"{name}[{number}]")
        if keyed is not None and not isinstance(keyed, ShellArray):
            return keyed
        array, at = self.scope.variables.get(name), _signed(number)
        if any(key.startswith(f"{name}[") for key in self.scope.variables):
            return EMPTY if at is not None and at >= 0 else (Hole(f"${{{name}[{index}]}}", line),)
        if isinstance(array, ShellArray) and at is not None:
            elements = self.settled(array.elements)
            return elements[at] if -len(elements) <= at < len(elements) else EMPTY
        return (Hole(f"${{{name}[{index}]}}", line),)

    def _each_changed(
        self,
        name: str,
        elements: list[ArrayElement],
        operation: list[SyntaxNode],
        source: ShellSource,
        line: int,
    ) -> list[ArrayElement]:
        """Return the elements of `${a[@]/old/new}`, `${a[@]%x}` and the like, each changed."""
        operator = source.text(operation[0]) if operation else ":"
        if operator == ":" or operator in _DEFAULTS:
            if operator in (":-", "-") and not elements:
                return [tuple(p for node in operation[1:] for p in self.value(node, source))]
            return elements
        if any(isinstance(each, BranchElements) for each in elements):
            return [(Hole(f"a part of ${name}", line),)]
        return [
            self._operated(name, each, operation, source, line)
            for each in elements
            if not isinstance(each, BranchElements)
        ]

    def _sliced(
        self, elements: list[ArrayElement], operation: list[SyntaxNode], source: ShellSource
    ) -> list[ArrayElement]:
        """Return the elements of `${@:2}` and `${a[@]:1:3}`.

        Return the elements unchanged for other operators, and a Hole for unknown bounds.
        """
        if not operation or source.text(operation[0]) != ":":
            return elements
        whole = source.text(operation[0].parent)
        unknown: list[ArrayElement] = [(Hole(f"a part of {whole}", source.line(operation[0])),)]
        bounds = self._bounds(operation, source)
        if bounds is None or any(isinstance(each, BranchElements) for each in elements):
            return unknown
        # `${@:1}` counts from $1, and `${a[@]:1}` from element 0.
        of_arguments = whole.startswith(("${@", "${*"))
        start, count = bounds
        if count is not None and count < 0:
            return unknown
        start = len(elements) + start if start < 0 else max(start - of_arguments, 0)
        return elements[max(start, 0) : None if count is None else max(start, 0) + count]

    def _bounds(
        self, operation: list[SyntaxNode], source: ShellSource
    ) -> tuple[int, int | None] | None:
        """Return offset and length of `${x:2}` and `${x:2:3}`, or None if one is unknown."""
        texts = [source.text(node) for node in operation if node.type != ":"]
        numbers = [_signed((known_text(self.arithmetic(text, 0)) or "").strip()) for text in texts]
        if not numbers or len(numbers) > 2 or None in numbers or numbers[0] is None:
            return None
        return numbers[0], numbers[1] if len(numbers) == 2 else None

    def _operated(
        self,
        name: str,
        base: ShellValue,
        operation: list[SyntaxNode],
        source: ShellSource,
        line: int,
    ) -> ShellValue:
        """Return the value of `${x:-d}`, `${x%pattern}`, `${x/old/new}`, `${x,,}` and the like."""
        operator = source.text(operation[0])
        if operator in _DEFAULTS:
            return self._defaulted(name, base, operator, operation[1:], source)
        text = known_text(base)
        unknown: ShellValue = (Hole(f"a part of ${name}", line),)
        if text is None or len(text) > LONGEST_CHANGED:
            return unknown
        if operator in ("%", "%%", "#", "##"):
            patterns = [self.pattern(node, source) for node in operation[1:]]
            if None in patterns:
                return unknown
            pattern = "".join(each or "" for each in patterns)
            return (ShellText(_trimmed(text, operator, pattern), line),)
        if operator in ("/", "//") and len(operation) >= 2:
            old = source.text(operation[1])
            new = source.text(operation[3]) if len(operation) > 3 else ""
            # Without these characters the old text is no pattern, and can be replaced as it is.
            if old and not re.search(r"[*?\[$`\\\"'&]", old + new):
                count = -1 if operator == "//" else 1
                return (ShellText(text.replace(old, new, count), line),)
        if operator in (",,", ",", "^^", "^") and len(operation) == 1:
            change = str.lower if operator[0] == "," else str.upper
            changed = change(text) if len(operator) == 2 else change(text[:1]) + text[1:]
            return (ShellText(changed, line),)
        if operator == ":" and (bounds := self._bounds(operation, source)) is not None:
            offset, length = bounds
            start = max(len(text) + offset, 0) if offset < 0 else offset
            if length is None:
                return (ShellText(text[start:], line),)
            stop = start + length if length >= 0 else len(text) + length
            return (ShellText(text[start:stop], line),)
        return unknown

    def matches(self, text: str, patterns: Iterable[str | None]) -> bool | None:
        """Return whether one of the patterns matches, or None if an unknown one may."""
        fold = str.casefold if "nocasematch" in self.options else str
        known = [
            None if pattern is None else fnmatch.fnmatchcase(fold(text), fold(pattern))
            for pattern in patterns
        ]
        return True if True in known else None if None in known else False

    def pattern(self, node: SyntaxNode, source: ShellSource) -> str | None:
        """Return a pattern as `fnmatch` reads it, or None if it is unknown or an extended one.

        Quoted text stands for itself.
        """
        kind = node.type
        if kind in ("concatenation", "command_name"):
            parts = [self.pattern(child, source) for child in node.children]
            return None if None in parts else "".join(part or "" for part in parts)
        text = source.text(node)
        if kind in ("string", "translated_string", "raw_string", "ansi_c_string"):
            known = known_text(self.value(node, source))
            return None if known is None else _escaped(known)
        if kind in ("expansion", "simple_expansion"):
            known = known_text(self.value(node, source))
            return None if known is None or _EXTENDED.search(known) or "\\" in known else known
        if re.search(r"[$`\"']|(?<!\\)\\$", text) or _EXTENDED.search(text):
            return None  # the grammar ends `${x%\\}}` at the first brace
        text = re.sub(r"\\(.)", lambda match: _escaped(match[1]), text, flags=re.DOTALL)
        return text.replace("[^", "[!")

    def _defaulted(
        self,
        name: str,
        base: ShellValue,
        operator: str,
        operands: list[SyntaxNode],
        source: ShellSource,
    ) -> ShellValue:
        """Return the value of `${x:-d}` and the like. `:=` also assigns the default.

        A variable that only an argument or the environment can set counts as unset.
        """
        default = tuple(piece for node in operands for piece in self.value(node, source))
        if _is_unset(base) and not operator.endswith("+"):
            default = _default_of(name, default)
        only = base[0] if len(base) == 1 else None
        if isinstance(only, BranchValue) and len(list(branches_in(base))) == 1:
            marked = default if operator.endswith("+") else _default_of(name, default)
            arms = tuple(
                _with_default(arm, marked if _is_unset(arm) else default, operator)
                for arm in only.arms
            )
            return (BranchValue(only.branch, arms),)
        chosen = _with_default(base, default, operator)
        if operator in (":=", "=") and chosen is default and name.isidentifier():
            self.scope.variables[name] = default
        return chosen

    # Substitutions

    def arithmetic(self, text: str, line: int) -> ShellValue:
        """Return the value of `$((text))`, or a Hole unless every variable in it is a number."""
        # Numbers with a base, such as 16#1f and 0x1f, are not read.
        if len(text) > LONGEST_ARITHMETIC or re.search(r"\d[A-Za-z_#]", text):
            return (Hole("arithmetic", line),)
        for name in set(re.findall(r"\$?\{?([A-Za-z_]\w*)\}?", text)):
            known = known_text(self.variable(name, line))
            # An empty variable counts as 0.
            if known is None or not re.fullmatch(r"\s*-?\d+\s*|", known):
                return (Hole(f"arithmetic over ${name}", line),)
            text = re.sub(rf"\$?\{{?\b{name}\b\}}?", known.strip() or "0", text)
        number = arithmetic_value(text)
        if number is None:
            return (Hole("arithmetic", line),)
        return (ShellText(str(number), line),)

    def _substitution(self, node: SyntaxNode, source: ShellSource) -> ShellValue:
        """Return the value of `$(...)`: a Hole, unless the command only rearranges its words.

        Such commands are `echo`, `basename`, `dirname` and `cat <<EOF`. Python computes their
        output; no process runs.
        """
        line = source.line(node)
        shown = " ".join(source.text(node).split())[:LONGEST_SHOWN]
        unknown: ShellValue = (Hole(f"the output of {shown}", line),)
        statements = [c for c in node.children if c.is_named and c.type != "comment"]
        if len(statements) != 1:
            return unknown
        statement = statements[0]
        if statement.type == "command":
            return self._computed(statement, source, line) or unknown
        if statement.type == "redirected_statement":
            redirect = next((c for c in statement.children if c.type == "heredoc_redirect"), None)
            body = statement.child_by_field_name("body")
            if redirect is not None and body is not None and source.text(body).strip() == "cat":
                text = known_text(self.heredoc(redirect, source))
                # `$(...)` drops the newlines at the end.
                return unknown if text is None else literal(text.rstrip("\n"), line)
        return unknown

    def _computed(self, command: SyntaxNode, source: ShellSource, line: int) -> ShellValue | None:
        """Return the output of `echo`, `basename` or `dirname`, or None for other commands."""
        if any(child.type.endswith("redirect") for child in command.children):
            return None
        terms = [term for child in command.children for term in self.terms(child, source)]
        elements = [each for term in terms for each in self.elements(term)]
        words = [each for each in elements if not isinstance(each, BranchElements)]
        name = known_text(words[0]) if words else None
        if name in self.scope.functions:
            return None
        if name == "echo" and len(elements) >= 2:
            first = known_text(words[1]) if len(words) > 1 else None
            if first is not None and re.fullmatch(r"-[neE]+", first):
                if first != "-n":
                    return None
                elements = elements[1:]
            return _without_last_newlines(self.joined(elements[1:], line))
        if name == "printf" and len(words) == len(elements) >= 2:
            texts = [known_text(word) for word in words[1:]]
            printed = None if None in texts else printf([text or "" for text in texts])
            return None if printed is None else literal(printed.rstrip("\n"), line)
        if len(words) != len(elements):
            return None
        path = known_text(words[1]) if len(words) == 2 else None
        change: Callable[[str], str] | None = {
            "basename": posixpath.basename,
            "dirname": posixpath.dirname,
        }.get(name or "")
        return literal(change(path.rstrip("/")), line) if change is not None and path else None


def _index(text: str) -> int | None:
    """Return an index as a number, or None for other text and for very large numbers."""
    return int(text) if text.isdecimal() and len(text) <= LONGEST_NUMBER else None


def _signed(text: str) -> int | None:
    """Return a whole number with or without a sign, or None for other text."""
    return int(text) if re.fullmatch(r"[-+]?\d{1,9}", text) else None


def _is_star(text: str) -> bool:
    """Return True for `$*`, `${*}` and `${a[*]}`: in quotes, they are one word."""
    return text in ("$*", "${*}") or bool(re.fullmatch(r"\$\{\w+\[\*\][^@]*\}", text))


def _escaped(text: str) -> str:
    """Return a text as a pattern that matches it alone."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", text)


def _ansi_character(match: re.Match[str]) -> str:
    """Return the character of an escape in `$'...'`."""
    for digits, base in zip(match.groups()[:4], (16, 16, 16, 8), strict=True):
        if digits is not None:
            code = int(digits, base)
            return chr(code) if code < 0x110000 else match[0]
    letter = match[5]
    return _ANSI_LETTERS.get(letter, letter if letter in "\\'\"?" else match[0])


def _brace_words(text: str) -> list[str] | None:
    """Return the words that braces expand to, the text alone without braces; None for too many."""
    depth, start = 0, -1
    commas: list[int] = []
    for at, character in enumerate(text):
        if character == "{":
            depth += 1
            if depth == 1:
                start, commas = at, []
        elif character == "," and depth == 1:
            commas.append(at)
        elif character == "}" and depth:
            depth -= 1
            if depth:
                continue
            inside = text[start + 1 : at]
            numbered = _range_words(inside) if not commas else None
            if commas:
                cuts = [start, *commas, at]
                choices = [text[a + 1 : b] for a, b in pairwise(cuts)]
                heads = [word for choice in choices for word in _brace_words(choice) or [choice]]
            elif numbered is not None:
                heads = numbered
            else:
                continue
            tails = _brace_words(text[at + 1 :])
            if tails is None or len(heads) * len(tails) > MOST_NUMBERS:
                return None
            return [f"{text[:start]}{head}{tail}" for head in heads for tail in tails]
    return [text]


def _range_words(text: str) -> list[str] | None:
    """Return the words of `1..9..3`, `01..03` or `a..c`, or None for other text."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = match[1], match[2]
    if first.isalpha() != last.isalpha():
        return None
    low, high = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    step = abs(int(match[3] or 1)) or 1
    numbers = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    if first.isalpha():
        return [chr(number) for number in numbers][:MOST_NUMBERS]
    padded = any(re.match(r"-?0\d", end) for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers[:MOST_NUMBERS]]


_FORMAT = re.compile(r"%(?:%|(0?\d{0,3})([sd]))")


def printf(words: Sequence[str]) -> str | None:
    """Return what `printf FORMAT WORD ...` prints, or None for a format that is not read."""
    form, arguments = words[0], list(words[1:])
    if "%" in _FORMAT.sub("", form) or re.search(r"\\[^nt\\]", form):
        return None
    specifications = [match for match in _FORMAT.finditer(form) if match[2]]
    if len(arguments) > len(specifications) or any(
        match[2] == "d" and not re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", argument)
        for match, argument in zip(specifications, arguments, strict=False)
    ):
        return None
    if len(arguments) < len(specifications):
        return None
    given = iter(arguments)

    def filled(match: re.Match[str]) -> str:
        if match[2] is None:
            return "%"
        argument = next(given)
        if match[2] == "d":
            return f"{int(argument):{match[1]}d}"
        return argument.rjust(int(match[1] or 0))

    escapes = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
    text = re.sub(r"\\[nt\\]", lambda match: escapes[match[0]], form)
    return _FORMAT.sub(filled, text)


def _without_last_newlines(value: ShellValue) -> ShellValue:
    """Return the output of a command without the newlines at its end, as `$(...)` has it."""
    last = value[-1] if value else None
    if not isinstance(last, ShellText) or not last.text.endswith("\n"):
        return value
    return (*value[:-1], last._replace(text=last.text.rstrip("\n")))


def split_text(text: str, separators: str | None) -> list[str] | None:
    """Return the words of a text at IFS's characters, or None if these are unknown or mixed."""
    if separators is None:
        return None
    if not separators:
        return [text] if text else []
    if not separators.strip(" \t\n"):
        return re.sub(f"[{separators}]+", " ", text).split()
    if set(separators) & set(" \t\n"):
        return None
    words = re.split(f"[{re.escape(separators)}]", text)
    return words[:-1] if words[-1:] == [""] else words


def _split(
    term: tuple[WordPart, ...], ways: Ways, separators: str | None = " \t\n"
) -> Iterator[ShellValue]:
    """Yield the words of a term as values. Split only unquoted text, at IFS's characters."""
    if all(part.quoted for part in term):
        yield tuple(piece for part in term for piece in part.value)
        return
    word: list[ShellText | Hole | BranchValue] = []
    begun = False
    for part in term:
        begun = begun or part.quoted
        for piece in pieces(part.value, ways):
            if part.quoted or isinstance(piece, Hole):
                word.append(piece)
                continue
            if separators != " \t\n":
                yield from _split_unusually(term, ways, separators)
                return
            if not re.search(r"\s", piece.text):
                word.append(piece)
                continue
            for i, chunk in enumerate(re.split(r"\s+", piece.text)):
                if i and word:
                    yield tuple(word)
                    word, begun = [], False
                if chunk:
                    word.append(piece._replace(text=chunk))
    # An unquoted word of unset variables alone is no word.
    if (word or begun) and not all(isinstance(p, Hole) and p.unset for p in word):
        yield tuple(word)


def _split_unusually(
    term: tuple[WordPart, ...], ways: Ways, separators: str | None
) -> Iterator[ShellValue]:
    """Yield the words of a term where IFS is not as usual: known only for one unquoted part."""
    known = known_text(tuple(piece for part in term for piece in pieces(part.value, ways)))
    words = split_text(known, separators) if known is not None and len(term) == 1 else None
    line = next((p.line for part in term for p in pieces(part.value, ways)), 0)
    if words is None:
        yield (Hole("a word that $IFS splits", line),)
        return
    for word in words:
        yield (ShellText(word, line),)


def _plain_word(text: str, line: int, source: ShellSource) -> ShellValue:
    """Return the value of an unquoted word, without its backslashes and with `~` as a Hole."""
    if "\\" in text:
        text = _ESCAPED.sub(lambda m: "" if m[1] == "\n" else m[1], text)
    if text.startswith("~/") or text == "~":
        return (Hole("the home directory", line), *_nested_literal(text[1:], line, source))
    return _nested_literal(text, line, source)


def _nested_literal(text: str, line: int, source: ShellSource) -> ShellValue:
    """Return text as a value. Replace a nested source's private characters by their pieces."""
    if not source.pieces:
        return literal(text, line)
    parts: list[ShellText | Hole | BranchValue] = []
    run = ""
    for character in text:
        if FIRST_PRIVATE <= ord(character) <= LAST_PRIVATE and character in source.pieces:
            parts += [*literal(run, line), source.pieces[character]]
            run = ""
        else:
            run += character
    return (*parts, *literal(run, line))


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """Return the value of `${text%pattern}` and similar; `#` and `%` remove the shortest match."""
    cuts = range(len(text) + 1)
    # From the shortest match to the longest for `#` and `%`, the other way for `##` and `%%`.
    for cut in cuts if operator in ("#", "%%") else reversed(cuts):
        part, kept = (text[:cut], text[cut:]) if operator[0] == "#" else (text[cut:], text[:cut])
        if fnmatch.fnmatchcase(part, pattern):
            return kept
    return text


def _with_default(base: ShellValue, default: ShellValue, operator: str) -> ShellValue:
    """Return the value of `${base OPERATOR default}` for one of the operators in _DEFAULTS."""
    empty = known_text(base) == "" and operator[0] == ":"
    is_set = not _is_unset(base) and not empty
    if operator.endswith("+"):
        return default if is_set else EMPTY
    return base if is_set or operator.endswith("?") else default


def _is_unset(base: ShellValue) -> bool:
    """Return True for the value of a variable or argument that nothing in the script sets."""
    # An empty text is set: without the first test, `all` of no pieces would be True.
    return base != EMPTY and all(
        isinstance(piece, Hole) and (piece.unset or piece.why.endswith(MAY_SET)) for piece in base
    )


def _default_of(name: str, default: ShellValue) -> ShellValue:
    """Return a default as a value whose texts name the variable that a caller may set."""
    return tuple(
        piece._replace(default_of=tuple(dict.fromkeys((f"${name}", *piece.default_of))))
        if isinstance(piece, ShellText)
        else piece
        for piece in default
    )


_TOKEN = re.compile(r"\s*(?:(\d+)(?![\w#])|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!]))")
_LEVELS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    # The bound keeps a shift from making a number of any length.
    {"<<": lambda a, b: a << min(b, 63), ">>": lambda a, b: a >> min(b, 63)},
    {"+": operator.add, "-": operator.sub},
    # The shell cuts a quotient towards 0, where Python's // cuts it down.
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
)
LONGEST_ARITHMETIC = 400
"""Maximum number of characters of an expression."""


def arithmetic_value(text: str) -> int | None:
    """Return the value of an arithmetic expression of numbers, or None for any other text."""
    if len(text) > LONGEST_ARITHMETIC:
        return None
    tokens: list[str] = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            return None
        tokens.append(match[1] or match[2])
        at = match.end()
    try:
        value = _level(tokens, 0)
    except (IndexError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return value if not tokens and abs(value) < 2**63 else None


def _level(tokens: list[str], depth: int) -> int:
    if depth == len(_LEVELS):
        return _unit(tokens)
    value = _level(tokens, depth + 1)
    while tokens and tokens[0] in _LEVELS[depth]:
        value = _LEVELS[depth][tokens.pop(0)](value, _level(tokens, depth + 1))
    return value


def _unit(tokens: list[str]) -> int:
    first = tokens.pop(0)
    if first in "+-!":
        value = _unit(tokens)
        return {"+": value, "-": -value, "!": int(not value)}[first]
    if first == "(":
        value = _level(tokens, 0)
        if tokens.pop(0) != ")":
            raise ValueError
        return value
    base = int(first, 8) if len(first) > 1 and first[0] == "0" else int(first)
    if tokens and tokens[0] == "**":
        tokens.pop(0)
        power = _unit(tokens)
        return int(base**power) if 0 <= power < 64 else 0
    return base
