"""Find somebody's own code around the loss of a launch: classes, registered functions, patches.

A library's `OwnHooks` names what can be replaced. The program of a launch, and the modules beside
it that it imports, are parsed and never run.
"""

import ast
import posixpath
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.audit.checkout import functions, known_code, names_in, names_of
from orchestrator.audit.libraries import (
    NeighbourFiles,
    configuration_classes,
    found_beside,
    library_packages,
    marks,
    may_configure,
    uncommented,
)
from orchestrator.library.key_tables import parsed
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    CommandWord,
    Launch,
    LaunchReading,
    OwnCode,
)
from orchestrator.library.release_marks import OwnHooks, Replaced

REGISTERED, NAMED, _NO_RELEASE = "registered as", "named by", "that no release has"
MOST_MODULES = 40
"""Maximum number of modules beside a program that are read."""
_OF_A_KL = re.compile(r"(?:^|_)(?:kl|ref|reference|teacher)(?:_|$)")
"""Names of a KL, or of a policy that one may be to."""
_TRAINS = re.compile(r"(?m)Trainer|\btrain\w*\(|^\s*(?:from|import)\b.*(?:train|\bmain\b)")
"""What a program has that trains, by itself or by what it imports."""
_WHOLE = "train"
"""The method with the whole training in it. Much else than a trainer has an attribute so named."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OPEN = re.compile(rf"{UNKNOWN}|{UNSET}|\$")
"""What a run alone would show of a value."""


class _Module(NamedTuple):
    """A parsed file: its path, its tree, and each imported name with its full dotted name."""

    path: str
    tree: ast.Module
    imported: Mapping[str, str]


def with_own_code(launch: Launch, reading: LaunchReading, program: tuple[str, str]) -> Launch:
    """Return the launch with somebody's own code around its loss.

    program: name and text of the audited file, which is the program where no command starts one.
    """
    mark = marks().get(reading.library)
    if mark is None:
        return launch
    audited = (posixpath.basename(program[0]), program[1])
    own = own_code(launch, reading, mark.hooks, audited)
    blind = mark.hooks.blind
    if all(e.kind in blind or _is_apart(e, reading, launch.beside, mark.hooks) for e in own):
        launch, own = replace(launch, apart=own), ()
    return replace(launch, own=own)


def own_code(
    launch: Launch, reading: LaunchReading, hooks: OwnHooks, program: tuple[str, str]
) -> tuple[OwnCode, ...]:
    """Return the code that takes the place of the library's around the loss of a launch.

    program: path and text of the Python file that is the launch, where no command starts one.
    """
    entry = _entry(launch)
    replaced = list(_named_functions(hooks, reading, launch))
    modules: list[_Module] = []
    path, text = (entry, launch.beside.get(entry)) if entry else program
    is_stock = re.search(hooks.stock, entry)
    if not is_stock and text is not None:
        modules = _modules(path, text, launch.beside, hooks)
    is_of_package = entry.partition("/")[0] in hooks.packages
    if is_of_package and not is_stock and not _starts_one(modules, hooks, reading.library):
        replaced.append(OwnCode("trainer", f"the program {entry}", entry, (), _NO_RELEASE))
    for each in _extra_modules(hooks, reading):
        if each in launch.beside:
            modules += _modules(each, launch.beside[each], launch.beside, hooks)
    replaced += _classes(modules, hooks, _settings(launch, reading, modules))
    texts = (launch.beside.get(path) or "" for path in known_code(reading.library).files)
    trees = [*(each.tree for each in modules), *map(parsed, texts)]
    values = _values(reading, trees)
    for module in modules:
        replaced += _registered(module, modules, hooks, values)
        replaced += _patched(module, hooks)
    for kind, name in reading.chosen:
        if not any(each.kind == kind and each.how.startswith(REGISTERED) for each in replaced):
            replaced.append(_of_checkout(kind, name, reading, launch, hooks))
    return tuple(dict.fromkeys(replaced))


def _is_apart(
    own: OwnCode, reading: LaunchReading, beside: Mapping[str, str], hooks: OwnHooks
) -> bool:
    """Return True for an advantage that a setting names, by its path beside a KL in the loss, for a
    loop that hands its batches to the library's loss, where no KL is in the reward, and for a
    reward: if the code names no KL."""
    nodes = ast.walk(parsed(beside.get(own.path) or ""))
    found = (e for e in nodes if isinstance(e, _FUNCTIONS) and own.lines[:1] == (e.lineno,))
    code = next(found, None)
    settings = {e.key.rpartition(".")[2]: e.value.lower() for e in reading.settings}
    names = names_in(_nodes(code, lambda each: _idle(each, settings)) if code is not None else ())
    is_reward = own.name.endswith(hooks.reward)
    of_loop = hooks.loop if own.name.endswith(".fit") else ("(?!)", "(?!)")
    calls, ours = ("(?!)", r"\w*reference\w*") if is_reward else of_loop
    is_loop = any(re.fullmatch(calls, each) for each in names)
    ways = (REGISTERED, NAMED) if reading.in_loss.active else (REGISTERED,)
    is_named = own.how.startswith(ways) or own.how == _NO_RELEASE
    reads_kl = any(_OF_A_KL.search(each) and not re.fullmatch(ours, each) for each in names)
    is_hidden = bool(own.path) and code is None
    may_be = is_loop or (own.kind == "advantage" and is_named)
    may_be = is_reward or (may_be and reading.in_reward.active is False)
    return may_be and not reads_kl and not is_hidden


def _idle(node: ast.AST, settings: Mapping[str, str]) -> Sequence[ast.AST]:
    """Return the statements of a condition that these settings never run."""

    def text_of(value: ast.expr) -> str | None:
        if isinstance(value, ast.Constant):
            return str(value.value).lower()
        last = next(iter(getattr(value, "args", ())), getattr(value, "slice", value))
        return settings.get(str(getattr(last, "attr", getattr(last, "value", ""))))

    if not isinstance(node, ast.If) or (holds := is_true(node.test, text_of)) is None:
        return ()
    return node.orelse if holds else node.body


def is_true(test: ast.expr, text_of: Callable[[ast.expr], str | None]) -> bool | None:
    """Return whether a condition holds; None if what its values are does not say.

    text_of: the text of a value; None: it is not known.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = is_true(test.operand, text_of)
        return None if inner is None else not inner
    if not isinstance(test, ast.Compare):
        return {"true": True, "false": False, "null": False}.get((text_of(test) or "").lower())
    both = (text_of(test.left), text_of(test.comparators[0]))
    if None in both or len(test.ops) > 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
        return None
    return (both[0] == both[1]) == isinstance(test.ops[0], ast.Eq)


