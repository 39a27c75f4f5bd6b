"""What the ledger says of submissions: asked for, sent, refused, finished with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.files import read_json, read_object, telling, write_text
from orchestrator.records import ExitRecord
from orchestrator.rundir import RunFolder

INTENT, SENT, DROPPED, DRAINED = "intent", "submitted", "dropped", "drained"
FORGIVEN = "forgiven"


@dataclass(frozen=True)
class Submission:
    """One job array, from the ledger. `job` is None until its sending is in the ledger."""

    id: str
    kind: str
    """train or evaluate."""
    name: str
    time: float
    host: str
    pid: int
    birth: str
    cells: int
    follows: str = ""
    """The training submission that an evaluation waits for."""
    job: str | None = None
    dropped: bool = False
    drained: bool = False

    @property
    def open(self) -> bool:
        """Its intent is in the ledger and nothing more: it was cut short, or is being sent."""
        return self.job is None and not self.dropped


def read(folder: RunFolder) -> Mapping[str, Submission]:
    """Every submission by id, oldest first."""
    with telling(folder.ledger):
        try:
            found = folder.ledger.stat()
        except FileNotFoundError:
            return {}
    return _read(folder, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _read(folder: RunFolder, _changed: int, _size: int) -> Mapping[str, Submission]:
    book: dict[str, Submission] = {}
    for line in folder.ledger.read_bytes().splitlines():
        if b'"slurm"' not in line:
            continue
        try:
            event: dict[str, Any] = json.loads(line)
            _note(book, event)
        except (ValueError, KeyError, TypeError):
            continue  # torn by a kill: what it would have said is asked of the scheduler
    return book


def _note(book: dict[str, Submission], event: dict[str, Any]) -> None:
    if event.get("launcher") != "slurm":
        return
    id_, what = event["submission"], event["event"]
    if what == INTENT:
        book[id_] = Submission(
            id_,
            event["kind"],
            event["name"],
            event["time"],
            event["host"],
            event["pid"],
            event["birth"],
            event["cells"],
            event.get("follows", ""),
        )
        return
    given = {
        SENT: ("job", event.get("job")),
        DROPPED: ("dropped", True),
        DRAINED: ("drained", True),
    }[what]
    held = book[id_]
    book[id_] = Submission(**{**held.__dict__, given[0]: given[1]})


def note(folder: RunFolder, what: str, submission: str, **details: Any) -> None:
    """One line of the ledger about a submission."""
    folder.append(what, "", launcher="slurm", submission=submission, **details)


def write_manifest(folder: RunFolder, submission: str, manifest: Mapping[str, Any]) -> None:
    """What the elements of an array are, before it is submitted."""
    write_text(folder.submission(submission) / "manifest.json", json.dumps(manifest) + "\n")


def read_manifest(folder: RunFolder, submission: str) -> dict[str, Any]:
    """{kind, elements: [[cell's directory, attempt], ...], options}; {} if it is gone."""
    return read_json(folder.submission(submission) / "manifest.json") or {}


def write_end(folder: RunFolder, submission: str, index: int, record: ExitRecord) -> None:
    """How one element of an evaluation ended; its name says the state, so that most are not read.

    (How training ended is in the attempt.)
    """
    place = folder.submission(submission) / "ends" / f"{index}.{record.state}.json"
    write_text(place, record.model_dump_json() + "\n")


def forgive(folder: RunFolder, submission: str, index: int, record: ExitRecord) -> None:
    """Has a failed evaluation not count any more: a person wants it tried again."""
    place = folder.submission(submission) / "ends"
    write_text(place / f"{index}.{FORGIVEN}.json", record.model_dump_json() + "\n")
    (place / f"{index}.{record.state}.json").unlink(missing_ok=True)


def ends(folder: RunFolder, submission: str) -> dict[int, Path]:
    """Element -> the file that says how it ended; of one that ended twice, its success."""
    found: dict[int, Path] = {}
    for path in (folder.submission(submission) / "ends").glob("*.json"):
        index, _, state = path.stem.partition(".")
        if index.isdigit() and (state in ("succeeded", FORGIVEN) or int(index) not in found):
            found[int(index)] = path
    return found


def read_end(path: Path) -> ExitRecord | None:
    return read_object(ExitRecord, path)
