"""Submissions: the ledger's events of each job array, and the files in its folder.

The ledger gets one event for each step of a submission, before or after it happens:

    intent      orch is about to call sbatch; the job's name ends with the submission's id
    submitted   sbatch returned this array id
    dropped     SLURM refused, or orch ended before it called sbatch: nothing was submitted
    drained     every element has ended, or its cell belongs to another submission: orch does not
                query SLURM about the array again

The folder slurm/<submission>/ holds the manifest (which cells, which attempts), the batch script,
one log per element, the exit records of evaluations (ends/<index>.<state>.json), and the claim.
The claim is array/<id>: its name is the id of the one job array that may run the submission.
"""

import errno
import json
import os
import pwd
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.files import read_json, read_object, telling, write_text
from orchestrator.launch import processes
from orchestrator.records import ExitRecord
from orchestrator.rundir import RunFolder

INTENT, SENT, DROPPED, DRAINED = "intent", "submitted", "dropped", "drained"
FORGIVEN = "forgiven"
NO_ARRAY = "none"
"""The claim of a submission that was given up: no array may run it."""
_CLAIM_SECONDS = 10.0
"""Seconds for which a network file system may hide a claim of another machine."""


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
    """Start of the submitting process, as its kernel gives it. Host, pid and this time identify the
    process."""
    cells: int
    follows: str = ""
    """The training submission that an evaluation waits for."""
    user: str = ""
    """The submitter."""
    uid: int | None = None
    cluster: str = ""
    """SLURM's ClusterName at the submission."""
    launcher: str = "slurm"
    """slurm or ray. An evaluation on a Ray is one job, whose id is the submission's; it has one
    event, after it was sent."""
    job: str | None = None
    dropped: bool = False
    drained: bool = False

    @property
    def open(self) -> bool:
        """Return True if the ledger has the intent and no outcome.

        The submission is then being sent, or was cut short.
        """
        return self.job is None and not self.dropped

    @property
    def is_mine(self) -> bool:
        """Return True if this user submitted it, or nobody knows who did."""
        return self.uid in (None, os.geteuid())


_WRITTEN = {each.name for each in fields(Submission)} - {"id", "dropped", "drained"}
"""The fields that the first event of a submission has."""


def user_name() -> str:
    """Return the name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user may have no name
        return str(os.geteuid())


def claim_array(folder: Path, array: str) -> str:
    """Return the id of the one array that may run a submission: `array`, unless another was first.

    folder: the submission's folder. orch claims it for the id that sbatch returned, or for NO_ARRAY
    when it gives the submission up. A job claims it for its own array before it does anything else.
    The first claim counts. So a second job of the same script starts no cell, whether it comes from
    a request that a stalled controller had kept, or from a script that a person sent again.

    The claim is a folder with one entry. It is made under another name and then renamed, because
    `rename` to a folder that is not empty fails on every file system, and because no process may
    see a claim without its id.
    """
    claim = folder / "array"
    nascent = folder / f".array-{socket.gethostname()}-{os.getpid()}"
    if (holder := _claimed_by(claim)) is not None:
        return holder
    nascent.mkdir(parents=True, exist_ok=True)
    (nascent / array).touch()
    try:
        nascent.rename(claim)
    except OSError as error:
        (nascent / array).unlink()
        nascent.rmdir()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    else:
        return array
    deadline = time.monotonic() + _CLAIM_SECONDS
    while (holder := _claimed_by(claim)) is None:
        if time.monotonic() > deadline:
            raise OSError(errno.EIO, "the claim of the submission cannot be read", str(claim))
        time.sleep(0.2)
    return holder


def _claimed_by(array: Path) -> str | None:
    with suppress(FileNotFoundError):
        return next((each.name for each in array.iterdir()), None)
    return None


def read(folder: RunFolder, launcher: str = "slurm") -> Mapping[str, Submission]:
    """Return every submission of a launcher by id, oldest first: of `ray`, the evaluations."""
    with telling(folder.ledger):
        try:
            status = folder.ledger.stat()
        except FileNotFoundError:
            return {}
    return _read(folder, launcher, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(folder: RunFolder, launcher: str, _changed: int, _size: int) -> Mapping[str, Submission]:
    known: dict[str, Submission] = {}
    for line in folder.ledger.read_bytes().splitlines():
        if f'"{launcher}"'.encode() not in line:  # do not parse the many events of local runs
            continue
        try:
            event: dict[str, Any] = json.loads(line)
            if event.get("launcher") == launcher:
                _apply(known, event)
        except (ValueError, KeyError, TypeError):
            continue  # torn by a kill: `reconcile` asks the scheduler for what it should have said
    return known


def _apply(known: dict[str, Submission], event: dict[str, Any]) -> None:
    id_ = event["submission"]
    match event["event"]:
        case "intent":
            own = {name: event[name] for name in _WRITTEN & event.keys()}
            known[id_] = Submission(id=id_, **own)
        case "submitted":
            known[id_] = replace(known[id_], job=event.get("job"))
        case "dropped":
            known[id_] = replace(known[id_], dropped=True)
        case "drained":
            known[id_] = replace(known[id_], drained=True)


def note(
    folder: RunFolder, event: str, submission: str, *, launcher: str = "slurm", **details: Any
) -> None:
    """Append an event of a submission to the ledger."""
    folder.append(event, "", launcher=launcher, submission=submission, **details)


def note_intent(
    folder: RunFolder, submission: str, kind: str, name: str, cells: int, **details: Any
) -> None:
    """Append a submission's first event, with the submitting user and machine."""
    note(
        folder,
        INTENT,
        submission,
        kind=kind,
        name=name,
        cells=cells,
        host=socket.gethostname(),
        pid=os.getpid(),
        birth=processes.birth(os.getpid()),
        user=user_name(),
        uid=os.geteuid(),
        **details,
    )


