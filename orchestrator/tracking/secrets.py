"""Hiding of secrets: passwords in addresses, keys and tokens in a plan."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
_SECRET_NAME = re.compile(
    r"(^|[_.\-])(secret|password|passwd|credentials?|(api|access|private|auth)[_-]?key)($|[_.\-])"
    r"|(^|[_.\-])(hf|hub|huggingface|auth|access|api|bearer|gh|github|session|tracking)[_-]?token$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"(^|_)TOKEN$")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_][\w.\-]*)=(?P<value>[^\s'\"]+)")


def hide_userinfo(text: str) -> str:
    """Return a text with *** for the user and password of an address: `https://***@host/`."""
    return _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", text)


def hide_in_text(text: str) -> str:
    """Return a text with addresses without userinfo and no value of a name that sounds secret."""
    return _ASSIGNED.sub(
        lambda hit: f"{hit['name']}={HIDDEN}" if is_secret(hit["name"]) else hit[0],
        hide_userinfo(text),
    )


def hide(value: Any, name: str = "") -> Any:
    """Return plain data with every secret hidden, at any depth."""
    if isinstance(value, Mapping):
        return {key: hide(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _hide_items(list(value), name)
    if isinstance(value, str):
        return HIDDEN if value and is_secret(name) else hide_in_text(value)
    return value


def is_secret(name: str) -> bool:
    """Return True for the name of a variable or an option that holds a secret.

    `HF_TOKEN` and `--api-key` do; `eos_token`, `max_token_len` and `prompt_key` do not.
    """
    return bool(_SECRET_NAME.search(name) or _SECRET_VARIABLE.search(name))


def _hide_items(items: list[Any], name: str) -> list[Any]:
    """Hide secrets of a list; in an argv, also the value after an option such as `--api-key`."""
    hidden = []
    after_secret = False
    for item in items:
        hidden.append(HIDDEN if after_secret else hide(item, name))
        after_secret = (
            isinstance(item, str)
            and item.startswith("-")
            and "=" not in item
            and is_secret(item.lstrip("-"))
        )
    return hidden
