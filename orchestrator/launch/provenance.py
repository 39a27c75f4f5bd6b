"""Find the source of orch that is running: the commit of its installation or its checkout."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from orchestrator.environments.extras import origin
from orchestrator.launch import processes

CHANGED = "+changes"
"""Suffix of the commit of a checkout in which orch's code was changed."""
_PACKAGES = ("orchestrator", "backends")
_COMPUTING = ("torch", "transformers", "numpy")
_SECONDS = 20


@cache
def commit() -> str:
    """Return `<40 digits>`, or `<40 digits>+changes` for a changed checkout.

    Return an empty text if orch was installed from a package. Files unknown to git count as
    changes.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        return _checked_out(root)
    return str(origin().get("vcs_info", {}).get("commit_id", ""))


def versions() -> dict[str, str]:
    """Return the version of Python and of each numerical library that this process has imported."""
    versions_ = {name: getattr(sys.modules.get(name), "__version__", "") for name in _COMPUTING}
    return {"python": platform.python_version()} | {n: str(v) for n, v in versions_.items() if v}


def _checked_out(root: Path) -> str:
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--", *_PACKAGES])
    answers = git_answers(root, commands)
    return answers[0] + (CHANGED if answers[1] else "") if answers else ""


def git_answers(folder: Path, commands: Iterable[Sequence[str]]) -> list[str]:
    """Return the output of git commands in a folder. Return [] if one fails, or without git."""
    git = shutil.which("git")
    if git is None:
        return []
    answers = []
    for arguments in commands:
        try:
            done = processes.finished(
                [git, "-C", str(folder), *arguments],
                _SECONDS,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        if done.returncode != 0:
            return []
        answers.append(done.stdout.strip())
    return answers