def write_manifest(folder: RunFolder, submission: str, manifest: Mapping[str, Any]) -> None:
    """Write the elements of an array, before it is submitted, and where its jobs will write."""
    content = {**manifest, "folder": str(folder.path)}
    write_text(folder.submission(submission) / "manifest.json", json.dumps(content) + "\n")


def moved_from(folder: RunFolder) -> Path | None:
    """Return where a renamed folder lay when jobs that are not over were sent; None for one that
    was not renamed. Another machine may see the same folder by a path without a common part."""
    every = (sent for launcher in ("slurm", "ray") for sent in read(folder, launcher).values())
    for sent in every:
        if sent.job is None or sent.drained:
            continue
        was = Path(read_manifest(folder, sent.id).get("folder", folder.path))
        common = os.path.commonpath([was, folder.path])
        if was != folder.path and not was.exists() and common != os.sep:
            return was
    return None


def read_manifest(folder: RunFolder, submission: str) -> dict[str, Any]:
    """Return {kind, elements: [[cell's directory, attempt], ...], options}; {} if it is missing."""
    return read_json(folder.submission(submission) / "manifest.json") or {}


def elements(folder: RunFolder, submission: str) -> list[tuple[str, int]]:
    """Return the directory of the cell and the number of the attempt of each element of an array;
    none if the manifest is missing."""
    listed = read_manifest(folder, submission).get("elements", ())
    return [(name, attempt) for name, attempt in listed]


def write_end(folder: RunFolder, submission: str, index: int, record: ExitRecord) -> None:
    """Write the ending of one element of an evaluation.

    A training writes its ending into its attempt instead. The state is in the file's name, so that
    most of these files need not be read.
    """
    path = folder.submission(submission) / "ends" / f"{index}.{record.state}.json"
    write_text(path, record.model_dump_json() + "\n")


def forgive(folder: RunFolder, submission: str, index: int, record: ExitRecord) -> None:
    """Stop counting a failed evaluation, because a person wants to try it again."""
    ends_dir = folder.submission(submission) / "ends"
    # The new file first: after a kill between the two steps both exist, and `ends` takes the new
    # one.
    write_text(ends_dir / f"{index}.{FORGIVEN}.json", record.model_dump_json() + "\n")
    (ends_dir / f"{index}.{record.state}.json").unlink(missing_ok=True)


def ends(folder: RunFolder, submission: str) -> dict[int, Path]:
    """Return the file of each element's ending. If an element has two files, return that of its
    success."""
    files: dict[int, Path] = {}
    for path in (folder.submission(submission) / "ends").glob("*.json"):
        index, _, state = path.stem.partition(".")
        if index.isdigit() and (state in ("succeeded", FORGIVEN) or int(index) not in files):
            files[int(index)] = path
    return files


def read_end(path: Path) -> ExitRecord | None:
    """Return the exit record in one of these files, or None."""
    return read_object(ExitRecord, path)
