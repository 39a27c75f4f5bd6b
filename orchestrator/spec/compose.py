"""Config groups and the files of a spec: composed by Hydra, once, and resolved by OmegaConf."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Fault, did_you_mean
from orchestrator.settings import Name
from orchestrator.spec.expand import Pointer, json_path
from orchestrator.spec.fields import FIELDS, SpecFile, StudyFile
from orchestrator.spec.sentences import shown
from orchestrator.spec.shipped import shipped_folder
from orchestrator.spec.yaml_file import MAX_DEPTH, MAX_NODES, YamlDocument, read

GROUPS = ("recipe", "model", "data", "site", "evaluation", "sampling", "published")
_NAME = TypeAdapter(Name)


class ComposedPart(NamedTuple):
    """A document and its place in the composed spec."""

    prefix: Pointer
    document: YamlDocument


@dataclass
class Library:
    """A reader of config groups: the entries beside a spec, and the shipped ones.

    It reads each entry once. It remembers the documents, to name file and line of a fault.
    """

    folder: Path
    faults: list[Fault]
    entries: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    parts: list[ComposedPart] = field(default_factory=list)
    """All documents that were read, in order of composition. Later ones win."""
    overridden: list[tuple[Pointer, str]] = field(default_factory=list)
    """Values that the command line changed, each with its text on the command line."""

    def names(self, group: str) -> list[str]:
        """Return the names of a group's entries: those beside the spec and the shipped ones."""
        return group_names(self.folder, group)

    def file(self, group: str, name: str) -> Path:
        """Return the file of an entry. A file beside the spec hides a shipped one of the same
        name."""
        own = self.folder / group / f"{name}.yaml"
        return own if own.is_file() else shipped_folder() / group / f"{name}.yaml"

    def missing(self, group: str, name: str) -> str:
        """Return the sentence for an entry that does not exist; empty if it does."""
        if not is_name(name):
            return f"{group} '{name}' is not a name: letters, digits, '.', '_', '+' and '-' only"
        names = self.names(group)
        if name in names:
            return ""
        available = f"there are: {', '.join(names)}" if names else f"there is no folder {group}/"
        return f"no {group} is called '{name}'{did_you_mean(name, names) or f' ({available})'}"

    def entry(self, group: str, name: str) -> Mapping[str, Any]:
        """Return the plain data of an entry. Raise LookupError with a sentence if there is none."""
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

        problems: list[tuple[str, Pointer]] = []
        plain = resolved(data, problems)
        for message, at in problems:
            self.faults.append(self.fault(message, (f"@{group}", name, *at)))
        return plain

    def walk(
        self, group: str, name: str, prefix: Pointer, above: tuple[Path, ...]
    ) -> Iterator[ComposedPart]:
        """Yield an entry and the entries that its `defaults` name, in order of composition."""
        file = self.file(group, name)
        document = read(file, self.faults)
        if document is None:
            return
        for i, item in enumerate(default_items(document, self.faults)):
            at: Pointer = ("defaults", i)
            if item == "_self_":
                continue
            if not isinstance(item, str):
                self.faults.append(
                    document.fault(
                        f"an entry of {group}/ may only name entries of {group}/; got "
                        f"{shown(item)}",
                        at,
                    )
                )
            else:
                yield from self.step(document, group, item, prefix, at, (*above, file))
        part = ComposedPart(prefix, document)
        self.parts.append(part)
        yield part

    def step(
        self,
        document: YamlDocument,
        group: str,
        name: str,
        prefix: Pointer,
        at: Pointer,
        above: tuple[Path, ...],
    ) -> Iterator[ComposedPart]:
        """Yield the entries that one item of a defaults list names, after checking it."""
        problem = self.missing(group, name)
        if problem:
            self.faults.append(document.fault(problem, at))
        elif self.file(group, name) in above:
            chain = " -> ".join([*(path.stem for path in above), name])
            self.faults.append(document.fault(f"a cycle in defaults: {chain}", at))
        else:
            yield from self.walk(group, name, prefix, above)

    def fault(self, message: str, pointer: Pointer) -> Fault:
        """Return a fault at a place of the composed spec, with the file and line that wrote it."""
        for place, text in self.overridden:
            if pointer[: len(place)] == place:
                return Fault(message, f"{json_path(pointer)} (override '{text}')")
        for depth in range(len(pointer), -1, -1):
            for prefix, document in reversed(self.parts):
                inner = pointer[len(prefix) : depth]
                if len(prefix) > depth or pointer[: len(prefix)] != prefix:
                    continue
                if inner in document.lines:
                    return Fault(
                        message,
                        json_path(pointer[len(prefix) :]),
                        document.file,
                        document.lines[inner],
                    )
        return Fault(message, json_path(pointer))


