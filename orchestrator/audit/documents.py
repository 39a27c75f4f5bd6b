"""YAML and TOML, flattened: dotted key -> value, with the line it stands on."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from orchestrator.library.launches import ConfigDocument, Given, UnreadableScript

MOST_KEYS = 20_000
DEEPEST = 60
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")


def nesting(text: str) -> int:
    """The deepest nesting that brackets or dashes of a text could make."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    dashes = max((len(m) // 2 for m in re.findall(r"(?m)^[ ]*((?:- )+|(?:\? )+)", text)), default=0)
    indent = max((len(m) for m in re.findall(r"(?m)^ *(?=\S)", text)), default=0)
    return max(deepest, dashes, indent // 8)


def yaml_node(text: str) -> Any:
    """The first document's node. Raises UnreadableScript."""
    if nesting(text) > DEEPEST:
        raise UnreadableScript("this YAML is nested deeper than any configuration needs")
    try:
        loader = _LOADER(text)
        try:
            return loader.get_node() if loader.check_node() else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UnreadableScript(f"this YAML cannot be read{where}: {problem}") from None


def scalars(
    node: Any, path: str = "", budget: list[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """Every scalar under a node with its dotted path; lists count from 0."""
    left = budget if budget is not None else [MOST_KEYS]
    left[0] -= 1
    if left[0] < 0:
        raise UnreadableScript(f"this file has more than {MOST_KEYS} values")
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            name = str(getattr(key, "value", ""))
            if isinstance(key, yaml.ScalarNode):
                yield from scalars(child, f"{path}.{name}" if path else name, left)
    elif isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            yield from scalars(child, f"{path}.{i}" if path else str(i), left)
    elif isinstance(node, yaml.ScalarNode):
        yield path, node


def yaml_document(node: Any, name: str) -> ConfigDocument:
    """A configuration; Hydra's defaults list says what it builds on."""
    values: dict[str, Given] = {}
    builds: list[str] = []
    for path, scalar in scalars(node):
        if path.startswith("defaults."):
            if scalar.value != "_self_":
                group = path.split(".", 2)[2] if path.count(".") > 1 else ""
                builds.append(f"{group}/{scalar.value}".lstrip("/").split("@")[0])
            continue
        told = scalar.value if scalar.value or scalar.style else "null"
        values[path] = Given(told, (scalar.start_mark.line + 1,))
    return ConfigDocument(name, _interpolated(values), tuple(builds), "yaml")


def _interpolated(values: dict[str, Given]) -> Mapping[str, Given]:
    """With `${other.key}` replaced where the other key is in the file."""
    found = {}
    for key, given in values.items():
        match = re.fullmatch(r"\$\{([\w.]+)\}", given.text)
        other = values.get(match[1]) if match else None
        found[key] = given if other is None else Given(other.text, (*given.lines, *other.lines))
    return found


def toml_document(text: str, name: str) -> ConfigDocument:
    """A TOML configuration. Raises UnreadableScript."""
    if nesting(text) > DEEPEST:
        raise UnreadableScript("this TOML is nested deeper than any configuration needs")
    try:
        plain = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UnreadableScript(f"this TOML cannot be read: {error}") from None
    lines = _toml_lines(text)
    values: dict[str, Given] = {}
    for path, value in _flattened(plain, ""):
        key = ".".join(part.replace("-", "_") for part in path.split("."))
        told = (
            {True: "true", False: "false"}.get(value, str(value))
            if isinstance(value, bool)
            else str(value)
        )
        bare = ".".join(p for p in key.split(".") if not p.isdigit())
        values[key] = Given(told, (lines[bare],) if bare in lines else ())
    builds = [g.text for k, g in values.items() if k.startswith("toml_files.")]
    return ConfigDocument(name, values, tuple(builds), "toml")


def _flattened(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if not value and path:
            yield path, "{}"
        for key, child in value.items():
            yield from _flattened(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from _flattened(child, f"{path}.{i}")
    else:
        yield path, value


def _toml_lines(text: str) -> dict[str, int]:
    """Dotted key -> its first line, sections of arrays without their number."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        told = line.partition("#")[0].strip()
        if told.startswith("[") and told.endswith("]"):
            section = told.strip("[]").replace('"', "").replace(" ", "") + "."
            found.setdefault(section[:-1].replace("-", "_"), number)
            continue
        key = _KEY.match(line)
        if key:
            name = key[1].strip("\"'")
            found.setdefault(f"{section}{name}".replace("-", "_"), number)
    return found