def _starts_one(modules: Iterable[_Module], hooks: OwnHooks, library: str) -> bool:
    """Return True if a program imports what starts a trainer from a file of the library around its
    loss, or from a program of its. A fork's own trainer may have such a name, in its own file."""
    known = known_code(library).files
    dotted = (each for module in modules for each in module.imported.values())
    for each in dotted:
        owner, _, name = each.rpartition(".")
        files = [f"{module.replace('.', '/')}.py" for module in (owner, each)]
        if _fits(name, hooks) and any(f in known or re.search(hooks.stock, f) for f in files):
            return True
    return False


def _of_checkout(
    kind: Replaced, name: str, reading: LaunchReading, launch: Launch, hooks: OwnHooks
) -> OwnCode:
    """Return a function that the launch asks for by name, as the library's files beside it or the
    programs in the script's folder register it; of a loss, also the branch that its name takes."""
    beside, asked = launch.beside, [repr(name)]
    programs = beside.named(".py") if isinstance(beside, NeighbourFiles) else ()
    for path in (*known_code(reading.library).files, *programs):
        module = _Module(path, parsed(beside.get(path) or ""), {})
        for each in _registered(module, [module], hooks, {kind: frozenset({name.lower()})}):
            # As a text, or as an enum's member, which has another spelling.
            if each.kind == kind and re.search(rf"{name!r}|\.\w+$", each.how):
                return each
        for node in ast.walk(module.tree) if kind == "loss" else ():
            if isinstance(node, ast.If) and ast.unparse(node.test).split(" == ")[1:] == asked:
                return _own(kind, f"the loss {name}", module, node.body[0], _NO_RELEASE)
    return OwnCode(kind, name, "", (), _NO_RELEASE)


def _entry(launch: Launch) -> str:
    """Return the path of the program that a command starts; empty without one."""
    path = entry_at(launch.words)[1].removeprefix("./")
    return found_beside(path, launch.beside) or path


