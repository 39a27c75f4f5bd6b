"""Config groups and the files of a spec: composed by Hydra, once, and resolved by OmegaConf."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import Fault, did_you_mean
from orchestrator.spec.expand import Pointer, json_path
from orchestrator.spec.fields import FIELDS, WHOLE, SpecFile, StudyFile
from orchestrator.spec.sentences import shown
from orchestrator.spec.shipped import shipped_folder
from orchestrator.spec.yaml_file import MAX_DEPTH, MAX_NODES, YamlDocument, read

GROUPS = ("recipe", "model", "data", "site", "evaluation", "sampling", "published")


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

    def file(self, group: str, name: str) -> Path:
        """Return the file of an entry. A file beside the spec hides a shipped one of the same
        name."""
        own = self.folder / group / f"{name}.yaml"
        return own if own.is_file() or not group else shipped_folder() / group / f"{name}.yaml"

    def missing(self, group: str, name: str) -> str:
        """Return the sentence for an entry that does not exist; empty if it does.

        group: empty for another spec of the folder.
        """
        kind = group or "spec"
        others = [path.stem for path in self.folder.glob("*.yaml")]
        names = group_names(self.folder, group) if group else others
        if name in names:
            return ""
        available = f"there are: {', '.join(names)}" if names else f"there is no folder {group}/"
        return f"no {kind} is called '{name}'{did_you_mean(name, names) or f' ({available})'}"

    def entry(self, group: str, name: str) -> Mapping[str, Any]:
        """Return the plain data of an entry. Raise LookupError with a sentence if there is none."""
        if (group, name) not in self.entries:
            problem = self.missing(group, name)
            if problem:
                raise LookupError(problem)
            data = self.walk(self.file(group, name), group, (f"@{group}", name))
            data.pop("defaults", None)
            problems: list[tuple[str, Pointer]] = []
            self.entries[group, name] = resolved(data, problems)
            for message, at in problems:
                self.faults.append(self.fault(message, (f"@{group}", name, *at)))
        return self.entries[group, name]

    def walk(
        self,
        file: Path,
        group: str = "",
        prefix: Pointer = (),
        above: tuple[Path, ...] = (),
        chosen: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the composed data of a spec or an entry and of all that its `defaults` name.

        chosen: group -> entry, as overrides on the command line choose it.
        """
        document = read(file, self.faults)
        if document is None:
            return {}
        data: dict[str, Any] = {}
        for of, written, at in _listed(document, group, self.faults):
            name = written if of == group else (chosen or {}).get(of, written)
            if name in ("", "_self_"):
                continue
            stack = (*above, file) if of == group else ()
            if problem := self.missing(of, name):
                self.faults.append(document.fault(problem, at))
            elif (entry := self.file(of, name)) in stack:
                chain = " -> ".join([*(path.stem for path in stack), name])
                self.faults.append(document.fault(f"a cycle in defaults: {chain}", at))
            else:
                below = self.walk(entry, of, prefix if of == group else (of,), stack, chosen)
                data = merged(data, below if of == group else {of: below})
        self.parts.append(ComposedPart(prefix, document))
        return merged(data, document.data)

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


KINDS = ("auto", "local", "gpus", "slurm", "ray")
"""Kinds of sites that need no file."""


class Override(NamedTuple):
    """One `key=value` of the command line, as Hydra's grammar reads it."""

    text: str
    key: str
    value: Any
    adds: bool
    deletes: bool


_QUOTES = """; quotes around a value help, and others around all of it: 'key="value"'"""


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
            faults.append(Fault(f"override '{text}' cannot be read: {first}{_QUOTES}"))
            continue
        overrides.append(
            Override(text, read_.key_or_group, value, read_.is_add(), read_.is_delete())
        )
    return overrides


def _listed(
    document: YamlDocument, group: str, faults: list[Fault]
) -> Iterator[tuple[str, str, Pointer]]:
    """Yield group, entry and place of each item of a file's `defaults`. group: of the file."""
    items = document.data.get("defaults", [])
    if not isinstance(items, list):
        faults.append(document.fault(f"defaults is a list; got {shown(items)}", ("defaults",)))
        return
    for i, item in enumerate(items):
        at: Pointer = ("defaults", i)
        is_pair = not group and isinstance(item, dict) and len(item) == 1
        of, name = next(iter(item.items())) if is_pair else (group, item)
        of = of.removeprefix("override ").strip()
        if not isinstance(name, str) or not name:
            rule = "an item of defaults is `group: entry`, an entry of the same folder or _self_"
            faults.append(document.fault(f"{rule}; got {shown(item)}", at))
        elif of != group and of not in GROUPS:
            hint = did_you_mean(of, GROUPS) or f" (there are: {', '.join(GROUPS)})"
            faults.append(document.fault(f"no config group is called '{of}'{hint}", at))
        else:
            yield of, name, at


