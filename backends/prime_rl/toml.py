"""Write TOML: nested tables of text, numbers, booleans and lists. tomllib reads it back."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Tree = Mapping[str, object]
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(tree: Tree) -> str:
    """Return a tree as a TOML document. Raise TypeError for a value that TOML cannot express."""
    return "\n".join(_table(tree, ())).lstrip("\n") + "\n"


def _table(table: Tree, path: tuple[str, ...]) -> Iterator[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and not _is_tables(v)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(path)}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        inner = (*path, _key(key))
        if isinstance(value, Mapping):
            yield from _table(value, inner)
        elif isinstance(value, Sequence) and _is_tables(value):
            for each in value:
                yield f"\n[[{'.'.join(inner)}]]"
                flat = {k: v for k, v in each.items() if not isinstance(v, Mapping)}
                yield from (f"{_key(k)} = {_value(v)}" for k, v in flat.items())
                for name in each.keys() - flat.keys():
                    yield from _table(each[name], (*inner, _key(name)))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


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
