"""Read the files of an audit: those that a person names, and those of a folder that may launch."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from orchestrator.audit import audit
from orchestrator.audit.findings import AuditFinding
from orchestrator.audit.pipeline import LARGEST
from orchestrator.audit.releases import NeighbourFiles, Projects
from orchestrator.library.launches import UnreadableScript

STDIN = Path("-")
"""The name of standard input."""
_SUFFIXES = {".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py"}
_SKIPPED = {".git", "node_modules", "__pycache__", ".venv", "venv", "site-packages"}


def launch_files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each file to audit; and True if it was named, False if it was found in a folder."""
    for path in paths:
        if path == STDIN or not path.is_dir():
            yield path, True
            continue
        for each in sorted(path.rglob("*")):
            if each.suffix in _SUFFIXES and not _SKIPPED & set(each.parts) and each.is_file():
                yield each, False


def audit_file(
    path: Path, versions: Mapping[str, str], projects: Projects
) -> tuple[str, list[AuditFinding]]:
    """Return the text of a file and its findings. Raise UnreadableScript, with a sentence.

    versions: library -> release, which count more than those that the files around show.
    """
    text = _read(path)
    try:
        around, files = projects.versions(path), NeighbourFiles(path, projects)
        return text, audit(text, str(path), files=files, versions={**around, **versions})
    except UnreadableScript:
        raise
    except Exception as error:  # a fault of the reader costs this file, not the whole folder
        raise UnreadableScript(
            f"orch failed to read it ({type(error).__name__}: {error}); please report the file"
        ) from error


def _read(path: Path) -> str:
    """Return the text of a file or of standard input. Raise UnreadableScript."""
    most = 4 * LARGEST  # bytes of a character in UTF-8: 1 to 4
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(most + 1)
            size = len(data)
        elif path.exists() and not path.is_file():
            raise UnreadableScript("this is not a file")
        else:
            size = path.stat().st_size
            data = path.read_bytes() if size <= most else b""
    except OSError as error:
        raise UnreadableScript(f"it cannot be read: {error.strerror}") from None
    if size > most:
        raise UnreadableScript(
            f"this file has {size:,} bytes; a launch script has at most {LARGEST:,} characters"
        )
    return data.decode("utf-8", "replace")