def compose(file: Path, overrides: Sequence[Override], library: Library) -> dict[str, Any]:
    """Return the composed spec with its overrides, unresolved. Faults go to `library.faults`.

    Hydra composes the files, with the entries that overrides choose in a defaults list; of a spec
    that composes nothing it is not imported. All other overrides are then set one by one.
    """
    chosen = {o.key: o.value for o in overrides if o.key in GROUPS and isinstance(o.value, str)}
    data = library.walk(file, chosen=chosen)
    listed = {part.prefix[0] for part in library.parts if part.prefix}
    composed = [group for group in chosen if group in listed]
    if not library.faults and (composed or not _is_whole(file, data)):
        data = _by_hydra(file, [f"{group}={chosen[group]}" for group in composed], library.faults)
    for override in overrides if not library.faults else ():
        if override.key not in composed:
            _apply(data, override, library)
    return data


def _by_hydra(file: Path, entries: Sequence[str], faults: list[Fault]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(file.parent.absolute()), version_base="1.3"):
            config = hydra_compose(config_name=file.stem, overrides=[*_search_path(file), *entries])
        plain = OmegaConf.to_container(config)
    except (HydraException, OmegaConfBaseException) as error:
        lines = [line.strip(" .") for line in str(error).splitlines() if line.strip()]
        faults.append(Fault("; ".join(lines)))
        return {}
    if not isinstance(plain, dict):
        raise TypeError(f"Hydra composed {type(plain).__name__} from {file}, not a mapping")
    return {str(key): value for key, value in plain.items()}


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


def _apply(data: dict[str, Any], override: Override, library: Library) -> None:
    """Set the value of an override in the data, or report why it has no place there."""
    steps, rest = _place(override.key, data)
    if rest and len(steps) == 1 and isinstance(name := data[group := str(steps[0])], str):
        # A field of an entry that the spec names: the entry's content takes its place.
        with contextlib.suppress(LookupError):
            entry = deepcopy(dict(library.entry(group, name)))
            data[group] = {"name": name, **entry} if group in WHOLE else entry
            steps, rest = _place(override.key, data)
    whole: Any = data
    owner, node = reduce(getitem, steps[:-1], whole), reduce(getitem, steps, whole)
    if rest and steps and not isinstance(node, dict):
        above, below = ".".join(map(str, steps)), ".".join(rest)
        message = f"override '{override.text}': {above} is {shown(node)} in the spec, so it has no "
        library.faults.append(Fault(f"{message}'{below}'; give the whole of it: '{above}=...'"))
        return
    if rest and (override.deletes or not (override.adds or _can_be_there(steps, rest[0]))):
        library.faults.append(_unknown_key(override, rest[0], node))
        return
    if override.deletes:
        del owner[steps[-1]]
        return
    value = override.value
    if rest:
        rest = [".".join(rest)] if steps[-1:] == ("axes",) else rest
        for word in rest[:-1]:
            node = node.setdefault(word, {})
        node[rest[-1]] = value
    else:
        both = isinstance(node, dict) and isinstance(value, dict)
        owner[steps[-1]] = merged(node, value) if both else value
    library.overridden.append(((*steps, *rest), override.text))


def _place(key: str, data: Mapping[str, Any]) -> tuple[Pointer, list[str]]:
    """Return the path of `studies.a.axes.kl.beta` in the data as far as it is there, and the words
    that are not."""
    steps: list[str | int] = []
    words = key.split(".")
    node: Any = data
    while words:
        # The name of an axis can have dots (`kl.beta`), so the longest name that exists is taken.
        for size in range(len(words), 0, -1):
            step: str | int = ".".join(words[:size])
            if isinstance(node, list) and words[0].isdigit() and int(words[0]) < len(node):
                step, size = int(words[0]), 1
            elif not isinstance(node, Mapping) or step not in node:
                if steps[-1:] == ["axes"] and step in FIELDS and size == len(words):
                    return tuple(steps), words  # an axis that the study does not have yet
                continue
            steps.append(step)
            words, node = words[size:], node[step]
            break
        else:
            break
    return tuple(steps), words


def _can_be_there(steps: Pointer, word: str) -> bool:
    """Return True if a spec may have this word below a place. A later step checks the rest."""
    if steps[:1] == ("studies",):
        return len(steps) > 2 or (len(steps) == 2 and word in StudyFile.model_fields)
    return bool(steps) or word in SpecFile.model_fields


_SHORT = {"beta": "kl.beta", "async": "max_staleness_steps", "lr": "optimizer.learning_rate"}


def _unknown_key(override: Override, word: str, owner: Mapping[str, Any]) -> Fault:
    """Return the fault of a key that a spec does not have, with the nearest way to say it.

    word: the first that is not there, in `owner`.
    """
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
        near = did_you_mean(word, owner) or near
    return Fault(f"override '{override.text}': a spec has no field '{override.key}'{near}")


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