def taken_for_granted(launch: Launch, reading: LaunchReading) -> Iterator[str]:
    """Yield what is assumed of a program, of a command or with a dictionary of settings, that is
    not the library's own."""
    mark, entry, library = marks().get(reading.library), _entry(launch), reading.library
    if not launch.words and launch.documents and launch.documents[-1].name.endswith(".py"):
        entry = launch.documents[-1].name
    if mark is None or not entry or launch.own or mark.configuration_classes:
        return
    if re.search(mark.hooks.stock, entry):
        return
    own, is_path = f"{library}'s own", re.fullmatch(r"\w[\w./-]*", entry)
    has_code = any(path in launch.beside for path in known_code(library).files)
    if launch.words and is_path and has_code and entry not in launch.beside:
        yield f"{entry} is there when it runs: it was not found beside the script"
    else:  # of some libraries nothing says which programs are theirs
        is_not = "" if mark.hooks.stock == OwnHooks().stock else f"is not {own}: it "
        yield f"{entry} {is_not}trains with these settings as {own} does"


def entry_at(words: Sequence[CommandWord]) -> tuple[int, str]:
    """Return the place and the path of the program among a command's words; no path without one."""
    for i, (before, word) in enumerate(pairwise(("", *(word.text for word in words)))):
        if word.endswith(".py"):
            return i, word
        is_module = re.fullmatch(r"(?!torch\b|accelerate\b|deepspeed\b)[A-Za-z_][\w.]*", word)
        if before in ("-m", "--module") and is_module:
            return i, word.replace(".", "/") + ".py"
    return 0, ""


def trainer_beside(path: str, text: str, beside: Mapping[str, str]) -> str:
    """Return the file that creates a trainer's configuration: the program itself, or the one of
    the modules beside it that it imports; else a program that hydra may make one in. Empty if none
    does, or several do."""
    hooks = OwnHooks(packages=tuple(library_packages()))
    if path.partition("/")[0] in hooks.packages:
        return path if may_configure(text) else ""
    modules = _modules(path, text, beside, hooks)
    nodes = (e for each in modules[1:] for e in _definitions(each.tree).values())
    if may_configure(text, {e.name for e in nodes if isinstance(e, ast.FunctionDef)}):
        return path
    creating = [each.path for each in modules[1:] if _runs(each, modules)]
    of_hydra = path if "instantiate(" in text and not creating else ""
    return creating[0] if len(creating) == 1 else of_hydra


