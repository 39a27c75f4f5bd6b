"""Read the code that lies beside a script: the keys of its own parser, and its functions.

The checkout decides, not a release that it may have left long ago. Files are parsed, never run.
The functions of the KL, the advantage and the policy loss are compared with those of the releases
by their syntax trees; `audit/code.json` of a library has the digests (lab.adopt.loss_code).
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.library.key_tables import parsed
from orchestrator.library.launches import Given

DECIDES = re.compile(
    r"(^|[_.-])(kl|ref|reference|std|normali[sz]er?|clip|loss)([_.-]|$)"
    r"|kl_|_kl|norm_adv|advantage_norm",
    re.IGNORECASE,
)
"""Keys whose name says that they may change the KL, its reference, its size or the policy loss."""
_OF_ANOTHER = re.compile(
    r"grad\w*_clip|clip_grad|(^|\.)(optim|critic|reward_model)\.(?!.*(kl|ref|std|normali))",
    re.IGNORECASE,
)
"""Keys of a gradient's clip, of an optimizer and of another model: none is of the policy loss."""
SEARCHES = re.compile(
    r"(^|[_.-])(beams?|mcts|tree_search|search_(algo\w*|method|strategy))([_.-]|$)", re.IGNORECASE
)
"""Keys whose name says that responses are searched for, and not sampled from the policy."""
MOST_LINES = 4
OFF = ("false", "null", "none", "0", "0.0", "off", "no", "", "sampling")


class Function(NamedTuple):
    """A function of a file: its digest without comments, texts and places; its lines; its names."""

    digest: str
    lines: tuple[int, int]
    names: frozenset[str]


@dataclass(frozen=True)
class ChangedCode:
    """Code beside a launch that is as in no release."""

    name: str
    decides: tuple[str, ...]
    """What a summary says that this code can change: kl, weight, bound, updates, around."""
    place: str = ""


class KnownCode(NamedTuple):
    """What counts of a library's code, and how each release has it."""

    files: tuple[str, ...] = ()
    always: str = "(?!)"
    """Names that count in every launch; others where a value of the launch names them."""
    decides: Mapping[str, str] = MappingProxyType({})
    """What a summary says (its KL, that one's weight, ...) -> the names that decide it."""
    code: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = MappingProxyType({})
    """Path in the library -> function -> digest of its code -> the releases that have it so."""


@lru_cache(maxsize=64)
def functions(text: str) -> Mapping[str, Function]:
    """Return the functions of a Python file by name, methods as `Class.method`; none if it is not
    parsable."""
    top = parsed(text).body
    defined = {}
    classes = [(f"{each.name}.", each.body) for each in top if isinstance(each, ast.ClassDef)]
    for prefix, body in (("", top), *classes):
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                last = node.end_lineno or node.lineno
                digest = hashlib.sha256("".join(_code(node)).encode()).hexdigest()[:16]
                defined[prefix + node.name] = Function(digest, (node.lineno, last), names_of(node))
    return defined


@cache
def known_code(library: str) -> KnownCode:
    """Return the code of a library's releases; nothing where none was read."""
    is_read = library in plugins.only_read()
    if not is_read and library not in plugins.names():
        return KnownCode()
    folder = plugins.reader_folder(library) if is_read else plugins.folder(library)
    file = folder / "audit" / "code.json"
    if not file.is_file():
        return KnownCode()
    plain = json.loads(file.read_text(encoding="utf-8"))
    return KnownCode(tuple(plain["files"]), plain["always"], plain["decides"], plain["code"])


def changed(
    beside: Mapping[str, str], known: KnownCode, values: Iterable[str]
) -> Iterator[ChangedCode]:
    """Yield functions that are as in no release, if they always count or a value names them."""
    words = [re.escape(each.lower()) for each in values if re.fullmatch(r"[A-Za-z]\w{2,30}", each)]
    counts = re.compile(rf"{known.always}|_(?:{'|'.join(words) or '(?!)'})(?:_|$)")
    for path, named in known.code.items():
        defined = functions(beside.get(path) or "")
        for name in sorted(filter(counts.search, defined.keys() & named.keys())):
            own = defined[name]
            if not named[name].get(own.digest):
                decides = [each for each, its in known.decides.items() if re.search(its, name)]
                first, last = own.lines
                yield ChangedCode(name, tuple(decides), f"{path}:{first}-{last}")


_TOUCHES = re.compile(
    r"(^|_)(kl|ref|adv|advantages?|loss|ratio|rewards?|returns?|log_?probs?|scores?|beta)(_|s?$)",
    re.IGNORECASE,
)
"""Names of the KL, the reference, the advantage and the loss in a library's code."""
_OF_LOSS = re.compile(r"^log_?probs?$|(^|_)(kl|ref|reference|loss|ratio|cliprange)(_|s?$)", re.I)
"""Those of a KL, a reference and the loss: the old policy's are of an advantage, too."""


