"""Read YAML, TOML and notebooks: dotted keys with their values and lines; cells as a program."""

import json
import posixpath
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from orchestrator.audit.reading import BOOLEANS, QUOTED
from orchestrator.library.launches import ConfigDocument, Given, UnreadableScript

MOST_VALUES = 20_000
MOST_DOCUMENTS = 100
DEEPEST = 60
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOML_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_HEADER = re.compile(r"(?:\s*#.*\n|\s*\n)*?\s*#\s*@package[ \t]+(\S+)")


def yaml_node(text: str) -> Any:
    """Return the root node of the first YAML document, or None if the text has no document.

    Raise UnreadableScript if the text is not YAML.
    """
    return next(_nodes(text), None)


def yaml_nodes(text: str) -> list[Any]:
    """Return the root nodes of all YAML documents up to the first one that is not YAML.

    Raise UnreadableScript if this is the first document.
    """
    nodes: list[Any] = []
    try:
        for node in _nodes(text):
            nodes.append(node)
            if len(nodes) > MOST_DOCUMENTS:
                raise UnreadableScript(f"this file has more than {MOST_DOCUMENTS} documents")
    except UnreadableScript:
        if not nodes:
            raise
    return nodes


def _nodes(text: str) -> Iterator[Any]:
    _check_depth(text, "YAML")
    try:
        loader = _LOADER(text)
        try:
            while loader.check_node():
                yield loader.get_node()
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
    """Yield the dotted path and the node of every scalar under a node. List indices start at 0.

    `budget`: a list of one number, the values that may still be read. It has a limit because YAML
    aliases are expanded in place, and a few lines of nested aliases can expand to billions of
    values. Raise UnreadableScript if the limit is exceeded.
    """
    remaining = budget if budget is not None else [MOST_VALUES]
    remaining[0] -= 1
    if remaining[0] < 0:
        raise UnreadableScript(f"this file has more than {MOST_VALUES} values")
    if isinstance(node, yaml.MappingNode):
        for key, child in _pairs(node):
            if isinstance(key, yaml.ScalarNode):
                yield from scalars(child, f"{path}.{key.value}" if path else key.value, remaining)
    elif isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            yield from scalars(child, f"{path}.{i}" if path else str(i), remaining)
    elif isinstance(node, yaml.ScalarNode):
        yield path, node