def group_names(folder: Path, group: str) -> list[str]:
    """Return the names of a config group's entries: in the folder of a spec, and shipped ones."""
    folders = (folder, shipped_folder())
    return sorted({path.stem for each in folders for path in (each / group).glob("*.yaml")})


def is_name(name: object) -> bool:
    """Return True if a text can name a group entry. Such a name has no `/`, so its file is in the
    group's folder."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def default_items(document: YamlDocument, faults: list[Fault]) -> list[Any]:
    """Return the `defaults` of a file. Anything but a list is a fault."""
    items = document.data.get("defaults", [])
    if isinstance(items, list):
        return items
    faults.append(document.fault(f"defaults is a list; got {shown(items)}", ("defaults",)))
    return []


def merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two nested mappings, merged. A value of `over` that is no mapping replaces the value
    under it."""
    out = dict(under)
    for key, value in over.items():
        below = out.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            out[key] = merged(below, value)
        else:
            out[key] = value
    return out


_FIELDS_OF_STUDY = frozenset(StudyFile.model_fields)
KINDS = ("auto", "local", "gpus", "slurm", "ray")
"""Kinds of sites that need no file."""


class Override(NamedTuple):
    """One `key=value` of the command line, as Hydra's grammar reads it."""

    text: str
    key: str
    value: Any
    adds: bool
    deletes: bool


def overrides_of(texts: Sequence[str], faults: list[Fault]) -> list[Override]:
    """Parse the overrides. Report each one that cannot be parsed as a fault."""
    if not texts:
        return []
    if isinstance(texts, str):
        faults.append(Fault(f"overrides are a list, such as ['seeds=[0]']; got {texts!r}"))
        return []
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    overrides = []
    for text in texts:
        try:
            read_ = parser.parse_override(text)
            if read_.is_sweep_override():
                faults.append(
                    Fault(
                        f"override '{text}' names several values; put a list in brackets: key=[1,2]"
                    )
                )
                continue
            value = None if read_.is_delete() else read_.value()
        except HydraException as error:
            first = str(error).splitlines()[0]
            faults.append(Fault(f"override '{text}' cannot be read: {first}{_quotes(text)}"))
            continue
        overrides.append(
            Override(text, read_.key_or_group, value, read_.is_add(), read_.is_delete())
        )
    return overrides


def _quotes(text: str) -> str:
    """Return the override with its value in quotes, as advice, if that can be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, is_set, value = text.partition("=")
    mark = "'" if '"' in value else '"'
    quoted = f"{key}={mark}{value}{mark}"
    if not is_set or mark in value or value[:1] in "[{":
        return ""
    try:
        OverridesParser.create().parse_override(quoted)
    except HydraException:
        return ""
    return f"; quotes around the value help, and others around all of it: {shlex.quote(quoted)}"


def documents(file: Path, library: Library, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Read every file of the spec into `library.parts`. Return the composed data.

    chosen: group -> entry, as overrides on the command line choose it.
    """
    return _walk(file, library, chosen, ())


