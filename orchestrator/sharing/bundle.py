"""A finished cell as one archive with its manifest: make it, check it, read it back."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from orchestrator.errors import OrchError
from orchestrator.files import read_json
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, ExitRecord, Record
from orchestrator.rundir import CellDir
from orchestrator.settings import Frozen, NonNegativeInt
from orchestrator.spec.redaction import hide, hide_in_text
from orchestrator.version import __version__

FORMAT = 1
"""Increased whenever an older orch could not read what this one writes."""
CURVES = "metrics.jsonl"
HERE = "{cell directory}"
"""Stands in a shared launch for the cell's directory, wherever it is."""
MOST_BYTES = 1 << 30
"""An archive that unpacks to more than this is not a cell's results."""
_NAMES = re.compile(
    r"cell\.json|plan/[^/]+(/[^/]+)*|eval/[^/]+\.jsonl?"
    rf"|attempts/[1-9][0-9]{{0,5}}/(exit\.json|job\.json|{re.escape(CURVES)})"
)
"""The only files of an archive."""
_JOB = ("started", "host", "orch", "commit", "library", "versions", "slurm", "launcher")
"""Entries of job.json that name what trained a cell; the others concern the machine alone."""


class BundleFault(OrchError):
    """Raised for an archive that does not match its manifest. The message is the reason."""


class BundleManifest(Frozen):
    """The facts about a shared cell that need not open its archive."""

    format: int
    cell: str
    slug: str
    scale: Literal["micro", "full"]
    outcome: str
    """`trained` or `collapsed`."""
    orch: str
    commit: str = ""
    library: str
    """The library that trained it, with its release."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Package -> version, with Python's, if the cell trained in an environment of orch."""
    num_scores: NonNegativeInt = 0
    digest: str
    """SHA-256 over the names and contents of all files."""
    by: str
    """The person who shared it."""
    shared: float
    """When, in Unix seconds."""
    origin: str = ""
    """The store it had come from, where it was not trained by who shared it."""


class Bundle(NamedTuple):
    """A cell as it is shared."""

    manifest: BundleManifest
    files: Mapping[str, bytes]
    """Path in the cell's directory -> content."""


def pack(record: Record, num_scores: int, by: str, now: float) -> Bundle:
    """Return a succeeded cell as it is shared. Raise RunFolderError for a file that is torn."""
    home = CellDir(record.directory)
    files = {"cell.json": _json(record.cell.model_dump(mode="json"))}
    files |= _plan(home)
    for path in sorted(home.evaluations.glob("*.json*")):
        files[f"eval/{path.name}"] = path.read_bytes()
    origin, job = "", dict[str, Any]()
    for attempt, ended in zip(home.attempts(), record.attempts, strict=True):
        if ended is None:  # it never ended, and another one did
            continue
        job = {k: v for k, v in (read_json(attempt.job) or {}).items() if k in _JOB}
        own = ended.model_dump_json(exclude={"origin"})  # of this folder alone
        files[f"attempts/{attempt.number}/exit.json"] = own.encode()
        files[f"attempts/{attempt.number}/job.json"] = _json(hide(job))
        origin = ended.origin
    # One file for all attempts, in the folder of the last one: each train step is in it once.
    files[f"attempts/{len(record.attempts)}/{CURVES}"] = _curves(record)
    manifest = BundleManifest(
        format=FORMAT,
        cell=record.cell.id,
        slug=record.cell.slug,
        scale=record.cell.scale,
        outcome=record.outcome.kind if record.outcome else "trained",
        orch=str(job.get("orch", "")),
        commit=str(job.get("commit", "")),
        library=str(job.get("library", "")),
        versions={str(k): str(v) for k, v in dict(job.get("versions") or {}).items()},
        num_scores=num_scores,
        digest=digest(files),
        by=by,
        shared=now,
        origin=origin,
    )
    return Bundle(manifest, files)