def _pairs(node: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Return the keys of a YAML mapping with those that `<<` merges in, which weigh less."""
    own = [pair for pair in node.value if not _merges(pair[0])]
    if len(own) == len(node.value):
        return own
    if depth > DEEPEST:
        raise UnreadableScript("this YAML merges more than any configuration needs")
    names = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
    merged: list[tuple[Any, Any]] = []
    for key, child in node.value:
        bases = child.value if isinstance(child, yaml.SequenceNode) else [child]
        for base in bases if _merges(key) else ():
            for pair in _pairs(base, depth + 1) if isinstance(base, yaml.MappingNode) else ():
                if isinstance(pair[0], yaml.ScalarNode) and pair[0].value not in names:
                    names.add(pair[0].value)
                    merged.append(pair)
                    if len(merged) > MOST_VALUES:
                        raise UnreadableScript(f"this file has more than {MOST_VALUES} values")
    return [*merged, *own]


def _merges(key: Any) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:merge"


def yaml_document(node: Any, name: str) -> ConfigDocument:
    """Return a YAML configuration. Its `builds_on` are the files in Hydra's defaults list."""
    values: dict[str, Given] = {}
    builds_on: list[str] = []
    for path, scalar in scalars(node):
        if path == "defaults":
            builds_on.append(scalar.value)
        elif not path.startswith("defaults."):
            # A plain scalar without text is YAML's null; in quotes it is an empty text.
            text = scalar.value if scalar.value or scalar.style else "null"
            is_text = scalar.style in ("'", '"') and text.strip().lower() in BOOLEANS
            values[path] = Given(
                text, (scalar.start_mark.line + 1,), mark=QUOTED if is_text else ""
            )
        elif scalar.value != "_self_":
            # `actor@actor_rollout_ref.actor: dp_actor` is the group's file, below another key.
            named = path.split(".", 2)[2] if path.count(".") > 1 else ""
            group, at, section = named.partition("@")
            builds_on.append(f"{group}/{scalar.value}{at}{section}".lstrip("/"))
    return ConfigDocument(name, _dereferenced(values), tuple(builds_on), "yaml")


def toml_document(text: str, name: str) -> ConfigDocument:
    """Return a TOML configuration. Raise UnreadableScript if the text is not TOML."""
    _check_depth(text, "TOML")
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UnreadableScript(f"this TOML cannot be read: {error}") from None
    lines = _toml_lines(text)
    values: dict[str, Given] = {}
    for path, value in _flattened(tables, ""):
        key = ".".join(part.replace("-", "_") for part in path.split("."))
        unnumbered = ".".join(part for part in key.split(".") if not part.isdigit())
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        values[key] = Given(shown, (lines[unnumbered],) if unnumbered in lines else ())
    builds_on = tuple(g.text for key, g in values.items() if key.startswith("toml_files."))
    return ConfigDocument(name, values, builds_on, "toml")


def with_its_bases(
    document: ConfigDocument, files: Mapping[str, str], depth: int = 0, section: str = ""
) -> list[ConfigDocument]:
    """Return the files that a configuration builds on, those at hand, followed by itself.

    A TOML file names them as they are found from where the program starts. A default of YAML is
    either a Hydra group, found from the folder of the file or one above it, or a file
    (`../base.yaml`), found from the folder of the file that names it. Each has its keys below its
    `section`.
    """
    documents: list[ConfigDocument] = []
    for named in document.builds_on:
        base, is_placed, package = named.partition("@")
        path = base if document.kind == "toml" else _path_of_default(base, document, files)
        text = files.get(path) if path != document.name else None
        if text is not None and document.kind == "toml" and depth < 5:
            documents += with_its_bases(toml_document(text, path), files, depth + 1)
        elif text is not None and depth < 5:
            group = "" if base.endswith((".yaml", ".yml")) else posixpath.dirname(base)
            below = section_below(section, package or group.replace("/", "."), group)
            below = below if is_placed else section_of(text, group, below)
            one = yaml_document(yaml_node(text), path)
            documents += with_its_bases(one, files, depth + 1, below)
    values = {f"{section}.{key}".lstrip("."): given for key, given in document.values.items()}
    return [*documents, replace(document, values=values)]


def section_of(text: str, group: str, otherwise: str) -> str:
    """Return the section that a file of Hydra names in its `# @package`, else the other one."""
    header = _HEADER.match(text)
    return section_below("", header[1], group) if header is not None else otherwise


def section_below(section: str, package: str, group: str) -> str:
    """Return the section of a package of Hydra within a section.

    (hydra/core/default_element.py of Hydra 1.3)
    """
    package = package.replace("_group_", "_global_." + group.replace("/", "."))
    package = "" if package == "_here_" else package
    return f"{section}.{package}".strip(".").rpartition("_global_")[2].strip(".")


def _path_of_default(base: str, document: ConfigDocument, files: Mapping[str, str]) -> str:
    folder = posixpath.dirname(document.name)
    if base.endswith((".yaml", ".yml")):
        return posixpath.normpath(posixpath.join(folder, base))
    paths = []
    while folder and folder != "/":
        paths.append(posixpath.join(folder, f"{base}.yaml"))
        folder = posixpath.dirname(folder)
    paths.append(f"{base}.yaml")
    return next((each for each in paths if files.get(each) is not None), paths[0])


def _check_depth(text: str, language: str) -> None:
    """Raise UnreadableScript for a nesting that would exhaust the parser's stack."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    dashes = max((len(m) // 2 for m in re.findall(r"(?m)^[ ]*((?:- )+|(?:\? )+)", text)), default=0)
    indent = max((len(m) for m in re.findall(r"(?m)^ *(?=\S)", text)), default=0)
    if max(deepest, dashes, indent // 8) > DEEPEST:
        raise UnreadableScript(f"this {language} is nested deeper than any configuration needs")


def _dereferenced(values: Mapping[str, Given]) -> Mapping[str, Given]:
    """Return the values. Replace `${other.key}` by that key's value if the file has the key."""
    resolved = {}
    for key, given in values.items():
        match = _REFERENCE.fullmatch(given.text)
        other = values.get(match[1]) if match else None
        resolved[key] = given if other is None else Given(other.text, (*given.lines, *other.lines))
    return resolved


def _flattened(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not path):
        for key, child in value.items():
            yield from _flattened(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from _flattened(child, f"{path}.{i}")
    else:
        yield path, value


def _toml_lines(text: str) -> dict[str, int]:
    """Return the first line of each dotted key. Keys leave out the indices of array sections."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0].strip()
        if code.startswith("[") and code.endswith("]"):
            section = code.strip("[]").replace('"', "").replace(" ", "") + "."
            lines.setdefault(section[:-1].replace("-", "_"), number)
            continue
        key = _TOML_KEY.match(line)
        if key:
            name = key[1].strip("\"'")
            lines.setdefault(f"{section}{name}".replace("-", "_"), number)
    return lines


_OF_PYTHON = ("capture", "time", "timeit", "prun", "debug")
"""Magics of a cell whose other lines are run as Python."""


def notebook(text: str) -> str:
    """Return the code cells of a Jupyter notebook as one Python program; outputs are left out.

    A line `!command` or `%pip install` and a cell `%%bash` become strings, as a program has
    commands. Raise UnreadableScript for a text that is no notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnreadableScript("this is no Jupyter notebook") from None
    return "\n".join(map(_cell, sources)) + "\n"


def _cell(source: str) -> str:
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%writefile") and first.endswith(".py"):
        return rest
    magic = first[2:].split()[:1] if first.startswith("%%") else []
    if magic and magic[0] not in _OF_PYTHON:
        return f"_ = {rest!r}" if magic[0] in ("bash", "sh") else ""
    lines: list[str] = []
    for line in source.replace("\\\n", " ").split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        plain = line.lstrip()
        runs = plain.startswith(("!", "%pip ", "%uv ", "%conda ", "pip install ", "conda install "))
        command = f"bash -c {shlex.quote(plain.lstrip('!%'))}"
        lines.append(f"{indent}_ = {command!r}" if runs else "" if plain[:1] == "%" else line)
    return "\n".join(lines)
