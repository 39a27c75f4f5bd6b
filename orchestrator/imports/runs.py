"""Imported runs on disk: runs/<experiment>/imported/<name>/{import.json, logged.jsonl}.

logged.jsonl holds what was logged, under the logger's names; canonical names are given when it is
read, so that a better table of a library's names improves earlier imports.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from orchestrator import plugins
from orchestrator.errors import RunFolderError, SelectionError, did_you_mean
from orchestrator.files import read_lines, read_object, remove_tree, telling, write_text
from orchestrator.imports.logged import Ended, LoggedKl, LoggedRow, LoggedRun
from orchestrator.imports.names import canonical, own_step
from orchestrator.imports.origin import LibraryOrigin, kl_of, origin_of, place_of
from orchestrator.metrics.names import METRICS, is_canonical
from orchestrator.metrics.points import compact
from orchestrator.records import MetricPoint
from orchestrator.rundir import RunFolder
from orchestrator.settings import Frozen
from orchestrator.spec.redaction import hide, hide_in_text
from orchestrator.version import __version__

MANIFEST, LOG = "import.json", "logged.jsonl"
FIELDS = ("name", "library", "release", "format", "ended")
"""Fields of an imported run that `--where` takes."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


class ImportManifest(Frozen):
    """import.json: where a run came from, and what is known of it."""

    name: str
    format: str
    origin: str
    """Path or address, without secrets."""
    digest: str
    """SHA-256 of what was read."""
    imported: float
    """Unix seconds."""
    orch: str
    """orch's release that imported it."""
    written_by: str = ""
    library: str | None = None
    library_because: str = ""
    release: str | None = None
    release_because: str = ""
    ended: Ended = "unknown"
    settings: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """As logged, dotted name -> value, without secrets."""
    renames: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Logged name -> canonical name, as the user gave it."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportedRun:
    """A run that orch did not launch."""

    manifest: ImportManifest
    rows: tuple[LoggedRow, ...]
    path: Path
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the run's name, as the import's manifest has it."""
        return self.manifest.name

    @property
    def trained_with(self) -> str:
        """Return library and release, as far as they are known."""
        one = self.manifest
        if one.library is None:
            return "unknown"
        return f"{one.library}@{one.release}" if one.release else one.library

    @cached_property
    def kl(self) -> LoggedKl | None:
        """The KL of the logged settings; None if they do not determine one."""
        one = self.manifest
        return kl_of(one.library, one.release, one.settings, one.origin)

    @cached_property
    def points(self) -> tuple[MetricPoint, ...]:
        """Return the metrics that have a canonical name, each step once."""
        one = self.manifest
        table = plugins.logged_metrics(one.library) if one.library else None
        place = place_of(self.kl)
        joined: dict[int, MetricPoint] = {}
        for row in self.rows:
            named = canonical(row.values, table, place, one.renames)
            if not named:
                continue
            step = own_step(row.step, row.values, table.step_names if table else ())
            before = joined.get(step)
            values = {**before.values, **named} if before else named
            joined[step] = MetricPoint(step, row.time, values)
        return tuple(compact(joined[step]) for step in sorted(joined))

    @cached_property
    def finals(self) -> dict[str, float]:
        """Return the last finite value of each metric, by canonical name."""
        last: dict[str, float] = {}
        for point in self.points:
            last |= {name: v for name, v in point.values.items() if math.isfinite(v)}
        return last

    @property
    def last_step(self) -> int:
        """Return the last step that has a metric; 0 without one."""
        return self.points[-1].step if self.points else 0

    @cached_property
    def unnamed(self) -> tuple[str, ...]:
        """Return the logged names that no canonical name is given for."""
        one = self.manifest
        table = plugins.logged_metrics(one.library) if one.library else None
        place = place_of(self.kl)
        names = dict.fromkeys(name for row in self.rows for name in row.values)
        return tuple(n for n in names if not canonical({n: 0.0}, table, place, one.renames))


Change = Literal["imported", "updated", "unchanged"]


def folder_of(folder: RunFolder) -> Path:
    """Return where the imported runs of an experiment lie."""
    return folder.path / "imported"


def import_runs(
    folder: RunFolder,
    logged: Sequence[LoggedRun],
    library: str | None,
    renames: Mapping[str, str],
    name: str,
    keeps: Callable[[ImportManifest], bool],
    *,
    dry_run: bool,
) -> Iterator[tuple[ImportedRun, Change]]:
    """Write logged runs beside the experiment's cells. Yield each with what became of it.

    library: the library that trained them, or None to infer it. name, renames, dry_run: as for
    `store`. keeps: a run is imported only if this is True of its manifest. Raise SelectionError for
    one name and several runs.
    """
    if name and len(logged) != 1:
        raise SelectionError(
            f"--name names one run, and {len(logged)} were read: choose one with --run, or leave "
            "--name out"
        )
    for run in logged:
        origin = origin_of(run, library)
        kept, change = store(folder, run, origin, renames, name, dry_run=True)
        if not keeps(kept.manifest):
            continue
        if not dry_run:
            kept, change = store(folder, run, origin, renames, name)
        yield kept, change


def store(
    folder: RunFolder,
    run: LoggedRun,
    origin: LibraryOrigin,
    renames: Mapping[str, str],
    name: str = "",
    *,
    dry_run: bool = False,
) -> tuple[ImportedRun, Change]:
    """Write a run beside the experiment's cells. A run of the same origin is replaced.

    name: what to call it; empty: as its logger does. dry_run: write nothing, and return what would
    be written. Raise RunFolderError for a name that another run has.
    """
    shown = hide_in_text(run.origin)
    manifests = {one.manifest.name: one.manifest for one in read_imported(folder)}
    before = next((one for one in manifests.values() if one.origin == shown), None)
    called = _safe(name) if name else before.name if before else _free(_safe(run.name), manifests)
    if name and called in manifests and manifests[called].origin != shown:
        raise RunFolderError(
            f"'{called}' is already imported, from {manifests[called].origin}; choose "
            f"another --name, or remove it first (orch import SPEC --remove {called})"
        )
    manifest = ImportManifest(
        name=called,
        format=run.format,
        origin=shown,
        digest=run.digest,
        imported=time.time(),
        orch=__version__,
        written_by=run.written_by,
        **origin._asdict(),
        ended=run.ended,
        settings=_plain(hide(dict(run.settings))),
        renames=dict(renames),
        notes=tuple(run.notes),
    )
    if before is not None and manifest.model_copy(update={"imported": before.imported}) == before:
        return _read(folder_of(folder) / called), "unchanged"
    place = folder_of(folder) / called
    change: Change = "updated" if before is not None else "imported"
    if dry_run:
        return ImportedRun(manifest, tuple(run.rows), place), change
    folder.open()
    lines = [
        json.dumps({"step": row.step, "time": row.time, "values": dict(row.values)})
        for row in run.rows
    ]
    write_text(place / LOG, "".join(f"{line}\n" for line in lines))
    # The manifest comes last: a folder without one is no imported run (`read_imported`).
    write_text(place / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    if before is not None and before.name != called:
        remove_tree(folder_of(folder) / before.name)
    return _read(place), change


def read_imported(folder: RunFolder) -> list[ImportedRun]:
    """Return the imported runs of an experiment, by name."""
    root = folder_of(folder)
    with telling(root):
        try:
            places = sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))
        except FileNotFoundError:
            return []
    return [_read(place) for place in places]


def remove(folder: RunFolder, name: str) -> bool:
    """Remove an imported run. Return whether there was one of that name."""
    place = folder_of(folder) / name
    if name != _safe(name) or not (place / MANIFEST).is_file():
        return False
    remove_tree(place)
    return True


def metrics_in(runs: Iterable[ImportedRun]) -> list[str]:
    """Return the canonical metrics that some of the runs have, in the table's order."""
    measured = {name for run in runs for name in run.finals}
    return [*(n for n in METRICS if n in measured), *sorted(measured - METRICS.keys())]


