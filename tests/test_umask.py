"""File modes are the user's umask's: private, or a group's."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from backends.micro.disk import Journal
from orchestrator.files import append_line, write_text
root = Path(sys.argv[1])
write_text(root / "folder" / "a.json", "{}")
append_line(root / "folder" / "ledger.jsonl", "{}")
Journal(root / "attempt")
"""


@pytest.mark.parametrize(
    ("umask", "file", "folder"),
    [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775), (0o027, 0o640, 0o750)],
)
def test_modes_are_what_the_umask_leaves(
    tmp_path: Path, umask: int, file: int, folder: int
) -> None:
    """Files that are appended to were never the group's to write: 0644 whatever the umask."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert len(modes) == 5
    for path, mode in modes.items():
        assert mode == (folder if path.is_dir() else file), path