class Statement(NamedTuple):
    """A statement of a Python file: its line, its function, and the names in it."""

    line: int
    function: str
    own: frozenset[str]
    """Without the statements that it decides."""
    names: frozenset[str]
    divided_by: frozenset[str]


def uses(key: str, text: str, *, has_kl: bool) -> Iterator[tuple[int, bool, bool]]:
    """Yield, for each statement of a Python file that names the last part of a key: its line, if it
    touches the KL, the reference, the loss (but its entropy) or, where a KL is on, the advantage,
    and if it only divides by the key."""
    last = key.rpartition(".")[2]
    touched = _TOUCHES if has_kl or _OF_LOSS.search(last) else _OF_LOSS
    for each in _statements(text) if last in text and not _is_variable(last, text) else ():
        if last in each.own:
            names = {name for name in each.names - {last} if "entropy" not in name}
            touches = "kl" in last or any(map(touched.search, (*names, each.function)))
            divides = last in each.divided_by and not any("kl" in name for name in names)
            yield each.line, touches, divides


@lru_cache(maxsize=64)  # each unknown key of each case asks again
def _statements(text: str) -> Sequence[Statement]:
    """Return each statement that holds no other but those that it decides; none if unreadable."""
    rows = []
    todo = [("", node) for node in parsed(text).body]
    while todo:
        function, node = todo.pop()
        inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
        name = node.name if isinstance(node, ast.FunctionDef) else function
        if not inner or isinstance(node, ast.If | ast.While):
            own = node.test if isinstance(node, ast.If | ast.While) else node
            divisors = [names_of(each) for each in operands(own, ast.Div)]
            by = frozenset[str]().union(*divisors)
            rows.append(Statement(node.lineno, name, names_of(own), names_of(node), by))
        todo += [(name, each) for each in inner]
    return sorted(rows, key=lambda each: each.line)


@lru_cache(maxsize=256)
def _is_variable(name: str, text: str) -> bool:
    """Return True for a name that a Python file gives a function's variable, and no key."""
    nodes = [*ast.walk(parsed(text))]
    inner = (e for each in nodes if isinstance(each, ast.FunctionDef) for e in ast.walk(each))
    variables = (e.id for e in inner if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store))
    return name in variables and name not in names_in(
        e for e in nodes if not isinstance(e, ast.Name)
    )


def operands(node: ast.AST, operator: type[ast.operator]) -> Iterator[ast.expr]:
    """Yield the right side of each use of an operator: what code divides by, or takes off."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp | ast.AugAssign) and isinstance(each.op, operator):
            yield each.right if isinstance(each, ast.BinOp) else each.value


def names_of(node: ast.AST) -> frozenset[str]:
    """Return the names, attributes and texts of a piece of code."""
    return names_in(ast.walk(node))


def names_in(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names, attributes and texts that stand in nodes themselves."""
    found = (getattr(each, field, None) for each in nodes for field in ("id", "attr", "value"))
    return frozenset(name for name in found if isinstance(name, str))


def places(keys: Iterable[str], beside: Mapping[str, str], paths: Iterable[str]) -> list[str]:
    """Return `path:line, line` of each file of the checkout that names the last part of a key."""
    lasts = {key.rpartition(".")[2] for key in keys} - {""}
    rows = []
    for path in paths:
        text = beside.get(path) or ""
        read = [re.escape(each) for each in sorted(lasts) if not _is_variable(each, text)]
        name = re.compile(rf"(?<!\w)(?:{'|'.join(read)})(?!\w)" if read else "(?!)")
        lines = enumerate(text.splitlines(), 1)
        at = [str(n) for n, line in lines if name.search(line.partition("#")[0])]
        if at:
            more = f" and {len(at) - MOST_LINES} more" if len(at) > MOST_LINES else ""
            rows.append(f"{path}:{', '.join(at[:MOST_LINES])}{more}")
    return rows


def _code(node: object) -> Iterator[str]:
    """Yield a syntax tree as text, equal in every Python: without places, texts and annotations."""
    if isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "kind", "type_comment", "type_params", "annotation", "returns"):
                continue
            if name == "body" and isinstance(value, list):
                value = [each for each in value if not _is_text(each)]
            if value is not None and value != []:
                yield f"({name}="
                yield from _code(value)
                yield ")"
    elif isinstance(node, list):
        for each in node:
            yield from _code(each)
    else:
        yield repr(node)


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_off(given: Given) -> bool:
    """Return True for a value that turns a key off."""
    return given.text.strip().lower() in OFF


def may_decide(key: str, given: Given) -> bool:
    """Return True if an unknown key's name says that it may change the KL or its samples, if on."""
    last = key.rpartition(".")[2]
    is_named = DECIDES.search(last) and not _OF_ANOTHER.search(key)
    return not is_off(given) and bool(is_named or SEARCHES.search(last))