def _plan(home: CellDir) -> dict[str, bytes]:
    """Return the files of plan/, without secrets, and with HERE for the cell's directory."""
    files = {}
    for path in sorted(home.plan.rglob("*")):
        if path.is_file():
            name = path.relative_to(home.plan).as_posix()
            files[f"plan/{name}"] = moved(path.name, path.read_bytes(), str(home.path), HERE)
    return files


def moved(name: str, content: bytes, before: str, after: str) -> bytes:
    """Return a file of a launch for a cell's directory at another place, without secrets."""
    text = content.decode("utf-8", errors="replace")
    if name.endswith(".json"):
        return _json(_replaced(hide(json.loads(text)), before, after))
    return hide_in_text(text).replace(before, after).encode()


def _replaced(value: Any, before: str, after: str) -> Any:
    """Return plain data with a text replaced in every text."""
    if isinstance(value, dict):
        return {key: _replaced(each, before, after) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, before, after) for each in value]
    return value.replace(before, after) if isinstance(value, str) else value


def _curves(record: Record) -> bytes:
    """Return the curves in canonical names, a line for each train step."""
    lines = [
        json.dumps({"step": point.step, "time": point.time, "values": dict(point.values)})
        for point in record.metrics
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents, in order of the names."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\n{hashlib.sha256(files[name]).hexdigest()}\n".encode())
    return total.hexdigest()


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a .tar.gz that depends on nothing but their names and contents."""
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), 0o644
            tar.addfile(entry, io.BytesIO(files[name]))
    return content.getvalue()


def unpack(packed: bytes) -> dict[str, bytes]:
    """Return the files of an archive. Raise BundleFault for one that no orch has written."""
    files, remaining = dict[str, bytes](), MOST_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            for entry in tar:
                # The names come from somebody else: nothing may be written outside the cell's
                # directory.
                if not entry.isfile() or not _NAMES.fullmatch(entry.name) or _climbs(entry.name):
                    raise BundleFault(f"its archive holds {entry.name!r}, which no cell has")
                remaining -= entry.size
                if remaining < 0:
                    # Counted before the file is read, because a small archive may unpack to any
                    # size.
                    raise BundleFault(f"its archive unpacks to more than {MOST_BYTES >> 30} GiB")
                part = tar.extractfile(entry)
                files[entry.name] = part.read() if part else b""
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BundleFault(f"its archive is cut off or damaged ({error})") from error
    return files


def _climbs(name: str) -> bool:
    return any(part in ("", ".", "..") for part in name.split("/"))


def objection(
    manifest: BundleManifest, cell: Cell, library: str, versions: Mapping[str, str]
) -> str:
    """Return why a shared cell does not stand for this one; empty if it does.

    library: what would train the cell here, with its release. versions: of the packages that must
    be the same, as they are here.
    """
    pairs = {
        "format": (manifest.format, FORMAT),
        "cell": (manifest.cell, cell.id),
        "scale": (manifest.scale, cell.scale),
        "orch": (manifest.orch, __version__),
        "library": (manifest.library, library),
        **{
            name: (version, versions[name])
            for name, version in manifest.versions.items()
            if name in versions
        },
    }
    other = [
        f"{what} {theirs}, here {ours}" for what, (theirs, ours) in pairs.items() if theirs != ours
    ]
    return "; ".join(other)


def check(bundle: Bundle) -> Cell:
    """Return the cell of a bundle. Raise BundleFault unless content, digest and id agree."""
    manifest, files = bundle
    if digest(files) != manifest.digest:
        raise BundleFault("its files are not those of its manifest (the digests differ)")
    try:
        cell = Cell.model_validate_json(files["cell.json"])
        ends = [
            ExitRecord.model_validate_json(text)
            for name, text in files.items()
            if name.endswith("/exit.json")
        ]
    except (KeyError, ValidationError) as error:
        raise BundleFault(f"its archive holds no whole cell ({type(error).__name__})") from error
    if fingerprint(cell.settings) != manifest.cell:
        raise BundleFault("its settings are not those of its id")
    if not ends or ends[-1].state != "succeeded":
        raise BundleFault("its last attempt did not succeed")
    return cell
