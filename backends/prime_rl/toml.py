"""Write TOML: nested tables of text, numbers, booleans and lists. tomllib reads it back."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

Tree = Mapping[str, object]
_PLAIN = frozenset({str, int, float, bool, list})
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(tree: Tree) -> str:
    """Return a tree as a TOML document. Raise TypeError for a value that TOML cannot express."""
    lines: list[str] = []
    _add_table(lines, tree, "")
    return "\n".join(lines).lstrip("\n") + "\n"


def _add_table(lines: list[str], table: Tree, path: str) -> None:
    """Add a table's plain keys to the lines, then its tables. `path`: its dotted name."""
    inner = {name: value for name, value in table.items() if _is_table(value) or _is_tables(value)}
    if path and (len(inner) < len(table) or not table):
        lines.append(f"\n[{path}]")
    lines += [
        f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner
    ]
    for name, value in inner.items():
        dotted = f"{path}.{_key(name)}" if path else _key(name)
        if isinstance(value, Mapping):
            _add_table(lines, value, dotted)
        elif isinstance(value, Sequence):
            for each in value:
                lines.append(f"\n[[{dotted}]]")
                flat = {k: v for k, v in each.items() if not isinstance(v, Mapping)}
                lines += [f"{_key(k)} = {_value(v)}" for k, v in flat.items()]
                for key in each.keys() - flat.keys():
                    _add_table(lines, each[key], f"{dotted}.{_key(key)}")


def _is_table(value: object) -> bool:
    """Return True for a mapping. Test plain types first: isinstance of Mapping is slow."""
    return type(value) not in _PLAIN and isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and _is_table(value[0])


@lru_cache(maxsize=1024)
def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _text(text: str) -> str:
    """Return a TOML string.

    JSON's escapes are valid in TOML, but the delete character needs one too.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