def renames_of(pairs: Iterable[str]) -> dict[str, str]:
    """Return a logger's metric name -> ours, from texts THEIRS=OURS.

    Raise SelectionError for another text and for a metric that orch does not have.
    """
    renames = {}
    for pair in pairs:
        theirs, equals, ours = pair.rpartition("=")
        if not equals or not theirs:
            raise SelectionError(
                f"--metric is THEIRS=OURS, such as score=train/reward_mean; got {pair}"
            )
        if not is_canonical(ours):
            raise SelectionError(
                f"orch has no metric '{ours}'{did_you_mean(ours, METRICS)} (it has: "
                f"{', '.join(METRICS)}; and eval/...)"
            )
        renames[theirs] = ours
    return renames


def manifest_filter(terms: Iterable[str]) -> Callable[[ImportManifest], bool]:
    """Return a function that returns True for the manifests that every term of `--where` selects.

    Raise SelectionError for a field that is not in FIELDS.
    """
    wanted = []
    for term in terms:
        field, equals, value = term.removeprefix("!").partition("=")
        if not equals or field not in FIELDS:
            raise SelectionError(
                f"--where {term}: an imported run has {', '.join(FIELDS)}"
                f"{did_you_mean(field, FIELDS)}; give FIELD=VALUE"
            )
        wanted.append((field, value, term.startswith("!")))

    def keeps(one: ImportManifest) -> bool:
        return all(
            (str(getattr(one, field)) == value) != negated for field, value, negated in wanted
        )

    return keeps


def _read(place: Path) -> ImportedRun:
    manifest = read_object(ImportManifest, place / MANIFEST)
    if manifest is None:
        raise RunFolderError(f"{place / MANIFEST} is missing; remove {place} and import it again")
    faults: list[str] = []
    rows = [
        LoggedRow(int(line["step"]), float(line["time"]), line["values"])
        for line in read_lines(place / LOG, faults)
    ]
    return ImportedRun(manifest, tuple(rows), place, tuple(faults))


def _safe(name: str) -> str:
    safe = _NOT_IN_NAMES.sub("-", name).strip("-._")[:64]
    return safe or "run"


def _free(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, with the first number that makes it free."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name[:60]}-{number}", number + 1
    return free


def _plain(value: Any) -> Any:
    """Return data that JSON keeps: other objects as their text, NaN and infinities too."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
