"""Write and read SkyRL's overrides: `key=value` with YAML values (OmegaConf's dotlist)."""

import json
import re
from collections.abc import Iterable

_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9_./+-]*")
_WORDS = frozenset(
    {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"}
)
_NOT_IN_YAML = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff\u2028\u2029\ud800-\udfff]")
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_ESCAPED = re.compile(r"(\\+)\$\{")
_SPELLINGS: dict[str, object] = {
    **dict.fromkeys(("True", "TRUE", "yes", "on"), True),
    **dict.fromkeys(("False", "FALSE", "no", "off"), False),
    **dict.fromkeys(("Null", "NULL", "~", ""), None),
}

_WORD_OF = {True: "true", False: "false", None: "null"}


def write(key: str, value: object) -> str:
    """Return one override. Quote text that YAML could read as something else."""
    return f"{key}={written(value)}"


def written(value: object) -> str:
    """Return the text of a value in an override."""
    if isinstance(value, str):
        text = _INTERPOLATION.sub(lambda m: m[1] * 2 + r"\${", value)
        if _BARE.fullmatch(text) and text.lower() not in _WORDS:
            return text
        quoted = json.dumps(text, ensure_ascii=False)
        return _NOT_IN_YAML.sub(lambda m: f"\\u{ord(m[0]):04x}", quoted)
    if value is None or isinstance(value, bool):
        return _WORD_OF[value]
    if type(value) is int:
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_quoted(item) for item in value)}]"
    return json.dumps(value)


def _quoted(item: object) -> str:
    """Return an element of a list as text. Quote strings, because they may contain `,` or `]`."""
    text = written(item)
    return json.dumps(text) if isinstance(item, str) and text[:1] != '"' else text


def read(arguments: Iterable[str]) -> dict[str, object]:
    """Return key -> value of the overrides. The last of a key counts, as in SkyRL."""
    values: dict[str, object] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals:
            values[key] = _value(text)
    return values


def _value(text: str) -> object:
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    try:
        return _plain(json.loads(text))
    except ValueError:
        return _plain(_yaml(text) if text[0] in "[{'+-.0123456789" else text)


def _yaml(text: str) -> object:
    """Return the value of text that is YAML and not JSON: `['a']`, `1.e-6`, `.5`.

    People write such text; orch does not.
    """
    import yaml

    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value


def _plain(value: object) -> object:
    if isinstance(value, str):
        return _ESCAPED.sub(lambda m: m[1][: len(m[1]) // 2] + "${", value)
    return [_plain(item) for item in value] if isinstance(value, list) else value
