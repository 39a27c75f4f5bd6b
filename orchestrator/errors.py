"""Exceptions: every way orch refuses.

OrchError                  a mistake of the user or the world: one sentence, exit 1, no traceback
├── SpecError              a spec file; carries every Fault of the file at once
├── UnsupportedSetting     a backend cannot express a field of a cell
├── RunFolderError         the runs folder: unreadable, full, foreign, or from a newer orch
│   └── NoLocksError       a file system without locks
├── CheckpointError        a checkpoint that is cut, missing or of another model
├── EnvironmentFault       something outside orch is missing: a package, a server, a program
├── SelectionError         a --where filter, a cell or a study that names nothing
├── LogFault               a trainer's log of an unknown layout, or without the names orch knows
└── LaboratoryError        a model or a probe the gradient laboratory cannot work with

Anything else that escapes is a bug of ours and keeps its traceback.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path


class OrchError(Exception):
    """A mistake as a sentence: what, where, the rule, the value given, what to do."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a document. `path` is a JSON path (`$.studies.onpolicy.kl`)."""

    message: str
    path: str = "$"
    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = self.path
        if self.file is not None:
            name = self.file.name or str(self.file)
            where += f" ({name} line {self.line})" if self.line else f" ({name})"
        return f"{self.message}  @ {where}"


class SpecError(OrchError):
    """A spec that cannot be used. `faults` holds every one found, in file order."""

    def __init__(self, source: str, faults: Iterable[Fault]):
        self.source = source
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{source}: {count} fault{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {fault}" for fault in self.faults)]))


class UnsupportedSetting(OrchError):
    """A backend cannot express one field of a cell.

    `field` is dotted (`kl.placement`), `offered` what the backend has instead, `advice` the
    nearest cell it can express.
    """

    def __init__(
        self, backend: str, field: str, value: object, offered: Iterable[object], advice: str
    ):
        self.backend, self.field, self.value = backend, field, value
        self.offered, self.advice = tuple(offered), advice
        choices = ", ".join(map(_as_written, self.offered)) or "nothing"
        super().__init__(
            f"{backend} cannot run {field}={_as_written(value)} (it offers: {choices}). {advice}"
        )


def _as_written(value: object) -> str:
    """Return a value as a spec has it."""
    return "null" if value is None else str(value)


class RunFolderError(OrchError):
    """The runs folder cannot be read or written, or is not one of ours."""


class NoLocksError(RunFolderError):
    """A file system without locks, where orch cannot see that nobody else works."""


class CheckpointError(OrchError):
    """A checkpoint that cannot be loaded."""


class EnvironmentFault(OrchError):
    """Something outside orch is missing or does not answer."""


class SelectionError(OrchError):
    """A filter or a name selects nothing, or cannot be read."""


class LogFault(OrchError):
    """A trainer's log that cannot be read, or not whole. A backend raises it after it has given
    what it could read: a fault of the record, and never the end of a command."""

    @classmethod
    def of_names(
        cls,
        path: Path,
        library: str,
        versions: Iterable[str],
        logged: Iterable[str],
        wanted: str | None = None,
    ) -> "LogFault":
        """Return the fault of a log without any known name, or without the one it needs."""
        some = sorted(logged)
        shown = ", ".join(some[:6]) + (f" and {len(some) - 6} more" if len(some) > 6 else "")
        what = f"has no '{wanted}'" if wanted else "holds none of the names orch knows"
        return cls(
            f"{path} {what}; it has {shown or 'no names at all'}. Perhaps another release wrote "
            f"it: orch knows {library} {', '.join(versions)} (`orch env check` compares)"
        )


class LaboratoryError(OrchError):
    """A model, a configuration or a probe the gradient laboratory cannot work with."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the nearest known name, or an empty string.

    Among numbers none is near: which one is meant cannot be read from its digits.
    """
    by_lower_case = {str(k).lower(): str(k) for k in known}
    if all(re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", each) for each in (str(name), *by_lower_case)):
        return ""
    cutoff = 0.6 if len(str(name)) > 3 else 0.5  # k4 and k3 share one letter of two
    near = get_close_matches(str(name).lower(), by_lower_case, n=1, cutoff=cutoff)
    return f", did you mean '{by_lower_case[near[0]]}'?" if near else ""
