"""Which source is running, as job.json says it: of real repositories."""

import shutil
import subprocess
from pathlib import Path

from orchestrator.launch import provenance

GIT = shutil.which("git") or "git"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        [GIT, "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_checkout_is_its_commit_and_says_that_it_was_changed(tmp_path: Path) -> None:
    for package in ("orchestrator", "backends"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance._checked_out(tmp_path) == commit
    (tmp_path / "notes.md").write_text("not code\n")
    assert provenance._checked_out(tmp_path) == commit
    (tmp_path / "backends" / "b.py").write_text("2\n")
    assert provenance._checked_out(tmp_path) == f"{commit}+changes"
