"""One YAML file: its plain data, and the line each part was written on.

Only what YAML 1.1 and 1.2 (and OmegaConf, which composes the same file) read alike is accepted:
`no`, `on`, `010` and `1:30` mean different things to them and must be quoted or spelled out. Tags,
documents of more than 1 MiB, and anchors that expand without end are refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import Fault
from orchestrator.spec.expand import Pointer, json_path

MAX_BYTES = 1 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_ODD = re.compile(r"0o[0-7]+|=|<<")
_NUMBERS_OF_1_1 = {
    regexp
    for resolvers in yaml.SafeLoader.yaml_implicit_resolvers.values()
    for tag, regexp in resolvers
    if tag.endswith((":bool", ":int", ":float"))
}
"""Patterns of the texts that YAML 1.1 reads as a number or a truth value: `no`, `010`, `1:30`,
..."""
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+")
_FLOAT = re.compile(
    r"[-+]?[0-9]+(_[0-9]+)*\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9]+(_[0-9]+)*[eE][-+]?[0-9]+"
    r"|\.[0-9]+(_[0-9]+)*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class YamlDocument:
    """A mapping read from a file."""

    file: Path
    data: dict[str, Any]
    lines: Mapping[Pointer, int]

    def fault(self, message: str, at: Pointer = ()) -> Fault:
        """Return a fault at the nearest place that the file contains."""
        near = at
        while near and near not in self.lines:
            near = near[:-1]
        return Fault(message, json_path(at), self.file, self.lines.get(near))


def read(file: Path, faults: list[Fault]) -> YamlDocument | None:
    """Read a spec or a group entry. Return None if no data is left. Faults go to `faults`."""
    text = _text(file, faults)
    if text is None:
        return None
    builder = _Builder(file, faults)
    try:
        data = builder.document(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        message = " ".join(filter(None, (error.context, error.problem)))
        advice = _advice(text.splitlines(), line or 0)
        faults.append(Fault(f"not valid YAML: {advice or message}", "$", file, line))
        return None
    except yaml.YAMLError as error:
        faults.append(Fault(f"not readable as YAML: {str(error).splitlines()[0]}", "$", file))
        return None
    except _RefusedError as refused:
        faults.append(Fault(str(refused), "$", file, refused.line))
        return None
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {type(data).__name__}, not a mapping"
        faults.append(Fault(f"the file {what}; a spec is a mapping of fields", "$", file))
        return None
    return YamlDocument(file, data, builder.lines)


def _advice(lines: list[str], number: int) -> str:
    """Return what to change in a line that is no YAML; empty if it is not plain to see.

    number: of the line, from 1.
    """
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    indent = len(line) - len(line.lstrip())
    if "\t" in line[:indent]:
        return "this line begins with a tab; indent with spaces, two for each step"
    above = [len(each) - len(each.lstrip()) for each in lines[: number - 1] if each.strip()]
    if line.strip() and above and indent not in above:
        depths = ", ".join(map(str, sorted({depth for depth in above if depth <= indent + 2})))
        return f"this line is indented by {indent} spaces; lines above it by {depths}"
    return ""


def _text(file: Path, faults: list[Fault]) -> str | None:
    try:
        if file.is_dir():
            faults.append(Fault("is a folder; name a .yaml file in it", "$", file))
            return None
        with file.open("rb") as stream:
            # One byte more than allowed shows that a file is too large, without reading all of it.
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        faults.append(Fault("there is no such file", "$", file))
        return None
    except OSError as error:
        faults.append(Fault(f"cannot be read: {error.strerror}", "$", file))
        return None
    if len(raw) > MAX_BYTES:
        faults.append(Fault(f"is larger than {MAX_BYTES >> 20} MiB; a spec is text", "$", file))
        return None
    if b"\0" in raw:
        faults.append(Fault("is a binary file; a spec is UTF-8 text", "$", file))
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        faults.append(Fault("is not UTF-8 text; save it as UTF-8", "$", file, line))
        return None


class _RefusedError(Exception):
    """Raised if the rest of the file cannot be read."""

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.line = line


@dataclass
class _Builder:
    """Plain data from parser events, with the line of each part."""

    file: Path
    faults: list[Fault]
    lines: dict[Pointer, int] = field(default_factory=dict)
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    """Anchor -> value and its number of nodes, once it is complete."""
    nodes: int = 0

    def document(self, events: Iterator[Any]) -> Any:
        data, started = None, False
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if started:
                    raise _RefusedError("holds several documents; keep one", _line(event))
                started = True
                data = self.node(next(events), events, ())
        return data

    def node(self, event: Any, events: Iterator[Any], at: Pointer) -> Any:
        line = _line(event)
        self.lines.setdefault(at, line)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, line)
        before = self.nodes
        self.count(1, line)
        if len(at) > MAX_DEPTH:
            raise _RefusedError(f"is nested more than {MAX_DEPTH} deep", line)
        if event.tag is not None and not (event.tag == "!" and _is_quoted(event)):
            self.report(
                f"YAML tags are not read, got '{event.tag}': write the plain value", at, line
            )
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self.scalar(event, at, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.sequence(events, at)
        else:
            value = self.mapping(events, at)
        if event.anchor:
            self.anchors[event.anchor] = (value, self.nodes - before)
        return value

    def alias(self, event: Any, line: int) -> Any:
        if event.anchor not in self.anchors:
            raise _RefusedError(
                f"'*{event.anchor}' stands before or inside what it refers to", line
            )
        value, nodes = self.anchors[event.anchor]
        # An alias counts as many values as it stands for. Otherwise aliases of aliases, which grow
        # exponentially, would pass the limit.
        self.count(nodes, line)
        return value

    def count(self, nodes: int, line: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _RefusedError(f"expands to more than {MAX_NODES:,} values", line)

    def sequence(self, events: Iterator[Any], at: Pointer) -> list[Any]:
        items: list[Any] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self.node(event, events, (*at, len(items))))
        return items

    def mapping(self, events: Iterator[Any], at: Pointer) -> dict[str, Any]:
        items: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            line = _line(event)
            # A quoted "<<" is an ordinary key. PyYAML marks only an unquoted one as implicit.
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                inherited |= self.merged(self.node(next(events), events, (*at, "<<")), at, line)
                continue
            key = self.key(event, at, line, events)
            if key in items:
                self.report(
                    f"'{key}' is written twice (first in line {self.lines[(*at, key)]})",
                    (*at, key),
                    line,
                )
            self.lines[(*at, key)] = line
            items[key] = self.node(next(events), events, (*at, key))
        # A mapping's own keys win over merged ones, wherever the `<<` stands.
        return {**inherited, **items}

    def key(self, event: Any, at: Pointer, line: int, events: Iterator[Any]) -> str:
        key = self.node(event, events, (*at, "?"))
        self.lines.pop((*at, "?"), None)
        if not isinstance(key, str):
            self.report(f"a key must be text, got {key!r}: quote it", at, line)
        return str(key)

    def merged(self, value: Any, at: Pointer, line: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        # YAML's merge key: an earlier mapping of the list wins, so it is merged last.
        for part in reversed(value if isinstance(value, list) else [value]):
            if not isinstance(part, dict):
                self.report("'<<' takes a mapping or a list of mappings", at, line)
                return {}
            merged |= part
        return merged

    def scalar(self, event: Any, at: Pointer, line: int) -> Any:
        text = event.value
        if not event.implicit[0]:
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text):
            return int(text.replace("_", ""), 16 if text.startswith("0x") else 10)
        if _FLOAT.fullmatch(text):
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        if _ODD.fullmatch(text) or any(number.match(text) for number in _NUMBERS_OF_1_1):
            self.report(
                f"{text} reads differently in YAML 1.1 and 1.2: quote it if it is text, or "
                "write true, false or a plain number",
                at,
                line,
            )
        return text

    def report(self, message: str, at: Pointer, line: int) -> None:
        self.faults.append(Fault(message, json_path(at), self.file, line))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _is_quoted(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.style in ('"', "'", "|", ">")
