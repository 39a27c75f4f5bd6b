"""What the names of a Python file hold, by its text alone.

The file is parsed and never run. A name that is assigned exactly once has its assigned value. An
argument of argparse has its default, or the value that a command line gives it.
"""

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.audit.documents import yaml_document, yaml_node
from orchestrator.audit.libraries import (
    configuration_classes,
    library_packages,
)
from orchestrator.audit.own_code import dataclass_defaults, fields_of, files_of, is_true
from orchestrator.library.key_tables import completed, last_name, parsed
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    CommandWord,
    Given,
    UnreadableScript,
)

PUT_IN = "a value put in by Python"
_GROWS = (
    *("append", "extend", "insert", "update", "setdefault"),
    *("remove", "pop", "clear", "reverse", "sort"),
)
"""Methods that change the list or dictionary that they belong to."""
_ARGUMENTS = re.compile(r"sys\.argv\[\d+:\]")
"""What a caller may add, as `"$@"` in a shell."""
HEADS = ("actor_rollout_ref", "algorithm")
_COMMAND_LINE = "its command line"
_PARSED = ("args", "opt", "opts", "options", "cli_args")
_PLACES = re.compile(r"(?<!\{)\{[^{}\s]*\}(?!\})|%(?:\(\w+\))?[-+.\d]*[sdrfgieg]")
"""Where `.format(...)` and `%` put values into a string."""
_COPIES = (
    *("list", "tuple", "dict", "copy.copy", "copy.deepcopy", "deepcopy"),
    *("OmegaConf.to_container", "OmegaConf.to_object"),
)
"""Functions that return a copy of what they are given."""
_LOADS = (
    *("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "OmegaConf.load"),
    "omegaconf.OmegaConf.load",
)
"""Functions that return the content of a file."""
TARGET = "_target_"
"""The key that says what hydra makes of a configuration."""
_KNOWN_BASES = frozenset({"BaseModel", "BaseSettings", "NamedTuple", "TypedDict", "ABC", "object"})
"""Classes that no trainer's configuration comes from, and that have no fields."""
DEEPEST = 20
"""Expressions inside one another that are followed: a program may nest without an end."""
MOST_VALUES = 20_000


class WithDicts(ast.NodeTransformer):
    """Write `dict(a=1)` as `{"a": 1}`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Return the dictionary that a call of `dict` makes; other calls as they are."""
        self.generic_visit(node)
        is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
        if not is_dict or (node.args and not node.keywords):
            return node
        pairs: list[tuple[str | None, ast.expr]] = [(None, each) for each in node.args]
        pairs += [(each.arg, each.value) for each in node.keywords]
        keys: list[ast.expr | None] = [
            None if name is None else ast.Constant(name, lineno=node.lineno) for name, _ in pairs
        ]
        return ast.copy_location(ast.Dict(keys, [each for _, each in pairs]), node)


class _Value(ast.Constant):
    """A value of another file; default_of: as of CommandWord."""

    default_of: tuple[str, ...] = ()


class Lineage(NamedTuple):
    """Where a class comes from: its own bases and those of modules beside its file."""

    library: str = ""
    """The class of a library that it is, or derives from; empty: none."""
    module: str = ""
    """The module that this one is imported from."""
    values: Mapping[str, Given] = MappingProxyType({})
    """The settings that the classes in between give."""
    fields: frozenset[str] = frozenset()
    """The names that they declare."""
    unread: frozenset[str] = frozenset()
    """Its bases, or itself, that are not at hand and no library's."""


class FileValues:
    """What one file gives its names, and what other files beside it give those it imports."""

    def __init__(
        self,
        tree: ast.Module,
        name: str,
        options: Mapping[str, str],
        configuration: Mapping[str, Given],
        files: Mapping[str, str],
    ) -> None:
        self.name, self.files = name, files
        self.beside: dict[str, FileValues | None] = {}
        """Module -> the reader of its file; None: it is not at hand."""
        self.stored: dict[str, list[tuple[ast.Subscript, ast.expr]]] = {}
        """Dictionary -> where the file gives it a key that is a text, and the value."""
        self.set_later: set[str] = set()
        """Attributes and elements that the file assigns, as they are written."""
        self.opened: dict[str, list[ast.expr]] = {}
        """Name of an open file -> what opens it."""
        self.loaded: dict[str, ast.Dict | None] = {}
        """Path -> what a file holds; None: it is not at hand, or not read."""
        self.configuration = _as_dictionary(configuration)
        self.options: dict[str, ast.expr] = {
            key: ast.Name(_COMMAND_LINE, lineno=0)
            if UNKNOWN in text
            else ast.Constant(text, kind=_COMMAND_LINE, lineno=0)
            for key, text in options.items()
        }
        """Option of the command line -> its value; where that comes from if it is unknown."""
        self.nodes = list(ast.walk(tree))
        self.parsed = {*_PARSED, *(name for node in self.nodes for name in _parsed_names(node))}
        """Variables that hold the options of a parser."""
        self.defined = {
            each.name: each
            for each in self.nodes
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self.functions = {
            id(inner): id(node)
            for node in self.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(node)
        }
        """Node -> the innermost function that it is in."""
        self.values: dict[str, list[ast.expr | None]] = {}
        self.locals: dict[tuple[int | None, str], list[ast.expr | None]] = {}
        """Function and name -> what the function itself gives the name."""
        self.grown: dict[str, list[tuple[ast.expr, ast.expr | None]]] = {}
        """List or text -> where the file adds to it, and what; None: it is changed otherwise."""
        self.defaults: dict[str, ast.expr] = {}
        self.parameters: dict[str, tuple[str, ast.expr] | None] = {}
        """Parameter of one function of the file -> the function's name and the default. None: of
        several functions, or a call in the file gives it a value."""
        self.hydra: set[int] = set()
        """Parameters that hold the configuration of `@hydra.main`."""
        self.declared: set[str] = set()
        """The options that its parsers take (`add_argument`)."""
        self.positional: list[str] = []
        """The arguments that they take by their place."""
        self.changed: dict[str, int] = {}
        self.attributes: dict[str, list[tuple[str, ast.expr]]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.annotated: dict[str, set[str]] = {}
        self.modules: dict[str, str] = {}
        self.followed: set[int] = set()
        """The expressions whose dictionary is being looked for."""
        self.aliases: dict[str, str] = {}
        """Name -> the name that it has where it is imported from: `from trl import A as B`."""
        self.left = MOST_VALUES
        for node in self.nodes:
            if id(node) not in self.hydra:
                self._note(node)
        for growth in self.grown.values():
            growth.sort(key=lambda pair: pair[0].lineno)
        self.defaults = {**dataclass_defaults(self.classes.values()), **self.defaults}
        for key, each in self.options.items():
            meant = completed(key, self.declared)
            self.defaults.update(dict.fromkeys(meant if len(meant) == 1 else (key,), each))
        for at, name in enumerate(self.positional, 1):
            word = self.options.get(f"sys.argv[{at}]")
            if word is None or str(getattr(word, "value", "")).startswith("-"):
                break
            self.defaults[name] = word
        self.branched: dict[int, int] = {}
        """Expression -> the line of the branch that it is in, unless the branch is taken."""
        self.decided: dict[int, tuple[bool, tuple[str, ...]]] = {}
        """Expression in a branch -> if that is taken, and the options whose defaults decide."""
        self.by_default: dict[str, None] = {}
        """The options whose defaults decided something that was read."""
        self.names = {id(value): name for name, given in self.values.items() for value in given}
        for name, given in self.values.items():
            for value in given:
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                    self.names[id(value.func.value)] = name  # of "a b".split()
        self.remade: dict[str, int] = {}
        """Name -> the line where another list is made of its own, or a function changes it."""
        self.loads: dict[str, int] = {}
        """Name -> how often the file reads it."""
        self.merged: set[int] = set()
        """Dictionaries that others take in: `{**base}`."""
        self.unknown_keys: list[str] = []
        """Expressions that put unknown keys into the dictionary that was read last."""
        self.parts: set[int] = set()
        """Lists that are only parts of others: `base + [...]`, `[*base, ...]`."""
        self._note_uses()
        self._note_arguments()
        self._decide()

    def _decide(self) -> None:
        """Record the branches, and which of them known values take; outer ones come first."""
        opens = (ast.If, ast.For, ast.While, ast.Try)
        for node in (each for each in self.nodes if isinstance(each, opens) and not is_main(each)):
            holds, names = self._holds(node.test) if isinstance(node, ast.If) else (None, ())
            parts: list[tuple[bool | None, Sequence[ast.AST]]] = [(None, [node])]
            if isinstance(node, ast.If) and holds is not None:
                parts = [(holds, node.body), (not holds, node.orelse)]
            for is_taken, part in parts:
                for each in (e for of in part for e in ast.walk(of) if isinstance(e, ast.expr)):
                    is_open, before = self.decided.get(id(each), (True, ()))
                    if not is_taken:
                        self.branched[id(each)] = node.lineno
                    if is_taken is not None and is_open:
                        self.decided[id(each)] = (is_taken, (*before, *names))

    def _note(self, node: ast.AST) -> None:
        """Record the assignments, growing lists, argument defaults and keys that a node sets."""
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._assigned(target, node.value, node.lineno)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            added = node.value if isinstance(node.op, ast.Add) else None
            self.grown.setdefault(node.target.id, []).append((node.target, added))
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imported(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._parameters(node)
            self._hydra(node)
        elif isinstance(node, ast.arg):
            self._taken(node)
        elif isinstance(node, ast.For | ast.comprehension):
            for each in ast.walk(node.target):
                if isinstance(each, ast.Name):
                    # No known value, and yet an assignment: a second one makes the name unknown.
                    self._gives(each, each.id, None)
        else:
            self._note_changes(node)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        module = node.module or "." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.modules.setdefault(name, module or alias.name)
            if alias.asname and module:
                self.aliases[alias.asname] = alias.name

    def _note_changes(self, node: ast.AST) -> None:
        """Record the calls and deletions that change a list, a dictionary or an object, and the
        names that an expression or a `with` sets.
        """
        if isinstance(node, ast.NamedExpr):
            self._gives(node, node.target.id, node.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            is_stored = any(at is node for at, _ in self.stored.get(node.value.id, ()))
            if not (isinstance(node.ctx, ast.Load) or _path(node) or is_stored):
                self.grown.setdefault(node.value.id, []).append((node, None))
        elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            self._gives(node, node.optional_vars.id, None)
            self.opened.setdefault(node.optional_vars.id, []).append(node.context_expr)
        elif isinstance(node, ast.Call):
            self._replaced(node)
            if isinstance(node.func, ast.Attribute):
                self._called(node, node.func)

    def _note_uses(self) -> None:
        """Record which lists are only parts of others, and which are copied or remade."""
        loads = self.loads
        joined: dict[str, int] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                loads[node.id] = loads.get(node.id, 0) + 1
            operands: list[ast.expr] = []
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                operands = [node.left, node.right]
            elif isinstance(node, ast.List | ast.Tuple):
                operands = [each.value for each in node.elts if isinstance(each, ast.Starred)]
            for each in operands:
                if isinstance(each, ast.Name):
                    joined[each.id] = joined.get(each.id, 0) + 1
        for name, given in self.values.items():
            for value in given if len(given) > 1 else ():
                inner = () if value is None else ast.walk(value)
                if value is not None and any(
                    isinstance(each, ast.Name) and each.id == name for each in inner
                ):
                    self.remade.setdefault(name, value.lineno)
            if name in joined and joined[name] == loads.get(name):
                self.parts |= {id(value) for value in given if value is not None}

    def _parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Record the parameters of a function that have a default."""
        plain = [*node.args.posonlyargs, *node.args.args]
        defaults = node.args.defaults
        pairs = [
            *zip(plain[len(plain) - len(defaults) :], defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for parameter, default in pairs:
            name = parameter.arg
            several = name in self.parameters or default is None
            self.parameters[name] = None if several or default is None else (node.name, default)

    def _note_arguments(self) -> None:
        """Forget the defaults of the parameters to which a call in the file may give a value."""
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            copied = _copied(node) if self.names.get(id(node), "") in self.grown else None
            if isinstance(copied, ast.Name):
                # `y = list(x)` and later `y.append()`: the launch has y's words, and not x's.
                self.remade.setdefault(copied.id, node.lineno)
            function = self.defined.get(last_name(node.func))
            if function is None:
                continue
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            is_method = names[:1] == ["self"]
            if isinstance(node.func, ast.Attribute) and not is_method:
                continue  # another object's function of the same name
            for parameter, each in zip(names, node.args, strict=False):
                if isinstance(each, ast.Name) and parameter in self.grown:
                    self.remade.setdefault(each.id, node.lineno)  # the function changes its list
            if any(isinstance(each, ast.Starred) for each in node.args):
                given = names
            else:
                given = names[: len(node.args) + is_method]
            keywords = [each.arg for each in node.keywords]
            if None in keywords:  # `**values` may give any of them
                keywords = [*names, *(each.arg for each in function.args.kwonlyargs)]
            for each_name in (*given, *keywords):
                if each_name in self.parameters:
                    self.parameters[each_name] = None

    def _hydra(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Give the parameter of a function of `@hydra.main` its configuration."""
        decorators = map(ast.unparse, node.decorator_list)
        is_main = any(each.startswith("hydra.main(") for each in decorators)
        if is_main and node.args.args and self.configuration.keys:
            self._gives(node.args.args[0], node.args.args[0].arg, self.configuration)
            self.hydra.add(id(node.args.args[0]))

    def _script_default(self, node: ast.expr) -> tuple[str, ast.expr] | None:
        """Return the name of an option or a parameter, and its default in this file; or None.

        The command line of the script did not give the option.
        """
        if isinstance(node, ast.Name) and self.values.get(node.id) == [None]:
            if node.id in self.options:
                return None
            given_default = self.parameters.get(node.id)
            return (
                None
                if given_default is None
                else (f"{node.id} of {given_default[0]}()", given_default[1])
            )
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            default = self.defaults.get(node.attr) if node.value.id in self.parsed else None
            if default is not None and default not in self.options.values():
                return f"--{node.attr}", default
        return None

    def _taken(self, node: ast.arg) -> None:
        """Record a parameter of a function, with its class."""
        self._gives(node, node.arg, None)
        if isinstance(node.annotation, ast.Name):
            self.annotated.setdefault(node.arg, set()).add(node.annotation.id)

    def _assigned(self, target: ast.expr, value: ast.expr | None, line: int) -> None:
        """Record `x = ...`, `config["a"]["b"] = ...` and `x.a = ...`."""
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.set_later.add(ast.unparse(target))
        if isinstance(target, ast.Name):
            self._gives(target, target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for at, each in enumerate(target.elts):
                one = value.elts[at] if same and isinstance(value, ast.Tuple | ast.List) else None
                if isinstance(each, ast.Name):
                    self._gives(each, each.id, one)
        elif path := _path(target):
            self.changed.setdefault(path, line)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            if value and isinstance(getattr(target.slice, "value", None), str):
                self.stored.setdefault(target.value.id, []).append((target, value))
        elif isinstance(target, ast.Attribute) and value:
            owner = ast.unparse(target.value)
            self.attributes.setdefault(owner, []).append((target.attr, value))

    def _gives(self, at: ast.AST, name: str, value: ast.expr | None) -> None:
        """Record a value that a name gets at a place; None: it is not known."""
        self.values.setdefault(name, []).append(value)
        self.locals.setdefault((self.functions.get(id(at)), name), []).append(value)

    def _replaced(self, node: ast.Call) -> None:
        """Record `setattr(x, "a", ...)` and `replace(x, a=...)` of dataclasses."""
        function = ast.unparse(node.func)
        owner = node.args[0] if node.args else None
        if function == "setattr" and len(node.args) == 3 and isinstance(owner, ast.Name):
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self.attributes.setdefault(owner.id, []).append((name.value, node.args[2]))
        elif function in ("replace", "dataclasses.replace", "copy.replace"):
            # The original or its copy trains: the call that stands for the values is unknown. A
            # configuration without a name may be the copied one.
            changed = owner.id if isinstance(owner, ast.Name) else ""
            given = [(each.arg, node) for each in node.keywords if each.arg is not None]
            self.attributes.setdefault(changed, []).extend(given)

    def _called(self, node: ast.Call, func: ast.Attribute) -> None:
        """Record `x.append(...)`, and `add_argument("--x", default=...)`."""
        if isinstance(func.value, ast.Name) and func.attr in _GROWS:
            added: ast.expr | None = None
            if func.attr == "append":
                added = ast.List(node.args, lineno=node.lineno)
            elif func.attr == "extend" and len(node.args) == 1:
                added = node.args[0]
            self.grown.setdefault(func.value.id, []).append((node, added))
        if func.attr in _GROWS and (path := _path(func.value)):
            self.changed.setdefault(path, node.lineno)
        if ast.unparse(func).endswith("OmegaConf.update"):
            self.changed |= dict.fromkeys(HEADS, node.lineno)
        if func.attr != "add_argument":
            return
        names = [
            a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
        ]
        given = {k.arg: k.value for k in node.keywords}
        default = given.get("default")
        if default is None and ast.unparse(given.get("action", node)) == "'store_true'":
            default = ast.Constant(value=False, lineno=node.lineno)
        for each in names:
            option = each.removeprefix("--").replace("-", "_")
            if each.startswith("--"):
                self.declared.add(option)
            elif not each.startswith("-"):
                self.positional.append(option)
            if option[:1] != "_" and default is not None:
                self.defaults[option] = default

    def words_of(self, node: ast.expr | None, depth: int) -> tuple[list[CommandWord], str]:
        """Return the words of a list, `[*a, ...]` or `a + b`, and why it may have more words.

        The reason is an empty text if the words are complete.
        """
        self.left -= 1
        if self.left < 0:
            return [], "Python puts more words into it than are followed"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < DEEPEST:
            left = self.words_of(node.left, depth + 1)
            right = self.words_of(node.right, depth + 1)
            return left[0] + right[0], left[1] or right[1]
        if isinstance(node, ast.Name) and depth < DEEPEST:
            given = self.values.get(node.id, [])
            if len(given) == 1 and given[0] is not None:
                first, why = self.words_of(given[0], depth + 1)
                later, more = self.added(node.id, given[0], depth + 1)
                return first + later, why or more
            return [], f"Python puts words into '{node.id}' (line {node.lineno})"
        if isinstance(node, ast.Call) and depth < DEEPEST:
            copied = _copied(node) or self._returned(ast.unparse(node.func))
            if copied is not None:
                return self.words_of(copied, depth + 1)
        if isinstance(node, ast.Subscript) and _ARGUMENTS.fullmatch(ast.unparse(node)):
            return [], ""
        if not isinstance(node, ast.List | ast.Tuple):
            line = getattr(node, "lineno", 0)
            return [], f"Python puts more words into it (line {line})"
        words: list[CommandWord] = []
        more = ""
        for each in node.elts:
            if isinstance(each, ast.Starred):
                inner, why = self.words_of(each.value, depth + 1)
                words += inner
                more = more or why
            else:
                words.append(self.word(each))
        return words, more

    def added(self, name: str, made: ast.expr, depth: int = 1) -> tuple[list[CommandWord], str]:
        """Return the words that the file adds to a list, and why there may be others.

        made: the list as it is made. What a branch adds may never be added: the keys of such words
        are unknown.
        """
        words, more = list[CommandWord](), ""
        for at, added in self.grown.get(name, ()):
            inner, why = list[CommandWord](), f"Python adds words to it at line {at.lineno}"
            if (is_sure := self.is_beside(at, made)) is None:
                continue
            if added is not None and depth < DEEPEST:
                inner, unknown = self.words_of(added, depth)
                texts = [words[-1].text if words else "", *(each.text for each in inner)]
                # A word of which nothing is known may be any key, unless it is a flag's value.
                free = any(b == UNKNOWN and a[:1] != "-" for a, b in pairwise(texts))
                why = unknown if (is_sure or not inner) and not free else why
            if not is_sure:
                keys = (each.text.partition("=")[0] for each in inner if "=" in each.text)
                inner = [
                    CommandWord(f"{key}={UNKNOWN}", (at.lineno,), (why,))
                    for key in keys
                    if UNKNOWN not in key
                ]
            words, more = words + inner, more or why
        return words, more

    def is_beside(self, later: ast.expr, made: ast.expr) -> bool | None:
        """Return True if what comes later happens whenever a value is made: it is in the same
        function and the same branch; None if it never does."""
        same = self.functions.get(id(later)) == self.functions.get(id(made))
        same = self.branch_of(later) == self.branch_of(made) and same
        taken = [self.decided.get(id(each), (True, ()))[0] for each in (later, made)]
        return None if taken == [False, True] else same

    def branch_of(self, node: ast.expr) -> int | None:
        """Return the line of the branch that an expression is in; None: none, or one taken."""
        self.by_default |= dict.fromkeys(self.decided.get(id(node), (True, ()))[1])
        return self.branched.get(id(node))

    def lineage(self, name: str, left: int = DEEPEST) -> Lineage:
        """Return where a class of the file, or one that it imports, comes from."""
        own = self.classes.get(name) if left > 0 else None
        if own is None:
            return self._imported_lineage(name, left)
        fields = dict(fields_of(own))
        values = {key: given_of(self.word(each), each) for key, each in fields.items() if each}
        bases = [self.lineage(ast.unparse(each), left - 1) for each in own.bases]
        target = str(getattr(fields.get(TARGET), "value", ""))
        first = self._imported_lineage(target, left) if target else Lineage()
        first = next((each for each in bases if each.library), first)
        return Lineage(
            first.library,
            first.module,
            {**first.values, **values},
            frozenset(fields).union(*(each.fields for each in bases)),
            frozenset[str]().union(*(each.unread for each in bases)),
        )

    def _imported_lineage(self, name: str, left: int) -> Lineage:
        """Return where a class comes from that the file does not define."""
        owner, _, last = name.rpartition(".")
        real = last if owner else self.aliases.get(name, name)
        module = self.modules.get(owner or name, "") or self.modules.get(real, "")
        module = module or (owner if owner in library_packages() else "")
        named = real if real in configuration_classes() else ""
        of_library = module.partition(".")[0] in library_packages()
        is_class = named or real[:1].isupper()
        there = self._module(module) if is_class and left > 0 else None
        if there is None or real not in there.classes.keys() | there.modules.keys():
            is_known = of_library or real in _KNOWN_BASES
            if there is not None and real in {getattr(each, "name", "") for each in there.nodes}:
                named, is_known = "", True  # a function of the tree with a library's name
            return Lineage(named, module, unread=frozenset(() if is_known else {real}))
        found = there.lineage(real, left - 1)
        if named and not found.library and found.unread:
            return found._replace(library=named, module=module, values={})  # a copy of the class
        values = {k: replace(g, lines=(), file=there.name) for k, g in found.values.items()}
        return found._replace(values=values)

    def _module(self, module: str) -> "FileValues | None":
        """Return the reader of a module beside the file; None: not at hand, or a library's."""
        if module not in self.beside:
            is_library = not module or module.partition(".")[0] in library_packages()
            places = () if is_library else files_of(module.replace(".", "/"), self.name, self.files)
            path = next(iter(places), "")
            text = self.files[path] if path and path != self.name else ""
            tree = WithDicts().visit(ast.parse(text)) if parsed(text).body else None
            self.beside[module] = FileValues(tree, path, {}, {}, self.files) if tree else None
        return self.beside[module]

    def flatten(self, node: ast.Dict, path: str, values: dict[str, Given]) -> None:
        """Add the dotted keys of a dictionary to `values`; path: the section that it is."""
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None and self.left > 0:
                self._flatten_into(value, path, values)
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                continue
            self.left -= 1
            name = f"{path}.{key.value}" if path else key.value
            for old in [each for each in values if each.startswith(f"{name}.")]:
                del values[old]  # an earlier `**base` had a section of this name
            if isinstance(value, ast.Dict) and path.count(".") < DEEPEST and self.left > 0:
                self.flatten(value, name, values)
            else:
                word = self.word(value)
                values[name] = given_of(word, value)

    def _flatten_into(self, value: ast.expr, path: str, values: dict[str, Given]) -> None:
        """Add the keys of `**value`. Those of an unknown value may be any of this dictionary."""
        self.left -= 1
        known = self.known(value) if isinstance(value, ast.Name) else value
        if isinstance(known, ast.Dict):
            self.merged.add(id(known))
            self.flatten(known, path, values)
            return
        why = f"**{ast.unparse(value)[:60]}"
        for key in [each for each in values if each.startswith(f"{path}." if path else "")]:
            values[key] = Given(UNKNOWN, (value.lineno,), (why,))
        self.unknown_keys.append(why)

    def word(self, node: ast.expr, depth: int = 0) -> CommandWord:
        """Return the word of a constant, an f-string, `str(x)`, or a known name or argument.

        Its text is UNKNOWN if the expression is none of these.
        """
        line = (node.lineno,)
        self.left -= 1
        if isinstance(node, ast.Constant):
            # Hydra and YAML write None as null.
            text = "null" if node.value is None else str(node.value)
            # The script's own text must not hold the marks that stand for unknown values.
            file = node.kind or "" if node.lineno == 0 else ""
            of = node.default_of if isinstance(node, _Value) else ()
            text = text.replace(UNKNOWN, "").replace(UNSET, "")
            return CommandWord(text, line, default_of=of, file=file)
        if depth >= DEEPEST or self.left < 0:
            return CommandWord(UNKNOWN, line, (PUT_IN,))
        if isinstance(node, ast.JoinedStr | ast.List):
            is_list = isinstance(node, ast.List)
            parts = [
                self.word(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1)
                for part in (node.elts if isinstance(node, ast.List) else node.values)
            ]
            whole = _one_word(parts, line, ", " if is_list else "")
            return replace(whole, text=f"[{whole.text}]") if is_list else whole
        if formatted := is_formatted(node):
            text = _PLACES.sub(UNKNOWN, formatted).replace("{{", "{").replace("}}", "}")
            return CommandWord(text, line, (PUT_IN,))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "' '.join" and node.args:
            words, more = self.words_of(node.args[0], depth + 1)
            words += [CommandWord(UNKNOWN, line, (more,))] if more else []
            return _one_word(words, line, " ")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and self.is_text(node):
            both = [self.word(part, depth + 1) for part in (node.left, node.right)]
            return _one_word(both, line)
        if isinstance(node, ast.Call) and _is_environment(node):
            default = self.word(node.args[1], depth + 1)
            name = node.args[0]
            literal = name.value if isinstance(name, ast.Constant) else None
            variable = f"${literal}" if isinstance(literal, str) else ast.unparse(name)
            return replace(default, default_of=(variable, *default.default_of))
        if isinstance(node, ast.IfExp) and "sys.argv" not in ast.unparse(node.test):
            return self._either(node, depth + 1)
        makes = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if makes in ("str", "float", "int") and isinstance(node, ast.Call) and node.args:
            return self.word(node.args[0], depth + 1)
        if given_default := self._script_default(node):
            word = self.word(given_default[1], depth + 1)
            names = (given_default[0], *word.default_of)
            return replace(word, lines=(*line, *word.lines), default_of=names)
        known = self.known(node)
        if known is not None:
            word = self.word(known, depth + 1)
            return replace(word, lines=(*line, *filter(None, word.lines)))
        is_source = isinstance(node, ast.Name) and not node.id.isidentifier()
        return CommandWord(UNKNOWN, line, (ast.unparse(node) if is_source else PUT_IN,))

    def _either(self, node: ast.IfExp, depth: int) -> CommandWord:
        """Return the word of `a if x == y else b`; of both, where x or y is not known."""
        yes, no = (self.word(each, depth) for each in (node.body, node.orelse))
        written, (holds, names) = ast.unparse(node.test), self._holds(node.test, depth)
        if holds is not None:
            taken = yes if holds else no
            return replace(taken, default_of=(*names, *taken.default_of))
        choices = ((f"{written} holds", yes.text), (f"{written} does not hold", no.text))
        is_open = UNKNOWN in yes.text + no.text
        return CommandWord(UNKNOWN, (node.lineno,), (PUT_IN,), choices=() if is_open else choices)

    def _holds(self, test: ast.expr, depth: int = 0) -> tuple[bool | None, tuple[str, ...]]:
        """Return whether a condition holds, None if that is not known, and the defaults it reads.

        A value that the file sets later is not known.
        """
        names: list[str] = []

        def text_of(node: ast.expr) -> str | None:
            word = self.word(node, depth)
            names.extend(word.default_of)
            is_known = UNKNOWN not in word.text and ast.unparse(node) not in self.set_later
            return word.text if is_known else None

        return is_true(test, text_of), tuple(names)

    def is_text(self, node: ast.expr | None, depth: int = 0) -> bool:
        """Return True if the value is known to be a string: `+` joins strings and adds numbers."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < DEEPEST:
            return self.is_text(node.left, depth + 1) or self.is_text(node.right, depth + 1)
        if isinstance(node, ast.Call):
            is_string = isinstance(node.func, ast.Name) and node.func.id == "str"
            return is_string or bool(is_formatted(node)) or _is_environment(node)
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and depth < DEEPEST:
            return self.is_text(self.known(node), depth + 1)
        string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return string or isinstance(node, ast.JoinedStr) or bool(node and is_formatted(node))

    def _opened(self, node: ast.expr) -> ast.expr:
        """Return the path that an expression opens: of a file's name, `open(p)`, `p.open()`."""
        if isinstance(node, ast.Name):
            before = [each for each in self.opened.get(node.id, ()) if each.lineno <= node.lineno]
            node = max(before, key=lambda each: each.lineno, default=node)
        while isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("open", "read_text"):
                node = node.func.value
            elif node.args and ast.unparse(node.func) in ("open", "Path", "str"):
                node = node.args[0]
            else:
                break
        return node

    def _path_loaded(self, node: ast.Call) -> str:
        """Return the path of the file whose content a call gives: of `yaml.safe_load(open(path))`,
        or of a function that returns this for its first parameter; empty if it is not known."""
        given, name = next(iter(node.args), None), ast.unparse(node.func)
        if name not in _LOADS:
            there = self if name in self.defined else self._module(self.modules.get(name, ""))
            given = there.returned(self.aliases.get(name, name), given) if there else None
        text = UNKNOWN if given is None else self.word(self._opened(given)).text
        return "" if UNKNOWN in text else text

    def _returned(self, name: str) -> ast.expr | None:
        """Return the one expression that a function of the file returns, or None."""
        parts = ast.walk(self.defined[name]) if name in self.defined else ()
        values = [each.value for each in parts if isinstance(each, ast.Return)]
        return values[0] if len(values) == 1 else None

    def returned(self, name: str, given: ast.expr | None) -> ast.expr | None:
        """Return the path that a function loads a file from and returns its content: its first
        parameter, which is `given`; None for another function."""
        function, known = self.defined.get(name), self._returned(name)
        call = _without_else(self.held(known) if isinstance(known, ast.Name) else known)
        if not function or not isinstance(call, ast.Call) or ast.unparse(call.func) not in _LOADS:
            return None
        path = self._opened(call.args[0]) if call.args else None
        first = [each.arg for each in function.args.args[:1]]
        return given if isinstance(path, ast.Name) and [path.id] == first else None

    def _load(self, node: ast.expr | None) -> ast.expr | None:
        """Return what `yaml.safe_load(open("a.yaml"))` and `OmegaConf.load("a.yaml")` give; other
        expressions as they are."""
        call = _without_else(node)
        path = self._path_loaded(call).removeprefix("./") if isinstance(call, ast.Call) else ""
        if path and path not in self.loaded:
            text = self.files.get(path)
            try:
                read = {} if text is None else yaml_document(yaml_node(text), path).values
            except UnreadableScript:
                read = {}
            own = {key: replace(given, file=path) for key, given in read.items()}
            self.loaded[path] = _as_dictionary(own) if own else None
        return self.loaded.get(path) or node

    def held(self, node: ast.Name) -> ast.expr | None:
        """Return what a name holds: its function's own, else the file's, else a module's."""
        name = node.id
        own = self.locals.get((self.functions.get(id(node)), name))
        given = own or self.values.get(name, [])
        known = self._load(given[0]) if len(given) == 1 else None
        if not given and (there := self._module(self.modules.get(name, ""))):
            known = there.constant(self.aliases.get(name, name))
        return None if name in self.grown else self._with_stored(known, node)

    def known(self, node: ast.expr) -> ast.expr | None:
        """Return what a name, an element, an attribute or a call holds; None if it is not known."""
        if isinstance(node, ast.Name):
            return self.held(node)
        if isinstance(node, ast.Call):
            of = None
            if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                of = self.dictionary(node.func.value)
            key = node.args[0] if node.args else None
            if isinstance(of, ast.Dict) and isinstance(key, ast.Constant):
                return item_of(of, key.value) or next(iter(node.args[1:]), None)
            loaded, copied = self._load(node), _copied(node)
            return self.known(copied) if copied else None if loaded is node else loaded
        if isinstance(node, ast.IfExp) and "sys.argv" in ast.unparse(node.test):
            return node.body if "sys.argv[1]" in self.options else node.orelse
        if (written := ast.unparse(node)) in self.set_later:
            return None
        if written in self.options:
            return self.options[written]
        if isinstance(node, ast.Attribute) and (of := self.dictionary(node.value)):
            return item_of(of, node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            known = self.dictionary(node.value)
            return item_of(known, node.slice.value) if known is not None else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in self.parsed and node.attr in self.defaults:
                return self.defaults[node.attr]
            module = self.modules.get(node.value.id, "")
            there = self._module(module) or self._module(f"{module}.{node.value.id}")
            beside = there.constant(node.attr) if there else None
            return beside or self._member(node.value, node.attr)
        return None

    def _with_stored(self, known: ast.expr | None, node: ast.Name) -> ast.expr | None:
        """Return what a name holds, with the keys that the file gives it before it is read; those
        of a branch, and later ones, are not known."""
        stored = self.stored.get(node.id, ())
        if not stored or not isinstance(known, ast.Dict):
            return None if stored else known
        whole = ast.Dict([*known.keys], [*known.values], lineno=known.lineno)
        for at, value in stored:
            is_sure = at.lineno < node.lineno and self.is_beside(at, known)
            whole.keys.append(at.slice)
            whole.values.append(
                value if is_sure else ast.Name(f"line {at.lineno}", lineno=at.lineno)
            )
        return whole

    def constant(self, name: str) -> ast.expr | None:
        """Return what a name of this file holds, for another file."""
        known = self.known(ast.Name(name, lineno=sys.maxsize)) if name in self.values else None
        if known and not isinstance(known, ast.Dict):
            return self._value(known)
        self.unknown_keys, values = [], dict[str, Given]()
        if isinstance(known, ast.Dict):
            self.flatten(known, "", values)
        own = {key: replace(each, lines=(), file=self.name) for key, each in values.items()}
        return _as_dictionary(own) if own and not self.unknown_keys else None

    def field(self, kind: str, name: str) -> ast.expr | None:
        """Return the default of a field of a class of this file, for another file."""
        default = dict(fields_of(self.classes[kind])).get(name) if kind in self.classes else None
        return default and self._value(default)

    def _value(self, node: ast.expr) -> ast.expr | None:
        """Return a value of this file, for another file; None if it is not known."""
        word = self.word(node)
        value = _Value(word.text, kind=self.name, lineno=0)
        value.default_of = word.default_of
        return None if UNKNOWN in word.text else value

    def dictionary(self, node: ast.expr) -> ast.Dict | None:
        """Return the dictionary that a name holds, itself or through other names."""
        if id(node) in self.followed:
            return None  # `a = a["b"]`
        self.followed.add(id(node))
        known = self.known(node)
        if known is not None and not isinstance(known, ast.Dict):
            known = self.dictionary(known)
        self.followed.discard(id(node))
        return known if isinstance(known, ast.Dict) else None

    def _member(self, owner: ast.Name, name: str) -> ast.expr | None:
        """Return the value of `x.name`, or None if it is not known.

        x must be a class of this file, an instance of one, or a parameter annotated with one; or
        an instance of a class that the file imports.
        """
        # It is set after the object was made, so the class does not say its value.
        if any(key == name for key, _ in self.attributes.get(owner.id, ())):
            return None
        value = self.known(owner)
        kind, given = owner.id, dict[str | None, ast.expr]()
        if value is None and len(types := self.annotated.get(owner.id, set())) == 1:
            (kind,) = types
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and not value.args:
            kind, given = value.func.id, {each.arg: each.value for each in value.keywords}
        there = self._module(self.modules.get(kind, "")) if isinstance(value, ast.Call) else None
        # `**values` may have set any of its fields.
        if (kind not in self.classes and not there) or None in given:
            return None
        if name in given:
            return given[name]
        if name in self.options:  # a parser of dataclasses, such as tyro's
            return self.options[name]
        if kind not in self.classes and there:
            return there.field(self.aliases.get(kind, kind), name)
        fields = dict(fields_of(self.classes[kind]))
        if name in fields:
            return fields[name]
        own = [
            each.value
            for each in ast.walk(self.classes[kind])
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == f"self.{name}"
        ]
        return own[0] if len(own) == 1 else None


def _without_else(node: ast.expr | None) -> ast.expr | None:
    """Return x of `x or {}`; other expressions as they are."""
    return node.values[0] if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) else node


def item_of(node: ast.Dict, key: object) -> ast.expr | None:
    """Return the value of a key; None without one."""
    pairs = zip(node.keys, node.values, strict=True)
    return next((value for k, value in pairs if getattr(k, "value", None) == key), None)


def _as_dictionary(values: Mapping[str, Given]) -> ast.Dict:
    """Return dotted keys as the dictionary that a program has; a name for what is not known."""
    whole = ast.Dict([], [], lineno=0)
    for key, given in values.items():
        at, parts = whole, key.split(".")
        for part in parts[:-1]:
            inner = item_of(at, part)
            if not isinstance(inner, ast.Dict):
                inner = ast.Dict([], [], lineno=0)
                at.keys.append(ast.Constant(part, lineno=0))
                at.values.append(inner)
            at = inner
        is_known = UNKNOWN not in given.text and "${" not in given.text
        value = ast.Constant(given.text, kind=given.file, lineno=0)
        at.keys.append(ast.Constant(parts[-1], lineno=0))
        at.values.append(value if is_known else ast.Name(given.file or PUT_IN, lineno=0))
    return whole


def _copied(node: ast.Call) -> ast.expr | None:
    """Return x of `list(x)`, `x.copy()` and `copy.copy(x)`, or None for another call."""
    function = ast.unparse(node.func)
    if function in _COPIES and node.args:
        return node.args[0]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "copy" and not node.args:
        return node.func.value
    return None


def is_formatted(node: ast.AST) -> str:
    """Return the string that `.format(...)` or `%` puts values into, or an empty text."""
    string: ast.AST | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        string = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        string = node.func.value if node.func.attr == "format" else None
    if isinstance(string, ast.Constant) and isinstance(string.value, str):
        return string.value
    return ""


def is_main(node: ast.AST) -> bool:
    """Return True for `if __name__ == "__main__"`, which is always true in a launch."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def given_of(word: CommandWord, value: ast.expr) -> Given:
    """Return the word of a value as a setting, on the line of the value."""
    lines = (value.lineno,) if value.lineno else ()
    given = Given(word.text, lines, word.why, default_of=word.default_of, file=word.file)
    return replace(given, choices=word.choices)


def _one_word(
    parts: Sequence[CommandWord], lines: tuple[int, ...], between: str = ""
) -> CommandWord:
    """Return the word that parts make."""
    why = tuple(dict.fromkeys(reason for part in parts for reason in part.why))
    default_of = tuple(dict.fromkeys(name for part in parts for name in part.default_of))
    return CommandWord(between.join(part.text for part in parts), lines, why, default_of)


def _is_environment(node: ast.Call) -> bool:
    """Return True for `os.environ.get(name, default)` and `os.getenv(name, default)`."""
    names = ("os.environ.get", "os.getenv", "environ.get", "getenv")
    return len(node.args) == 2 and ast.unparse(node.func) in names


def _path(target: ast.expr) -> str:
    """Return the dotted key of `config["actor_rollout_ref"]["actor"]["use_kl_loss"]`.

    Return an empty text if the key is not known or not in a section of HEADS.
    """
    parts: list[str] = []
    node: ast.expr = target
    while isinstance(node, ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            parts.append(node.slice.value)
        else:
            return ""
        node = node.value
    parts.reverse()
    at = next((i for i, part in enumerate(parts) if part in HEADS), None)
    return "" if at is None else ".".join(parts[at:])


def _parsed_names(node: ast.AST) -> list[str]:
    """Return the variables that an assignment gives the options of a parser: of
    `x = parser.parse_args()`, `x = parse_args()`, `x, _ = parser.parse_known_args()`,
    `x, y = HfArgumentParser((X, Y)).parse_args_into_dataclasses()`."""
    if not isinstance(node, ast.Assign):
        return []
    value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
    function = getattr(value, "func", None)
    if not getattr(function, "attr", getattr(function, "id", "")).startswith("parse_"):
        return []
    target = node.targets[0]
    of_target = target.elts if isinstance(target, ast.Tuple) else [target]
    return [each.id for each in of_target if isinstance(each, ast.Name)]