def _walk(
    file: Path, library: Library, chosen: Mapping[str, str], above: tuple[Path, ...]
) -> dict[str, Any]:
    document = read(file, library.faults)
    if document is None:
        return {}
    data: dict[str, Any] = {}
    for i, item in enumerate(default_items(document, library.faults)):
        at: Pointer = ("defaults", i)
        if item == "_self_":
            continue
        if isinstance(item, str):
            data = merged(data, _sibling(document, item, library, chosen, at, (*above, file)))
            continue
        group, name = _group_item(document, item, at, library.faults)
        name = chosen.get(group, name)
        for part in library.step(document, group, name, (group,), at, ()) if name else ():
            data = merged(data, {group: part.document.data})
    library.parts.append(ComposedPart((), document))
    return merged(data, document.data)


def _sibling(
    document: YamlDocument,
    name: str,
    library: Library,
    chosen: Mapping[str, str],
    at: Pointer,
    above: tuple[Path, ...],
) -> dict[str, Any]:
    """Return the composed data of another spec in the same folder, on which this spec builds.

    If that spec cannot be named or found, report a fault and return no data.
    """
    file = library.folder / f"{name}.yaml"
    names = [path.stem for path in library.folder.glob("*.yaml")]
    if not is_name(name):
        problem = f"'{name}' is not a name: letters, digits, '.', '_', '+' and '-' only"
    elif name not in names:
        problem = f"no spec is called '{name}' in this folder{did_you_mean(name, names)}"
    elif file in above:
        problem = "a cycle in defaults: " + " -> ".join([*(path.stem for path in above), name])
    else:
        return _walk(file, library, chosen, above)
    library.faults.append(document.fault(problem, at))
    return {}


def _group_item(
    document: YamlDocument, item: object, at: Pointer, faults: list[Fault]
) -> tuple[str, str]:
    """Return `{group: entry}` of a defaults list as two texts; two empty texts for any other
    item."""
    if isinstance(item, dict) and len(item) == 1:
        group, name = next(iter(item.items()))
        group = group.removeprefix("override ").strip()
        if group in GROUPS and isinstance(name, str):
            return group, name
        if group in GROUPS:
            faults.append(document.fault(f"{group} takes one entry, got {shown(name)}", at))
            return "", ""
        hint = did_you_mean(group, GROUPS) or f" (there are: {', '.join(GROUPS)})"
        faults.append(document.fault(f"no config group is called '{group}'{hint}", at))
        return "", ""
    faults.append(
        document.fault(
            f"an item of defaults is `group: entry`, a spec or _self_; got {shown(item)}", at
        )
    )
    return "", ""


def compose(
    file: Path, overrides: Sequence[Override], data: Mapping[str, Any], faults: list[Fault]
) -> dict[str, Any]:
    """Return the composed spec, unresolved. Report a refusal of Hydra as a fault.

    data: of `documents`. A spec that composes nothing is this data, and Hydra is not imported.
    """
    if not overrides and _is_whole(file, data):
        return dict(data)
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # Hydra cannot address some keys. Their values are set after it has composed the rest.
    late = [o for o in overrides if _place_outside_hydra(o.key, data)]
    early = [o for o in overrides if o not in late]
    texts = [_with_plus(o, data, file) for o in early]
    if absent := [fault for o in early if (fault := _absent_entry(o, file))]:
        faults.extend(absent)
        return {}
    try:
        with initialize_config_dir(config_dir=str(file.parent.absolute()), version_base="1.3"):
            config = hydra_compose(config_name=file.stem, overrides=[*_search_path(file), *texts])
        plain = OmegaConf.to_container(config)
    except (HydraException, OmegaConfBaseException, LookupError, TypeError, ValueError) as error:
        # OmegaConf raises Python's own errors if a step of a key is in a list.
        if not isinstance(error, HydraException | OmegaConfBaseException):
            faults.extend(_unplaced(overrides, data))
            if not faults:
                raise
            return {}
        own = list(_unknown_keys(overrides, data))
        lines = [line.strip(" .") for line in str(error).splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("To append")]
        faults.extend(own or [Fault("; ".join(lines))])
        return {}
    if not isinstance(plain, dict):
        raise TypeError(f"Hydra composed {type(plain).__name__} from {file}, not a mapping")
    composed = {str(key): value for key, value in plain.items()}
    for override in late:
        _apply(composed, override)
    return composed


