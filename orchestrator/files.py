"""Read and write files so that a kill, a full disk or a foreign change is reported.

Writes replace a whole file or append whole lines; reads give a sentence for what cannot be read.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.errors import NoLocksError, RunFolderError

Parsed = TypeVar("Parsed", bound=BaseModel)

NO_ROOM: frozenset[int] = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The kernel's errors when a file cannot grow: disk, quota, file size limit."""

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
"""The kernel's errors where a file system has no locks."""

_NOT_WRITABLE = "choose another folder (--runs-dir for runs)"
_NO_ROOM_ADVICE = "free some room and run again, nothing is lost"
_SENTENCES = {
    errno.ENOSPC: f"the disk is full: {_NO_ROOM_ADVICE}",
    errno.EDQUOT: f"the quota is used up: {_NO_ROOM_ADVICE}",
    errno.EFBIG: "the file size limit (ulimit -f) is reached: raise it and run again, nothing is "
    "lost",
    errno.EACCES: f"permission denied: make it readable and writable, or {_NOT_WRITABLE}",
    errno.EPERM: f"permission denied: make it readable and writable, or {_NOT_WRITABLE}",
    errno.EROFS: f"the file system is read-only: {_NOT_WRITABLE}",
    errno.ENOENT: f"it cannot be made there: {_NOT_WRITABLE}",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EISDIR: "it is a folder where a file should be; remove it",
}


@contextlib.contextmanager
def telling(
    path: Path, passing: tuple[type[OSError], ...] = (FileNotFoundError, FileExistsError)
) -> Iterator[None]:
    """Raise what the file system refuses as a sentence, except the errors that are to pass."""
    try:
        yield
    except passing:
        raise
    except OSError as error:
        what = _SENTENCES.get(error.errno or 0, error.strerror or str(error))
        raise RunFolderError(f"{path}: {what}") from error


def take_lock(file: IO[Any], *, shared: bool = False, wait: bool = True) -> bool:
    """Take the kernel's lock on an open file, held until it is closed. Return False if another
    process has it and `wait` is false.

    Raise NoLocksError on a file system without locks: Lustre without `-o flock`, NFS without a lock
    service. There, what only reads goes on, and jobs are submitted to SLURM; what needs to be alone
    (training here, MLflow's file, a search, prompts, environments) stops with this error.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, operation if wait else operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise NoLocksError(
            f"{file.name}: this file system has no locks, with which orch sees that nobody else "
            "works there: mount it with locks (Lustre: -o flock; NFS: a lock service), or choose a "
            "folder elsewhere (site.runs_dir=..., ORCH_DATA_DIR, ORCH_ENVIRONMENTS)"
        ) from error
    return True


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old text or the new one, never a part."""
    write_bytes(path, text.encode())


def write_changed_text(path: Path, text: str) -> None:
    """Write a text as `write_text` does, unless the file has it: to read costs less than to make a
    file."""
    with telling(path, passing=()):
        try:
            is_there = path.read_bytes() == text.encode()
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
    if not is_there:
        write_text(path, text)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one, never a part."""
    # beside the file, because a rename is atomic only within one file system; named by the process,
    # because two processes may write the same file
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with telling(path, passing=()):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def link_folder(place: Path, target: Path) -> None:
    """Make a link to a folder, or replace the link that is there, in one step."""
    if place.is_symlink() and place.readlink() == target:
        return
    nascent = place.with_name(f".{place.name}-{os.getpid()}")
    nascent.unlink(missing_ok=True)
    nascent.symlink_to(target, target_is_directory=True)
    nascent.replace(place)


def append_line(path: Path, line: str) -> None:
    """Append one line in a single write. First end a last line that a kill has torn."""
    with telling(path, passing=()):
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_APPEND: the kernel puts each write at the end, so lines of two processes do not mix
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (("\n" if torn else "") + line + "\n").encode()
            if os.write(descriptor, data) < len(data):  # the disk took a part: it is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def clock_of(folder: Path) -> float:
    """Return the time by the clock that sets the times of the files in a folder.

    A file server's clock, and not this machine's. In a folder that this user may not write, it is
    this machine's.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".clock-") as probe:
            os.write(probe.fileno(), b"0")
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object from disk, or None without a file. Raise RunFolderError if it is cut."""
    raw = _content(path)
    if raw is None:
        return None
    try:
        plain = json.loads(raw)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise RunFolderError(_not_an_object(path))
    return plain


def read_object(kind: type[Parsed], path: Path) -> Parsed | None:
    """Return a typed object from disk, or None without a file. Raise RunFolderError if cut."""
    raw = _content(path)
    try:
        return None if raw is None else kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        what = _not_an_object(path)
        if first["type"] != "json_invalid" and first["loc"]:
            where = ".".join(map(str, first["loc"]))
            what = (
                f"{path}: {first['msg']} @ $.{where}. It was changed by hand or written by another "
                "orch; restore it, or remove it to have it made again"
            )
        raise RunFolderError(what) from error


def read_lines(path: Path, faults: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Return the objects of a JSON-lines file. What cannot be read goes to `faults`."""
    for number, line in enumerate((_content(path) or b"").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            plain = json.loads(line)
        except ValueError:
            plain = None
        if isinstance(plain, dict):
            yield plain
        elif faults is not None:
            faults.append(f"{path} line {number} is cut off; it is left out, the rest is kept")


def read_tail(path: Path, max_bytes: int) -> bytes:
    """Return the last bytes of a file, from the start of a line on; nothing without a file."""
    with telling(path):
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - max_bytes)
                file.seek(start)
                raw = file.read()
        except FileNotFoundError:
            return b""
    return raw.partition(b"\n")[2] if start else raw


def remove_tree(path: Path) -> None:
    """Delete a directory of ours. It is renamed first, so that a kill leaves no half."""
    doomed = path.with_name(f".removed-{path.name}-{os.getpid()}")
    with telling(path):
        path.replace(doomed)
        shutil.rmtree(doomed)


def cache_folder() -> Path | None:
    """Return the user's folder for files that orch can make again, which only this user can write.

    Return None without one.
    """
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (root if root.is_absolute() else Path.home() / ".cache") / "orch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        if about.st_uid != os.geteuid():
            return None
        if about.st_mode & 0o077:
            folder.chmod(0o700)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return folder


def short_digest(file: Path) -> str:
    """Return the hash of a file's content that a name in the cache folder ends with."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def is_kept(file: Path) -> bool:
    """Return True if this user owns the file, and it has the content that its name ends with."""
    about = file.lstat()
    own = file.is_file() and not file.is_symlink() and about.st_uid == os.geteuid()
    return own and file.stem.rpartition("-")[2] == short_digest(file)


def _content(path: Path) -> bytes | None:
    with telling(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _not_an_object(path: Path) -> str:
    return f"{path} is not a JSON object (cut or overwritten?); restore or remove it"
