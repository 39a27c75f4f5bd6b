"""Submissions: the ledger's events of each job array, and the files in its folder.

The ledger gets one event for each step of a submission, before or after it happens:

    intent      about to call sbatch; the job's name holds the submission's id
    submitted   sbatch returned this array id
    dropped     refused, or cut short before sbatch: nothing was submitted
    drained     nothing works on the array any more: SLURM is not asked about it again

The folder slurm/<submission>/ holds the manifest (which cells, which attempts), the batch script,
one log per element, and the exit records of evaluations (ends/<index>.<state>.json).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """One job array, from the ledger. `job` is None until the ledger has its array id."""

    id: str
    kind: str
    """train or evaluate."""
    name: str
    time: float
    host: str
    pid: int
    birth: str
    """When the submitting process started, as its kernel says: with host and pid, who it is."""
    cells: int
    follows: str = ""
    """The training submission that an evaluation waits for."""
    job: str | None = None
    dropped: bool = False
    drained: bool = False

    @property
    def open(self) -> bool:
        """Return True if the ledger has the intent and no outcome.

        The submission is then being sent, or was cut short.
        """
        return self.job is None and not self.dropped


def read(folder: RunFolder) -> Mapping[str, Submission]:
    """Return every submission by id, oldest first."""
    with telling(folder.ledger):
        try:
            status = folder.ledger.stat()
        except FileNotFoundError:
            return {}
    return _read(folder, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _read(folder: RunFolder, _changed: int, _size: int) -> Mapping[str, Submission]:
    known: dict[str, Submission] = {}
    for line in folder.ledger.read_bytes().splitlines():
        if b'"slurm"' not in line:  # 10,000 local events are not parsed
            continue
        try:
            event: dict[str, Any] = json.loads(line)
            _apply(known, event)
        except (ValueError, KeyError, TypeError):
            continue  # torn by a kill: the scheduler is asked what the line would have said
    return known


def _apply(known: dict[str, Submission], event: dict[str, Any]) -> None:
    if event.get("launcher") != "slurm":
        return
    id_ = event["submission"]
    match event["event"]:
        case "intent":
            known[id_] = Submission(
                id=id_,
                kind=event["kind"],
                name=event["name"],
                time=event["time"],
                host=event["host"],
                pid=event["pid"],
                birth=event["birth"],
                cells=event["cells"],
                follows=event.get("follows", ""),
            )
        case "submitted":
            known[id_] = replace(known[id_], job=event.get("job"))
        case "dropped":
            known[id_] = replace(known[id_], dropped=True)
        case "drained":
            known[id_] = replace(known[id_], drained=True)


def note(folder: RunFolder, event: str, submission: str, **details: Any) -> None:
    """Append an event of a submission to the ledger."""
    folder.append(event, "", launcher="slurm", submission=submission, **details)


def write_manifest(folder: RunFolder, submission: str, manifest: Mapping[str, Any]) -> None:
    """Write the elements of an array, before it is submitted."""
    write_text(folder.submission(submission) / "manifest.json", json.dumps(manifest) + "\n")


def read_manifest(folder: RunFolder, submission: str) -> dict[str, Any]:
    """Return {kind, elements: [[cell's directory, attempt], ...], options}; {} if it is missing."""
    return read_json(folder.submission(submission) / "manifest.json") or {}


def write_end(folder: RunFolder, submission: str, index: int, record: ExitRecord) -> None:
    """Write how one element of an evaluation ended. (Training writes that in its attempt.)

    The state is in the file's name, so that most of these files need not be read.
    """
    path = folder.submission(submission) / "ends" / f"{index}.{record.state}.json"
    write_text(path, record.model_dump_json() + "\n")


def forgive(folder: RunFolder, submission: str, index: int, record: ExitRecord) -> None:
    """Stop counting a failed evaluation, because a person wants to try it again."""
    ends_dir = folder.submission(submission) / "ends"
    write_text(ends_dir / f"{index}.{FORGIVEN}.json", record.model_dump_json() + "\n")
    (ends_dir / f"{index}.{record.state}.json").unlink(missing_ok=True)


def ends(folder: RunFolder, submission: str) -> dict[int, Path]:
    """Return, for each element, the file of its ending; of two files, the one of its success."""
    files: dict[int, Path] = {}
    for path in (folder.submission(submission) / "ends").glob("*.json"):
        index, _, state = path.stem.partition(".")
        if index.isdigit() and (state in ("succeeded", FORGIVEN) or int(index) not in files):
            files[int(index)] = path
    return files


def read_end(path: Path) -> ExitRecord | None:
    """Return the exit record in one of these files, or None."""
    return read_object(ExitRecord, path)
