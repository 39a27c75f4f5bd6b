"""Read the programs that a YAML file starts in containers, as shell text.

Kubernetes gives a container's program as a list of words (`command`, `args`) and its environment as
a list of names and values. Compose gives them as `entrypoint`, `command` and `environment`.
https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.audit.documents import MOST_VALUES
from orchestrator.library.launches import UnreadableScript

PROGRAM_KEYS = ("entrypoint", "command", "args")
"""In the order in which their words make up the command line."""
ENVIRONMENT_KEYS = ("env", "environment", "envs")
FILLED_IN = "a template or the cluster sets it"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)|\{\{.*?\}\}|\$\{\{.*?\}\}")
"""An escaped dollar, Kubernetes' reference to a variable, or a place that a template fills."""
_TEMPLATE = "__filled_in"


@dataclass
class ContainerScript:
    """The command line of a container as shell text, each word on its own line of the file."""

    text: str
    first_line: int
    environment: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    """Variables whose values are not in the file, with the reason."""


def container_scripts(root: Any) -> Iterator[ContainerScript]:
    """Yield the command line of each mapping that has one as a list of words.

    root: the node of a YAML document. Raise UnreadableScript if aliases make it too large.
    """
    nodes, visited = [root], 0
    while nodes:
        node = nodes.pop()
        visited += 1
        if visited > MOST_VALUES:
            raise UnreadableScript(f"this file has more than {MOST_VALUES} values")
        if isinstance(node, yaml.SequenceNode):
            nodes += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            entries = _entries(node)
            if script := _script(entries):
                yield script
            nodes += reversed(list(entries.values()))


def _entries(mapping: yaml.MappingNode) -> dict[str, Any]:
    return {key.value: value for key, value in mapping.value if isinstance(key, yaml.ScalarNode)}


def _script(entries: Mapping[str, Any]) -> ContainerScript | None:
    """Return the command line of one container, or None if it is not a list of words."""
    programs = [entries[key] for key in PROGRAM_KEYS if key in entries]
    if not any(isinstance(each, yaml.SequenceNode) for each in programs):
        return None
    words = [
        word
        for each in programs
        for word in (each.value if isinstance(each, yaml.SequenceNode) else [each])
    ]
    if not words or not all(isinstance(word, yaml.ScalarNode) for word in words):
        return None

    script = ContainerScript("", words[0].start_mark.line + 1)
    for key in ENVIRONMENT_KEYS:
        _read_environment(entries.get(key), script)
    line = script.first_line
    for word in words:
        quoted = _quoted(word.value, script)
        if word.style in ("|", ">"):
            quoted = f"\n{quoted}" if quoted[:1] != "'" else f"'\n{quoted[1:]}"
        # Continued lines keep each word on its line of the file; messages name that line.
        gap = max(word.start_mark.line + 1 - line, 0)
        script.text += " \\\n" * gap + f" {quoted}" if script.text else quoted
        line += gap + quoted.count("\n")
    return script


def _read_environment(node: Any, script: ContainerScript) -> None:
    """Add a container's variables: a mapping, `NAME=VALUE` words, or names with values."""
    if isinstance(node, yaml.MappingNode):
        for name, value in _entries(node).items():
            _add(name, value, script)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            if isinstance(each, yaml.ScalarNode):
                name, given, value = each.value.partition("=")
                if given:
                    script.environment[name] = value
            elif isinstance(each, yaml.MappingNode):
                entries = _entries(each)
                if isinstance(entries.get("name"), yaml.ScalarNode):
                    _add(entries["name"].value, entries.get("value"), script)


def _add(name: str, value: Any, script: ContainerScript) -> None:
    if isinstance(value, yaml.ScalarNode) and not _REFERENCE.search(value.value):
        script.environment[name] = value.value
    else:
        script.unknown[name] = FILLED_IN


def _quoted(word: str, script: ContainerScript) -> str:
    """Return a word for the shell, in which only references of the cluster are expanded."""
    pieces, end = [], 0
    for match in _REFERENCE.finditer(word):
        pieces.append(word[end : match.start()])
        end = match.end()
        if match[0] == "$$":
            pieces.append("$")
            continue
        name = match[1] or _TEMPLATE
        if not re.fullmatch(r"\w+", name):
            name = _TEMPLATE
        if name not in script.environment:
            script.unknown[name] = FILLED_IN
        pieces.append(f"\x00{name}\x00")
    pieces.append(word[end:])
    # Between two marks is a name, so every second part is one; all else is quoted.
    parts = "".join(pieces).split("\x00")
    return (
        "".join(
            f'"${{{part}}}"' if i % 2 else shlex.quote(part) if part else ""
            for i, part in enumerate(parts)
        )
        or "''"
    )
