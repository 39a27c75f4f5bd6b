"""Config groups: the folders beside a spec, and the files that a spec is composed of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Fault, did_you_mean
from orchestrator.expand.assign import Pointer, spelled
from orchestrator.sentences import shown
from orchestrator.settings import Name
from orchestrator.spec.source import Document, read

GROUPS = ("recipe", "model", "data", "site", "evaluation", "sampling", "published")
_NAME = TypeAdapter(Name)


class Part(NamedTuple):
    """A document and where its content lies in the composed spec."""

    prefix: Pointer
    document: Document


@dataclass
class Library:
    """Reads the group entries beside a spec, each once, and remembers them for faults."""

    folder: Path
    faults: list[Fault]
    entries: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    """Everything read, in order of composition; later ones win."""
    overridden: list[tuple[Pointer, str]] = field(default_factory=list)
    """What the command line changed, and how it was written there."""

    def names(self, group: str) -> list[str]:
        """The entries a group has."""
        return sorted(path.stem for path in (self.folder / group).glob("*.yaml"))

    def missing(self, group: str, name: str) -> str:
        """The sentence for an entry that is not there; empty if it is."""
        if not is_name(name):
            return f"{group} '{name}' is not a name: letters, digits, '.', '_', '+' and '-' only"
        names = self.names(group)
        if name in names:
            return ""
        there = f"there are: {', '.join(names)}" if names else f"there is no folder {group}/"
        return f"no {group} is called '{name}'{did_you_mean(name, names) or f' ({there})'}"

    def entry(self, group: str, name: str) -> Mapping[str, Any]:
        """The plain data of an entry. Raises LookupError with a sentence if there is none."""
        if (group, name) not in self.entries:
            problem = self.missing(group, name)
            if problem:
                raise LookupError(problem)
            data: dict[str, Any] = {}
            for part in self.walk(group, name, (f"@{group}", name), ()):
                data = merged(data, part.document.data)
            data.pop("defaults", None)
            self.entries[group, name] = self._resolved(data, group, name)
        return self.entries[group, name]

    def _resolved(self, data: dict[str, Any], group: str, name: str) -> Mapping[str, Any]:
        if "${" not in repr(data):
            return data
        from orchestrator.spec.compose import resolved

        problems: list[tuple[str, Pointer]] = []
        plain = resolved(data, problems)
        for message, at in problems:
            self.faults.append(self.fault(message, (f"@{group}", name, *at)))
        return plain

    def walk(
        self, group: str, name: str, prefix: Pointer, above: tuple[Path, ...]
    ) -> Iterator[Part]:
        """An entry and the entries its `defaults` name, in order of composition."""
        file = self.folder / group / f"{name}.yaml"
        document = read(file, self.faults)
        if document is None:
            return
        for i, item in enumerate(default_items(document, self.faults)):
            at: Pointer = ("defaults", i)
            if item == "_self_":
                continue
            if not isinstance(item, str):
                self.faults.append(document.fault(
                    f"an entry of {group}/ may only name entries of {group}/; got {shown(item)}", at
                ))  # fmt: skip
            else:
                yield from self.step(document, group, item, prefix, at, (*above, file))
        part = Part(prefix, document)
        self.parts.append(part)
        yield part

    def step(
        self, document: Document, group: str, name: str, prefix: Pointer, at: Pointer,
        above: tuple[Path, ...],
    ) -> Iterator[Part]:  # fmt: skip
        """One item of a defaults list, checked."""
        problem = self.missing(group, name)
        if problem:
            self.faults.append(document.fault(problem, at))
        elif self.folder / group / f"{name}.yaml" in above:
            chain = " -> ".join([*(path.stem for path in above), name])
            self.faults.append(document.fault(f"a cycle in defaults: {chain}", at))
        else:
            yield from self.walk(group, name, prefix, above)

    def fault(self, message: str, pointer: Pointer) -> Fault:
        """A fault at a place of the composed spec, in the file and line that wrote it."""
        for place, text in self.overridden:
            if pointer[: len(place)] == place:
                return Fault(message, f"{spelled(pointer)} (override '{text}')")
        for depth in range(len(pointer), -1, -1):
            for prefix, document in reversed(self.parts):
                inner = pointer[len(prefix) : depth]
                if len(prefix) > depth or pointer[: len(prefix)] != prefix:
                    continue
                if inner in document.lines:
                    return Fault(message, spelled(pointer[len(prefix) :]), document.file,
                                 document.lines[inner])  # fmt: skip
        return Fault(message, spelled(pointer))


def is_name(name: object) -> bool:
    """Whether it can name a group entry: it cannot leave its folder."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def default_items(document: Document, faults: list[Fault]) -> list[Any]:
    """The `defaults` of a file; anything but a list is a fault."""
    items = document.data.get("defaults", [])
    if isinstance(items, list):
        return items
    faults.append(document.fault(f"defaults is a list; got {shown(items)}", ("defaults",)))
    return []


def merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged; everything else of `over` replaces what is under it."""
    out = dict(under)
    for key, value in over.items():
        below = out.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            out[key] = merged(below, value)
        else:
            out[key] = value
    return out
