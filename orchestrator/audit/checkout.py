"""Read the code that lies beside a script: the keys of its own parser, and its functions.

The checkout decides, not a release that it may have left long ago. Files are parsed, never run.
"""

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import yaml

from orchestrator.library.launches import Given

_OPTION = re.compile(r"""add_argument\(\s*(?:["']-\w["']\s*,\s*)?["']--([\w.-]+)["']""")
DECIDES = re.compile(
    r"(^|[_.-])(kl|ref|reference|n_agent|n_samples?|num_samples|std|normali[sz]er?|clip|loss)([_.-]|$)"
    r"|kl_|_kl|norm_adv|advantage_norm",
    re.IGNORECASE,
)
"""Keys whose name says that they may change the KL, its reference, its size or the policy loss."""
OFF = ("false", "null", "none", "0", "0.0", "off", "no", "")


class Function(NamedTuple):
    """A function of a file: its digest without comments, texts and places; its lines; its names."""

    digest: str
    lines: tuple[int, int]
    names: frozenset[str]


def yaml_keys(text: str) -> frozenset[str]:
    """Return the dotted keys of a YAML configuration, sections among them; none if unreadable."""
    try:
        return frozenset(_keys(yaml.safe_load(text), ""))
    except (yaml.YAMLError, RecursionError, ValueError):
        return frozenset()


def _keys(value: object, prefix: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            name = f"{prefix}{key}"
            yield name
            yield from _keys(inner, f"{name}.")


def parser_keys(text: str) -> frozenset[str]:
    """Return the options that a Python file's `add_argument` calls name, without dashes."""
    return frozenset(_OPTION.findall(text))


def functions(text: str) -> Mapping[str, Function]:
    """Return the functions of a Python file by name, methods too; none if it is not parsable."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    defined = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            last = node.end_lineno or node.lineno
            defined[node.name] = Function(_digest(node), (node.lineno, last), _names(node))
    return defined


def _digest(node: ast.FunctionDef) -> str:
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    tree = "".join(ast.dump(each) for each in (node.args, *body))
    return hashlib.sha256(tree.encode()).hexdigest()[:16]


def _names(node: ast.FunctionDef) -> frozenset[str]:
    """Return the names, attributes and short texts that a function's code has."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif isinstance(each, ast.Attribute):
            names.add(each.attr)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            names.add(each.value)
    return frozenset(names)


def may_decide(key: str, given: Given) -> bool:
    """Return True if an unknown key's name says that it may change the KL, and it is on."""
    last = key.rpartition(".")[2]
    return given.text.strip().lower() not in OFF and DECIDES.search(last) is not None