def _is_whole(file: Path, data: Mapping[str, Any]) -> bool:
    """Return True if Hydra would return the file's data as they are.

    yaml_file.read accepts only what OmegaConf reads in the same way. Hydra changes the data of the
    keys `defaults` and `hydra`, of interpolations, and of a file with the header `# @package`.
    """
    acts = "defaults" in data or "hydra" in data or "${" in repr(data)
    return not acts and "@package" not in file.read_text(encoding="utf-8")


def _search_path(file: Path) -> list[str]:
    """Return the override with which Hydra also finds shipped config groups."""
    shipped = shipped_folder()
    if file.parent.absolute() == shipped:
        return []
    quoted = str(shipped).replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"]


def _unplaced(overrides: Sequence[Override], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each override whose key goes through a value without keys."""
    for override in overrides:
        words = override.key.split(".")
        for size in range(len(words) - 1, 0, -1):
            pointer = place(".".join(words[:size]), data)
            if pointer is None:
                continue
            node: Any = data
            for step in pointer:
                node = node[step]
            if not isinstance(node, Mapping):
                above, rest = ".".join(words[:size]), ".".join(words[size:])
                yield Fault(
                    f"override '{override.text}': {above} is {shown(node)} in the spec, so it has "
                    f"no '{rest}'; give the whole of it: '{above}=...'"
                )
            break


def _absent_entry(override: Override, file: Path) -> Fault | None:
    """Return the fault of an override that names no entry of its config group."""
    name = override.value
    if override.key not in GROUPS or not isinstance(name, str):
        return None
    names = group_names(file.parent, override.key)
    if not names or name in names or (override.key == "site" and name in KINDS):
        return None
    hint = did_you_mean(name, names) or f" (there are: {', '.join(names)})"
    return Fault(f"override '{override.text}': no {override.key} is called '{name}'{hint}")


def _with_plus(override: Override, data: Mapping[str, Any], file: Path) -> str:
    """Return the text of an override. It has Hydra's `+` if a spec may have the field and this spec
    does not have it.

    A later step checks that the field exists.
    """
    words = override.key.split(".")
    if override.text.startswith(("+", "~")) or place(override.key, data) is not None:
        return override.text
    if words[0] == "studies":
        known = (
            len(words) > 2 and words[1] in data.get("studies", {}) and words[2] in _FIELDS_OF_STUDY
        )
    else:
        known = words[0] in SpecFile.model_fields
    if not known:
        return override.text
    group = len(words) == 1 and words[0] in GROUPS and bool(group_names(file.parent, words[0]))
    return f"{'+' if group else '++'}{override.text}"


def _place_outside_hydra(key: str, data: Mapping[str, Any]) -> Pointer | None:
    """Return the place of a key that Hydra cannot address; None for other keys.

    Hydra cannot address a key if a step of it has a dot, or if it is the name of an entry where
    Hydra sees a config group and looks for an item of the defaults list.
    """
    pointer = place(key, data) or _new_axis(key, data)
    if pointer and len(pointer) == 1 and pointer[0] in GROUPS and isinstance(data[key], str):
        return pointer
    return pointer if any("." in str(step) for step in pointer or ()) else None


def place(key: str, data: Mapping[str, Any]) -> Pointer | None:
    """Return the path of `studies.a.axes.kl.beta` in the data, or None if it has no such key."""
    steps: list[str | int] = []
    words, node = key.split("."), data
    while words:
        # The name of an axis can have dots (`kl.beta`), so the longest name that exists is taken.
        for size in range(len(words), 0, -1):
            step = ".".join(words[:size])
            if isinstance(node, Mapping) and step in node:
                steps.append(step)
                words, node = words[size:], node[step]
                break
        else:
            return None
    return tuple(steps)


def _new_axis(key: str, data: Mapping[str, Any]) -> Pointer | None:
    """Return the place of a dotted axis that a study does not have yet, as in the override
    `studies.a.axes.kl.beta=[0.1]`; None for any other key."""
    for size in range(4, len(words := key.split("."))):
        if words[0] != "studies" or words[size - 2] != "axes":
            continue
        study = ".".join(words[1 : size - 2])
        axis = ".".join(words[size - 1 :])
        at = place(f"studies.{study}.axes", data)
        if at is not None and axis in FIELDS:
            return (*at, axis)
    return None


def _apply(composed: dict[str, Any], override: Override) -> None:
    pointer = _place_outside_hydra(override.key, composed)
    if pointer is None:
        return
    node: Any = composed
    for step in pointer[:-1]:
        node = node[step]
    if override.deletes:
        del node[pointer[-1]]
    else:
        node[pointer[-1]] = override.value


_SHORT = {"beta": "kl.beta", "async": "max_staleness_steps", "lr": "optimizer.learning_rate"}


def _unknown_keys(overrides: Sequence[Override], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each override whose key does not exist, with the nearest way to say it."""
    for override in overrides:
        if override.adds or place(override.key, data) is not None:
            continue
        _, equals, value = override.text.partition("=")
        full = _SHORT.get(override.key, override.key)
        near = did_you_mean(full, [*FIELDS, *SpecFile.model_fields])
        if full not in FIELDS and (found := near.partition("'")[2].partition("'")[0]) in FIELDS:
            full = found
        if full in FIELDS and full != "seed":
            near = f"; settings are set by base.{full}{equals}{value}, or in one study"
        elif full == "seed":
            near = f", did you mean 'seeds'? seeds={f'[{value}]' if value else '[0]'}"
        else:
            near = _nearest_word(override.key, data) or near
        yield Fault(f"override '{override.text}': a spec has no field '{override.key}'{near}")


def _nearest_word(key: str, data: Mapping[str, Any]) -> str:
    """Return a hint at the nearest key, where the first word that is not there could be."""
    node: Any = data
    for word in key.split("."):
        if not isinstance(node, Mapping):
            break
        if word not in node:
            return did_you_mean(word, node)
        node = node[word]
    return ""


def resolved(data: Mapping[str, Any], problems: list[tuple[str, Pointer]]) -> dict[str, Any]:
    """Return the data with every `${...}` replaced by its value. Append those without one to
    `problems`."""
    if not any(mark in repr(data) for mark in ("${", "???")):
        return dict(data)
    from omegaconf import OmegaConf

    budget = [MAX_NODES]
    plain = _plain(OmegaConf.create(dict(data)), (), problems, budget)
    if budget[0] < 0:
        problems.append((f"interpolations expand to more than {MAX_NODES:,} values", ()))
    return plain if isinstance(plain, dict) else {}


def _plain(node: Any, at: Pointer, problems: list[tuple[str, Pointer]], budget: list[int]) -> Any:
    from omegaconf import DictConfig, ListConfig
    from omegaconf.errors import OmegaConfBaseException

    budget[0] -= 1
    if not isinstance(node, DictConfig | ListConfig):
        return node
    keys = list(range(len(node))) if isinstance(node, ListConfig) else list(node)
    plain: dict[Any, Any] = {}
    for key in keys if budget[0] >= 0 and len(at) <= MAX_DEPTH else ():
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            problems.append((str(error).splitlines()[0], (*at, key)))
        except RecursionError:
            problems.append(("interpolations refer to each other in a circle", (*at, key)))
        else:
            plain[key] = _plain(value, (*at, key), problems, budget)
    if len(at) > MAX_DEPTH:
        problems.append(("an interpolation contains itself", at))
    return list(plain.values()) if isinstance(node, ListConfig) else plain
