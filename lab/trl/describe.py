"""Runs inside a TRL environment: prints ANSWER and the options of its scripts, as JSON.

{script.name: {"kind", "default", "values"}}: of the dataclasses that the scripts `grpo` and `rloo`
parse, where `values` is there for a Literal and for a field with choices.
"""

import dataclasses
import enum
import importlib
import json
import sys
import types
import typing


def kind(annotation: object) -> str:
    """Return the type of an option in short."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in inner if each is not type(None)]
        named = kind(rest[0]) if len(rest) == 1 else " | ".join(map(kind, rest))
        return f"Optional[{named}]" if len(rest) < len(inner) else named
    if origin is typing.Literal:
        return "str"
    if origin is list:
        return f"List[{kind(inner[0])}]"
    return getattr(annotation, "__name__", str(annotation))


def values(annotation: object, field: "dataclasses.Field[object]") -> list[object] | None:
    """Return the closed list of an option's values, or None."""
    for each in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(each) is typing.Literal:
            return list(typing.get_args(each))
    choices = field.metadata.get("choices")
    return None if choices is None else list(choices)


def plain(value: object) -> object:
    """Return a default as JSON holds it."""
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str | list | None) else str(value)


def main() -> None:
    """Print the options of both scripts."""
    options: dict[str, object] = {}
    for script in ("grpo", "rloo"):
        parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
        for group in parser.dataclass_types:
            annotations = typing.get_type_hints(group)
            for field in dataclasses.fields(group):
                if not field.init:
                    continue
                default = (
                    field.default_factory()
                    if field.default_factory is not dataclasses.MISSING
                    else field.default
                )
                facts = {"kind": kind(annotations[field.name]), "default": plain(default)}
                closed = values(annotations[field.name], field)
                if closed is not None:
                    facts["values"] = [plain(each) for each in closed]
                options[f"{script}.{field.name}"] = facts
    sys.stdout.write("ANSWER " + json.dumps(options) + "\n")


main()
