"""Secrets: recognise their names, refuse them in a spec, hide them in texts."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"

_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
_SECRET_NAME = re.compile(
    r"(^|[_.\-])(secret|password|passwd|credentials?|(api|access|private|auth|wandb|swanlab)[._-]?key)($|[_.\-])"
    r"|(^|[_.\-])(hf|hub|huggingface|auth|access|api|bearer|gh|github|session|tracking)[_-]?token$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"(^|_)TOKEN$")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_][\w.\-]*)=(?P<value>[^\s'\"]+)")


_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*(?P<name>[^,}\s]+)")
_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}"
    r"|glpat-[A-Za-z0-9_-]{18,}|xox[abp]-[A-Za-z0-9-]{20,})"
)
"""Patterns of tokens of Hugging Face, OpenAI, GitHub, AWS, GitLab and Slack."""
SHORTEST = 8
"""Characters of the shortest secret that is searched for in a text. A shorter one may occur by
chance."""


def secrets_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, str]]:
    """Yield (path, sentence) for every secret that plain data names or holds.

    A spec is copied into run folders, reports and MLflow, so nothing in it stays a secret.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(each, str) and each and each != HIDDEN and is_secret(str(key)):
                yield (*path, key), f"'{key}' is the name of a secret{_ADVICE}"
            else:
                yield from secrets_in(each, (*path, key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from secrets_in(each, (*path, index))
    elif isinstance(value, str):
        for match in _FROM_ENVIRONMENT.finditer(value):
            name = match["name"].strip("'\"")
            if is_secret(name) or "$" in name:
                yield path, f"'{match[0]}}}' would copy a secret into the spec{_ADVICE}"
        # A password in an address is no fault: it is hidden whenever a spec is copied.
        written = hide_userinfo(value)
        here = (v for name, v in os.environ.items() if len(v) >= SHORTEST and is_secret(name))
        if _TOKEN.search(written) or any(secret in written for secret in here):
            yield path, f"this text holds a token or a password{_ADVICE}"


_ADVICE = (
    ", and a spec is copied into run folders, reports and MLflow. Leave it out: programs that orch "
    "starts inherit the environment, and read it there"
)


_WANDB_KEY = re.compile(r"(?<!/snapshots/)\b[0-9a-f]{40}\b")


def holds_token(text: str) -> bool:
    """Return True if a text has a token, or forty hexadecimal digits as a key of W&B has,
    which name no snapshot of the Hub."""
    return bool(_TOKEN.search(text) or _WANDB_KEY.search(text))


def hide_userinfo(text: str) -> str:
    """Return a text with *** for the user and password of an address: `https://***@host/`."""
    return _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", text)


def hide_in_text(text: str) -> str:
    """Return a text without user names and passwords in addresses, and without the value in
    `NAME=value` if the name is one of a secret."""
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
