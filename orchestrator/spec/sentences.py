"""Validation errors as sentences: field, rule, and the value that was given; counts and lists in
words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic_core import ErrorDetails

from orchestrator.errors import did_you_mean
from orchestrator.settings import NameOfTable

_KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "mapping_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "greater_than": "> {gt:g}",
    "greater_than_equal": ">= {ge:g}",
    "less_than": "< {lt:g}",
    "less_than_equal": "<= {le:g}",
}
_NAME_RULE = (
    "letters, digits, '.', '_', '+' and '-', starting with a letter or digit, at most 64 in all"
)


def sentence(error: ErrorDetails, field: str, known: Iterable[str] = ()) -> str:
    """Return one pydantic error as a sentence about `field`; `known`: names it could have had."""
    kind, value = error["type"], error.get("input")
    context: dict[str, Any] = dict(error.get("ctx", {}))
    if kind == "missing":
        return f"{field} is missing"
    if kind == "extra_forbidden":
        name = field.rpartition(".")[2]
        hint = did_you_mean(name, known)
        listed = "" if hint or not known else f" (known here: {', '.join(known)})"
        return f"unknown field '{name}'{hint}{listed}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        expected = context["expected"].replace("'", "").replace(" or ", ", ")
        hint = did_you_mean(str(value), expected.split(", "))
        return f"{field} must be one of {expected}; got {shown(value)}{hint}"
    if kind == "string_pattern_mismatch":
        return f"{field} must be {_NAME_RULE}; got {shown(value)}"
    rule = _KINDS.get(kind)
    if rule is None:
        return f"{field}: {error['msg']}; got {shown(value)}"
    wanted = rule.format(**context)
    if rule == "a list" and isinstance(value, int) and not isinstance(value, bool):
        wanted += f", such as {list(range(min(value, 5))) or [value]}"
    return f"{field} must be {wanted}, got {shown(value)}"


def shown(value: object) -> str:
    """Return a value for a message: like JSON, at most 60 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the words that an annotation allows, at any depth; none if it is no choice."""
    if isinstance(annotation, NameOfTable):
        return annotation.choices
    names: list[str] = []
    for option in get_args(annotation):
        names += [option] if isinstance(option, str) else choices(option)
    return tuple(names)


MOST_NAMED = 3


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 seed`, `2 seeds`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def few(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others: `a, b, c and 2 more`."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