def with_modules(path: str, text: str, beside: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of a program, and of the modules beside it that it imports."""
    yield path, text
    for each in _modules(path, text, beside, OwnHooks(packages=tuple(library_packages())))[1:]:
        yield each.path, beside[each.path]


def _runs(module: _Module, modules: Iterable[_Module]) -> bool:
    """Return True if something that others import from a module creates a configuration, by
    functions of the module that it calls."""
    stem = f"/{module.path.removesuffix('.py').removesuffix('/__init__')}"
    waiting: list[str] = []
    for each in modules:
        for owner, _, name in (dotted.rpartition(".") for dotted in each.imported.values()):
            if stem.endswith(f"/{(owner or name).replace('.', '/')}"):
                waiting += [name] if owner else names_of(each.tree)
    visited = set[str]()
    while waiting:
        name = waiting.pop()
        found = _definitions(module.tree).get(name) if name not in visited else None
        visited.add(name)
        if found is not None and any(_creates(each, module) for each in ast.walk(found)):
            others = [each.tree for each in modules if each is not module]
            if not isinstance(found, ast.ClassDef) or _trained(found, others):
                return True
        waiting += names_of(found) if found is not None else ()
    return False


def _trained(kind: ast.ClassDef, users: Iterable[ast.AST]) -> bool:
    """Return False for a class that the code which uses it never trains (an evaluation)."""
    methods = {each.name: _used(each) for each in kind.body if isinstance(each, _FUNCTIONS)}
    training = {_WHOLE}
    for _ in methods:
        training |= {name for name, used in methods.items() if used & training}
    return bool(training & {"__init__", "__call__"}.union(*map(_used, users)))


def _creates(node: ast.AST, module: _Module) -> bool:
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    whole = module.imported.get(called, called)  # `from trl import GRPOConfig as Config`
    return whole.rpartition(".")[2] in configuration_classes()


def is_of_another(launch: Launch, library: str) -> bool:
    """Return True if the program of a launch lies beside and names other libraries alone; of one
    that names none, if the modules beside it that it imports do, or if nothing there trains."""
    path = found_beside(entry_at(launch.words)[1], launch.beside)
    own, *modules = with_modules(path, launch.beside.get(path) or "", launch.beside)
    named = {*_libraries_in(own[1])} or {e for _, text in modules for e in _libraries_in(text)}
    if own[1] and not named and library in marks() and marks()[library].configuration_classes:
        return not any(_TRAINS.search(text) for _, text in (own, *modules))
    return bool(named) and library not in named


def _libraries_in(code: str) -> Iterator[str]:
    """Yield the libraries whose packages a Python file names."""
    code = uncommented(code)
    for name, mark in marks().items():
        packages = "|".join((name, *mark.hooks.packages))
        if re.search(rf"\b(?:import|from) (?:{packages})\b|\b(?:{packages})\.[a-z]", code):
            yield name


def _values(reading: LaunchReading, code: Iterable[ast.AST]) -> Mapping[Replaced, frozenset[str]]:
    """Return the values, in lower case, of the settings that a release or the code beside reads: of
    an advantage all of them, of a loss those of keys that name no advantage."""
    nodes = (node for tree in code for node in ast.walk(tree))
    named = names_in(node for node in nodes if not isinstance(node, ast.Name))
    given = [(each.key, each.value) for each in reading.settings]
    if held := reading.held:
        for key, several in held.given.items():
            known = any(table.has(key) for table in (held.table, *held.others))
            if known or key.rpartition(".")[2] in named:
                given += [(key, each.text) for each in several]
    texts = [(key, text.strip("'\"").lower()) for key, text in given]
    of_loss = frozenset(text for key, text in texts if "adv" not in key.rpartition(".")[2])
    every = {str(reading.advantage_estimator).lower(), *(text for _, text in texts)}
    return {"advantage": frozenset(every), "loss": of_loss}


def _named_functions(hooks: OwnHooks, reading: LaunchReading, launch: Launch) -> Iterator[OwnCode]:
    """Yield the functions that a setting names by their path."""
    alone = {key: [each] for d in launch.documents for key, each in d.values.items()}
    for key, several in (reading.held.given if reading.held else alone).items():
        kind = next((kind for end, kind in hooks.paths.items() if key.endswith(end)), None)
        value = several[-1].text.strip("'\"")
        if kind is None or not re.fullmatch(r"[\w./]+(?::\w+|\.\w+)", value):
            continue
        module, _, name = value.rpartition(":" if ":" in value else ".")
        path = module if module.endswith(".py") else module.replace(".", "/") + ".py"
        if re.search(hooks.stock, path):
            continue
        known = functions(launch.beside.get(path) or "").get(name)
        lines = known.lines if known is not None else ()
        yield OwnCode(kind, name, path, lines, f"{NAMED} {key}")


def _extra_modules(hooks: OwnHooks, reading: LaunchReading) -> Iterator[str]:
    """Yield the paths of modules that a setting makes the library import."""
    for key, several in reading.given.items():
        if hooks.imports and key.endswith(hooks.imports):
            yield several[-1].text.strip("'\"").replace(".", "/") + ".py"


# ------------------------------------------------------------------------------ modules beside


def _modules(path: str, text: str, beside: Mapping[str, str], hooks: OwnHooks) -> list[_Module]:
    """Return a program and the modules beside it that it imports, itself first."""
    waiting, visited = [(path, text)], {path}
    read: list[_Module] = []
    while waiting and len(read) < MOST_MODULES:
        at, source = waiting.pop(0)
        tree = parsed(source)
        if not tree.body:
            continue
        imported: dict[str, str] = {}
        for node in ast.walk(tree):
            for name, dotted, module in _imports(node, at):
                imported[name] = dotted
                is_forked = re.fullmatch(hooks.forked, dotted)
                if module.partition("/")[0] in hooks.packages and not is_forked:
                    continue
                for each in files_of(module, at, beside):
                    if each not in visited:
                        visited.add(each)
                        waiting.append((each, beside[each]))
        read.append(_Module(at, tree, imported))
    return read


def _imports(node: ast.AST, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, full dotted name, module as a path) of each name that a statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or whole, whole, alias.name.replace(".", "/")
    elif isinstance(node, ast.ImportFrom):
        folder = posixpath.dirname(path)
        for _ in range(node.level - 1):
            folder = posixpath.dirname(folder)
        module = (node.module or "").replace(".", "/")
        if node.level:
            module = posixpath.join(folder, module) if folder else module
        for alias in node.names:
            dotted = f"{module.replace('/', '.')}.{alias.name}".strip(".")
            yield alias.asname or alias.name, dotted, module
            yield alias.asname or alias.name, dotted, posixpath.join(module, alias.name)


def files_of(module: str, path: str, beside: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of a module that lies in the program's folder or above it."""
    folders = [".", *map(str, PurePosixPath(path).parents)]
    for each in dict.fromkeys((*folders, *(posixpath.join(one, "src") for one in folders))):
        stem = posixpath.normpath(posixpath.join(each, module))
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in beside:
                yield file
                return


def _default(value: ast.expr | None) -> ast.expr | None:
    """Return the default of a dataclass's field: the value itself, or `default` of `field(...)`."""
    if isinstance(value, ast.Call):
        return next((each.value for each in value.keywords if each.arg == "default"), None)
    return value


def fields_of(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the fields of a class with their defaults."""
    for each in node.body:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            yield target.id, _default(each.value)


def dataclass_defaults(classes: Iterable[ast.ClassDef]) -> dict[str, ast.expr]:
    """Return field -> default of the file's dataclasses, which a parser makes options of. A field
    that two of them have is left out."""
    given: dict[str, list[ast.expr]] = {}
    for each in classes:
        if not any("dataclass" in ast.unparse(decorator) for decorator in each.decorator_list):
            continue
        for name, value in fields_of(each):
            if value is not None:
                given.setdefault(name, []).append(value)
    return {name: values[0] for name, values in given.items() if len(values) == 1}


# ------------------------------------------------------------------------------- what replaces


def _settings(
    launch: Launch, reading: LaunchReading, modules: Sequence[_Module]
) -> Mapping[str, str]:
    """Return the values of a launch's settings, and the defaults of its dataclasses, by the last
    part of the name; none that is not known, or that the program sets."""
    nodes = [node for each in modules for node in ast.walk(each.tree)]
    is_whole = not (launch.open_end or launch.missing)
    defaults = dataclass_defaults(e for e in nodes if isinstance(e, ast.ClassDef) and is_whole)
    plain = {name: e.value for name, e in defaults.items() if isinstance(e, ast.Constant)}
    known = {name: str(value) for name, value in plain.items()}
    of_launch = dict[str, str]()
    for key, several in reading.given.items():
        last, text = key.rpartition(".")[2], several[-1].text.strip("'\"")
        of_launch[last] = text if of_launch.get(last, text) == text else UNKNOWN
    known |= of_launch
    set_ = {e.attr for e in nodes if isinstance(e, ast.Attribute) and isinstance(e.ctx, ast.Store)}
    sure = {name: text for name, text in known.items() if not OPEN.search(text)}
    return {name: text.lower() for name, text in sure.items() if name not in set_}


def _classes(
    modules: list[_Module], hooks: OwnHooks, settings: Mapping[str, str]
) -> Iterator[OwnCode]:
    """Yield the methods around the loss of classes that a program uses and that derive from one
    of the library's; and trainers whose module is not at hand."""
    defined = {
        node.name: (module, node)
        for module in reversed(modules)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    called = {e.imported.get(name, name) for e in modules for name in _used(e.tree, settings)}
    used = {dotted.rpartition(".")[2] for dotted in called}
    stock = {e for e in used if e.endswith("Trainer") and e not in defined and _fits(e, hooks)}
    unless = f", unless the {min(stock)} beside it is what trains" if stock else ""
    for name in sorted(used & defined.keys()):
        line = _lineage(name, defined)
        bases = {e: [_base(base, defined[e][0]) for base in defined[e][1].bases] for e in line}
        of_library = sorted(
            last
            for last, of in chain.from_iterable(bases.values())
            # A class of one's own may have the name of the library's that it derives from.
            if _fits(last, hooks)
            and (last not in defined or of.partition(".")[0] in hooks.packages)
        )
        for each in line:
            if of_library:
                yield from _methods(*defined[each], hooks, of_library[0], unless=unless)
            elif _fits(each, hooks) and not hooks.bare:  # a whole trainer of one's own
                yield from _methods(*defined[each], hooks, each, "the library", unless)
            for last, of in bases[each] if hooks.bare and "Trainer" in each else ():
                if last not in defined and of.partition(".")[0] not in hooks.packages:
                    yield from _methods(*defined[each], hooks, hooks.bare[0], last, unless)
    for module in modules[:1]:
        for dotted in sorted(called.intersection(module.imported.values())):
            owner, _, name = dotted.rpartition(".")
            is_known = dotted.partition(".")[0] in (*hooks.packages, *hooks.known_packages)
            is_trainer = re.fullmatch(hooks.trainers, name) and not is_known
            is_forked = re.fullmatch(hooks.forked, dotted) and name.endswith("Trainer")
            if name not in defined and (is_trainer or is_forked):
                yield OwnCode("trainer", name, module.path, (), f"of {owner}, which is not at hand")


def _used(tree: ast.AST, settings: Mapping[str, str] = MappingProxyType({})) -> set[str]:
    """Return the names that a tree reads with these settings, but for the bases of its classes."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in _nodes(tree, lambda e: getattr(e, "bases", None) or _idle(e, settings))
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    }


def _nodes(tree: ast.AST, left_out: Callable[[ast.AST], Sequence[ast.AST]]) -> Iterator[ast.AST]:
    """Yield the nodes of a tree without those below a node that `left_out` returns of it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        skipped = set(map(id, left_out(node)))
        waiting += [each for each in ast.iter_child_nodes(node) if id(each) not in skipped]


def _lineage(name: str, defined: Mapping[str, tuple[_Module, ast.ClassDef]]) -> list[str]:
    """Return a class and those of its bases that lie beside the program."""
    line, waiting = [], [name]
    while waiting:
        each = waiting.pop(0)
        if each in defined and each not in line:
            line.append(each)
            module, node = defined[each]
            waiting += [_base(base, module)[0] for base in node.bases]
    return line


def _base(node: ast.expr, module: _Module) -> tuple[str, str]:
    """Return the last part of a base class's own name, and its full dotted name or nothing."""
    text = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    first, _, rest = text.partition(".")
    dotted = module.imported.get(first, "")
    whole = f"{dotted}.{rest}" if rest else dotted
    return (whole or text).rpartition(".")[2], whole


def _fits(base: str, hooks: OwnHooks) -> bool:
    return base in hooks.bare or any(re.fullmatch(each, base) for each in hooks.classes)


def _methods(
    module: _Module,
    node: ast.ClassDef,
    hooks: OwnHooks,
    base: str,
    shown: str = "",
    unless: str = "",
) -> Iterator[OwnCode]:
    """Yield the methods around the loss that a class derived from `base` has of its own.

    shown: the base's name for people, where it is not at hand. unless: what is said of each.
    """
    for pattern, methods in hooks.classes.items():
        if not re.fullmatch(pattern, base) and base not in hooks.bare:
            continue
        for each in node.body:
            if isinstance(each, _FUNCTIONS) and each.name in methods:
                calls = re.search(rf"\bsuper\([^()]*\)\.{each.name}\(", ast.unparse(each))
                if calls and each.name == _WHOLE:
                    continue  # what is before or after the library's training
                of = f"{shown or base}'s"
                how = f"around {of}, which it calls" if calls else f"in place of {of}"
                name = f"{node.name}.{each.name}"
                how += unless if each.name == "compute_loss" else ""
                yield _own(methods[each.name], name, module, each, how)


def _own(kind: Replaced, name: str, module: _Module, node: ast.AST, how: str) -> OwnCode:
    lines = (getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 1)
    return OwnCode(kind, name, module.path, lines, how)


def _registered(
    module: _Module,
    modules: Iterable[_Module],
    hooks: OwnHooks,
    values: Mapping[Replaced, frozenset[str]],
) -> Iterator[OwnCode]:
    """Yield the functions that a program registers under a name that the launch asks for."""
    for node in ast.walk(module.tree):
        found: list[tuple[str, ast.Call, str, ast.AST]] = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            calls = [e for e in node.decorator_list if isinstance(e, ast.Call) and e.args]
            found = [(ast.unparse(e.func).rpartition(".")[2], e, node.name, node) for e in calls]
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            called, name = ast.unparse(node.func).split(".")[-2:], ast.unparse(node.args[1])
            at = _definitions(module.tree).get(name) or node
            found = [(".".join(called), node, name, at)]
        for register, call, name, at in found:
            kind = hooks.registers.get(register)
            if kind and _asked(call.args[0], modules, values.get(kind, ())):
                how = f"{REGISTERED} {ast.unparse(call.args[0])}"
                yield _own(kind, name, module, at, how)


def _asked(name: ast.expr, modules: Iterable[_Module], values: Container[str]) -> bool:
    """Return True if a launch asks for a registered name, or if the name is not known.

    A program may set it itself: then its text stands once more in its code, and neither compared
    nor as a key.
    """
    if isinstance(name, ast.Attribute):  # of an enum
        enum = ast.unparse(name.value).rpartition(".")[2]
        found = filter(None, (_definitions(module.tree).get(enum) for module in modules))
        members = (e for each in found for e in ast.walk(each) if isinstance(e, ast.Assign))
        value = next((e.value for e in members if name.attr in names_of(e.targets[0])), None)
        return not isinstance(value, ast.Constant) or str(value.value).lower() in values
    if not isinstance(name, ast.Constant):
        return True
    text = str(name.value).lower()
    times = sum(
        isinstance(node, ast.Constant) and str(node.value).lower() == text
        for module in modules
        for node in _nodes(module.tree, _not_set)
    )
    return text in values or times > 1


def _not_set(node: ast.AST) -> Sequence[ast.AST]:
    """Return what a comparison compares with, by what a subscript is taken, and an enum's names."""
    if isinstance(node, ast.Compare):
        return node.comparators
    if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(e) for e in node.bases):
        return node.body
    return (node.slice,) if isinstance(node, ast.Subscript) else ()


@lru_cache(maxsize=MOST_MODULES)
def _definitions(tree: ast.Module) -> Mapping[str, ast.AST]:
    """Return the functions and classes of a file by name, the outermost of a name."""
    nodes = (e for e in ast.walk(tree) if isinstance(e, (ast.FunctionDef, ast.ClassDef)))
    return {node.name: node for node in reversed([*nodes])}


def _patched(module: _Module, hooks: OwnHooks) -> Iterator[OwnCode]:
    """Yield what a program puts in the place of a function or method of the library."""
    known = {
        **{name: kind for each in hooks.classes.values() for name, kind in each.items()},
        **hooks.functions,
    }
    known.pop(_WHOLE, None)
    for node in ast.walk(module.tree):
        for owner, name, value in _assigned(node):
            root = owner.partition(".")[0].partition("(")[0]
            if name not in known or root in ("self", "cls") or value == f"{owner}.{name}":
                continue
            put = value.rpartition("(")[2].partition(",")[0].rstrip(")")
            at = _definitions(module.tree).get(put) or node
            how = f"put in the place of {owner}.{name}"
            yield _own(known[name], value, module, at, how)


def _assigned(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield (owner, attribute, value) of each attribute that a statement sets, as text."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                yield ast.unparse(target.value), target.attr, ast.unparse(node.value)
    elif isinstance(node, ast.Call):
        called, args = ast.unparse(node.func).rpartition(".")[2], node.args
        if called in ("setattr", "object") and len(args) > 2 and isinstance(args[1], ast.Constant):
            yield ast.unparse(args[0]), str(args[1].value), ast.unparse(args[2])


# ---------------------------------------------------------------------- what is said of a finding


def why(own: Sequence[OwnCode], sampler: str = "") -> str:
    """Return what decides in place of the library, with file and lines, and what still holds."""
    named = (each.name + (f" ({each.where})" if each.path else "") for each in own)
    places = [f"{name} {each.how}".strip() for name, each in zip(named, own, strict=True)]
    return f"own {called(own)}: {'; '.join(places)}, decides. {_holds(own, sampler)}"


def called(own: Iterable[OwnCode]) -> str:
    """Return what is somebody's own, in a word; `loss`: what bounds a step is, too."""
    kinds = {each.kind for each in own}
    without = "sampling" if "samples" in kinds else "advantage"
    return "loss" if kinds & {"loss", "trainer"} else without


def _holds(own: Iterable[OwnCode], sampler: str) -> str:
    kinds = {"advantage" if each.kind == "samples" else each.kind for each in own}
    kept = ["the model, the data"]
    if not sampler and all(each.kind in ("loss", "advantage") for each in own):
        kept = ["the model, the data, the batch and how responses are sampled"]
    for kind, what in (("advantage", "the advantage"), ("loss", "the policy loss")):
        if kinds.isdisjoint((kind, "trainer")):
            kept.append(what)
    return f"Still the library's: {'; '.join(kept)}"
