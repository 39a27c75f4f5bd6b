"""Write Hydra's overrides (`key=value`), and read them back with Hydra's own parser."""

import re
from collections.abc import Mapping
from functools import lru_cache

_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.-]*")
_WORDS = frozenset({"true", "false", "null", "nan", "inf"})
_BEFORE_QUOTE = re.compile(r'(\\*)"')
_AT_END = re.compile(r"(\\+)\Z")
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_ESCAPED_INTERPOLATION = re.compile(r"(\\+)\$\{")


def write(key: str, value: object) -> str:
    """Return one override. Quote text that the grammar could read as something else."""
    return f"{key}={_written(value)}"


@lru_cache(maxsize=8192)
def read(text: str) -> tuple[str, object]:
    """Return the key (without `+` or `++`) and the value of an override.

    Raise ValueError, with a sentence, for text that is not an override with one value.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"'{text[:120]}' is not a Hydra override: {reason}") from None
    if override.is_delete() or override.is_sweep_override():
        raise ValueError(f"'{text[:120]}' deletes or sweeps; give one value")
    return override.key_or_group, _read(override.value())


def _written(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return _text(str(value))


@lru_cache(maxsize=8192)
def _text(text: str) -> str:
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    text = _INTERPOLATION.sub(lambda match: match[1] * 2 + "\\${", text)
    text = _BEFORE_QUOTE.sub(lambda match: match[1] * 2 + '\\"', text)
    return '"' + _AT_END.sub(lambda match: match[1] * 2, text) + '"'


def _read(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _read(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_read(item) for item in value]
    text = getattr(value, "text", value)
    if isinstance(text, str):
        return _ESCAPED_INTERPOLATION.sub(lambda match: match[1][: len(match[1]) // 2] + "${", text)
    return value
